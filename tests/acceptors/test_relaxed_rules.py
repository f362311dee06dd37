"""Relaxed acceptors: their thresholds by hand, and that their strict settings are ``stochastic``."""

from __future__ import annotations

import math

import pytest
import torch

from quasar.acceptors.relaxed import Relaxed
from quasar.acceptors.stochastic import Stochastic
from quasar.acceptors.top_k_ratio import TopKRatio
from quasar.acceptors.typical import Typical
from quasar.core.context import Context, Row, TokenView
from quasar.core.errors import CompositionError, ContractError
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft, Verification
from quasar.drafters.ngram import Ngram
from quasar.pipelines.composition import fit
from quasar.verifiers.full import Full

LAW = [0.5, 0.3, 0.15, 0.05]


def judge(acceptor, draft: Draft, law=LAW, temperature: float = 1.0, logits: bool = True):
    """Accept a draft where every slot has one law."""
    rows = tuple(
        Row(TokenView([0]), 1, str(row), 0, SamplingParams(temperature=temperature)) for row in range(draft.batch)
    )
    context = Context(rows, Streams([(0, row.prompt_id, 0) for row in rows]))
    scores = torch.tensor(law).log().expand(draft.batch, draft.nodes + 1, len(law))
    verification = Verification(draft, context.distributions(scores, draft), scores if logits else None)
    return acceptor.accept(verification, context)


def accepted(acceptor, tokens, **options) -> int:
    return int(judge(acceptor, Draft.chains([tokens]), **options).num_accepted[0])


def test_typical_threshold_is_epsilon_or_the_entropy_bound_whichever_is_smaller():
    entropy = -sum(p * math.log(p) for p in LAW)
    bound = 0.3 * math.exp(-entropy)
    assert LAW[3] < min(0.09, bound) < LAW[2]
    assert accepted(Typical(), [2]) == 1
    assert accepted(Typical(), [3]) == 0
    assert accepted(Typical(Typical.Config(epsilon=0.04)), [3]) == 1
    assert accepted(Typical(Typical.Config(epsilon=1.0, delta=1.0)), [1]) == (LAW[1] > math.exp(-entropy))


def test_a_path_ends_at_its_first_rejected_draft():
    assert accepted(Typical(), [0, 1, 3, 0]) == 2
    assert accepted(TopKRatio(TopKRatio.Config(top_k=2, ratio=0.0)), [1, 0, 2, 0]) == 2


@pytest.mark.parametrize(("top_k", "ratio", "kept"), [(1, 0.0, 1), (2, 0.0, 2), (4, 0.0, 4), (4, 0.6, 2), (4, 1.0, 1)])
def test_top_k_ratio_keeps_what_ranks_high_and_is_not_much_less_likely(top_k, ratio, kept):
    acceptor = TopKRatio(TopKRatio.Config(top_k=top_k, ratio=ratio))
    assert sum(accepted(acceptor, [token]) for token in range(4)) == kept


def test_of_two_equally_likely_tokens_only_the_lower_id_has_rank_0():
    strict = TopKRatio(TopKRatio.Config(top_k=1, ratio=0.0))
    law = [0.1, 0.4, 0.4, 0.1]
    assert accepted(strict, [1], law=law) == 1
    assert accepted(strict, [2], law=law) == 0
    assert accepted(TopKRatio(TopKRatio.Config(top_k=4, ratio=1.0)), [2], law=law) == 0


def test_the_longest_accepted_path_of_a_tree_wins_and_then_the_likelier():
    everything = TopKRatio(TopKRatio.Config(top_k=4, ratio=0.0))
    tree = Draft.trees([[(0, 0), (1, 0), (2, 2), (0, 2)]])  # 0 | 1 → 2 | 1 → 0
    acceptance = judge(everything, tree)
    assert acceptance.path[0, :2].tolist() == [2, 4]  # both long paths go over 1; token 0 is likelier than 2
    assert int(acceptance.num_accepted[0]) == 2


def test_greedy_requests_are_judged_by_a_soft_law():
    loose = TopKRatio(TopKRatio.Config(top_k=2, ratio=0.5))
    assert accepted(loose, [1], temperature=0.0) == 1
    assert accepted(loose, [2], temperature=0.0) == 0
    sharper = TopKRatio(TopKRatio.Config(top_k=2, ratio=0.5, relax_temperature=0.5))
    assert accepted(sharper, [1], temperature=0.0) == 0  # 0.09 against 0.25 after squaring


def test_without_logits_a_greedy_request_cannot_be_relaxed():
    with pytest.raises(ContractError, match="needs the verifier's logits"):
        accepted(TopKRatio(), [1], temperature=0.0, logits=False)


def test_relaxed_mixes_a_point_mass_in_only_above_the_floor():
    acceptor = Relaxed(Relaxed.Config(weight=0.0, floor=0.2))  # the mixture is the draft, wherever it is mixed in
    assert [accepted(acceptor, [token]) for token in (0, 1, 2)] == [1, 1, 1]
    assert LAW[3] < 0.2 * LAW[0]
    everything = Draft.chains([[3]] * 400)
    share = float(judge(acceptor, everything).num_accepted.float().mean())
    assert share < 0.12  # the target's own 5 %, not all


def test_relaxed_at_temperature_0_takes_the_most_likely_token_of_the_mixture():
    # weight · p(x) + (1 − weight) against weight · max p
    assert accepted(Relaxed(Relaxed.Config(weight=0.8, floor=0.0)), [1], temperature=0.0) == 1  # .24 + .2 > .4
    assert accepted(Relaxed(Relaxed.Config(weight=0.9, floor=0.0)), [1], temperature=0.0) == 0  # .27 + .1 < .45


STRICT = [
    Relaxed(Relaxed.Config(weight=1.0)),
    TopKRatio(TopKRatio.Config(top_k=1)),
    TopKRatio(TopKRatio.Config(ratio=1)),
    Typical(),
]


@pytest.mark.parametrize("acceptor", STRICT, ids=lambda a: f"{a.name} {a.config}")
def test_strict_settings_equal_stochastic_at_temperature_0(acceptor):
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        law = torch.rand(4, generator=generator)
        law = (law / law.sum()).tolist()
        tokens = torch.randint(4, (3,), generator=generator).tolist()
        ours = judge(acceptor, Draft.chains([tokens]), law=law, temperature=0.0)
        strict = judge(Stochastic(), Draft.chains([tokens]), law=law, temperature=0.0)
        assert ours.num_accepted.tolist() == strict.num_accepted.tolist()
        assert ours.next_token.tolist() == strict.next_token.tolist()


@pytest.mark.parametrize("acceptor", [Relaxed(), TopKRatio(), Typical()], ids=lambda a: a.name)
def test_exact_true_refuses_a_relaxed_acceptor_by_name(acceptor):
    with pytest.raises(CompositionError, match=f"acceptor '{acceptor.name}' is relaxed"):
        fit(Ngram(), Full(), acceptor, SamplingParams(), must_be_exact=True)
    assert fit(Ngram(), Full(), acceptor, SamplingParams()).relaxed
