"""A pipeline that is loaded and ready: text or ids in, text and counts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack, overload

from torch import Tensor

from quasar.core.clock import device_clock
from quasar.core.config import validate
from quasar.core.context import Context
from quasar.core.engine import Engine, Request
from quasar.core.errors import ConfigError
from quasar.core.providers import ChatCodec, ModelProvider
from quasar.core.records import Generation, StepRecord
from quasar.core.sampling import SamplingOptions, SamplingParams
from quasar.pipelines.composition import Composition
from quasar.pipelines.output import Output, Stream

UserProcessor = Callable[[Tensor, Tensor], Tensor]
"""A pure function of (prefixes ``[n, length]``, logits ``[n, vocab]``) that returns logits of the same shape."""


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

    def __init__(
        self, composition: Composition, models: ModelProvider, tokenizer: ChatCodec, eos_ids: Sequence[int]
    ) -> None:
        self.composition, self.tokenizer, self.eos_ids = composition, tokenizer, tuple(eos_ids)
        for component in (composition.drafter, composition.verifier, composition.acceptor):
            component.load(models)
        composition.drafter.attach_verifier(composition.verifier)
        self._clock = device_clock(models.device)

    def requests(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        prompt_names: Sequence[str],
        sample_index: int = 0,
        logits_processors: Sequence[UserProcessor] = (),
    ) -> list[Request]:
        """Return requests with their logits processors built.

        Args:
            prompts: ids of each prompt.
            sampling: parameters for all, or for each.
            prompt_names: names in the random streams.
            sample_index: which sample of each.
            logits_processors: the user's own pure functions of (prefixes ``[n, length]``, logits ``[n, vocab]``).

        Raises:
            ConfigError: a token id outside the vocabulary, or a processor that is not a pure function.
            CompositionError: parameters that the acceptor cannot serve.
        """
        from quasar.hf.processors import build_processors, refuse_impure

        vocab_size = self.composition.verifier.vocab_size()
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        for params in each:
            self.composition.acceptor.check(params)
            if vocab_size is not None and params.largest_token_id() >= vocab_size:
                raise ConfigError(
                    f"sampling: token id {params.largest_token_id()} is outside the model's vocabulary of {vocab_size}."
                )
        for processor in logits_processors:
            refuse_impure(processor, vocab_size or 16)
        return [
            Request(ids, params, name, sample_index,
                    build_processors(params, len(ids), self.eos_ids, logits_processors))
            for ids, params, name in zip(prompts, each, prompt_names, strict=True)
        ]  # fmt: skip

    def engine(self, on_step: Callable[[StepRecord], None] | None = None) -> Engine:
        """Return an engine over this pipeline's components."""
        parts = self.composition
        return Engine(
            parts.drafter,
            parts.verifier,
            parts.acceptor,
            eos_ids=self.eos_ids,
            decode=lambda ids: self.tokenizer.decode(ids, skip_special_tokens=False),
            on_step=on_step,
            clock=self._clock,
        )

    def run(
        self,
        requests: Sequence[Request],
        listener: Callable[[int, list[int]], None] | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> list[Generation]:
        """Run prepared requests as one batch; what ``generate`` and the comparison are made of."""
        return self.engine(on_step).generate(requests, listener)

    @overload  # a text is a sequence of texts too: the first signature that fits is meant
    def generate(  # type: ignore[overload-overlap]
        self,
        prompts: str,
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat: bool | None = None,
        logits_processors: Sequence[UserProcessor] = (),
        on_text: Callable[[str], object] | None = None,
        **parameters: Unpack[SamplingOptions],
    ) -> Output: ...
    @overload
    def generate(
        self,
        prompts: Sequence[str],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat: bool | None = None,
        logits_processors: Sequence[UserProcessor] = (),
        **parameters: Unpack[SamplingOptions],
    ) -> list[Output]: ...
    def generate(
        self,
        prompts: str | Sequence[str],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat: bool | None = None,
        logits_processors: Sequence[UserProcessor] = (),
        on_text: Callable[[str], object] | None = None,
        **parameters: Unpack[SamplingOptions],
    ) -> Output | list[Output]:
        """Continue one prompt or a batch of prompts.

        Args:
            prompts: a text, or several; several run as one batch.
            sampling: parameters, for all or for each; or give them by keyword, e.g. ``temperature=0.7``.
            chat: lay each prompt out as a user's message in the model's chat template; the default is to do so if
                the model has one.
            logits_processors: pure functions of (prefixes ``[n, length]``, logits ``[n, vocab]``), applied at every
                place of a block with the prefix of that place.
            on_text: called with pieces of text as they become final; for a single prompt.
            parameters: fields of ``SamplingParams``.

        Returns:
            An ``Output`` for a text, a list of them for several.

        Raises:
            ConfigError: a parameter is wrong, or ``on_text`` with a batch.
            CapacityError: a prompt is longer than the model.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if on_text is not None:
            if not isinstance(prompts, str):
                raise ConfigError("on_text: streaming takes a single prompt, not a batch.")
            stream = self.stream(prompts, sampling, chat=chat, logits_processors=logits_processors, **parameters)
            for piece in stream:
                on_text(piece)
            assert stream.output is not None  # it is whole once the pieces have come
            return stream.output
        chosen = sampling if sampling is not None else validate(SamplingParams, parameters, "generate")
        names = [str(index) for index in range(len(texts))]
        ids = [self._prompt(text, chat) for text in texts]
        finished = self.run(self.requests(ids, chosen, names, 0, logits_processors))
        outputs = [Output(self.tokenizer.decode(done.token_ids), done) for done in finished]
        return outputs[0] if isinstance(prompts, str) else outputs

    def stream(
        self,
        prompt: str,
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat: bool | None = None,
        logits_processors: Sequence[UserProcessor] = (),
        **parameters: Unpack[SamplingOptions],
    ) -> Stream:
        """Continue one prompt, piece by piece: iterate over the result for text; arguments as for ``generate``."""
        chosen = sampling if sampling is not None else validate(SamplingParams, parameters, "stream")
        requests = self.requests([self._prompt(prompt, chat)], chosen, ["0"], 0, logits_processors)
        return Stream(self.engine(), requests, self.tokenizer)

    def conversation(
        self, sampling: SamplingParams | None = None, **parameters: Unpack[SamplingOptions]
    ) -> Conversation:
        """Return a conversation, in the model's chat template, that keeps its cache from turn to turn."""
        return Conversation(self, sampling or validate(SamplingParams, parameters, "conversation"))

    def _prompt(self, text: str, chat: bool | None) -> list[int]:
        use_chat = self.tokenizer.has_chat_template if chat is None else chat
        return self.tokenizer.render([{"role": "user", "content": text}]) if use_chat else self.tokenizer.encode(text)


class Conversation:
    """Several turns; what they have in common with the turns before is not forwarded again.

    Made by ``Pipeline.conversation``.

    Attributes:
        messages: what was said, as ``role`` and ``content``.

    Args:
        pipeline: answers.
        sampling: parameters of every answer.
    """

    def __init__(self, pipeline: Pipeline, sampling: SamplingParams) -> None:
        self._pipeline, self._sampling = pipeline, sampling
        self._context: Context | None = None
        self.messages: list[dict[str, str]] = []

    def say(self, text: str) -> Output:
        """Add a user's message and return the answer."""
        pipeline, turn = self._pipeline, len(self.messages) // 2
        self.messages.append({"role": "user", "content": text})
        ids = pipeline.tokenizer.render(self.messages)
        engine = pipeline.engine()
        batch = engine.start(pipeline.requests([ids], self._sampling, [f"turn {turn}"]))
        if self._context is not None:
            batch.go_on_from(self._context)
        while not batch.finished:
            engine.step(batch)
        self._context = batch.context
        [done] = batch.generations()
        answer = pipeline.tokenizer.decode(done.token_ids)
        self.messages.append({"role": "assistant", "content": answer})
        return Output(answer, done)
