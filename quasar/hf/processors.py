"""Sampling parameters as logits processors, transformers' own where they fit, in the order that it applies them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from quasar.core.errors import ConfigError
from quasar.core.rows import LogitsProcessor
from quasar.core.sampling import SamplingParams

CustomProcessor = Callable[[Tensor, Tensor], Tensor]
"""A user's processor: prefixes ``[n, length]`` and logits ``[n, vocab]`` in, logits out; a pure function."""


class Wrapped:
    """A processor of transformers, or of a user.

    Args:
        processor: called with ``(input_ids, scores)``.
        needs_prefix: whether it looks at ``input_ids``.
    """

    def __init__(self, processor: Any, needs_prefix: bool) -> None:
        self._processor, self.needs_prefix = processor, needs_prefix

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Return processed logits ``[n, vocab]``."""
        return self._processor(prefix, logits)  # type: ignore[no-any-return]


class MinNewTokens:
    """Forbids EOS while the output is shorter than ``minimum``; the length is that of the prefix it is shown.

    Own code because transformers' class counts from the ``input_ids`` of one fixed call, not of each place in a block.

    Args:
        prompt_length: tokens of the prompt.
        minimum: new tokens before EOS may come.
        eos_ids: ids that end a text.
    """

    needs_prefix = True

    def __init__(self, prompt_length: int, minimum: int, eos_ids: Sequence[int]) -> None:
        self._until, self._eos_ids = prompt_length + minimum, list(eos_ids)

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Return logits with EOS at −inf where the output is too short."""
        if prefix.shape[1] >= self._until:
            return logits
        return logits.index_fill(1, torch.tensor(self._eos_ids, device=logits.device), -torch.inf)


class OutputPenalty:
    """Presence and frequency penalties: they count the output only, up to the place that is being drawn.

    Source: OpenAI's API reference, as in vLLM; transformers has neither.

    Args:
        prompt_length: tokens of the prompt, which do not count.
        presence: taken off once for a token that the output has.
        frequency: taken off once for each time.
    """

    needs_prefix = True

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        self._prompt_length, self._presence, self._frequency = prompt_length, presence, frequency

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Return logits with the penalties taken off."""
        output = prefix[:, self._prompt_length :]
        counts = torch.zeros_like(logits).scatter_add_(1, output, torch.ones_like(output, dtype=logits.dtype))
        return logits - self._frequency * counts - self._presence * (counts > 0)


def build_processors(
    params: SamplingParams, prompt_length: int, eos_ids: Sequence[int], custom: Sequence[CustomProcessor] = ()
) -> tuple[LogitsProcessor, ...]:
    """Return the processors of a request.

    Args:
        params: the request's parameters; only those that differ from "off" make a processor.
        prompt_length: tokens of the prompt.
        eos_ids: ids that end a text.
        custom: the user's own, applied after the penalties and before the temperature, as in transformers.
    """
    prefixed: list[Any] = []
    if params.logit_bias:
        prefixed.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in params.logit_bias]))
    if params.repetition_penalty != 1.0:
        prefixed.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.presence_penalty or params.frequency_penalty:
        prefixed.append(OutputPenalty(prompt_length, params.presence_penalty, params.frequency_penalty))
    if params.no_repeat_ngram_size:
        prefixed.append(NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size))
    if params.bad_words_ids:
        prefixed.append(NoBadWordsLogitsProcessor([list(word) for word in params.bad_words_ids]))
    ends = [*([] if params.ignore_eos else eos_ids), *params.stop_token_ids]
    if params.min_new_tokens and ends:
        prefixed.append(MinNewTokens(prompt_length, params.min_new_tokens, ends))
    if params.suppress_tokens:
        prefixed.append(SuppressTokensLogitsProcessor(list(params.suppress_tokens)))
    return (
        *(Wrapped(processor, needs_prefix=True) for processor in [*prefixed, *map(_on_a_copy, custom)]),
        *(Wrapped(warper, needs_prefix=False) for warper in _warpers(params)),
    )


def _warpers(params: SamplingParams) -> list[Any]:
    if params.temperature == 0:
        return []  # they keep the most likely token, and that is all that counts
    found: list[Any] = []
    if params.temperature != 1.0:
        found.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        found.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        found.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        found.append(MinPLogitsWarper(params.min_p))
    return found


def _on_a_copy(processor: CustomProcessor) -> CustomProcessor:
    """Let a processor write into the logits that it gets, as many do; what it is given are the model's own."""
    return lambda prefix, logits: processor(prefix, logits.clone())


def refuse_impure(processor: CustomProcessor, vocab_size: int) -> None:
    """Refuse a processor that is not a pure function of prefix and logits.

    In a block the places are scored in one go and most prefixes never come true, so a processor that remembers its
    calls would remember texts that were never written.

    Args:
        processor: the user's.
        vocab_size: of the target model.

    Raises:
        ConfigError: it changes its attributes, or answers a repeated question differently, or changes the shape.
    """
    name = getattr(processor, "__name__", type(processor).__name__)
    logits = torch.linspace(-4, 4, vocab_size).repeat(1, 1)
    prefixes = [torch.arange(length).remainder(vocab_size)[None] for length in (3, 5)]
    owner = getattr(processor, "__self__", processor)  # of a bound method
    before = repr(getattr(owner, "__dict__", None))
    first, other, again = (processor(prefixes[i], logits.clone()) for i in (0, 1, 0))
    for answer in (first, other):
        if not isinstance(answer, Tensor) or answer.shape != logits.shape:
            got = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise ConfigError(f"logits processor '{name}' should return logits {list(logits.shape)}, got {got}.")
    if repr(getattr(owner, "__dict__", None)) != before:
        raise ConfigError(f"logits processor '{name}' changes its own attributes when called; it must be pure.")
    if not torch.equal(first, again):
        raise ConfigError(f"logits processor '{name}' answers the same prefix differently the second time.")
