"""Where only the target stream is drawn from, texts equal plain decoding's token by token, whatever was drafted.

That holds for point-mass drafts of any shape at any temperature, for every draft under coupled acceptance, and for
every draft at temperature 0, where all laws are one-hot; in any batch and in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from toys import NestedPipeline, TableVerifier, Text, TreeDrafter, Twig, point, random_table
from worlds import CHAIN, DRAFT, OTHER, POINT_CHAIN, POINT_FIRST, POINT_LAST, POINT_TREE, THREE_LAWS, TWO_A_LEVEL

from quasar.acceptors.coupled import Coupled
from quasar.acceptors.greedy import Greedy
from quasar.acceptors.rules import exact as rules
from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Acceptor, Drafter
from quasar.core.context import Context, LogitsProcessor
from quasar.core.engine import Engine, Request
from quasar.core.records import Generation
from quasar.core.sampling import SamplingParams
from quasar.core.streams import draw
from quasar.core.types import Draft
from quasar.drafters.adaptive import Adaptive
from quasar.drafters.datastore.store import Datastore, write_datastore
from quasar.drafters.lookahead import Lookahead
from quasar.drafters.ngram import Ngram
from quasar.drafters.none import NoDraft
from quasar.drafters.recycling import Recycling
from quasar.drafters.retrieval import Retrieval
from quasar.drafters.suffix import Suffix
from quasar.drafters.union import Union

TARGET = random_table(3, seed=8, sharpness=2.0)
EOS = 2
PROMPTS = [(0, 1), (1, 1, 0), (0, 0, 1, 0, 1), (2, 0)]


class Remembers(Drafter):
    """Drafts a chain of given texts, or of what differs from them in one place."""

    name = "remembers"
    drafts_by = "point_mass"

    def __init__(self, texts: Sequence[Text], length: int, wrong_from: int | None = None) -> None:
        super().__init__()
        self.texts, self.length, self.wrong_from = texts, length, wrong_from

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        rows = []
        for row, text, limit in zip(context.rows, self.texts, budget, strict=True):
            done = len(row.token_ids) - row.prompt_length
            chain = list(text[done : done + min(self.length, limit)])
            if self.wrong_from is not None and len(chain) > self.wrong_from:
                chain[self.wrong_from] = (chain[self.wrong_from] + 1) % 3
            rows.append(chain)
        return Draft.chains(rows)


def batch(temperature: float, samples: int, processors: tuple[LogitsProcessor, ...] = (), **more: Any) -> list[Request]:
    sampling = SamplingParams(**{"temperature": temperature, "max_new_tokens": 12, **more})
    return [
        Request(prompt, sampling, str(prompt), sample, processors) for prompt in PROMPTS for sample in range(samples)
    ]


def generate(
    drafter: Drafter, requests: list[Request], acceptor: Acceptor | None = None, eos: int = EOS
) -> list[Generation]:
    return Engine(drafter, TableVerifier(TARGET), acceptor or Stochastic(), eos_ids=(eos,)).generate(requests)


def ends(generations: list[Generation]) -> list[tuple[Text, str]]:
    """Texts and why they ended."""
    return [(done.token_ids, done.finish_reason) for done in generations]


def union(*drafters: Drafter, **options: Any) -> Union:
    return Union(Union.Config(drafters=drafters, **options))


def adaptive(drafter: Drafter, **options: Any) -> Adaptive:
    return Adaptive(Adaptive.Config(drafter=drafter, costs={1: 1.0, 4: 1.3}, **options))


def retrieval(folder: str, *documents: Sequence[int], **options: Any) -> Retrieval:
    """A drafter that copies from these documents."""
    write_datastore(Path(folder), [torch.tensor(each, dtype=torch.int32) for each in documents], "toy", {})
    made = Retrieval(Retrieval.Config(datastore=folder, **options))
    made.datastore = Datastore(Path(folder))
    return made


DATASTORE = TemporaryDirectory()
RETRIEVAL = retrieval(DATASTORE.name, (0, 1, 1, 0, 0, 1), (2, 0, 1, 2, 1, 0), (1, 1, 1, 2), min_match=1)

POINT_MASSES = {
    "chain": TreeDrafter([DRAFT], POINT_CHAIN),
    "long chain": TreeDrafter([DRAFT], tuple(point(parent) for parent in range(11))),
    "chain after some texts": TreeDrafter([DRAFT], POINT_CHAIN, ragged=True),
    "tree": TreeDrafter([DRAFT], POINT_TREE),
    "tree after some texts": TreeDrafter([DRAFT], POINT_TREE, ragged=True),
    "all continuations": TreeDrafter([DRAFT], [point(p, r) for p in (0, 1, 2, 3) for r in range(3)]),
    "good chain": TreeDrafter([TARGET], POINT_CHAIN),
    "bad chain": TreeDrafter([-TARGET], POINT_CHAIN),
    "prompt lookup": Ngram(),
    "prompt lookup, padded": Ngram(Ngram.Config(match="first", short="pad", num_speculative_tokens=7)),
    "suffix": Suffix(),
    "recycling": Recycling(Recycling.Config(max_nodes=6)),
    "recycling, carried over": Recycling(Recycling.Config(max_nodes=6, carry_over=True)),
    "lookahead": Lookahead(),
    "lookahead, pool from the prompt": Lookahead(Lookahead.Config(window=2, level=2, pool_from_prompt=True)),
    "retrieval": RETRIEVAL,
    "retrieval and lookahead": union(RETRIEVAL, Lookahead(), max_nodes=9),
    "union": union(Suffix(), TreeDrafter([DRAFT], POINT_TREE, ragged=True), Recycling(), max_nodes=7),
    "union level by level": union(Suffix(), TreeDrafter([TARGET], POINT_CHAIN), order="breadth", max_nodes=5),
    "adaptive": adaptive(union(Suffix(), Recycling(), TreeDrafter([DRAFT], POINT_TREE))),
    "adaptive, carried over": adaptive(TreeDrafter([DRAFT], POINT_TREE), carry_over=True),
}
SAMPLED = {
    "chain": TreeDrafter([DRAFT], CHAIN),
    "chain after some texts": TreeDrafter([DRAFT], CHAIN, ragged=True),
    "chain of the target": TreeDrafter([TARGET], CHAIN),
    "siblings of one law": TreeDrafter([DRAFT], TWO_A_LEVEL),
    "siblings of three laws": TreeDrafter([DRAFT, OTHER, TARGET], THREE_LAWS),
    "point mass first": TreeDrafter([DRAFT], POINT_FIRST),
    "point mass last": TreeDrafter([TARGET], POINT_LAST),
    "pipeline": NestedPipeline(TreeDrafter([DRAFT], CHAIN), TableVerifier(OTHER), length=4),
    "pipeline of point masses": NestedPipeline(TreeDrafter([DRAFT], POINT_TREE), TableVerifier(TARGET), length=4),
    "union": union(TreeDrafter([DRAFT], CHAIN), TreeDrafter([OTHER], TWO_A_LEVEL), max_nodes=6),
    "union with point masses": union(Suffix(), TreeDrafter([TARGET], CHAIN), Recycling(), order="breadth"),
    "adaptive": adaptive(TreeDrafter([TARGET], CHAIN, ragged=True)),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", POINT_MASSES)
def test_point_masses_leave_the_text_as_it_is(name: str, temperature: float):
    requests = batch(temperature, samples=50)
    assert ends(generate(POINT_MASSES[name], requests)) == ends(generate(NoDraft(), requests))


@pytest.mark.parametrize("acceptor", [Stochastic(), Greedy()])
@pytest.mark.parametrize("name", SAMPLED)
def test_at_temperature_0_sampled_drafts_leave_the_text_as_it_is(name: str, acceptor: Acceptor):
    requests = batch(0.0, samples=10)
    assert ends(generate(SAMPLED[name], requests, acceptor)) == ends(generate(NoDraft(), requests))


@pytest.mark.parametrize("name", SAMPLED)
def test_coupled_acceptance_leaves_the_text_as_it_is(name: str):
    requests = batch(1.0, samples=50)
    assert ends(generate(SAMPLED[name], requests, Coupled())) == ends(generate(NoDraft(), requests))


def test_coupled_drafts_of_the_target_itself_are_all_accepted():
    done = generate(SAMPLED["chain of the target"], batch(1.0, samples=50, ignore_eos=True), Coupled())
    assert {one.acceptance_rate for one in done} == {1.0}


@pytest.mark.parametrize("eos", [0, 1, 2])
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 5])
def test_a_text_ends_where_plain_decoding_ends(eos: int, max_new_tokens: int):
    requests = batch(1.0, samples=50, max_new_tokens=max_new_tokens)
    plain = ends(generate(NoDraft(), requests, eos=eos))
    assert ends(generate(POINT_MASSES["tree"], requests, eos=eos)) == plain


def test_a_drafter_is_asked_for_what_can_be_used_beside_the_bonus_token():
    asked: list[tuple[list[int], list[int]]] = []

    class Asks(NoDraft):
        def propose(self, context: Context, budget: Sequence[int]) -> Draft:
            asked.append(([len(row.token_ids) - row.prompt_length for row in context.rows], list(budget)))
            return super().propose(context, budget)

    done = generate(Asks(), batch(1.0, samples=20, max_new_tokens=5))
    for lengths, budget in asked:
        for row, (length, limit) in enumerate(zip(lengths, budget, strict=True)):
            assert limit == (0 if length == len(done[row].token_ids) else 5 - length - 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_of_the_text_itself_is_accepted_as_a_whole(temperature: float):
    requests = batch(temperature, samples=20, ignore_eos=True)
    plain = generate(NoDraft(), requests)
    drafted = generate(Remembers([done.token_ids for done in plain], length=4), requests)
    assert ends(drafted) == ends(plain)
    assert all(done.acceptance_rate == 1.0 for done in drafted)
    assert all([step.committed for step in done.decode_steps] == [5, 5, 1] for done in drafted)


@pytest.mark.parametrize("wrong_from", [0, 1, 3])
def test_a_draft_with_one_wrong_token_is_accepted_up_to_it(wrong_from: int):
    requests = batch(1.0, samples=20, ignore_eos=True)
    plain = generate(NoDraft(), requests)
    drafted = generate(Remembers([done.token_ids for done in plain], length=4, wrong_from=wrong_from), requests)
    assert ends(drafted) == ends(plain)
    assert {done.decode_steps[0].accepted for done in drafted} == {wrong_from}


@pytest.mark.parametrize("drafter", [POINT_MASSES["tree after some texts"], SAMPLED["siblings of one law"]])
def test_texts_do_not_depend_on_the_order_of_the_batch(drafter: Drafter):
    requests = batch(1.0, samples=25)
    order = torch.randperm(len(requests), generator=torch.Generator().manual_seed(0)).tolist()
    straight = ends(generate(drafter, requests))
    assert ends(generate(drafter, [requests[i] for i in order])) == [straight[i] for i in order]


@pytest.mark.parametrize("drafter", [POINT_MASSES["tree after some texts"], SAMPLED["siblings of one law"]])
@pytest.mark.parametrize("size", [1, 7])
def test_texts_do_not_depend_on_how_the_batch_is_split(drafter: Drafter, size: int):
    requests = batch(1.0, samples=10)
    parts = [ends(generate(drafter, requests[i : i + size])) for i in range(0, len(requests), size)]
    assert [done for part in parts for done in part] == ends(generate(drafter, requests))


@pytest.mark.parametrize("drafter", [NoDraft(), POINT_MASSES["tree"], SAMPLED["point mass first"]])
def test_requests_of_different_parameters_share_a_batch(drafter: Drafter):
    mixed = [
        Request((0, 1), SamplingParams(temperature=t, max_new_tokens=n, seed=s), "toy", 0)
        for t in (0.0, 1.0)
        for n in (1, 4, 9)
        for s in (0, 1, 2)
    ]
    alone = [generate(drafter, [request])[0] for request in mixed]
    assert ends(generate(drafter, mixed)) == ends(alone)


def test_seeds_prompt_ids_and_sample_indices_give_different_texts():
    def text(seed: int = 0, prompt_id: str = "a", sample: int = 0) -> Text:
        sampling = SamplingParams(temperature=1.0, max_new_tokens=40, seed=seed, ignore_eos=True)
        return generate(NoDraft(), [Request((0, 1), sampling, prompt_id, sample)])[0].token_ids

    assert len({text(), text(seed=1), text(prompt_id="b"), text(sample=1)}) == 4


def test_at_temperature_0_the_seed_does_not_matter():
    texts = [ends(generate(SAMPLED["chain"], batch(0.0, samples=1, seed=seed))) for seed in range(5)]
    assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize("name", ["chain", "tree", "tree after some texts", "prompt lookup"])
@pytest.mark.parametrize(
    ("temperature", "parameters"),
    [(1.0, {"repetition_penalty": 1.7}), (1.0, {"min_new_tokens": 4}), (0.7, {"top_p": 0.9}), (0.7, {"top_k": 2})],
)
def test_point_masses_leave_the_text_as_it_is_after_processors(
    name: str, temperature: float, parameters: dict[str, Any]
):
    from quasar.hf.processors import build_processors

    requests = [
        replace(request, processors=build_processors(request.sampling, len(request.prompt_token_ids), (EOS,)))
        for request in batch(temperature, samples=6, **parameters)
    ]
    assert ends(generate(POINT_MASSES[name], requests)) == ends(generate(NoDraft(), requests))


def test_a_sampled_drafter_that_drafts_nothing_leaves_the_text_as_it_is():
    class Empty(TreeDrafter):
        def reach(self, context: Context, budget: Sequence[int]) -> list[int]:
            return [0] * len(budget)

    requests = batch(1.0, samples=50)
    assert ends(generate(Empty([DRAFT], [Twig(0)]), requests)) == ends(generate(NoDraft(), requests))


def test_target_keys_by_slot_instead_of_by_position_are_caught(monkeypatch: pytest.MonkeyPatch):
    requests = batch(1.0, samples=50)
    plain = ends(generate(NoDraft(), requests))

    def by_slot(verification, context):
        slots = torch.arange(verification.draft.nodes + 1)
        keys = context.streams.target(context.committed()[:, None] + slots)
        probs = verification.probs
        return lambda rows, at, depth: draw(probs[list(rows), list(at)], keys[list(rows), list(at)]).tolist()

    monkeypatch.setattr(rules, "_following", by_slot)
    changed = ends(generate(POINT_MASSES["tree"], requests))
    monkeypatch.undo()
    assert changed != plain


def test_a_bonus_from_a_stream_of_its_own_is_caught(monkeypatch: pytest.MonkeyPatch):
    """The same law, but another text: only the identity test can see it."""

    class OwnBonus(Stochastic):
        def accept(self, verification, context):
            accepted = super().accept(verification, context)
            keys = context.streams.own("next", accepted.num_accepted[:, None], context.committed())
            law = verification.probs[torch.arange(context.batch), accepted.path[:, -1] if accepted.path.numel() else 0]
            bonus = draw(law, keys[:, 0])
            full = accepted.num_accepted == accepted.path.shape[1]
            return type(accepted)(accepted.path, accepted.num_accepted, torch.where(full, bonus, accepted.next_token))

    requests = batch(1.0, samples=50)
    plain = ends(generate(NoDraft(), requests))
    assert ends(generate(POINT_MASSES["chain"], requests, OwnBonus())) != plain
