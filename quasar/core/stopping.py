"""How much of a step is kept: a text ends inside a block exactly where plain decoding would have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quasar.core.sampling import SamplingParams
from quasar.core.types import Verification

_MARGIN = 8


@dataclass(frozen=True, slots=True)
class NewTokens:
    """What a step adds to one request.

    Attributes:
        row: of the request in its batch.
        token_ids: accepted draft tokens, then the correction or bonus token.
        slots: the slot that each token follows; what the verifier says of it stands there.
        verification: of this step.
    """

    row: int
    token_ids: list[int]
    slots: list[int]
    verification: Verification

    def first(self, count: int) -> NewTokens:
        """Return the first ``count`` tokens."""
        return replace(self, token_ids=self.token_ids[:count], slots=self.slots[:count])

    def logits(self) -> Tensor:
        """Return what the model said of these places before every processor, ``[tokens, vocab]``, float32 or float64.

        They are log-probabilities where there is no model.
        """
        said = self.verification
        every = said.probs[self.row].log() if said.logits is None else said.logits[self.row]
        wanted = every[self.slots]
        return wanted if wanted.dtype == torch.float64 else wanted.float()


class StopRule:
    """Says how many tokens of a step are kept, and why a request ends.

    A rule with more to say, e.g. of a verifier in doubt, is a subclass. A running request asks its rule before a token
    is appended, so that nothing is ever taken back.

    Attributes:
        limit: most new tokens.

    Args:
        sampling: ``max_new_tokens``, ``stop``, ``stop_token_ids`` and ``ignore_eos`` are read.
        eos_ids: ids that end a text.
        prompt_length: tokens of the prompt.
        max_length: longest sequence of the model, ``None`` for no limit.
        decode: ids to text, special tokens kept; only called when there are stop strings.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        eos_ids: Sequence[int],
        prompt_length: int,
        max_length: int | None,
        decode: Callable[[Sequence[int]], str] | None,
    ) -> None:
        room = None if max_length is None else max_length - prompt_length
        self.limit = sampling.max_new_tokens if room is None else min(sampling.max_new_tokens, room)
        self._limit_reason = "length" if self.limit == sampling.max_new_tokens else "capacity"
        self._eos = frozenset() if sampling.ignore_eos else frozenset(eos_ids)
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._stop, self._decode = sampling.stop, decode
        # A character is at most four byte-level tokens, so a stop string that ends here began within this window.
        self._window = 4 * max((len(text) for text in sampling.stop), default=0) + _MARGIN

    def cut(self, output: Sequence[int], new: NewTokens) -> tuple[int, str | None]:
        """Return how many of the ``new`` tokens are kept after ``output``, and why the request ends, if it does."""
        tokens = new.token_ids
        for count, token in enumerate(tokens, start=1):
            if token in self._eos:
                return count, "eos"
            if token in self._stop_ids:
                return count, "stop"
            if self._stop and self._hits([*output[-self._window :], *tokens[:count]][-self._window :]):
                return count, "stop"
            if len(output) + count >= self.limit:
                return count, self._limit_reason
        return len(tokens), None

    def _hits(self, window: Sequence[int]) -> bool:
        assert self._decode is not None
        text = self._decode(window)
        return any(stop in text for stop in self._stop)
