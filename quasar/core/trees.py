"""The geometry of drafts: depths, visibility, paths. A parent comes before its children, so one pass does it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quasar.core.errors import ContractError
from quasar.core.types import Draft


def is_chain(draft: Draft) -> bool:
    """Whether every row is a chain."""
    return bool((draft.parents == torch.arange(draft.nodes, device=draft.parents.device)).all())


def depths(draft: Draft) -> Tensor:
    """Return the depth of every slot, slot 0 having depth 0. ``[batch, nodes + 1]`` int64."""
    if is_chain(draft):
        return torch.arange(draft.nodes + 1, device=draft.parents.device).expand(draft.batch, -1)
    result = draft.parents.new_zeros((draft.batch, draft.nodes + 1))
    for node in range(draft.nodes):
        result[:, node + 1] = result.gather(1, draft.parents[:, node : node + 1])[:, 0] + 1
    return result


def visibility(draft: Draft) -> Tensor:
    """Return which nodes a node attends to: itself and its ancestors. ``[batch, nodes, nodes]`` bool."""
    size = draft.nodes
    if is_chain(draft):
        return torch.ones((size, size), dtype=torch.bool).tril().expand(draft.batch, size, size)
    slots = torch.zeros((draft.batch, size + 1, size), dtype=torch.bool)
    rows = torch.arange(draft.batch)
    for node in range(size):
        slots[:, node + 1] = slots[rows, draft.parents[:, node]]
        slots[:, node + 1, node] = True
    return slots[:, 1:]


def longest_paths(draft: Draft) -> list[int]:
    """Return the depth of every row's deepest node, 0 for a row without a draft."""
    if not draft.nodes:
        return [0] * draft.batch
    used = torch.arange(draft.nodes) < draft.num_nodes[:, None]
    return [int(depth) for depth in (depths(draft)[:, 1:] * used).amax(dim=1)]


def prefixes(draft: Draft, row: int) -> list[list[int]]:
    """Return the draft tokens on the path to every slot of ``row``; slot 0 has none."""
    count = int(draft.num_nodes[row])
    paths: list[list[int]] = [[]]
    for token, parent in zip(draft.token_ids[row, :count].tolist(), draft.parents[row, :count].tolist(), strict=True):
        paths.append([*paths[parent], token])
    return paths


def check_draft(draft: Draft, budget: Sequence[int], vocab_size: int | None, law: str, who: str) -> None:
    """Refuse a draft that breaks the contract.

    Raises:
        ContractError: naming the component, the field, what was expected and what came.
    """

    def refuse(field: str, expected: str, actual: object) -> None:
        raise ContractError(f"drafter '{who}' returned a bad draft: {field} should be {expected}, got {actual}.")

    if not isinstance(draft, Draft):
        refuse("the value", "a Draft", type(draft).__name__)
    shape = (len(budget), draft.nodes)
    for name, tensor, expected in (
        ("token_ids", draft.token_ids, shape),
        ("parents", draft.parents, shape),
        ("num_nodes", draft.num_nodes, shape[:1]),
    ):
        if tuple(tensor.shape) != expected or tensor.dtype != torch.int64:
            refuse(name, f"int64 of shape {list(expected)}", f"{tensor.dtype} of shape {list(tensor.shape)}")
    slots = torch.arange(draft.nodes)
    if bool((draft.num_nodes < 0).any()) or bool((draft.num_nodes > draft.nodes).any()):
        refuse("num_nodes", f"within 0..{draft.nodes}", draft.num_nodes.tolist())
    used = slots < draft.num_nodes[:, None]
    if bool((((draft.parents < 0) | (draft.parents > slots)) & used).any()):
        refuse("parents", "slots of earlier nodes", draft.parents.tolist())
    low, high = 0, vocab_size if vocab_size is not None else torch.iinfo(torch.int64).max
    if bool((((draft.token_ids < low) | (draft.token_ids >= high)) & used).any()):
        refuse("token_ids", f"within 0..{high - 1}", draft.token_ids[used].tolist())
    longest = longest_paths(draft)
    if any(depth > limit for depth, limit in zip(longest, budget, strict=True)):
        refuse("its longest path", f"within the budget {list(budget)}", longest)
    _check_trials(draft, vocab_size, law, refuse)


def _check_trials(draft: Draft, vocab_size: int | None, law: str, refuse: object) -> None:
    complain = refuse
    assert callable(complain)
    if (law == "sampled") != (draft.trials is not None) and draft.nodes:
        expected = "present, because its law is 'sampled'" if law == "sampled" else f"None, because its law is '{law}'"
        complain("trials", expected, "none" if draft.trials is None else "trials")
    if draft.trials is None:
        return
    trials = draft.trials
    if vocab_size is not None and trials.table.shape[-1] != vocab_size:
        complain("trials.table", f"over the target's vocabulary of {vocab_size}", list(trials.table.shape))
    if trials.nodes.shape != trials.laws.shape or bool((trials.nodes > draft.num_nodes[:, None]).any()):
        complain("trials.nodes", "slots of the row's own nodes, shaped like trials.laws", trials.nodes.tolist())
    if trials.table.numel() and float((trials.table.sum(dim=-1) - 1).abs().max()) > 1e-3:
        complain("trials.table", "laws that sum to 1", f"sums {trials.table.sum(dim=-1).tolist()}")
