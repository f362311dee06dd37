"""What a component may see: the requests, what is committed, and the last verification. All of it read-only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from quasar.core.distributions import slot_distributions, target_distributions
from quasar.core.records import StepRecord
from quasar.core.rows import LogitsProcessor, Row, TokenView
from quasar.core.streams import Streams, draw, uniforms
from quasar.core.types import Draft, Verification

__all__ = ["Context", "LogitsProcessor", "Row", "TokenView"]

State = TypeVar("State")


@dataclass(slots=True)
class Context:
    """The view of a running batch that components get. The engine alone changes it.

    Attributes:
        rows: one entry per request; rows that have finished stay, with a budget of 0.
        streams: keys of the random numbers.
        level: 0 for the outermost pipeline.
        coupled: draft tokens are to be drawn with the target's noise; see ``draft_keys``.
        eos_ids: ids that end a text.
        verification: the last step's verification with the logits of *all* its nodes; ``None`` before the first.
        inner_steps: records of pipelines inside the drafter since the last step, each with the row that it is of.
    """

    rows: tuple[Row, ...]
    streams: Streams
    level: int = 0
    coupled: bool = False
    eos_ids: tuple[int, ...] = ()
    verification: Verification | None = None
    inner_steps: list[tuple[int, StepRecord]] = field(default_factory=list, repr=False)
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

    def adopt(self, other: Context, owner: object) -> None:
        """Take ``owner``'s state over from another context: a conversation goes on with the cache that it has."""
        if id(owner) in other._scratch:
            self._scratch[id(owner)] = other._scratch[id(owner)]

    def committed(self) -> Tensor:
        """Return the committed length of every row, ``[batch]`` int64."""
        return torch.tensor([len(row.token_ids) for row in self.rows])

    def draft_keys(self, nodes: Tensor, depths: Tensor) -> Tensor:
        """Return the keys for drawing draft tokens with ``quasar.core.draw``.

        Args:
            nodes: number of each draw in this step, no two alike in a row, ``[batch, n]`` int64.
            depths: depth of the slot that each token follows, 0 for the last committed token; broadcast to ``nodes``.

        Returns:
            ``[batch, n]`` int64: a stream of the drafter's own, or the target stream where the acceptor couples.
        """
        committed = self.committed()
        if self.coupled:
            return self.streams.target(committed[:, None] + depths.expand_as(nodes))
        return self.streams.own("draft", nodes, committed, self.level)

    def accept_uniforms(self, count: int) -> Tensor:
        """Return an acceptor's own random numbers for its tests of this step; every call begins with the same ones.

        No token is drawn with them, neither a draft nor one of the target, so a test with them is fair. Ask once a
        step, for as many as all its tests need.

        Args:
            count: numbers of each row, e.g. one for each trial.

        Returns:
            ``[batch, count]`` float64, above 0 and below 1.
        """
        numbers = torch.arange(count).expand(self.batch, count)
        return uniforms(self.streams.own("accept", numbers, self.committed(), self.level))

    def draw_next(self, distributions: Tensor, slots: Tensor) -> Tensor:
        """Draw the token after each row's path with noise of the acceptor's own; for rules that test sampled drafts.

        Args:
            distributions: what the token must follow given the tests that failed, e.g. a residual; need not be
                normalised. ``[batch, vocab]`` float.
            slots: the slot where the accepted path ends. ``[batch]`` int64.

        Returns:
            ``[batch]`` int64 on the host, for ``Acceptance.next_token``.
        """
        keys = self.streams.own("next", slots.cpu()[:, None], self.committed(), self.level)
        return draw(distributions, keys[:, 0]).cpu()

    def draw_target(self, distributions: Tensor, depths: Tensor) -> Tensor:
        """Draw what plain decoding draws there: with the target's noise, which belongs to a place of the text.

        For rules that compare drafts with this token, or look at probabilities only. A rule that tests drafts by random
        numbers uses ``draw_next``: drafts may have been drawn with the target's noise.

        Args:
            distributions: the target's after a slot of each row, ``[batch, vocab]`` float.
            depths: depth of those slots, i.e. accepted draft tokens up to there. ``[batch]`` int64.

        Returns:
            ``[batch]`` int64 on the host, for ``Acceptance.next_token``.
        """
        keys = self.streams.target((self.committed() + depths.cpu())[:, None])
        return draw(distributions, keys[:, 0]).cpu()

    def part(self, number: int) -> Context:
        """Return the view for one of several drafters inside a drafter: the same, with streams of its own.

        Two drafters with the same random numbers would draw siblings that depend on each other, which is biased.
        """
        return replace(self, streams=self.streams.part(number))

    def verification_of(self, draft: Draft, logits: Tensor) -> Verification:
        """Return the verification that a target's logits make.

        Args:
            draft: what is verified.
            logits: ``[batch, nodes + 1, vocab]``, row ``s`` following slot ``s``, before every processor.
        """
        return Verification(draft, target_distributions(logits, draft, self.rows), logits)

    def distributions(self, logits: Tensor, draft: Draft) -> Tensor:
        """Turn logits into distributions, target's or draft's: processors and temperature of every slot's own request.

        Args:
            logits: ``[batch, slots, vocab]``, any float dtype; row ``s`` follows the committed ids and the draft tokens
                on the path to slot ``s``.
            draft: gives those paths; its first ``slots - 1`` nodes are used.

        Returns:
            ``[batch, slots, vocab]`` float32, or float64 if the logits are.
        """
        return slot_distributions(logits, draft, self.rows)

    # Earlier names, which components of plugins may still use.
    judge = verification_of
    law = distributions
