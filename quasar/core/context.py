"""What a component may see: the requests, what is committed, and the last verification. All of it read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, overload

from torch import Tensor

from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft, Verification

State = TypeVar("State")


class LogitsProcessor(Protocol):
    """A pure function of a prefix and the logits after it.

    ``needs_prefix`` is False for a processor that looks at the logits alone; those run once for all slots.
    """

    needs_prefix: bool

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Return processed logits ``[n, vocab]`` for prefixes ``[n, length]``."""
        ...


class TokenView(Sequence[int]):
    """A growing list of token ids that cannot be changed through this view; slices are new lists."""

    __slots__ = ("_ids",)

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._ids[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __repr__(self) -> str:
        return f"TokenView({self._ids})"


@dataclass(frozen=True, slots=True)
class Row:
    """One request of the batch.

    Attributes:
        token_ids: committed ids, prompt and output; the last one is slot 0 of the next draft.
        prompt_length: how many of them are the prompt.
        prompt_id: names the prompt; with the seed and ``sample_index`` it selects the random streams.
        sample_index: which of several samples of this prompt.
        sampling: the request's own parameters.
        processors: the logits processors that those parameters ask for, in order.
    """

    token_ids: TokenView
    prompt_length: int
    prompt_id: str
    sample_index: int
    sampling: SamplingParams
    processors: tuple[LogitsProcessor, ...] = ()


@dataclass(slots=True)
class Context:
    """The view of a running batch that components get. The engine alone changes it.

    Attributes:
        rows: one entry per request; rows that have finished stay, with a budget of 0.
        streams: keys of the random numbers.
        level: 0 for the outermost pipeline.
        verification: the last step's verification with the logits of *all* its nodes; ``None`` before the first.
    """

    rows: tuple[Row, ...]
    streams: Streams
    level: int = 0
    verification: Verification | None = None
    _scratch: dict[int, Any] = field(default_factory=dict, repr=False)

    @property
    def batch(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def scratch(self, owner: object, make: Callable[[], State]) -> State:
        """Return ``owner``'s state for this batch of requests, made by ``make`` on first use.

        State that lives here dies with the requests, so nothing leaks from one prompt into the next.
        """
        found = self._scratch.get(id(owner))
        if found is None:
            # The owner is kept beside its state: an id is only unique among objects that are alive.
            found = self._scratch[id(owner)] = (owner, make())
        state: State = found[1]
        return state

    def committed(self) -> Tensor:
        """Return the committed length of every row, ``[batch]`` int64."""
        from torch import tensor

        return tensor([len(row.token_ids) for row in self.rows])

    def law(self, logits: Tensor, draft: Draft) -> Tensor:
        """Turn logits into laws; the one function for both sides, see ``quasar.core.laws.law``."""
        from quasar.core.laws import law

        return law(logits, draft, self.rows)
