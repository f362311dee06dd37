"""Routing: the published rule, the length, the bandit; whose drafts and whose laws a row gets, and what is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Drafter
from quasar.core.config import PipelineSpec, validate
from quasar.core.description import ArmSpeed, Served, Speeds
from quasar.core.engine import Engine, Request
from quasar.core.errors import CompositionError, ConfigError
from quasar.core.sampling import SamplingParams
from quasar.drafters.bigram import Bigram
from quasar.drafters.ngram import Ngram
from quasar.drafters.none import NoDraft
from quasar.drafters.routed import Routed
from quasar.pipelines.composition import compose, fit
from quasar.plugins.registry import load_registry
from quasar.routing.policies import Bandit, BanditOptions, LengthOptions, complexity
from quasar.routing.router import Policy, PromptReader
from quasar.testing import TinyModels, check_component
from quasar.verifiers.full import Full
from quasar.verifiers.int8 import Int8
from quasar.verifiers.pruned import Pruned
from quasar.verifiers.routed import Routed as RoutedVerifier

SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=16)
PROMPTS = ([1, 2, 1, 2, 1], [3, 3, 4, 3, 3], [5, 6, 5])


class ByFirstLetter(Policy):
    """Routes by a prompt's first letter."""

    def __init__(self, arms: dict[str, str]) -> None:
        self.arms = arms
        self.seen: list[tuple[tuple[str, ...], int]] = []

    def choose(self, prompts: Sequence[str], arms: Sequence[str]) -> list[str]:
        return [self.arms[prompt[0]] for prompt in prompts]

    def learn(self, prompts: Sequence[str], chosen: Sequence[str], tokens: int, seconds: float) -> None:
        assert seconds >= 0
        self.seen.append((tuple(chosen), tokens))


# --- the published rule -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Name three colours.", "low"),  # 0 + 2 * 0 + 3 * 0
        ("we met Ada Lovelace and I left", "low"),  # one name, one joint; 'I' is no name
        ("go in and rest", "mid"),  # 0 + 0 + 3 * 2: two joints
        (" ".join(["run"] * 15), "low"),  # 2 + 0 + 3 * 0: the long sentence is one joint
        (" ".join(["run"] * 16), "mid"),  # 4 + 0 + 0
        ("Did Ada Lovelace ever meet Charles Babbage?", "mid"),  # 0 + 2 * 2 + 0
        ("Who met Ada, Bo, Cy?", "mid"),  # 0 + 2 * 4 + 0
        ("go in and out", "high"),  # 0 + 0 + 3 * 4
        (" ".join(["run"] * 14 + ["and", "run"]), "high"),  # 4 + 0 + 3 * 2
        ("run run run run Ada run Bo run Cy", "high"),  # 2 + 2 * 4 + 0
    ],
)  # fmt: skip
def test_complexity_is_the_published_score(prompt, expected):
    assert complexity(prompt) == expected


def test_length_alone_counts_words():
    policy = LengthOptions(low=2, mid=4).make()
    assert policy.choose(["a b", "a b c", "a b c d e"], ()) == ["low", "mid", "high"]
    assert policy.describe() == Served({"low": 1, "mid": 1, "high": 1})


def test_prompts_are_judged_without_their_template():
    class Codec:
        has_chat_template = True

        def render(self, messages):
            return [90, 91, *(ord(letter) for letter in messages[0]["content"]), 92, 93]

        def decode(self, ids, skip_special_tokens=True):
            return "".join(map(chr, ids))

    reader = PromptReader(Codec())
    assert reader.text(Codec().render([{"content": "Name three."}])) == "Name three."
    assert reader.text([65, 66]) == "AB"


# --- the bandit -------------------------------------------------------------------------------------------------------


def play(bandit: Policy, speeds: dict[str, float], requests: int, prompt: str = "x") -> list[str]:
    found = []
    for _ in range(requests):
        [arm] = bandit.choose([prompt], list(speeds))
        bandit.learn([prompt], [arm], 100, 100 / speeds[arm])
        found.append(arm)
    return found


def test_every_arm_is_tried_and_then_the_fastest_is_taken_most():
    found = play(BanditOptions().make(), {"slow": 10.0, "fast": 20.0, "middle": 15.0}, 60)
    assert set(found[:3]) == {"slow", "fast", "middle"}
    assert found.count("fast") > 45


def test_a_close_second_is_tried_more_often_than_a_far_one():
    found = play(BanditOptions(exploration=0.3).make(), {"far": 5.0, "near": 19.0, "best": 20.0}, 100)
    assert found.count("far") < found.count("near") < found.count("best")


def test_regret_is_the_time_beyond_the_fastest_arms():
    bandit = Bandit(0.0, lambda prompt: "all")
    play(bandit, {"slow": 10.0, "fast": 20.0}, 11)
    told = bandit.describe()
    assert told.arms_by_class["all"]["fast"] == ArmSpeed(10, 20.0)
    assert told.regret_seconds == pytest.approx(5.0)  # 10 s for the slow request instead of 5
    assert told.regret_share == pytest.approx(5 / 60, abs=1e-4)


def test_classes_are_learnt_apart():
    bandit = BanditOptions(classes="complexity").make()
    simple, hard = "Name three.", "run and run and run or run"
    assert play(bandit, {"a": 20.0, "b": 10.0}, 20, simple)[-5:] == ["a"] * 5
    assert play(bandit, {"a": 10.0, "b": 20.0}, 20, hard)[-5:] == ["b"] * 5


def test_a_batch_gets_one_arm():
    assert len(set(BanditOptions().make().choose(["x", "y"], ["a", "b"]))) == 1


def test_an_untimed_bandit_can_be_described():
    assert BanditOptions().make().describe() == Speeds({}, 0.0, 0.0)


def test_steps_are_told_to_the_policy_with_their_tokens():
    policy = ByFirstLetter(dict.fromkeys("abcdefg", "plain"))
    drafter = Routed(Routed.Config(arms={"plain": NoDraft()}, policy="length"), policy)
    generate(drafter, PROMPTS[:2])
    # the prompt's own token is not counted, and the last step ends the request before anyone can see it
    assert sum(tokens for _, tokens in policy.seen) == 2 * (SAMPLING.max_new_tokens - 2)
    assert {arms for arms, _ in policy.seen} == {("plain", "plain")}


# --- routing drafters -------------------------------------------------------------------------------------------------


def full(dtype: str = "float64") -> Full:
    return Full(Full.Config(backend="torch", dtype=dtype))


def generate(drafter: Drafter, prompts=PROMPTS, verifier=None, sampling=SAMPLING) -> list:
    models, verifier = TinyModels(), verifier or full()
    for part in (drafter, verifier):
        part.load(models)
    requests = [Request(prompt, sampling, str(prompt)) for prompt in prompts]
    return Engine(drafter, verifier, Stochastic()).generate(requests)


def texts(generations: list) -> list:
    return [done.token_ids for done in generations]


def routed(arms: dict[str, Drafter], letters: dict[str, str]) -> Routed:
    return Routed(Routed.Config(arms=arms, policy="length"), ByFirstLetter(letters))


def test_each_row_gets_the_drafts_of_its_own_arm():
    letters = {"b": "lookup", "d": "none", "f": "sampled"}
    drafter = routed({"lookup": Ngram(), "none": NoDraft(), "sampled": Bigram()}, letters)
    assert drafter.drafts_by == "sampled"
    found = generate(drafter)
    for number, (prompt, arm) in enumerate(zip(PROMPTS, (Ngram(), NoDraft(), Bigram()), strict=True)):
        [alone] = generate(arm, [prompt])
        assert found[number].token_ids == alone.token_ids
        drafted = [[step.drafted for step in done.steps] for done in (found[number], alone)]
        assert drafted[0] == drafted[1]
    assert found[1].num_drafted == 0 < found[0].num_drafted


def test_point_mass_arms_leave_the_text_as_it_is():
    drafter = routed({"lookup": Ngram(), "none": NoDraft()}, {"b": "lookup", "d": "none", "f": "lookup"})
    assert drafter.drafts_by == "point_mass"
    assert texts(generate(drafter)) == texts(generate(NoDraft()))
    alone = routed({"lookup": Ngram(), "none": NoDraft()}, {"b": "none", "d": "none", "f": "none"})
    assert texts(generate(alone)) == texts(generate(NoDraft()))


def test_a_routed_drafter_keeps_the_contract():
    arms = {"low": Ngram(), "mid": Bigram(), "high": NoDraft()}  # the kit's prompts are one word long
    check_component(Routed, Routed.Config(arms=arms, policy="length"), models=TinyModels())


def test_routing_the_drafter_is_exact():
    found = fit(routed({"lookup": Ngram(), "none": NoDraft()}, {}), full(), Stochastic(), SAMPLING, must_be_exact=True)
    assert found.same_text
    assert found.exact_with_respect_to == "the model in full precision (float64)"


# --- routing verifiers ------------------------------------------------------------------------------------------------


def variants() -> dict[str, Any]:
    int8 = Int8(Int8.Config(backend="reference", dtype="float64"))
    return {"low": Pruned(Pruned.Config(ratio=0.67, method="last", dtype="float64")), "mid": int8, "high": full()}


def test_each_row_is_served_by_its_own_arm():
    letters = {"b": "low", "d": "mid", "f": "high"}
    config = RoutedVerifier.Config(arms=variants(), policy="length")
    found = generate(Ngram(), verifier=RoutedVerifier(config, ByFirstLetter(letters)))
    for done, prompt, arm in zip(found, PROMPTS, variants().values(), strict=True):
        assert done.token_ids == generate(NoDraft(), [prompt], verifier=arm)[0].token_ids


def test_a_batch_of_one_arm_is_forwarded_once():
    arms = variants()
    verifier = RoutedVerifier(
        RoutedVerifier.Config(arms=arms, policy="length"), ByFirstLetter(dict.fromkeys("bdf", "high"))
    )
    one, other = generate(Ngram(), verifier=verifier), generate(Ngram())
    assert [s.positions_forwarded for done in one for s in done.steps] == [
        s.positions_forwarded for d in other for s in d.steps
    ]
    assert one[0].peak_bytes == other[0].peak_bytes


def test_routing_the_verifier_is_exact_with_respect_to_nothing_unless_the_arms_agree():
    mixed = RoutedVerifier(RoutedVerifier.Config(arms=variants(), policy="specquant"))
    assert fit(Ngram(), mixed, Stochastic(), SAMPLING).exact_with_respect_to is None
    with pytest.raises(CompositionError, match="verifier 'routed'"):
        fit(Ngram(), mixed, Stochastic(), SAMPLING, must_be_exact=True)
    alike = RoutedVerifier(RoutedVerifier.Config(arms=dict.fromkeys(("a", "b"), full()), policy="bandit"))
    assert fit(Ngram(), alike, Stochastic(), SAMPLING).exact_with_respect_to == "the model in full precision (float64)"


def test_variants_share_weights():
    verifier, models = RoutedVerifier(RoutedVerifier.Config(arms=variants(), policy="specquant")), TinyModels()
    verifier.load(models)
    target = sum(models.target("float64").storages().values())
    _, mid, high = (sum(arm.storages().values()) for arm in verifier.config.arms.values())
    assert high == target
    assert verifier.describe()["weight_bytes"] < target + mid  # pruned layers cost nothing, the head is shared


def test_a_routed_verifier_keeps_the_contract():
    config = RoutedVerifier.Config(
        arms={"low": full("auto"), "mid": full("auto"), "high": full("auto")}, policy="length"
    )
    check_component(RoutedVerifier, config, models=TinyModels())


# --- options ----------------------------------------------------------------------------------------------------------


def composed(policy: Any, arms: Any) -> Any:
    spec = validate(PipelineSpec, {"drafter": {"use": "routed", "policy": policy, "arms": arms}}, "file")
    return compose(spec, load_registry(), SamplingParams(), "file: arm")


def test_options_are_written_out():
    written = composed("length", {"low": "ngram", "mid": "ngram", "high": "none"}).as_yaml()["drafter"]
    assert written["policy"] == {"use": "length", "low": 7, "mid": 15}
    assert written["arms"]["high"] == {"use": "none"}


@pytest.mark.parametrize(
    ("policy", "arms", "message"),
    [
        ("specquant", {"low": "none"}, "no arm called high, mid; there are low"),
        ("ucb", {"a": "none"}, "policy"),
        ({"use": "bandit", "explore": 1}, {"a": "none"}, "explore"),
        ("bandit", {}, "arms"),
        ("bandit", {"a": {"use": "ngram", "gamma": 1}}, "gamma: unknown key"),
    ],
)
def test_mistakes_are_named(policy, arms, message):
    with pytest.raises(ConfigError, match=message):
        composed(policy, arms)
