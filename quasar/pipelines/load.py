"""From names to a pipeline that is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from quasar.core.config import PipelineSpec, validate
from quasar.core.sampling import SamplingParams
from quasar.pipelines.composition import compose
from quasar.pipelines.open_model import open_model
from quasar.pipelines.pipeline import Pipeline
from quasar.plugins.registry import Registry, load_registry


def load_pipeline(
    model: str = "smollm2-135m",
    *,
    drafter: str | Mapping[str, object] = "ngram",
    verifier: str | Mapping[str, object] = "full",
    acceptor: str | Mapping[str, object] = "stochastic",
    exact: bool = False,
    sampling: SamplingParams | None = None,
    device: str = "auto",
    plugins: Sequence[str | Path] = (),
    quiet: bool = False,
    registry: Registry | None = None,
) -> Pipeline:
    """Compose and load a pipeline.

    Args:
        model: a built-in name (fetched on first use), a folder, or a hub id.
        drafter: a name, or a mapping with ``use`` and options, as in YAML.
        verifier: the same.
        acceptor: the same.
        exact: refuse a pipeline whose output does not follow its verifier's distribution exactly.
        sampling: checked against the components now instead of at the first ``generate``.
        device: ``auto``, ``cpu`` or ``cuda``.
        plugins: local Python files with hooks.
        quiet: no progress bars.
        registry: what is installed, from ``load_registry``; looked up if left out.

    Example:
        >>> pipeline = load_pipeline(drafter={"use": "ngram", "num_speculative_tokens": 8})
        >>> print(pipeline.generate("Name three colours.", max_new_tokens=32).text)

    Raises:
        QuasarError: one of its kinds, in one line.
    """
    installed = (registry or load_registry()).with_files([Path(file) for file in plugins])
    raw = {"drafter": drafter, "verifier": verifier, "acceptor": acceptor, "exact": exact}
    spec = validate(PipelineSpec, raw, "load_pipeline")
    composition = compose(spec, installed, sampling or SamplingParams(), "load_pipeline")
    return open_model(model, installed, device, quiet).pipeline(composition)
