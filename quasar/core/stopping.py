"""When a request ends: at any place inside a block, exactly where plain decoding would have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quasar.core.sampling import SamplingParams

_MARGIN = 8


class StopRule:
    """The stop rules of one request.

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

    def cut(self, output: Sequence[int], new: Sequence[int]) -> tuple[int, str | None]:
        """Return how many of the ``new`` tokens are kept after ``output``, and why the request ends, if it does."""
        for count, token in enumerate(new, start=1):
            if token in self._eos:
                return count, "eos"
            if token in self._stop_ids:
                return count, "stop"
            if self._stop and self._hits([*output[-self._window :], *new[:count]][-self._window :]):
                return count, "stop"
            if len(output) + count >= self.limit:
                return count, self._limit_reason
        return len(new), None

    def _hits(self, window: Sequence[int]) -> bool:
        assert self._decode is not None
        text = self._decode(window)
        return any(stop in text for stop in self._stop)
