"""Cascades: how long a block is, what ends it, what is refused; and how YAML writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from drafting import chains, context

from quasar import load_pipeline
from quasar.acceptors.stochastic import Stochastic
from quasar.compare.levels import count_levels, summarise_levels
from quasar.core.components import Drafter, Verifier
from quasar.core.config import PipelineSpec, validate
from quasar.core.context import Context
from quasar.core.engine import Engine, Request
from quasar.core.errors import CompositionError, ConfigError
from quasar.core.records import StepRecord
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import POINT_MASS, Draft, Verification
from quasar.drafters.bigram import Bigram
from quasar.drafters.cascade import Cascade
from quasar.drafters.ngram import Ngram, NgramIndex
from quasar.drafters.none import NoDraft
from quasar.pipelines.composition import Composition, compose
from quasar.plugins.registry import load_registry
from quasar.testing import TinyModels, check_component
from quasar.verifiers.full import Full
from quasar.verifiers.int8 import Int8
from tests.shared.tiny_folder import save_tiny_model

REGISTRY = load_registry()
VOCAB = 12


class Counts(Verifier):
    """Says that the next token is one more, with a probability that depends on the token.

    Args:
        shares: probability of the likeliest token, by the token before it; 0.9 for others.
    """

    name = "counts"
    precision = "full"

    def __init__(self, shares: dict[int, float] | None = None) -> None:
        super().__init__()
        self.shares = shares or {}

    def verify(self, context: Context, draft: Draft) -> Verification:
        last = torch.tensor([[row.token_ids[-1]] for row in context.rows])
        tokens = torch.cat([last, draft.token_ids], dim=1)
        share = torch.tensor([[self.shares.get(token, 0.9) for token in row] for row in tokens.tolist()])
        laws = ((1 - share) / (VOCAB - 1))[..., None].expand(*tokens.shape, VOCAB).clone()
        laws.scatter_(2, ((tokens + 1) % VOCAB)[..., None], share[..., None])
        return Verification(draft, context.distributions(laws.log(), draft), laws.log())


class Ahead(Drafter):
    """Drafts the next numbers."""

    name = "ahead"
    drafts_by = "point_mass"

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        return Draft.chains(
            [
                [(row.token_ids[-1] + 1 + i) % VOCAB for i in range(min(3, limit))]
                for row, limit in zip(context.rows, budget, strict=True)
            ]
        )


def cascade(drafter: Drafter | None = None, shares: dict[int, float] | None = None, **options: Any) -> Cascade:
    parts = {"drafter": drafter or Ahead(), "verifier": Counts(shares), "acceptor": Stochastic()}
    return Cascade(Cascade.Config(**{**parts, **options}))


def started(*texts: list[int], eos: tuple[int, ...] = ()) -> Context:
    """A context as the engine leaves it after the prompt's step."""
    made = context(*texts)
    made.eos_ids = eos
    made.verification = Counts().verify(made, Draft.empty(len(texts)))
    return made


def blocks(
    drafter: Drafter, texts: Sequence[list[int]], budget: Sequence[int], eos: tuple[int, ...] = ()
) -> list[list[int]]:
    return chains(drafter.propose(started(*texts, eos=eos), budget))


# --- how long a block is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", [Ahead(), NoDraft(), Ngram()])
def test_a_block_is_as_long_as_is_wanted_and_useful(drafter):
    texts, wanted = [[0, 1], [0, 5], [0, 7], [0, 2]], [[2, 3, 4, 5, 6], [6, 7], [], [3]]
    assert blocks(cascade(drafter, num_speculative_tokens=5), texts, [9, 2, 0, 1]) == wanted


def test_nothing_is_forwarded_for_rows_without_a_budget():
    seen = []

    class Seen(Counts):
        def verify(self, context, draft):
            seen.append(draft)
            return super().verify(context, draft)

    assert blocks(cascade(verifier=Seen()), [[0, 1], [0, 2]], [0, 0]) == [[], []]
    assert seen == []


def test_a_block_ends_with_the_text():
    assert blocks(cascade(), [[0, 1], [0, 8]], [9, 9], eos=(4,)) == [[2, 3, 4], [9, 10, 11, 0, 1, 2, 3, 4]]
    # a doubt behind its end is none of its own
    assert blocks(cascade(shares={5: 0.3}, min_margin=0.5), [[0, 2]], [9], eos=(4,)) == [[3, 4]]


def test_doubt_before_a_place_leaves_the_place_out():
    texts, budget = [[0, 1], [0, 3]], [6, 6]
    assert blocks(cascade(shares={4: 0.3}, min_margin=0.5), texts, budget) == [[2, 3, 4], [4]]
    assert blocks(cascade(shares={4: 0.3}, max_entropy=1.0), texts, budget) == [[2, 3, 4], [4]]
    assert blocks(cascade(shares={1: 0.3, 3: 0.3}, min_margin=0.5), texts, budget) == [[], []]


def test_doubt_after_a_token_keeps_the_token():
    assert blocks(cascade(shares={4: 0.3}, min_probability=0.5), [[0, 1], [0, 4]], [6, 6]) == [[2, 3, 4, 5], [5]]


def test_without_an_option_there_is_no_doubt():
    assert blocks(cascade(shares=dict.fromkeys(range(VOCAB), 0.2)), [[0, 1]], [6]) == [[2, 3, 4, 5, 6, 7]]


def test_at_temperature_0_no_law_is_handed_over():
    draft = cascade().propose(started([0, 1]), [6])
    assert draft.trials.table.shape == (1, 0, VOCAB)
    assert (draft.trials.sources == POINT_MASS).all()


def test_the_law_of_a_place_is_the_inner_verifiers():
    warm = started([0, 1])
    warm.rows = tuple(
        type(row)(row.token_ids, 1, "0", 0, SamplingParams(temperature=1.0)) for row in warm.rows
    )  # fmt: skip
    draft = cascade(shares={1: 0.5}).propose(warm, [6])
    [tokens] = chains(draft)
    expected = Counts({1: 0.5}).verify(warm, Draft.chains([tokens])).probs[0, : len(tokens)]
    assert torch.allclose(draft.trials.table[0], expected)


# --- the text may be replaced -----------------------------------------------------------------------------------------


def test_a_block_goes_on_from_the_outer_text_whatever_was_emitted_before():
    ids, drafter = [0, 1], cascade(num_speculative_tokens=4)
    running = started(ids)
    assert chains(drafter.propose(running, [9])) == [[2, 3, 4, 5]]
    ids += [2, 7]
    assert chains(drafter.propose(running, [9])) == [[8, 9, 10, 11]]


def test_prompt_lookup_forgets_a_text_that_was_replaced():
    index = NgramIndex(1, 2, "last")
    index.extend([1, 2, 3, 1])
    index.extend([1, 2, 9, 9, 2])
    assert list(index.find([1, 2, 9, 9, 2])) == [(2, 1)]
    index.extend([1, 2])
    assert list(index.find([1, 2])) == []


# --- random numbers ---------------------------------------------------------------------------------------------------


def test_inner_streams_have_keys_of_their_own_for_every_outer_step():
    outer, place = Streams([(0, "a", 0)]), torch.tensor([[7]])
    at = [outer.inner(1, torch.tensor([length]), coupled=False) for length in (5, 6)]
    keys = [outer.target(place), *(streams.target(place) for streams in at)]
    keys += [outer.own("draft", place, torch.tensor([7]), 1)]
    keys += [streams.own("draft", place, torch.tensor([7]), 1) for streams in at]
    keys += [at[0].inner(2, torch.tensor([6]), coupled=False).target(place)]
    assert len({int(key) for key in keys}) == len(keys)
    assert outer.inner(1, torch.tensor([5]), coupled=True).target(place) == outer.target(place)


# --- the contract and the counts --------------------------------------------------------------------------------------


def test_a_cascade_keeps_the_contract():
    parts = {"drafter": Bigram(), "verifier": Full(Full.Config(backend="torch")), "acceptor": Stochastic()}
    check_component(Cascade, Cascade.Config(**parts, min_probability=0.1), models=TinyModels())


def test_levels_are_counted_and_summed():
    def step(level: int, drafted: int, accepted: int) -> StepRecord:
        return StepRecord(False, drafted, drafted, accepted, accepted + 1, 0, 0.5, 1.0, 0.25, level)

    one = count_levels([step(1, 3, 2), step(2, 1, 0), step(1, 3, 0)])
    assert [(each.level, each.num_steps, each.emitted, each.drafted) for each in one] == [
        (1, 2, 4, 6),
        (2, 1, 1, 1),
    ]
    outer, inner = summarise_levels([one, count_levels([step(1, 0, 0)]), ()])
    assert (outer.acceptance_length, outer.acceptance_rate, outer.seconds_verify) == (5 / 3, 2 / 6, 3.0)
    assert (inner.acceptance_length, inner.acceptance_rate) == (1.0, 0.0)
    assert summarise_levels([()]) == ()


def test_weights_of_all_levels_are_counted_once():
    models = TinyModels()
    inner, full = Int8(Int8.Config(backend="reference")), Full(Full.Config(backend="torch"))
    drafter = cascade(verifier=inner)
    for part in (drafter, full):
        part.load(models)
    assert drafter.storages() == inner.model.storages()
    both = sum((drafter.storages() | full.storages()).values())
    assert sum(full.storages().values()) < both < sum(full.storages().values()) + sum(drafter.storages().values())


def test_an_answer_has_the_records_of_its_own_rows_only():
    requests = [Request([0, 1], SamplingParams(max_new_tokens=size), str(size)) for size in (2, 9)]
    short, long = Engine(cascade(num_speculative_tokens=4), Counts(), Stochastic()).generate(requests)
    assert sum(step.committed for step in short.inner_steps) == sum(step.drafted for step in short.steps) == 0
    assert sum(step.committed for step in long.inner_steps) == sum(step.drafted for step in long.steps) > 0


# --- composition ------------------------------------------------------------------------------------------------------


def composed(drafter: Any, temperature: float = 0.0, **more: Any) -> Composition:
    spec = validate(PipelineSpec, {"drafter": drafter, "verifier": "full", **more}, "file")
    return compose(spec, REGISTRY, SamplingParams(temperature=temperature), "file: pipelines.arm")


CASCADE = {"use": "cascade", "drafter": "ngram", "verifier": "int8", "num_speculative_tokens": 8}


def test_a_cascade_is_exact_with_respect_to_its_last_verifier():
    for temperature, same_text in ((0.0, True), (1.0, False)):
        found = composed(CASCADE, temperature, exact=True)
        assert found.exact_with_respect_to == "the model in full precision"
        assert (found.relaxed, found.same_text) == (False, same_text)
    assert composed(CASCADE, 1.0, acceptor="coupled").same_text


@pytest.mark.parametrize("name", ["cascade", "pipeline"])
def test_the_earlier_name_still_works(name, tmp_path):
    arm = composed({"use": "union", "drafters": ["bigram", {**CASCADE, "use": name}]})
    assert isinstance(arm.drafter.config.drafters[1], Cascade)
    assert arm.as_yaml()["drafter"]["drafters"][1]["use"] == "cascade"
    options = {"drafter": {**CASCADE, "use": name, "verifier": "full", "min_probability": 0.4}, "quiet": True}
    done = (
        load_pipeline(str(save_tiny_model(tmp_path / "model")), **options)
        .generate("one two one two", max_new_tokens=9)
        .generation
    )
    assert {step.level for step in done.inner_steps} == {1}


def test_levels_nest_in_yaml_and_defaults_are_written_out():
    written = composed({**CASCADE, "drafter": CASCADE, "acceptor": "coupled"}).as_yaml()["drafter"]
    assert written["acceptor"] == {"use": "coupled"}
    assert written["drafter"]["drafter"]["use"] == "ngram"
    assert written["drafter"]["acceptor"] == {"use": "stochastic"}
    assert written["drafter"]["min_margin"] == 0.0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"acceptor": "relaxed"}, CompositionError, "file: pipelines.arm.drafter: acceptor 'relaxed' is relaxed"),
        ({"acceptor": "typical"}, CompositionError, "take 'stochastic'"),
        ({"acceptor": "greedy"}, CompositionError, "serves temperature 0 only"),
        ({"drafter": {**CASCADE, "acceptor": "typical"}}, CompositionError, "pipelines.arm.drafter.drafter: acceptor"),
        ({"drafter": {"use": "ngram", "gamma": 3}}, ConfigError, "drafter.drafter.gamma: unknown key. Did you mean"),
        ({"drafter": None}, ConfigError, "pipelines.arm.drafter.drafter"),
        ({"min_margin": 2}, ConfigError, "min_margin"),
    ],
)
def test_mistakes_are_named_with_their_place(options, error, message):
    with pytest.raises(error, match=message.replace(".", r"\.")):
        composed({**CASCADE, **options})


def test_in_python_the_acceptor_has_to_be_given():
    with pytest.raises(ValueError, match="object of class Acceptor"):
        Cascade.Config(drafter=Ngram(), verifier=Counts())
