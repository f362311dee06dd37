"""K-SEQ: drafts drawn independently from one distribution are judged together, with what each may still count on."""

from __future__ import annotations

import torch
from torch import Tensor

from quasar.acceptors.rules.exact import Walk, accept_exactly, drawn_from
from quasar.core.components import Acceptor
from quasar.core.context import Context
from quasar.core.distributions import residual
from quasar.core.types import Acceptance, Draft, Trials, Verification

_HALVINGS = 40
"""Steps of the search for ρ in an interval as long as the number of drafts; float32 holds no more."""


class KSeq(Acceptor):
    """Lossless acceptance for several independent drafts, each tested with min(1, target ÷ (ρ · draft probability)).

    ρ is the smallest factor with which the tests never accept a token more often than the target wants it. With one
    draft it is 1, and this is the ratio test. Siblings from several distributions are judged distribution by
    distribution, by what the distributions before left. Rows of point masses are sampled and compared as in
    ``stochastic``.

    Source: SpecTr, Sun et al., arXiv 2310.15141, Algorithms 2 and 3. There all drafts come from one model; one
        distribution
    after another is the multi-step rule of SpecInfer (arXiv 2305.09781) over groups.
    """

    name = "k_seq"
    exact = True
    target_stream = True

    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the accepted path; committed tokens follow the verifier's distribution."""
        return accept_exactly(verification, context, judge_groups)


def judge_groups(verification: Verification, context: Context) -> Acceptance:
    """Go through the trials group by group; a group is the trials of one distribution after one slot."""
    draft, probs = verification.draft, verification.probs
    assert draft.trials is not None
    trials, sizes, ends = grouped(draft, draft.trials)
    walk, rows = Walk(draft.batch, draft.nodes), torch.arange(draft.batch)
    tests = context.accept_uniforms(trials.nodes.shape[1]).to(probs.device)
    distribution = probs[:, 0]  # what the next token must follow, given the groups that were rejected: [batch, vocab]
    factor = torch.ones_like(distribution[:, 0])
    for trial in range(trials.nodes.shape[1]):
        slot = trials.nodes[:, trial]
        tried, node = slot > 0, (slot - 1).clamp_min(0)
        active = tried & (draft.parents[rows, node] == walk.slot)
        token = draft.token_ids[rows, node].where(tried, 0).to(distribution.device)[:, None]
        drafted = drawn_from(draft, trials, trial, distribution)
        count = sizes[:, trial].to(distribution)
        begins = active if trial == 0 else active & ends[:, trial - 1]
        if bool(begins.any()):
            factor = torch.where(begins.to(distribution.device), smallest_factor(distribution, drafted, count), factor)
        # u < target ÷ (ρ · draft), written so that a token of target probability 0 is never accepted
        passed = tests[:, trial, None] * factor[:, None] * drafted.gather(1, token) < distribution.gather(1, token)
        accepted = active & passed[:, 0].cpu()
        over = (active & ~accepted & ends[:, trial])[:, None].to(distribution.device)
        distribution = torch.where(over, after_rejection(distribution, drafted, factor, count), distribution)
        walk.descend(accepted, slot)
        distribution = torch.where(accepted[:, None].to(distribution.device), probs[rows, walk.slot], distribution)
    return Acceptance(walk.path, walk.count, context.draw_next(distribution, walk.slot))


def grouped(draft: Draft, trials: Trials) -> tuple[Trials, Tensor, Tensor]:
    """Put the trials of a group next to each other.

    A group moves up to its first trial: it can only pass siblings of its own and trials below them.

    Returns:
        The trials in that order; how many each one's group has; and which are the last of theirs. Both
        ``[batch, trials]``.
    """
    orders, sizes, ends = [], [], []
    for slots, distributions, parents in zip(
        trials.nodes.tolist(), trials.sources.tolist(), draft.parents.tolist(), strict=True
    ):
        groups: dict[tuple[int, int], list[int]] = {}
        for trial, (slot, distribution) in enumerate(zip(slots, distributions, strict=True)):
            # a point mass is a distribution of its own, and so is what is not tried
            key = (parents[slot - 1], distribution) if slot and distribution >= 0 else (-1, trial)
            groups.setdefault(key, []).append(trial)
        orders.append([trial for group in groups.values() for trial in group])
        sizes.append([len(group) for group in groups.values() for _ in group])
        ends.append([trial == group[-1] for group in groups.values() for trial in group])
    order = torch.tensor(orders)
    ordered = Trials(trials.nodes.gather(1, order), trials.sources.gather(1, order), trials.table)
    return ordered, torch.tensor(sizes), torch.tensor(ends)


def smallest_factor(target: Tensor, drafted: Tensor, count: Tensor) -> Tensor:
    """Return ρ, from which on 1 − (1 − β)^k ≤ ρ · β with β = Σ min(draft distribution, target ÷ ρ).

    Args:
        target: ``[batch, vocab]``.
        drafted: the distribution of the drafts. ``[batch, vocab]``
        count: k. ``[batch]``

    Returns:
        ``[batch]``, between 1 and k; of the interval that is left, the end where the condition holds.
    """
    low, high = torch.ones_like(count), count.clone()
    for _ in range(_HALVINGS if bool((count > 1).any()) else 0):
        middle = (low + high) / 2
        beta = _single(target, drafted, middle)
        fits = _accepted(beta, count) <= middle * beta
        low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
    return high


def after_rejection(target: Tensor, drafted: Tensor, factor: Tensor, count: Tensor) -> Tensor:
    """Return the distribution of the next token once all ``count`` drafts of a group were rejected, ``[batch, vocab]``.

    Args:
        target: ``[batch, vocab]``.
        drafted: ``[batch, vocab]``.
        factor: ρ, ``[batch]``.
        count: k, ``[batch]``.
    """
    beta = _single(target, drafted, factor)
    share = _accepted(beta, count) / beta.clamp_min(torch.finfo(beta.dtype).tiny)
    return residual(target, torch.minimum(drafted, target / factor[:, None]) * share[:, None])


def _single(target: Tensor, drafted: Tensor, factor: Tensor) -> Tensor:
    """Return the probability β that one draft is accepted, ``[batch]``."""
    return torch.minimum(drafted, target / factor[:, None]).sum(dim=-1).clamp_max(1)


def _accepted(beta: Tensor, count: Tensor) -> Tensor:
    """Return the probability that one of k drafts is accepted, ``[batch]``."""
    return -torch.expm1(count * torch.log1p(-beta))
