"""The geometry of drafts: depths, visibility, paths. A parent comes before its children, so one pass does it."""

from __future__ import annotations

import torch
from torch import Tensor

from quasar.core.types import Draft

__all__ = ["depths", "is_chain", "longest_paths", "prefixes", "used", "visibility"]


def is_chain(draft: Draft) -> bool:
    """Whether every row is a chain."""
    return all(parents == list(range(len(parents))) for _, parents in draft.rows)


def used(draft: Draft) -> Tensor:
    """Return which nodes count; the others are padding, with any content. ``[batch, nodes]`` bool."""
    return torch.arange(draft.nodes) < draft.num_nodes[:, None]


def depths(draft: Draft) -> Tensor:
    """Return the depth of every slot, slot 0 having depth 0. ``[batch, nodes + 1]`` int64."""
    if is_chain(draft):
        return torch.arange(draft.nodes + 1, device=draft.parents.device).expand(draft.batch, -1)
    result, parents = draft.parents.new_zeros((draft.batch, draft.nodes + 1)), draft.parents.where(used(draft), 0)
    for node in range(draft.nodes):
        result[:, node + 1] = result.gather(1, parents[:, node : node + 1])[:, 0] + 1
    return result


def visibility(draft: Draft) -> Tensor:
    """Return which nodes a node attends to: itself and its ancestors. ``[batch, nodes, nodes]`` bool."""
    size = draft.nodes
    if is_chain(draft):
        return torch.ones((size, size), dtype=torch.bool).tril().expand(draft.batch, size, size)
    slots = torch.zeros((draft.batch, size + 1, size), dtype=torch.bool)
    rows, parents = torch.arange(draft.batch), draft.parents.where(used(draft), 0)
    for node in range(size):
        slots[:, node + 1] = slots[rows, parents[:, node]]
        slots[:, node + 1, node] = True
    return slots[:, 1:]


def longest_paths(draft: Draft) -> list[int]:
    """Return the depth of every row's deepest node, 0 for a row without a draft."""
    longest = []
    for _, parents in draft.rows:
        below = [0]
        for parent in parents:
            below.append(below[parent] + 1)
        longest.append(max(below))
    return longest


def prefixes(draft: Draft, row: int) -> list[list[int]]:
    """Return the draft tokens on the path to every slot of ``row``; slot 0 has none."""
    paths: list[list[int]] = [[]]
    for token, parent in zip(*draft.rows[row], strict=True):
        paths.append([*paths[parent], token])
    return paths
