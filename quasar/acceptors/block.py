"""Block verification: the whole draft is judged at once, from its leaves to its root."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quasar.acceptors.rules.exact import accept_exactly, drawn_from
from quasar.core.components import Acceptor
from quasar.core.context import Context
from quasar.core.distributions import residual
from quasar.core.types import Acceptance, Verification


class BlockVerification(Acceptor):
    """Lossless acceptance that judges a block as a whole: for sampled drafts never shorter on average.

    The ratio test gives up at the first token that the target finds too unlikely; here a later token that the target
    likes better than the draft did makes up for it. A point mass has probability 1, which no target distribution
    exceeds, so there is nothing to make up for: rows of point masses are sampled and compared as in ``stochastic``.

    Source: Sun et al., "Block verification accelerates speculative decoding", arXiv 2403.10444, Algorithm 2, for
    chains; for trees the same recursion from the leaves, Weng et al., "Traversal verification", arXiv 2505.12398.
    """

    name = "block"
    exact = True
    target_stream = True

    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the accepted path; committed tokens follow the verifier's distribution."""
        return accept_exactly(verification, context, traverse)


def traverse(verification: Verification, context: Context) -> Acceptance:
    """Accept a slot with the whole path to it, deepest slots first.

    A slot has a weight, the probability that it or something below it is accepted: min(1, weight · target ÷ draft
    distribution) of its parent's weight and distribution. Where a trial is rejected, its parent keeps the rest of its
    weight and the residual of its distribution, for the trials after it and at last for itself. The root's weight is 1,
    so it is accepted if nothing is.
    """
    draft, trials, probs = verification.draft, verification.draft.trials, verification.probs
    assert trials is not None
    state = _Traversal(verification)
    tests = context.accept_uniforms(trials.nodes.shape[1]).to(probs.device)
    orders = [_order(*row) for row in zip(trials.nodes.tolist(), draft.parents.tolist(), strict=True)]
    width = max(map(len, orders))
    for turn in torch.tensor([[*order, *[0] * (width - len(order))] for order in orders]).unbind(dim=1):
        state.turn(turn, tests)
    slots, parents = state.slot.tolist(), draft.parents.tolist()
    paths = [_path(slot, row) for slot, row in zip(slots, parents, strict=True)]
    padded = torch.tensor([[*path, *[0] * (draft.nodes - len(path))] for path in paths])
    distribution = state.distributions[torch.arange(draft.batch), state.slot]
    return Acceptance(padded, torch.tensor(list(map(len, paths))), context.draw_next(distribution, state.slot))


class _Traversal:
    """Weights and distributions of all slots while the trials are gone through, and the slot that was accepted."""

    def __init__(self, verification: Verification) -> None:
        self._draft, self._probs = verification.draft, verification.probs
        trials = verification.draft.trials
        assert trials is not None
        self._trials = trials
        self.distributions = self._probs.clone()  # [batch, nodes + 1, vocab]
        self._weights = torch.zeros_like(self._probs[..., 0])
        self._weights[:, 0] = 1
        self._open = torch.ones_like(self._weights[:, 0], dtype=torch.bool)
        self.slot = torch.zeros_like(self._open, dtype=torch.int64)

    def turn(self, turn: Tensor, tests: Tensor) -> None:
        """Enter a trial's node, or test it after all that is below it.

        Args:
            turn: number of the trial, from 1: positive to enter, negative to test, 0 for a row that has done.
                ``[batch]`` int64.
            tests: uniform numbers. ``[batch, trials]``
        """
        rows, trial = torch.arange(len(turn)), (turn.abs() - 1).clamp_min(0)
        node = (self._trials.nodes[rows, trial] - 1).clamp_min(0)
        slot, parent = node + 1, self._draft.parents[rows, node].where(turn != 0, 0)
        turn = turn.to(self._probs.device)
        drafted = drawn_from(self._draft, self._trials, trial, self._probs)
        distribution, weight = self.distributions[rows, parent], self._weights[rows, parent]
        token = self._draft.token_ids[rows, node].where(turn.cpu() != 0, 0).to(distribution.device)[:, None]
        ratio = entered(weight, distribution.gather(1, token)[:, 0], drafted.gather(1, token)[:, 0])
        enters, own = turn > 0, self._weights[rows, slot]
        passed = (turn < 0) & self._open & (tests[rows, trial] < own)
        self._weights[rows, slot] = torch.where(enters, ratio, own)
        self.distributions[rows, slot] = torch.where(
            enters[:, None], self._probs[rows, slot], self.distributions[rows, slot]
        )
        self.slot = torch.where(passed, slot.to(turn.device), self.slot)
        self._open = self._open & ~passed
        rejected = (turn < 0) & self._open
        left, after = rejected_trial(weight, distribution, drafted)
        self._weights[rows, parent] = torch.where(rejected, left, weight)
        self.distributions[rows, parent] = torch.where(rejected[:, None], after, distribution)


def entered(weight: Tensor, target_prob: Tensor, draft_prob: Tensor) -> Tensor:
    """Return a node's weight from its parent's and from the two probabilities of its token, all ``[batch]``."""
    return (weight * target_prob / draft_prob).clamp_max(1)


def rejected_trial(weight: Tensor, distribution: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a rejected trial leaves to its parent: weight ``[batch]`` and distribution ``[batch, vocab]``.

    Args:
        weight: of the parent before. ``[batch]``
        distribution: of the token after the parent, given the rejections so far. ``[batch, vocab]``
        drafted: what the rejected token was drawn from. ``[batch, vocab]``
    """
    wanted = weight[:, None] * distribution
    rest = (wanted - drafted).clamp_min(0).sum(dim=1)
    # Nothing is left only if the trial was certain to be accepted, or the weight was 0: then 0 is right.
    return rest / (rest + 1 - weight).clamp_min(torch.finfo(rest.dtype).tiny), residual(wanted, drafted)


def _order(nodes: Sequence[int], parents: Sequence[int]) -> list[int]:
    """Return the turns of one row: a trial is entered, what is below its node is gone through, then it is tested.

    A node that is tried twice has its children below the first trial only: once they were rejected they are known.

    Args:
        nodes: slot that each trial names, 0 for none.
        parents: slot of each node's parent.
    """
    below: dict[int, list[int]] = {}
    for trial, slot in enumerate(nodes, start=1):
        if slot:
            below.setdefault(parents[slot - 1], []).append(trial)
    turns: list[int] = []
    waiting = below.pop(0, [])[::-1]
    while waiting:
        trial = waiting.pop()
        turns.append(trial)
        if trial > 0:
            waiting.append(-trial)
            waiting += below.pop(nodes[trial - 1], [])[::-1]
    return turns


def _path(slot: int, parents: Sequence[int]) -> list[int]:
    """Return the slots from the root's child to ``slot``."""
    path: list[int] = []
    while slot:
        path.insert(0, slot)
        slot = parents[slot - 1]
    return path
