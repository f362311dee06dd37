"""The two exact ways down a tree of drafts: sample from the target and compare, or test each draft by its ratio.

Both walk the nodes once, because a node comes after its parent: a node can only be reached while its parent is the
current slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quasar.core.context import Context
from quasar.core.distributions import residual
from quasar.core.streams import draw
from quasar.core.types import POINT_MASS, Acceptance, Draft, Trials, Verification

Rule = Callable[[Verification, Context], Acceptance]
"""A way down the tree."""


class Walk:
    """Current slot and accepted path of every row."""

    def __init__(self, batch: int, nodes: int) -> None:
        self.slot = torch.zeros(batch, dtype=torch.int64)
        self.path = torch.zeros((batch, nodes), dtype=torch.int64)
        self.count = torch.zeros(batch, dtype=torch.int64)

    def descend(self, hit: Tensor, slots: Tensor | int) -> None:
        """Move the rows in ``hit`` ``[batch]`` bool to ``slots``."""
        self.slot = torch.where(hit, slots, self.slot)
        rows = hit.nonzero()[:, 0]
        self.path[rows, self.count[rows]] = self.slot[rows]
        self.count = self.count + hit


def sample_and_compare(verification: Verification, context: Context) -> Acceptance:
    """Draw every slot's next token from the target stream; keep the drafts that turn out to be it.

    The committed tokens are the target stream's own, so the text is that of plain decoding, whatever was drafted.
    Exact for drafts that do not depend on the target stream. Works for chains and trees.

    Source: equal in distribution to Leviathan et al. (arXiv 2211.17192) with a one-hot draft distribution; trees as in
        EAGLE's released
    code for deterministic drafts, with one draw a node instead of one test a child.
    """
    draft = verification.draft
    following = _following(verification, context)
    paths: list[list[int]] = [[] for _ in draft.rows]
    slots, last = [0] * draft.batch, [0] * draft.batch
    going = list(range(draft.batch))
    while going:  # one depth more for the rows whose sample was drafted; nothing is drawn where the walk does not come
        sampled = following(going, [slots[row] for row in going], len(paths[going[0]]))
        reached, going = going, []
        for row, token in zip(reached, sampled, strict=True):
            last[row] = token
            for node, pair in enumerate(zip(*draft.rows[row], strict=True)):
                if pair == (token, slots[row]):
                    slots[row] = node + 1
                    paths[row].append(node + 1)
                    going.append(row)
                    break
    padded = [[*path, *[0] * (draft.nodes - len(path))] for path in paths]
    path_tensor = torch.tensor(padded, dtype=torch.int64).reshape(draft.batch, draft.nodes)
    return Acceptance(path_tensor, torch.tensor([len(path) for path in paths]), torch.tensor(last))


def _following(
    verification: Verification, context: Context
) -> Callable[[Sequence[int], Sequence[int], int], Sequence[int]]:
    """Return how to get, from rows, a slot of each and the slots' depth, what the target stream puts after them."""
    if verification.certain is not None:
        table: list[list[int]] = verification.certain.tolist()
        return lambda rows, slots, depth: [table[row][slot] for row, slot in zip(rows, slots, strict=True)]
    committed = context.committed()[:, None]

    def drawn(rows: Sequence[int], slots: Sequence[int], depth: int) -> Sequence[int]:
        keys = context.streams.target(committed + depth)[list(rows), 0]
        if len(rows) == 1:  # a view: a copy of a distribution takes as long as a quarter of the draw
            return [int(draw(verification.probs[rows[0], slots[0]], keys[0]))]
        tokens: list[int] = draw(verification.probs[list(rows), list(slots)], keys).tolist()
        return tokens

    return drawn


def drawn_from(draft: Draft, trials: Trials, trial: int | Tensor, like: Tensor) -> Tensor:
    """Return the distribution that every row's token of one trial was drawn from, one-hot for a point mass.

    Args:
        draft: the draft.
        trials: its trials.
        trial: which of them; ``[batch]`` int64 where rows differ.
        like: a tensor with the vocabulary, dtype and device wanted.

    Returns:
        ``[batch, vocab]``; rows without this trial hold anything.
    """
    rows = torch.arange(draft.batch)
    slot = trials.nodes[rows, trial]
    source = trials.sources[rows, trial].where(slot > 0, POINT_MASS)
    token = draft.token_ids[rows, (slot - 1).clamp_min(0)].where(slot > 0, 0).to(like.device)
    point = torch.zeros((draft.batch, like.shape[-1]), dtype=like.dtype, device=like.device)
    point.scatter_(1, token[:, None], 1.0)
    if not trials.table.shape[1]:
        return point
    distribution = trials.table[rows, source.clamp_min(0)].to(like)
    return torch.where((source == POINT_MASS)[:, None].to(like.device), point, distribution)


def ratio_test(verification: Verification, context: Context) -> Acceptance:
    """Accept each tried draft with min(1, target ÷ draft distribution); after a rejection go on with the residual.

    One rule for chains (speculative sampling), for siblings drawn from several distributions (multi-step), and for
    point masses among them. Draws come from streams of their own, never from the target stream.

    Source: Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318) for chains; Miao et al. (SpecInfer,
    arXiv 2305.09781, Algorithm 2) for siblings.
    """
    draft, trials, probs = verification.draft, verification.draft.trials, verification.probs
    assert trials is not None
    walk, rows = Walk(draft.batch, draft.nodes), torch.arange(draft.batch)
    count = trials.nodes.shape[1]
    tests = context.accept_uniforms(count)  # [batch, trials]
    distribution = probs[:, 0]  # what the next token must follow, given the rejections so far: [batch, vocab]
    for trial in range(count):
        slot = trials.nodes[:, trial]
        tried, node = slot > 0, (slot - 1).clamp_min(0)
        active = tried & (draft.parents[rows, node] == walk.slot)
        token = draft.token_ids[rows, node].where(tried, 0).to(distribution.device)[:, None]
        drafted = drawn_from(draft, trials, trial, distribution)
        # u < target ÷ draft, written so that a token of target probability 0 is never accepted
        passed = tests[:, trial, None].to(distribution.device) * drafted.gather(1, token) < distribution.gather(
            1, token
        )
        accepted = active & passed[:, 0].cpu()
        rejected = (active & ~accepted)[:, None].to(distribution.device)
        distribution = torch.where(rejected, residual(distribution, drafted), distribution)
        walk.descend(accepted, slot)
        distribution = torch.where(accepted[:, None].to(distribution.device), probs[rows, walk.slot], distribution)
    return Acceptance(walk.path, walk.count, context.draw_next(distribution, walk.slot))


def accept_exactly(verification: Verification, context: Context, sampled_rule: Rule = ratio_test) -> Acceptance:
    """Use ``sample_and_compare`` for rows whose draft holds point masses only, ``sampled_rule`` for the others."""
    trials = verification.draft.trials
    if trials is None:
        return sample_and_compare(verification, context)
    sampled = ((trials.sources != POINT_MASS) & (trials.nodes > 0)).any(dim=1)  # [batch]
    if not bool(sampled.any()):  # the table may then be empty
        return sample_and_compare(verification, context)
    if bool(sampled.all()):
        return sampled_rule(verification, context)
    compared, tested = sample_and_compare(verification, context), sampled_rule(verification, context)
    return Acceptance(
        torch.where(sampled[:, None], tested.path, compared.path),
        torch.where(sampled, tested.num_accepted, compared.num_accepted),
        torch.where(sampled, tested.next_token, compared.next_token),
    )
