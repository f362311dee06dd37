"""The values that flow round the loop: what is drafted, what the verifier says of it, what is accepted.

Everything here is frozen. **Slots** are the index that all of them share: slot 0 is the last committed token, slot
``i + 1`` is draft node ``i``. A chain of drafts therefore has ``parents = 0, 1, 2, …``; siblings share a parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

POINT_MASS = -1
"""Distribution index of a trial whose token was chosen without sampling."""


@cache
def _first_slots(count: int) -> Tensor:
    """Return 0, 1, 2, ...; every chain has the same parents, and making a tensor takes longer than finding one."""
    return torch.arange(count)


@cache
def _nothing(batch: int) -> tuple[Tensor, Tensor]:
    """Return the tokens and the numbers of nodes of an empty draft."""
    return torch.empty((batch, 0), dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Trials:
    """How the nodes of a draft were drawn, in the order in which siblings are to be tried.

    A trial names a node and the distribution from which its token was drawn. Several trials may name one node: two
    draws that came out equal share a node in the forward and keep both trials, because merging them is biased. A trial
    must not depend on the outcome of a later one, and the trials of a node's children follow those of the node itself.

    Attributes:
        nodes: slot of the node that is tried, 0 where the row has no more trials. ``[batch, trials]`` int64.
        sources: row of ``table`` that the token was drawn from, ``POINT_MASS`` for a token chosen without sampling.
            ``[batch, trials]`` int64.
        table: the distributions. ``[batch, distributions, vocab]``, each row a probability distribution, float32 or
            float64.
    """

    nodes: Tensor
    sources: Tensor
    table: Tensor


@dataclass(frozen=True)
class Draft:
    """A tree of proposed tokens for each row of the batch; a chain is a tree without branches.

    The integers live on the host, because the walk down the tree happens there; distributions live where they were
    computed.

    Attributes:
        token_ids: ``[batch, nodes]`` int64; beyond a row's ``num_nodes`` the value is ignored.
        parents: slot of each node's parent, always smaller than the node's own slot. ``[batch, nodes]`` int64.
        num_nodes: nodes in use per row, 0 for a row without a draft. ``[batch]`` int64.
        trials: how the tokens were drawn; ``None`` says that every node is one point-mass trial, in node order.
        next_distributions: the drafter's own distribution after every slot, ``[batch, nodes + 1, vocab]``, for
            acceptors that mix it into the target's; ``None`` from a drafter without the trait ``next_distributions``.
        matched: how many tokens before each node the drafter had seen it follow, 0 for a node that it had not seen: the
            evidence that a scheduler may weigh; a list for each row. ``None`` from a drafter without the trait.
    """

    token_ids: Tensor
    parents: Tensor
    num_nodes: Tensor
    trials: Trials | None = None
    next_distributions: Tensor | None = None
    matched: Sequence[Sequence[int]] | None = None

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.token_ids.shape[0]

    @property
    def nodes(self) -> int:
        """Widest row, in nodes."""
        return self.token_ids.shape[1]

    @cached_property
    def rows(self) -> tuple[tuple[list[int], list[int]], ...]:
        """Token ids and parents of every row's own nodes: a few integers, with which Python is quicker than torch."""
        fields = zip(self.token_ids.tolist(), self.parents.tolist(), self.num_nodes.tolist(), strict=True)
        return tuple((tokens[:count], parents[:count]) for tokens, parents, count in fields)

    def explicit_trials(self) -> Trials:
        """Return the trials, written out where ``trials`` is ``None``."""
        if self.trials is not None:
            return self.trials
        slots = torch.arange(1, self.nodes + 1).expand(self.batch, self.nodes)
        nodes = torch.where(slots <= self.num_nodes[:, None], slots, 0)
        return Trials(nodes, torch.full_like(nodes, POINT_MASS), torch.empty((self.batch, 0, 0)))

    @classmethod
    def empty(cls, batch: int) -> Draft:
        """Return a draft without nodes: the step becomes a plain decoding step."""
        none, zeros = _nothing(batch)
        return cls(none, none, zeros)

    @classmethod
    def chains(
        cls,
        rows: Sequence[Sequence[int]],
        distributions: Tensor | None = None,
        matched: Sequence[Sequence[int]] | None = None,
    ) -> Draft:
        """Return one chain per row.

        Args:
            rows: draft token ids per row; lengths may differ and may be 0.
            distributions: ``None`` for point-mass drafts. A drafter that *sampled* passes the very distributions it
                sampled from, after every processor: ``[batch, nodes, vocab]``, nodes being the longest row.
            matched: evidence for every node, from a drafter with that trait.
        """
        width = max(map(len, rows), default=0)
        if not width and distributions is None:
            return replace(cls.empty(len(rows)), matched=matched)
        token_ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64)
        slots = _first_slots(width).expand(len(rows), width)
        num_nodes = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        trials = None
        if distributions is not None:
            used = slots < num_nodes[:, None]
            trials = Trials(torch.where(used, slots + 1, 0), torch.where(used, slots, POINT_MASS), distributions)
        return cls(token_ids, slots, num_nodes, trials, matched=matched)

    @classmethod
    def trees(cls, rows: Sequence[Sequence[tuple[int, int]]], matched: Sequence[Sequence[int]] | None = None) -> Draft:
        """Return one point-mass tree per row, from ``(token id, parent slot)`` pairs in slot order."""
        width = max(map(len, rows), default=0)
        padded = [[*row, *[(0, 0)] * (width - len(row))] for row in rows]
        both = torch.tensor(padded, dtype=torch.int64).reshape(len(rows), width, 2)
        num_nodes = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return cls(both[..., 0], both[..., 1], num_nodes, matched=matched)


@dataclass(frozen=True, slots=True)
class OneHot:
    """Distributions that put everything on one token each; a table of them would be nothing but zeros.

    Attributes:
        token_ids: the tokens, ``[...]`` int64.
        vocab_size: length of a distribution.
        dtype: of the table.
    """

    token_ids: Tensor
    vocab_size: int
    dtype: torch.dtype

    def table(self) -> Tensor:
        """Return the distributions written out, ``[..., vocab]``."""
        shape = (*self.token_ids.shape, self.vocab_size)
        zeros = torch.zeros(shape, dtype=self.dtype, device=self.token_ids.device)
        return zeros.scatter_(-1, self.token_ids[..., None], 1.0)


@dataclass(frozen=True)
class Verification:
    """What the verifier says of a draft.

    Attributes:
        draft: the draft that was judged.
        distributions: the target distribution after every processor, at every slot; ``probs`` is the same as a tensor.
        logits: what the model said before the processors, same shape; ``None`` where there is no model.
    """

    draft: Draft
    distributions: Tensor | OneHot
    logits: Tensor | None = None

    @cached_property
    def probs(self) -> Tensor:
        """The target distribution at every slot: row ``s`` is the distribution of the token *after* slot ``s``.

        ``[batch, nodes + 1, vocab]``, float32 (float64 for a float64 model).
        """
        return self.distributions.table() if isinstance(self.distributions, OneHot) else self.distributions

    @property
    def certain(self) -> Tensor | None:
        """The tokens ``[batch, nodes + 1]`` where every distribution is known to be one-hot, else ``None``."""
        return self.distributions.token_ids if isinstance(self.distributions, OneHot) else None

    @property
    def device(self) -> torch.device:
        """Where the distributions are."""
        return (
            self.distributions.token_ids.device if isinstance(self.distributions, OneHot) else self.distributions.device
        )

    @property
    def vocab_size(self) -> int:
        """Length of a distribution."""
        return self.distributions.vocab_size if isinstance(self.distributions, OneHot) else self.distributions.shape[-1]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Which path through the draft was kept, and the token after it.

    Attributes:
        path: accepted slots in order, padded with 0 beyond ``num_accepted``. ``[batch, depth]`` int64.
        num_accepted: accepted draft tokens. ``[batch]`` int64.
        next_token: the correction token (something was rejected) or the bonus token (nothing was). ``[batch]`` int64.
            A step thus commits ``num_accepted + 1`` tokens at most, and never none.
    """

    path: Tensor
    num_accepted: Tensor
    next_token: Tensor
