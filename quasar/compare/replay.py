"""Teacher forcing: what a verifier would have drawn at every place of a given text, forwarded in any width.

One token at a time is exactly what plain decoding does, an arm's own steps are what the arm did; the difference between
the two is rounding, and this is where it is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quasar.core.components import Verifier
from quasar.core.context import Context
from quasar.core.distributions import soft_distributions
from quasar.core.requests import Request
from quasar.core.rows import Row, TokenView
from quasar.core.streams import Streams, exponentials
from quasar.core.types import Draft

Steps = Sequence[tuple[int, int]]
"""Decode steps as (tokens committed, rows forwarded)."""


def uniform_steps(length: int, rows: int) -> Steps:
    """Return the steps of a text of ``length`` tokens whose drafts are all accepted, ``rows`` rows each."""
    return [(min(rows, length - 1 - start), rows) for start in range(0, length - 1, rows)]


@torch.inference_mode()
def replay(verifier: Verifier, request: Request, output: Sequence[int], steps: Steps) -> Tensor:
    """Return the scores by which each token of ``output`` is drawn; the token with the largest score is the one.

    Scores are log-probabilities after every processor, with the target stream's Gumbel noise added for a request that
    samples, so "which token" is an argmax at any temperature.

    Args:
        verifier: whose distribution.
        request: the prompt, its parameters and random streams.
        output: the tokens after the prompt; the first one comes with the prompt's own forward.
        steps: how the rest is forwarded; they may reach beyond ``output``. Rows without a token of it hold drafts of no
            meaning, because kernels choose their order of summation by the number of rows.

    Returns:
        ``[len(output), vocab]`` float64.
    """
    ids, prompt_length = list(request.prompt_token_ids), len(request.prompt_token_ids)
    row = Row(
        TokenView(ids), prompt_length, request.prompt_id, request.sample_index, request.sampling, request.processors
    )
    streams = Streams([(request.sampling.seed, request.prompt_id, request.sample_index)])
    context = Context((row,), streams)
    found = []
    for advance, rows in [(1, 1), *steps]:
        here = output[len(ids) - prompt_length :][:advance]
        if not here:
            break
        filler = [here[-1]] * (rows - len(here))
        verification = verifier.verify(context, Draft.chains([[*here, *filler][: rows - 1]]))
        scores = (
            soft_distributions(verification, context.rows, 1.0)[0, : len(here)].double().log()
        )  # [len(here), vocab]
        if request.sampling.temperature > 0:
            positions = torch.arange(len(ids), len(ids) + len(here))[None]
            keys = streams.target(positions).to(scores.device)[0]
            scores = scores - exponentials(keys, scores.shape[-1]).log()
        found.append(scores)
        ids.extend(here)
    return torch.cat(found)


def drift(scores: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return how far a score moves at each place from one row count to others.

    Args:
        scores: what ``replay`` returned for one row at a time, ``[places, vocab]``.
        others: the same for other steps.

    Returns:
        ``[places]`` float64, the largest change of a token that is possible in both.
    """
    changes = [torch.where(scores.isfinite() & other.isfinite(), (scores - other).abs(), 0.0) for other in others]
    return torch.stack([change.amax(dim=-1) for change in changes]).amax(dim=0)
