"""Run a drafter over a tiny model, and plain decoding beside it."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from doubles import Flaky, Oracle, Partial, RandomTree, Truth, WatchedVerifier, Wrong
from tiny_models import tiny_model

from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Acceptor, Drafter
from quasar.core.engine import Engine, Request
from quasar.core.records import Generation
from quasar.core.sampling import SamplingParams
from quasar.drafters.adaptive import Adaptive
from quasar.drafters.datastore.store import Datastore, write_datastore
from quasar.drafters.lookahead import Lookahead
from quasar.drafters.ngram import Ngram
from quasar.drafters.none import NoDraft
from quasar.drafters.recycling import Recycling
from quasar.drafters.retrieval import Retrieval
from quasar.drafters.suffix import Suffix
from quasar.drafters.union import Union
from quasar.hf.processors import build_processors

GAMMA = 4

PROMPTS = {
    "looping": (5, 11, 23, 11, 23, 42, 7, 5, 11),
    "single": (61,),
    "long": (3, 3, 3, 8, 90, 17, 17, 8, 90, 44, 2, 71, 8, 90, 17, 3, 3),
}
"""Ragged, one of a single token, and with enough repetition for prompt lookup to find something."""


def params(temperature: float, **others) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_new_tokens=others.pop("max_new_tokens", 16), **others)


def requests(names: Sequence[str], sampling: SamplingParams, eos_ids: Sequence[int] = ()) -> list[Request]:
    return [
        Request(PROMPTS[name], sampling, name, 0, build_processors(sampling, len(PROMPTS[name]), eos_ids))
        for name in names
    ]


def generate(
    family: str,
    drafter: Drafter,
    wanted: Sequence[Request],
    eos_ids: Sequence[int] = (),
    decode: Callable[[Sequence[int]], str] | None = None,
    acceptor: Acceptor | None = None,
) -> list[Generation]:
    """Run the engine, and check what must hold of every run."""
    verifier = WatchedVerifier(tiny_model(family))
    engine = Engine(drafter, verifier, acceptor or Stochastic(), eos_ids=eos_ids, decode=decode)
    generations = engine.generate(wanted)
    for done in generations:
        assert sum(step.committed for step in done.steps) == len(done.token_ids)
        assert all(step.committed >= 1 for step in done.steps)
        assert all(step.accepted <= min(step.drafted, step.committed) for step in done.steps)
    return generations


@cache
def plain(
    family: str, names: tuple[str, ...], sampling: SamplingParams, eos_ids: tuple[int, ...] = ()
) -> tuple[Generation, ...]:
    """Plain decoding of these prompts, computed once."""
    return tuple(generate(family, NoDraft(), requests(names, sampling, eos_ids), eos_ids))


def truth(family: str, names: tuple[str, ...], sampling: SamplingParams) -> Truth:
    return {name: done.token_ids for name, done in zip(names, plain(family, names, sampling), strict=True)}


def ngram(match: str, short: str) -> Ngram:
    return Ngram(Ngram.Config(num_speculative_tokens=GAMMA, match=match, short=short))


def union(*drafters: Drafter) -> Union:
    return Union(Union.Config(drafters=drafters, max_nodes=10))


def adaptive(drafter: Drafter) -> Adaptive:
    return Adaptive(Adaptive.Config(drafter=drafter, costs={1: 1.0, 2: 1.2, 10: 1.6}))


def retrieval(known: Truth) -> Retrieval:
    """Copies from what plain decoding emits, and from the prompts."""
    DATASTORES.append(TemporaryDirectory())
    folder = Path(DATASTORES[-1].name)
    documents = [torch.tensor(ids, dtype=torch.int32) for ids in (*known.values(), *PROMPTS.values())]
    write_datastore(folder, documents, "tiny", {})
    made = Retrieval(Retrieval.Config(datastore=folder, min_match=1))
    made.datastore = Datastore(folder)
    return made


DATASTORES: list[TemporaryDirectory[str]] = []
DRAFTERS: dict[str, Callable[[Truth], Drafter]] = {
    "ngram-first-truncate": lambda _: ngram("first", "truncate"),
    "ngram-first-pad": lambda _: ngram("first", "pad"),
    "ngram-last-truncate": lambda _: ngram("last", "truncate"),
    "ngram-last-pad": lambda _: ngram("last", "pad"),
    "oracle": lambda known: Oracle(known, GAMMA),
    "wrong": lambda known: Wrong(known, GAMMA),
    "partial-1": lambda known: Partial(known, GAMMA, 1),
    "partial-3": lambda known: Partial(known, GAMMA, 3),
    "flaky": lambda known: Flaky(known, GAMMA),
    "tree": lambda known: RandomTree(known, 9),
    "suffix": lambda _: Suffix(),
    "recycling": lambda _: Recycling(),
    "lookahead": lambda _: Lookahead(Lookahead.Config(pool_from_prompt=True)),
    "retrieval": lambda known: retrieval(known),
    "union": lambda known: union(Suffix(), RandomTree(known, 5), Recycling()),
    "adaptive": lambda known: adaptive(union(Flaky(known, GAMMA), Recycling())),
}
"""Point-mass drafters by name; each is told what plain decoding emits."""


def texts(generations: Sequence[Generation]) -> list[tuple[int, ...]]:
    return [done.token_ids for done in generations]


def outcomes(generations: Sequence[Generation]) -> list[tuple[tuple[int, ...], str]]:
    return [(done.token_ids, done.finish_reason) for done in generations]
