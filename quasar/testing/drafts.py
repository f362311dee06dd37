"""What the conformance kit sees in one draft."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quasar.core import trees
from quasar.core.components import Drafter
from quasar.core.draft_contract import check_draft
from quasar.core.errors import ContractError
from quasar.core.types import POINT_MASS, Draft
from quasar.testing.contexts import Fault, Findings
from quasar.testing.processors import are_distributions
from quasar.testing.tiny_model import VOCAB


def check_shape(draft: Draft, budget: Sequence[int], drafter: Drafter, findings: Findings) -> None:
    """Look at one draft; what has no name of its own is left to the check that the engine makes."""
    if isinstance(draft, Draft) and _is_square(draft, len(budget)):
        used = trees.used(draft)
        if drafter.drafts_by == "none" and bool(used.any()):
            return findings.add(Fault.TRAITS, "it drafts by 'none' and it drafted.")
        wrong = draft.token_ids[used & ((draft.token_ids < 0) | (draft.token_ids >= VOCAB))]
        if wrong.numel():
            return findings.add(Fault.RANGE, f"token ids {sorted(set(wrong.tolist()))}, the vocabulary has {VOCAB}.")
        if bool((draft.parents <= torch.arange(draft.nodes))[used].all()) and bool((draft.parents >= 0)[used].all()):
            for row, (longest, most) in enumerate(zip(trees.longest_paths(draft), budget, strict=True)):
                if longest > most:
                    fault = Fault.BUDGET if most else Fault.FINISHED
                    return findings.add(fault, f"a path of {longest} tokens in row {row}, whose budget is {most}.")
        if drawn(draft) is not None and not _possible(draft):
            return None  # a token that its distribution excludes: the check of the distributions says more
    if drafter.next_distributions and not _has_next(draft):
        return findings.add(
            Fault.SHAPE,
            "its trait 'next_distributions' promises a distribution after every slot, in 'next_distributions'.",
        )
    if drafter.matched and draft.matched is None:
        return findings.add(Fault.SHAPE, "its trait 'matched' promises evidence for every node, in 'matched'.")
    try:
        check_draft(draft, budget, VOCAB, drafter.drafts_by, drafter.name)
    except ContractError as error:
        findings.add(Fault.SHAPE, str(error))
    return None


def _has_next(draft: Draft) -> bool:
    """Whether there is a distribution after every slot."""
    values = draft.next_distributions
    shape = (draft.batch, draft.nodes + 1, VOCAB)
    return isinstance(values, Tensor) and tuple(values.shape) == shape and are_distributions(values)


def _is_square(draft: Draft, batch: int) -> bool:
    """Whether the three tensors of integers are such, and of one size."""
    tensors = (draft.token_ids, draft.parents, draft.num_nodes)
    if not all(isinstance(each, Tensor) and each.dtype == torch.int64 for each in tensors):
        return False
    sizes = [tuple(each.shape) for each in tensors]
    return len(sizes[0]) == 2 and sizes == [(batch, sizes[0][1]), (batch, sizes[0][1]), (batch,)]


def drawn(draft: Draft) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return (rows, nodes, distributions ``[n, vocab]``) of every sampled trial; ``None`` if unsound."""
    trials = draft.trials
    if trials is None:
        return None
    try:
        rows, columns = ((trials.nodes > 0) & (trials.sources != POINT_MASS)).nonzero().unbind(dim=1)
        distributions = trials.table[rows, trials.sources[rows, columns]]
        nodes = trials.nodes[rows, columns] - 1
        draft.token_ids[rows, nodes]
    except (IndexError, RuntimeError, TypeError, AttributeError):
        return None
    return (rows, nodes, distributions) if distributions.shape[-1] == VOCAB else None


def _possible(draft: Draft) -> bool:
    found = drawn(draft)
    assert found is not None
    rows, nodes, distributions = found
    return bool((distributions.gather(1, draft.token_ids[rows, nodes][:, None]) > 0).all())


def content(draft: Draft) -> object:
    """Return what counts of a draft, comparable."""
    counts = draft.num_nodes.tolist()
    rows = [row[:count] for row, count in zip(draft.token_ids.tolist(), counts, strict=True)]
    parents = [row[:count] for row, count in zip(draft.parents.tolist(), counts, strict=True)]
    tried = drawn(draft)
    return rows, parents, None if tried is None else [each.tolist() for each in tried]
