"""Teacher forcing: what a verifier would have drawn at every place of a given text, forwarded in any width.

One token at a time is exactly what plain decoding does, several at a time is what verification does; the difference
between the two is rounding, and this is where it is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quasar.core.batch import Request
from quasar.core.components import Verifier
from quasar.core.context import Context
from quasar.core.relaxation import soft_law
from quasar.core.rows import Row, TokenView
from quasar.core.streams import Streams, exponentials
from quasar.core.types import Draft


@torch.inference_mode()
def replay(verifier: Verifier, request: Request, output: Sequence[int], columns: int) -> Tensor:
    """Return the scores by which each token of ``output`` is drawn; the token with the largest score is the one.

    Scores are log-probabilities after every processor, with the target stream's Gumbel noise added for a request that
    samples, so "which token" is an argmax at any temperature.

    Args:
        verifier: whose law.
        request: the prompt, its parameters and random streams.
        output: the tokens after the prompt.
        columns: rows of each forward. Blocks are always full, the last one with draft tokens of no meaning, because
            kernels choose their order of summation by the number of rows.

    Returns:
        ``[len(output), vocab]`` float64.
    """
    ids, prompt_length = list(request.prompt_ids), len(request.prompt_ids)
    row = Row(
        TokenView(ids), prompt_length, request.prompt_id, request.sample_index, request.sampling, request.processors
    )
    streams = Streams([(request.sampling.seed, request.prompt_id, request.sample_index)])
    context = Context((row,), streams)
    verifier.verify(context, Draft.empty(1))  # the prompt by itself, as in generation
    found = []
    for start in range(0, len(output), columns):
        here = output[start : start + columns]
        filler = [here[-1]] * (columns - len(here))
        verification = verifier.verify(context, Draft.chains([[*here, *filler][: columns - 1]]))
        scores = soft_law(verification, context, 1.0)[0, : len(here)].double().log()  # [len(here), vocab]
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
        others: the same for other row counts.

    Returns:
        ``[places]`` float64, the largest change of a token that is possible in both.
    """
    changes = [torch.where(scores.isfinite() & other.isfinite(), (scores - other).abs(), 0.0) for other in others]
    return torch.stack([change.amax(dim=-1) for change in changes]).amax(dim=0)
