"""What a draft must be before it is verified; each fault is one line that names the drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from quasar.core import trees
from quasar.core.errors import ContractError
from quasar.core.types import POINT_MASS, Draft, Trials


class Refuse(Protocol):
    """Raises an error that names the component."""

    def __call__(self, field: str, expected: str, actual: object) -> NoReturn:
        """Raise it."""
        ...


def check_draft(draft: Draft, budget: Sequence[int], vocab_size: int | None, drafts_by: str, who: str) -> None:
    """Refuse a draft that breaks the contract.

    Raises:
        ContractError: naming the component, the field, what was expected and what came.
    """

    def refuse(field: str, expected: str, actual: object) -> NoReturn:
        raise ContractError(f"drafter '{who}' returned a bad draft: {field} should be {expected}, got {actual}.")

    if not isinstance(draft, Draft):
        refuse("the value", "a Draft", type(draft).__name__)
    nodes = draft.nodes if isinstance(draft.token_ids, Tensor) and draft.token_ids.dim() == 2 else 0
    shape = (len(budget), nodes)
    check_integers("token_ids", draft.token_ids, shape, refuse)
    check_integers("parents", draft.parents, shape, refuse)
    check_integers("num_nodes", draft.num_nodes, shape[:1], refuse)
    limit, largest = 0 if drafts_by == "none" else nodes, torch.inf if vocab_size is None else vocab_size - 1
    for row, count in enumerate(draft.num_nodes.tolist()):
        if not 0 <= count <= limit:
            refuse("num_nodes", f"within 0..{limit}", f"[{count}] in row {row}")
    for row, (tokens, parents) in enumerate(draft.rows):
        if not all(0 <= parent <= node for node, parent in enumerate(parents)):
            refuse("parents", "slots of earlier nodes", f"{parents} in row {row}")
        if not all(0 <= token <= largest for token in tokens):
            expected = "token ids" if vocab_size is None else f"within 0..{vocab_size - 1}"
            refuse("token_ids", expected, f"{tokens} in row {row}")
    for row, (longest, most) in enumerate(zip(trees.longest_paths(draft), budget, strict=True)):
        if longest > most:
            refuse("its longest path", f"within the row's budget of {most}", f"{longest} in row {row}")
    if draft.matched is not None and list(map(len, draft.matched)) != draft.num_nodes.tolist():
        refuse("matched", "a number for every node", [list(row) for row in draft.matched])
    if (drafts_by == "sampled") != (draft.trials is not None) and nodes:
        expected = (
            "present, because it drafts by 'sampled'"
            if drafts_by == "sampled"
            else f"None, because it drafts by '{drafts_by}'"
        )
        refuse("trials", expected, "none" if draft.trials is None else "trials")
    if draft.trials is not None:
        _check_trials(draft, draft.trials, vocab_size, refuse)


def check_integers(field: str, value: object, shape: tuple[int, ...], refuse: Refuse) -> None:
    """Refuse what is not an int64 tensor of this shape on the host."""
    if not isinstance(value, Tensor):
        refuse(field, "a tensor", type(value).__name__)
    if tuple(value.shape) != shape or value.dtype != torch.int64 or value.device.type != "cpu":
        expected, actual = f"int64 of shape {list(shape)} on cpu", f"{value.dtype} of shape {list(value.shape)}"
        refuse(field, expected, f"{actual} on {value.device}")


def _check_rows(wrong: Tensor, field: str, expected: str, values: Tensor, refuse: Refuse) -> None:
    """Refuse the first row with something ``wrong``, both ``[batch, n]``."""
    rows = wrong.any(dim=1).nonzero()
    if rows.numel():
        refuse(field, expected, f"{values[rows[0, 0]].tolist()} in row {int(rows[0, 0])}")


def _check_trials(draft: Draft, trials: Trials, vocab_size: int | None, refuse: Refuse) -> None:
    shape = (draft.batch, trials.nodes.shape[-1] if isinstance(trials.nodes, Tensor) and trials.nodes.dim() else 0)
    check_integers("trials.nodes", trials.nodes, shape, refuse)
    check_integers("trials.sources", trials.sources, shape, refuse)
    wrong = (trials.nodes < 0) | (trials.nodes > draft.num_nodes[:, None])
    _check_rows(wrong, "trials.nodes", "slots of the row's own nodes", trials.nodes, refuse)
    table = trials.table
    if not isinstance(table, Tensor) or table.dim() != 3 or table.shape[0] != draft.batch:
        actual = list(table.shape) if isinstance(table, Tensor) else type(table).__name__
        refuse("trials.table", f"distributions of shape [{draft.batch}, distributions, vocab]", actual)
    if table.dtype not in (torch.float32, torch.float64):
        refuse("trials.table", "float32 or float64", table.dtype)
    if vocab_size is not None and table.shape[-1] != vocab_size:
        refuse("trials.table", f"over the target's vocabulary of {vocab_size}", list(table.shape))
    tried = trials.nodes > 0
    wrong = (trials.sources < POINT_MASS) | (trials.sources >= table.shape[1])
    _check_rows(wrong & tried, "trials.sources", f"rows of a table of {table.shape[1]}", trials.sources, refuse)
    rows, columns = (tried & (trials.sources != POINT_MASS)).nonzero().unbind(dim=1)
    distributions = trials.sources[rows, columns]
    sums = table.sum(dim=-1)[rows, distributions]
    if not bool(((sums - 1).abs() <= 1e-3).all()) or bool((table.amin(dim=-1)[rows, distributions] < 0).any()):
        refuse(
            "trials.table",
            "distributions without negative entries that sum to 1",
            f"sums {sorted(set(sums.tolist()))[:4]}",
        )
    tokens = draft.token_ids[rows, trials.nodes[rows, columns] - 1]
    if bool((table[rows, distributions, tokens] == 0).any()):
        refuse("trials.table", "the distributions that the tokens were drawn from", "a drawn token of probability 0")
