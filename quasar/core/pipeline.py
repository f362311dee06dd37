"""A pipeline that is loaded and ready: text or ids in, text and counts out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quasar.core.composition import Composition, compose
from quasar.core.config import PipelineSpec, validate
from quasar.core.context import Context, Row, TokenView
from quasar.core.engine import Engine, Request
from quasar.core.errors import ConfigError
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft, Generation, StepRecord


@dataclass(frozen=True, slots=True)
class Output:
    """A finished text.

    Attributes:
        text: the new text, special tokens left out.
        generation: ids, finish reason, step records and counts.
    """

    text: str
    generation: Generation


class Pipeline:
    """A drafter, a verifier and an acceptor over a loaded model.

    Made by ``load_pipeline``; several pipelines of one run share their models.

    Attributes:
        composition: the components and what is promised of them.
        tokenizer: text to ids and back.
        eos_ids: ids that end a text.

    Args:
        composition: what to run; its components are loaded here.
        models: hands out weights.
        tokenizer: see above.
        eos_ids: see above.
    """

    def __init__(self, composition: Composition, models: Any, tokenizer: Any, eos_ids: Sequence[int]) -> None:
        self.composition, self.tokenizer, self.eos_ids = composition, tokenizer, tuple(eos_ids)
        for component in (composition.drafter, composition.verifier, composition.acceptor):
            component.load(models)
        self._clock = device_clock(models.device)

    def requests(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingParams, prompt_ids: Sequence[str], sample_index: int
    ) -> list[Request]:
        """Return requests with their logits processors built."""
        from quasar.core.hf.processors import build_processors

        return [
            Request(ids, sampling, name, sample_index, build_processors(sampling, len(ids), self.eos_ids))
            for ids, name in zip(prompts, prompt_ids, strict=True)
        ]

    def run(
        self,
        requests: Sequence[Request],
        listener: Callable[[int, list[int]], None] | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> list[Generation]:
        """Run prepared requests as one batch; what ``generate`` and the comparison are made of."""
        parts = self.composition
        engine = Engine(
            parts.drafter,
            parts.verifier,
            parts.acceptor,
            eos_ids=self.eos_ids,
            decode=lambda ids: str(self.tokenizer.decode(ids, skip_special_tokens=False)),
            on_step=on_step,
            clock=self._clock,
        )
        return engine.generate(requests, listener)

    def generate(
        self,
        prompts: str | Sequence[str],
        sampling: SamplingParams | None = None,
        *,
        chat: bool | None = None,
        on_text: Callable[[str], None] | None = None,
        **parameters: Any,
    ) -> Any:
        """Continue one prompt or a batch of prompts.

        Args:
            prompts: a text, or several; several run as one batch.
            sampling: parameters; or give them by keyword, e.g. ``temperature=0.7, max_new_tokens=64``.
            chat: lay each prompt out as a user's message in the model's chat template; the default is to do so if
                the model has one.
            on_text: called with pieces of text as they become final; for a single prompt.
            parameters: fields of ``SamplingParams``.

        Returns:
            An ``Output`` for a text, a list of them for several.

        Raises:
            ConfigError: a parameter is wrong, or ``on_text`` with a batch.
            CapacityError: a prompt is longer than the model.
        """
        from quasar.core.hf.tokenizer import TextStream

        single = isinstance(prompts, str)
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if on_text is not None and not single:
            raise ConfigError("on_text: streaming takes a single prompt, not a batch.")
        chosen = sampling or validate(SamplingParams, parameters, "generate")
        self.composition.acceptor.check(chosen)
        use_chat = self.tokenizer.has_chat_template if chat is None else chat
        ids = [
            self.tokenizer.render([{"role": "user", "content": text}]) if use_chat else self.tokenizer.encode(text)
            for text in texts
        ]
        stream = TextStream(self.tokenizer)

        def listener(row: int, new: list[int]) -> None:
            if on_text is not None and (piece := stream.push(new)):
                on_text(piece)

        requests = self.requests(ids, chosen, [str(index) for index in range(len(ids))], 0)
        finished = self.run(requests, listener if on_text is not None else None)
        if on_text is not None and (rest := stream.finish()):
            on_text(rest)
        outputs = [Output(self.tokenizer.decode(done.token_ids), done) for done in finished]
        return outputs[0] if single else outputs

    @torch.inference_mode()
    def next_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the verifier's logits after ``ids``, from a forward of its own, ``[vocab]`` float."""
        row = Row(TokenView(list(ids)), len(ids), "", 0, SamplingParams.model_validate({"max_new_tokens": 1}))
        verification = self.composition.verifier.verify(Context((row,), Streams([(0, "", 0)])), Draft.empty(1))
        logits = verification.logits if verification.logits is not None else verification.probs.log()
        return logits[0, 0].float()


def device_clock(device: str) -> Callable[[], float]:
    """Return a clock in seconds that waits for work queued on ``device``."""
    if not str(device).startswith("cuda"):
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def choose_device(device: str) -> str:
    """Resolve ``auto`` and refuse a device that is not there.

    Raises:
        ConfigError: naming the device.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device: 'cuda' was asked for, and torch sees no CUDA device; use 'cpu' or 'auto'.")
    return device


def load_pipeline(
    model: str = "smollm2-135m",
    *,
    drafter: str | Mapping[str, Any] = "ngram",
    verifier: str | Mapping[str, Any] = "full",
    acceptor: str | Mapping[str, Any] = "stochastic",
    exact: bool = False,
    sampling: SamplingParams | None = None,
    device: str = "auto",
    plugins: Sequence[str | Path] = (),
    quiet: bool = False,
) -> Pipeline:
    """Compose and load a pipeline.

    Args:
        model: a built-in name (fetched on first use), a folder, or a hub id.
        drafter: a name, or a mapping with ``use`` and options, as in YAML.
        verifier: the same.
        acceptor: the same.
        exact: refuse a pipeline whose output does not follow its verifier's law exactly.
        sampling: checked against the components now instead of at the first ``generate``.
        device: ``auto``, ``cpu`` or ``cuda``.
        plugins: local Python files with hooks.
        quiet: no progress bars.

    Example:
        >>> pipeline = load_pipeline(drafter={"use": "ngram", "num_speculative_tokens": 8})
        >>> print(pipeline.generate("Name three colours.", max_new_tokens=32).text)

    Raises:
        QuasarError: one of its kinds, in one line.
    """
    from quasar.core.hf import loading
    from quasar.core.plugins import load_registry

    registry = load_registry([Path(file) for file in plugins])
    raw = {"drafter": drafter, "verifier": verifier, "acceptor": acceptor, "exact": exact}
    spec = validate(PipelineSpec, raw, "load_pipeline")
    composition = compose(spec, registry, sampling or SamplingParams(), "load_pipeline")
    source = loading.find_model(model, registry.model(model), quiet)
    models = loading.LoadedModels(source, choose_device(device))
    tokenizer = loading.load_tokenizer(source)
    return Pipeline(composition, models, tokenizer, loading.eos_token_ids(source, tokenizer))
