"""The smallest drafter that samples: distributions from counts of what followed what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.streams import draw
from quasar.core.types import Draft


class Successors:
    """How often each token followed each other one in a growing text."""

    def __init__(self) -> None:
        self._counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._seen = 1

    def extend(self, ids: Sequence[int]) -> None:
        """Count the pairs that have come since the last call."""
        recent = ids[self._seen - 1 :]
        for last, token in pairwise(recent):
            self._counts[last][token] += 1
        self._seen = len(ids)

    def logits(self, last: int, vocab: int, uniform_share: float) -> Tensor:
        """Return logarithms of the counts after ``last``, mixed with the uniform distribution, ``[vocab]`` float32."""
        probs = torch.full((vocab,), uniform_share / vocab)
        counts = self._counts.get(last)
        if not counts:
            return probs.log()  # unknown: uniform, whatever the share
        tokens, numbers = torch.tensor(list(counts)), torch.tensor(list(counts.values()))
        probs[tokens] += (1 - uniform_share) * numbers / numbers.sum()
        return probs.log()


class Bigram(Drafter):
    """Sample from counts of the prompt and output: a real draft distribution without a model, for tests and teaching.

    Distributions go through the same processors as the target's. Drafts of tokens never seen after each other are
    noise, so this is no way to be fast.
    """

    name = "bigram"
    drafts_by = "sampled"
    next_distributions = True

    class Config(Drafter.Config):
        """Options."""

        num_speculative_tokens: int = Field(3, ge=1, le=64, description="Draft tokens a step.")
        uniform_share: float = Field(
            0.05, gt=0, le=1, description="Probability that is spread over the whole vocabulary."
        )

    config: Config

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return sampled chains with their distributions."""
        counts = context.scratch(self, lambda: [Successors() for _ in context.rows])
        for row, successors in zip(context.rows, counts, strict=True):
            successors.extend(row.token_ids)
        assert context.verification is not None  # the engine reads the prompt before it asks for drafts
        vocab, device = context.verification.vocab_size, context.verification.device
        size = min(self.config.num_speculative_tokens, max(budget))
        drafted: list[list[int]] = [[] for _ in context.rows]
        logits = torch.empty((context.batch, 0, vocab), device=device)
        for depth in range(size + 1):
            texts = zip(context.rows, drafted, strict=True)
            lasts = [chain[-1] if chain else row.token_ids[-1] for row, chain in texts]
            after = [c.logits(last, vocab, self.config.uniform_share) for c, last in zip(counts, lasts, strict=True)]
            logits = torch.cat([logits, torch.stack(after)[:, None].to(device)], dim=1)
            distributions = context.distributions(logits, Draft.chains(drafted))  # [batch, depth + 1, vocab]
            if depth < size:
                nodes = torch.full((context.batch, 1), depth)
                tokens = draw(distributions[:, -1:], context.draft_keys(nodes, torch.tensor(depth)))
                for chain, token in zip(drafted, tokens[:, 0].tolist(), strict=True):
                    chain.append(token)
        chains = [chain[:limit] for chain, limit in zip(drafted, budget, strict=True)]
        width = max(map(len, chains))
        return replace(Draft.chains(chains, distributions[:, :width]), next_distributions=distributions[:, : width + 1])
