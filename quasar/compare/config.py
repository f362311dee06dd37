"""What a comparison is made of, read from YAML and checked as a whole before a weight is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from quasar.compare.preset_files import read_preset
from quasar.core.components import FULL
from quasar.core.config import PipelineSpec, apply_overrides, read_yaml, validate
from quasar.core.errors import ConfigError, did_you_mean
from quasar.core.sampling import SamplingParams
from quasar.pipelines.composition import Composition, compose
from quasar.plugins.registry import Registry, load_registry
from quasar.prompts.questions import BUNDLED, Question
from quasar.prompts.sources import load_sources


class DataConfig(BaseModel):
    """Which prompts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        BUNDLED, description="'bundled', a JSONL file in the Spec-Bench form, or a list of them, each a task."
    )
    limit: int | None = Field(None, ge=1, description="The first N prompts of each task; all if left out.")


class ScoringConfig(BaseModel):
    """How answers are scored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_code: bool = Field(
        False, description="Run generated code under HumanEval's tests: with limits, but not safe from malice."
    )
    seconds: float = Field(10.0, gt=0, le=600, description="Most seconds for the tests of one answer.")


class Published(BaseModel):
    """Figures of a paper for an arm, shown beside ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    speedup: float = Field(gt=0, description="Over plain decoding in full precision.")
    acceptance_length: float = Field(gt=0, description="Tokens a verifier forward.")


class RunConfig(BaseModel):
    """A comparison as written in YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1, description="A built-in name, a folder, or a hub id.")
    sampling: SamplingParams = Field(SamplingParams(), description="Sampling parameters, the same for every arm.")
    data: DataConfig = Field(DataConfig(), description="Prompts.")
    pipelines: dict[str, PipelineSpec] = Field(min_length=1, description="The arms, by name.")
    baseline: str | None = Field(None, description="Speedups are relative to this arm; default: plain full precision.")
    repeats: int = Field(1, ge=1, le=100, description="How often every prompt is run by every arm.")
    chat_template: Literal["auto", "off"] = Field("auto", description="Lay prompts out as a conversation, or not.")
    ignore_eos: bool = Field(False, description="Run every answer to max_new_tokens.")
    device: str = Field("auto", description="'auto', 'cpu' or 'cuda'.")
    scoring: ScoringConfig | None = Field(None, description="Score answers against the data's gold answers.")
    plugins: tuple[str, ...] = Field((), description="Python files with hooks, relative to this file.")
    published: dict[str, Published] = Field({}, description="Published figures by arm, shown beside ours.")

    @field_validator("pipelines", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {str(name): {} if spec is None else spec for name, spec in value.items()}
        return value

    @field_validator("chat_template", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return {False: "off", True: "auto"}.get(value, value) if isinstance(value, bool) else value  # YAML 1.1 booleans


@dataclass(frozen=True, slots=True)
class Arm:
    """One pipeline of a comparison.

    Attributes:
        name: its key in the file.
        composition: its components.
        reference: the plain arm with the same verifier: what its text is compared with.
    """

    name: str
    composition: Composition
    reference: str


@dataclass(frozen=True, slots=True)
class Run:
    """A comparison that was checked; only weights are missing.

    Attributes:
        config: as written, overrides applied.
        arms: in the file's order, with the plain baselines that were added.
        baseline: name of the arm that speedups are relative to.
        added: names of the arms that were not in the file.
        questions: the prompts.
        registry: the plugins.
        where: the file or preset.
    """

    config: RunConfig
    arms: tuple[Arm, ...]
    baseline: str
    added: tuple[str, ...]
    questions: tuple[Question, ...]
    registry: Registry
    where: str

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters with the run's ``ignore_eos`` folded in."""
        chosen = self.config.sampling
        return chosen.model_copy(update={"ignore_eos": True}) if self.config.ignore_eos else chosen

    def arm(self, name: str) -> Arm:
        """Return an arm by name."""
        return next(arm for arm in self.arms if arm.name == name)

    def as_yaml(self) -> dict[str, Any]:
        """Every setting with its value, defaults included; two runs that may share a folder have the same."""
        return {
            "model": self.config.model,
            "sampling": self.sampling.model_dump(mode="json"),
            "data": self.config.data.model_dump(mode="json"),
            "pipelines": {arm.name: arm.composition.as_yaml() for arm in self.arms},
            "baseline": self.baseline,
            "repeats": self.config.repeats,
            "chat_template": self.config.chat_template,
            "device": self.config.device,
        }


def load_run(
    file: Path | None = None,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    limit: int | None = None,
    source: str | Sequence[str] | None = None,
    with_data: bool = True,
    registry: Registry | None = None,
) -> Run:
    """Read and check a comparison.

    Args:
        file: a YAML file; or
        preset: the name of a preset.
        overrides: ``KEY=VALUE`` with dotted keys; they beat the file.
        limit: prompts per task; beats the file.
        source: data source or several; beats the file.
        with_data: read the prompts too.
        registry: what is installed, from ``load_registry``; looked up if left out.

    Raises:
        QuasarError: the first mistake found, in one line.
    """
    where = str(file) if file is not None else f"preset '{preset}'"
    raw = read_yaml(file) if file is not None else read_preset(str(preset))
    raw = apply_overrides(raw, overrides)
    config = validate(RunConfig, raw, where)
    base = file.parent if file is not None else None
    registry = (registry or load_registry()).with_files([_resolve(name, base) for name in config.plugins])
    arms, added = _arms(config, registry, where)
    baseline = _baseline(config, arms, where)
    for name in config.published.keys() - config.pipelines.keys():
        raise ConfigError(f"{where}: published: no arm '{name}'.{did_you_mean(name, config.pipelines)}")
    if source is not None and not isinstance(source, str):
        source = source[0] if len(source) == 1 else tuple(source)
    chosen = config.data.model_copy(
        update={key: value for key, value in (("limit", limit), ("source", source)) if value is not None}
    )
    config = config.model_copy(update={"data": chosen})
    # A source given on the command line is relative to where the user stands, not to the file.
    questions = load_sources(chosen.source, chosen.limit, None if source is not None else base) if with_data else []
    return Run(config, arms, baseline, added, tuple(questions), registry, where)


def _resolve(name: str, base: Path | None) -> Path:
    path = Path(name).expanduser()
    return path if path.is_absolute() or base is None else base / path


def _arms(config: RunConfig, registry: Registry, where: str) -> tuple[tuple[Arm, ...], tuple[str, ...]]:
    """Compose every arm, and add the plain arms that are missing: full precision, and each verifier's own."""
    composed = {
        name: compose(spec, registry, config.sampling, f"{where}: pipelines.{name}")
        for name, spec in config.pipelines.items()
    }
    added: list[str] = []

    def add_plain(spec: PipelineSpec) -> None:
        plain = compose(spec, registry, config.sampling, where)
        if any(known.is_plain and _verifier(known) == _verifier(plain) for known in composed.values()):
            return
        name = "vanilla" if plain.verifier.precision == FULL else f"vanilla-{spec.verifier.use}"
        name = next(n for n in [name, *(f"{name}-{i}" for i in range(2, 1000))] if n not in composed)
        composed[name] = plain
        added.append(name)

    for spec in config.pipelines.values():
        add_plain(PipelineSpec(verifier=spec.verifier))
    if not any(known.is_plain and known.verifier.precision == FULL for known in composed.values()):
        add_plain(PipelineSpec())
    arms = []
    for name, composition in composed.items():
        same = (n for n, c in composed.items() if c.is_plain and _verifier(c) == _verifier(composition))
        arms.append(Arm(name, composition, next(same)))
    return tuple(arms), tuple(added)


def _verifier(composition: Composition) -> Any:
    return composition.as_yaml()["verifier"]


def _baseline(config: RunConfig, arms: Sequence[Arm], where: str) -> str:
    names = [arm.name for arm in arms]
    if config.baseline is not None:
        if config.baseline not in names:
            raise ConfigError(f"{where}: baseline: no arm '{config.baseline}'.{did_you_mean(config.baseline, names)}")
        return config.baseline
    return plain_full(arms).name


def plain_full(arms: Sequence[Arm]) -> Arm:
    """Return the first arm without drafts in full precision; ``_arms`` sees to it that there is one."""
    return next(arm for arm in arms if arm.composition.is_plain and arm.composition.verifier.precision == FULL)
