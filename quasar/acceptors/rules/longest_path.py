"""The longest path of nodes that a relaxed rule accepts one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from quasar.acceptors.rules.exact import Walk
from quasar.core import trees
from quasar.core.context import Context
from quasar.core.types import Acceptance, Verification


def longest_accepted(verification: Verification, accepted: Tensor, likelihood: Tensor, context: Context) -> Acceptance:
    """Keep the longest path whose nodes are all accepted, and draw the token after it from the target stream.

    Args:
        verification: of the draft.
        accepted: verdict on every node by itself, ``[batch, nodes]`` bool.
        likelihood: probability of every node after its parent; of equally long paths the most likely one wins,
            ``[batch, nodes]``.
        context: the requests.
    """
    draft = verification.draft
    rows, batch = torch.arange(draft.batch), draft.batch
    score = torch.full((batch, draft.nodes + 1), -torch.inf, dtype=torch.float64)
    score[:, 0] = 0.0
    depths, used = trees.depths(draft), trees.used(draft)
    parents = draft.parents.where(used, 0)
    for node in range(draft.nodes):
        reached = accepted[:, node].cpu() & used[:, node] & score[rows, parents[:, node]].isfinite()
        # Below 1 per node, so that length decides first and likelihood only between equal lengths.
        gain = 1 + likelihood[:, node].cpu().double().clamp(0, 1) / (2 * draft.nodes)
        score[:, node + 1] = torch.where(reached, score[rows, parents[:, node]] + gain, -torch.inf)
    slot = score.argmax(dim=1)
    walk = Walk(batch, draft.nodes)
    walk.count, walk.slot = depths[rows, slot], slot
    place = slot
    for depth in range(draft.nodes, 0, -1):
        here = walk.count >= depth
        walk.path[here, depth - 1] = place[here]
        place = torch.where(here & (place > 0), parents[rows, (place - 1).clamp_min(0)], place)
    return Acceptance(walk.path, walk.count, context.draw_target(verification.probs[rows, slot], walk.count))
