"""Requests of the conformance kit: the list of faults, contexts that watch over themselves, and runs of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from quasar.core.components import Acceptor, Drafter
from quasar.core.context import Context, LogitsProcessor, Row, TokenView
from quasar.core.engine import Engine, Request
from quasar.core.records import Generation
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams, draw
from quasar.core.types import Draft
from quasar.testing.distributions import SMALLEST_P, texts_against_distribution
from quasar.testing.references import TARGET, TableVerifier

PROMPTS: tuple[tuple[int, ...], ...] = ((3,), (2, 2, 2, 2, 2), (1, 4, 1), (0, 1, 2, 3, 4, 5, 6, 0, 1, 2))
"""A single token, a repeated one, a short text, and one that holds the whole vocabulary and repeats its beginning."""

_SUSPICIOUS_P = 0.02


class Fault(StrEnum):
    """What the kit can find; a line of a report begins with one of these."""

    TRAITS = "wrong traits"
    DOCS = "too few docs"
    RAISES = "raises an exception"
    SHAPE = "wrong shape"
    RANGE = "ids out of range"
    BUDGET = "draft exceeds the budget"
    FINISHED = "draft for a finished row"
    MUTATION = "mutated context"
    CHANCE = "not deterministic"
    MEMORY = "state kept across prompts"
    FOREIGN = "foreign random numbers"
    PROCESSORS = "distribution from before the processors"
    DISTRIBUTION = "tokens do not follow their distribution"
    PATH = "path that is not in the draft"
    EXACTNESS = "false claim of exactness"
    STREAM = "false claim of the target stream"
    NEIGHBOURS = "depends on what stands beside it"


@dataclass
class Findings:
    """Faults found so far, the first example of each."""

    details: dict[Fault, str] = field(default_factory=dict)

    def add(self, fault: Fault, detail: str) -> None:
        """Note a fault; only the first of a kind is kept."""
        self.details.setdefault(fault, " ".join(detail.split()))

    def __bool__(self) -> bool:
        return bool(self.details)

    def lines(self) -> list[str]:
        """Return one line a fault."""
        return [f"{fault}: {detail}" for fault, detail in self.details.items()]


class SpyStreams(Streams):
    """Streams that remember whose random numbers were asked for, as (purpose, level)."""

    def __init__(self, requests: Sequence[tuple[int, str, int]]) -> None:
        super().__init__(requests)
        self.asked: set[tuple[str, int]] = set()

    def own(self, purpose: str, nodes: Tensor, committed: Tensor, level: int = 0) -> Tensor:
        """As ``Streams.own``."""
        self.asked.add((purpose, level))
        return super().own(purpose, nodes, committed, level)


def make_context(
    prompts: Sequence[Sequence[int]],
    temperature: float,
    processors: tuple[LogitsProcessor, ...] = (),
    samples: Sequence[int] | None = None,
) -> Context:
    """Return a context in which the prompts were read and one token of each was committed, as the engine leaves it.

    Args:
        prompts: ids per row.
        temperature: of every row; processors do the dividing.
        processors: of every row.
        samples: sample index of every row, 0 if not given.
    """
    texts = [list(prompt) for prompt in prompts]
    context = begin(texts, temperature, processors, samples)
    assert context.verification is not None
    keys = context.streams.target(context.committed()[:, None])[:, 0]
    for ids, token in zip(texts, draw(context.verification.probs[:, 0], keys).tolist(), strict=True):
        ids.append(token)
    return context


def begin(
    texts: Sequence[list[int]],
    temperature: float,
    processors: tuple[LogitsProcessor, ...] = (),
    samples: Sequence[int] | None = None,
) -> Context:
    """Return a context in which these prompts were read; what is appended to the lists afterwards is committed.

    Args:
        texts: ids per row; the context keeps the lists themselves.
        temperature: as in ``make_context``, as are the others.
        processors: of every row.
        samples: sample index of every row.
    """
    sampling = SamplingParams(temperature=temperature, max_new_tokens=16)
    rows = tuple(
        Row(TokenView(ids), len(ids), f"prompt {ids[:9]}", number, sampling, processors)
        for ids, number in zip(texts, samples or [0] * len(texts), strict=True)
    )
    context = Context(rows, SpyStreams([(sampling.seed, row.prompt_id, row.sample_index) for row in rows]))
    context.verification = TableVerifier().verify(context, Draft.empty(len(rows)))
    return context


class Guard:
    """Remembers a context, and says afterwards what was changed in it."""

    def __init__(self, context: Context) -> None:
        self._context, self._rows, self._streams = context, context.rows, context.streams
        self._ids = [list(row.token_ids) for row in context.rows]
        self._verification = context.verification
        self._tensors = [each.clone() for each in self._seen()]
        self._neighbour = object()
        self._scratch = context.scratch(self._neighbour, lambda: ["somebody else's"])

    def _seen(self) -> list[Tensor]:
        verification = self._verification
        if verification is None:
            return []
        return [each for each in (verification.probs, verification.logits) if each is not None]

    def changed(self) -> str | None:
        """Return what was changed, ``None`` if nothing was."""
        context = self._context
        if context.rows is not self._rows or context.streams is not self._streams:
            return "the rows or the streams were replaced"
        if [list(row.token_ids) for row in context.rows] != self._ids:
            return "committed ids were changed"
        if context.verification is not self._verification:
            return "the verification was replaced"
        if not all(torch.equal(old, new) for old, new in zip(self._tensors, self._seen(), strict=True)):
            return "the tensors of the last verification were changed"
        kept = context.scratch(self._neighbour, lambda: ["new"])
        if kept is not self._scratch or kept != ["somebody else's"]:
            return "the scratch of another component was changed"
        return None


def generate(
    drafter: Drafter,
    acceptor: Acceptor,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    length: int,
    samples: Sequence[int] | None = None,
    verifier: Any = None,
) -> list[Generation]:
    """Run the engine over the table, without processors."""
    sampling = SamplingParams(temperature=temperature, max_new_tokens=length)
    numbers = samples or [0] * len(prompts)
    requests = [
        Request(prompt, sampling, f"prompt {list(prompt)[:9]}", number)
        for prompt, number in zip(prompts, numbers, strict=True)
    ]
    return Engine(drafter, verifier or TableVerifier(), acceptor).generate(requests)


def probability_of_texts(drafter: Drafter, acceptor: Acceptor, count: int) -> float:
    """Return the probability of texts as far from the target's distribution as this pipeline's, at temperature 1.

    Args:
        drafter: of the pipeline.
        acceptor: of the pipeline.
        count: texts to look at; a suspicion is followed up with five times as many others, and these decide.
    """
    prompt, p = PROMPTS[-1], 1.0
    for samples in (range(count), range(count, 6 * count)):
        done = generate(drafter, acceptor, [prompt] * len(samples), 1.0, 4, samples)
        texts = torch.tensor([each.token_ids for each in done])
        p = texts_against_distribution(texts, TARGET.double().softmax(dim=-1), prompt[-1])
        if not SMALLEST_P < p < _SUSPICIOUS_P:
            break
    return p


Make = Callable[[], Any]
"""Makes a fresh, loaded instance of the component under test."""
