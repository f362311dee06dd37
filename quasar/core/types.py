"""The values that flow round the loop: what is drafted, what the verifier says of it, what is accepted.

Everything here is frozen. **Slots** are the index that all of them share: slot 0 is the last committed token, slot
``i + 1`` is draft node ``i``. A chain of drafts therefore has ``parents = 0, 1, 2, …``; siblings share a parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

POINT_MASS = -1
"""Law index of a trial whose token was chosen without sampling."""


@dataclass(frozen=True, slots=True)
class Trials:
    """How the nodes of a draft were drawn, in the order in which siblings are to be tried.

    A trial names a node and the law from which its token was drawn. Several trials may name one node: two draws that
    came out equal share a node in the forward and keep both trials, because merging them is biased. A trial must not
    depend on the outcome of a later one, and the trials of a node's children follow those of the node itself.

    Attributes:
        nodes: slot of the node that is tried, 0 where the row has no more trials. ``[batch, trials]`` int64.
        laws: row of ``table`` that the token was drawn from, ``POINT_MASS`` for a token chosen without sampling.
            ``[batch, trials]`` int64.
        table: the laws. ``[batch, laws, vocab]``, each row a probability distribution, float32 or float64.
    """

    nodes: Tensor
    laws: Tensor
    table: Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of proposed tokens for each row of the batch; a chain is a tree without branches.

    The integers live on the host, because the walk down the tree happens there; laws live where they were computed.

    Attributes:
        token_ids: ``[batch, nodes]`` int64; beyond a row's ``num_nodes`` the value is ignored.
        parents: slot of each node's parent, always smaller than the node's own slot. ``[batch, nodes]`` int64.
        num_nodes: nodes in use per row, 0 for a row without a draft. ``[batch]`` int64.
        trials: how the tokens were drawn; ``None`` says that every node is one point-mass trial, in node order.
        next_laws: the drafter's own law after every slot, ``[batch, nodes + 1, vocab]``, for acceptors that mix it into
            the target's; ``None`` from a drafter without the trait ``next_laws``.
    """

    token_ids: Tensor
    parents: Tensor
    num_nodes: Tensor
    trials: Trials | None = None
    next_laws: Tensor | None = None

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.token_ids.shape[0]

    @property
    def nodes(self) -> int:
        """Widest row, in nodes."""
        return self.token_ids.shape[1]

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
        none = torch.empty((batch, 0), dtype=torch.int64)
        return cls(none, none, torch.zeros(batch, dtype=torch.int64))

    @classmethod
    def chains(cls, rows: Sequence[Sequence[int]], laws: Tensor | None = None) -> Draft:
        """Return one chain per row.

        Args:
            rows: draft token ids per row; lengths may differ and may be 0.
            laws: ``None`` for point-mass drafts. A drafter that *sampled* passes the very distributions it sampled
                from, after every processor: ``[batch, nodes, vocab]``, nodes being the longest row.
        """
        width = max(map(len, rows), default=0)
        token_ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64)
        token_ids = token_ids.reshape(len(rows), width)
        slots = torch.arange(width).expand(len(rows), width)
        num_nodes = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        trials = None
        if laws is not None:
            used = slots < num_nodes[:, None]
            trials = Trials(torch.where(used, slots + 1, 0), torch.where(used, slots, POINT_MASS), laws)
        return cls(token_ids, slots, num_nodes, trials)

    @classmethod
    def trees(cls, rows: Sequence[Sequence[tuple[int, int]]]) -> Draft:
        """Return one point-mass tree per row, from ``(token id, parent slot)`` pairs in slot order."""
        width = max(map(len, rows), default=0)
        padded = [[*row, *[(0, 0)] * (width - len(row))] for row in rows]
        both = torch.tensor(padded, dtype=torch.int64).reshape(len(rows), width, 2)
        return cls(both[..., 0], both[..., 1], torch.tensor([len(row) for row in rows], dtype=torch.int64))


@dataclass(frozen=True, slots=True)
class Verification:
    """What the verifier says of a draft.

    Attributes:
        draft: the draft that was judged.
        probs: the target law after every processor, at every slot: row ``s`` is the law of the token *after* slot
            ``s``. ``[batch, nodes + 1, vocab]``, float32 (float64 for a float64 model).
        logits: what the model said before the processors, same shape; ``None`` where there is no model.
        judgements: probability that the prefix ending at a slot is right, ``[batch, nodes + 1]``; only for acceptors
            that ask for it.
        hidden_states: last hidden states ``[batch, nodes + 1, hidden]``; only for components that ask for them.
    """

    draft: Draft
    probs: Tensor
    logits: Tensor | None = None
    judgements: Tensor | None = None
    hidden_states: Tensor | None = None


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


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Host numbers of one step, the raw material of every statistic.

    Attributes:
        is_prefill: the step that read the prompt; neither it nor the token that it yields is counted in decode.
        drafted: draft nodes per row (0 for a row that had finished).
        depths: longest path of the draft per row, in nodes.
        accepted: accepted draft tokens per row that were committed, i.e. after the stop rules cut the block.
        committed: tokens committed per row, correction or bonus included.
        rows_forwarded: verifier columns that were computed, padding included, summed over the batch.
        seconds_draft: time in ``propose``, seconds.
        seconds_verify: time in ``verify``, seconds.
        seconds_accept: time in ``accept`` and in committing, seconds.
        level: 0 for the outermost pipeline; a pipeline used as a drafter counts from 1.
    """

    is_prefill: bool
    drafted: tuple[int, ...]
    depths: tuple[int, ...]
    accepted: tuple[int, ...]
    committed: tuple[int, ...]
    rows_forwarded: int
    seconds_draft: float
    seconds_verify: float
    seconds_accept: float
    level: int = 0

    def of_row(self, row: int) -> StepRecord:
        """Return the part that concerns one request."""
        if len(self.committed) == 1:
            return self
        counts = (self.drafted, self.depths, self.accepted, self.committed)
        drafted, depths, accepted, committed = ((values[row],) for values in counts)
        return replace(self, drafted=drafted, depths=depths, accepted=accepted, committed=committed)


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished request, and the counts that every report is made of.

    Attributes:
        token_ids: the new tokens, EOS included where the text ended with it.
        finish_reason: ``eos``, ``stop`` (a stop string), ``length`` (``max_new_tokens``) or ``capacity`` (the model's
            maximum length).
        steps: records of the steps in which this request took part, in order, with its own counts only.
        peak_bytes: bytes that the verifier held for the batch beside its weights.
        logprobs: natural log-probability of each new token under the verifier's model at temperature 1, before every
            processor; ``None`` unless the request asked for it.
        inner_steps: records of pipelines inside the drafter, in order; their ``level`` is 1 or more.
    """

    token_ids: tuple[int, ...]
    finish_reason: str
    steps: tuple[StepRecord, ...] = ()
    peak_bytes: int = 0
    logprobs: tuple[float, ...] | None = None
    inner_steps: tuple[StepRecord, ...] = ()

    @property
    def decode_steps(self) -> tuple[StepRecord, ...]:
        """The steps that count: all but prefill."""
        return tuple(step for step in self.steps if not step.is_prefill)

    @property
    def num_steps(self) -> int:
        """Verifier forwards in decode."""
        return len(self.decode_steps)

    @property
    def num_drafted(self) -> int:
        """Draft tokens in decode."""
        return sum(step.drafted[0] for step in self.decode_steps)

    @property
    def num_accepted(self) -> int:
        """Draft tokens that were accepted and committed."""
        return sum(step.accepted[0] for step in self.decode_steps)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens committed ÷ verifier forwards in decode, correction and bonus included; 1.0 for plain decoding."""
        committed = sum(step.committed[0] for step in self.decode_steps)
        return committed / self.num_steps if self.num_steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted; ``None`` if nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None
