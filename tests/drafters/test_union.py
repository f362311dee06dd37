"""Several drafters in one tree: who comes first, what is shared, what is tried; and how YAML writes it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from drafting import context, nodes
from hypothesis import given, settings
from hypothesis import strategies as st

from quasar.acceptors.stochastic import Stochastic
from quasar.core import trees
from quasar.core.components import Drafter
from quasar.core.config import PipelineSpec, validate
from quasar.core.context import Context
from quasar.core.draft_contract import check_draft
from quasar.core.errors import CompositionError, ConfigError, PluginError
from quasar.core.sampling import SamplingParams
from quasar.core.types import POINT_MASS, Draft
from quasar.drafters.bigram import Bigram
from quasar.drafters.ngram import Ngram
from quasar.drafters.none import NoDraft
from quasar.drafters.recycling import Recycling
from quasar.drafters.suffix import Suffix
from quasar.drafters.union import Union
from quasar.pipelines.composition import compose, fit
from quasar.plugins.registry import load_registry
from quasar.testing import TinyModels, check_component
from quasar.verifiers.full import Full

Tree = list[tuple[int, int]]
VOCAB = 5


class Fixed(Drafter):
    """Drafts what it is told to, whatever the text."""

    name = "fixed"
    drafts_by = "point_mass"

    def __init__(self, *rows: Tree) -> None:
        super().__init__()
        self.rows = rows

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        return Draft.trees(self.rows)


class Sampled(Fixed):
    """Says that it drew its chains, each token from a law of its own."""

    drafts_by = "sampled"

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        chains = [[token for token, _ in row] for row in self.rows]
        width = max(map(len, chains))
        laws = torch.full((len(chains), width, VOCAB), 1 / VOCAB) + torch.arange(width)[:, None] * 0
        return Draft.chains(chains, laws)


def union(*drafters: Drafter, **options) -> Union:
    return Union(Union.Config(drafters=drafters, **options))


def proposed(*drafters: Drafter, **options) -> list[Tree]:
    rows = max((len(drafter.rows) for drafter in drafters if isinstance(drafter, Fixed)), default=1)
    return nodes(union(*drafters, **options).propose(context(*[[1, 2]] * rows), [9] * rows))


def chain(*tokens: int) -> Tree:
    return [(token, place) for place, token in enumerate(tokens)]


# --- one tree ---------------------------------------------------------------------------------------------------------


def test_equal_beginnings_share_nodes():
    assert proposed(Fixed(chain(1, 2, 3)), Fixed(chain(1, 2, 4)), Fixed(chain(2))) == [
        [(1, 0), (2, 1), (3, 2), (4, 2), (2, 0)]
    ]


def test_the_same_token_elsewhere_is_another_node():
    assert proposed(Fixed(chain(1, 1)), Fixed([(2, 0), (1, 1)])) == [[(1, 0), (1, 1), (2, 0), (1, 3)]]


def test_drafter_after_drafter_or_depth_after_depth():
    both = Fixed(chain(1, 2, 3)), Fixed(chain(4, 3, 2))
    assert proposed(*both, max_nodes=4) == [[(1, 0), (2, 1), (3, 2), (4, 0)]]
    assert proposed(*both, max_nodes=4, order="breadth") == [[(1, 0), (4, 0), (2, 1), (3, 2)]]


def test_a_node_without_its_parent_is_left_out():
    assert proposed(Fixed(chain(1)), Fixed(chain(2, 3)), Fixed(chain(1, 4)), max_nodes=1) == [[(1, 0)]]


def test_a_full_tree_still_lets_a_later_drafter_share_what_is_there():
    assert proposed(Fixed(chain(1, 2)), Fixed(chain(1, 2)), max_nodes=2) == [[(1, 0), (2, 1)]]


def test_rows_are_merged_one_by_one():
    assert proposed(Fixed(chain(1), [], chain(3)), Fixed([], [], chain(3, 4))) == [
        [(1, 0)],
        [],
        [(3, 0), (4, 1)],
    ]


def test_rubbish_in_the_padding_does_not_matter():
    class Padded(Fixed):
        def propose(self, context: Context, budget: Sequence[int]) -> Draft:
            return Draft(torch.tensor([[1, 7], [2, 3]]), torch.tensor([[0, 99], [0, 1]]), torch.tensor([1, 2]))

    assert proposed(Padded([], [])) == [[(1, 0)], [(2, 0), (3, 1)]]


some_trees = st.lists(
    st.lists(st.integers(0, 2), max_size=5).flatmap(
        lambda tokens: st.tuples(*[st.integers(0, slot) for slot in range(len(tokens))]).map(
            lambda parents: list(zip(tokens, parents, strict=True))
        )
    ),
    min_size=1,
    max_size=4,
)


def paths(tree: Tree) -> set[tuple[int, ...]]:
    """The tokens on the way to every node."""
    return {tuple(path) for path in trees.prefixes(Draft.trees([tree]), 0)}


@given(proposals=some_trees, order=st.sampled_from(["given", "breadth"]), most=st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_the_tree_holds_what_was_proposed_each_path_once_and_no_more_than_its_budget(proposals, order, most):
    (tree,) = proposed(*map(Fixed, proposals), order=order, max_nodes=most)
    wanted = set().union(*map(paths, proposals))
    assert paths(tree) <= wanted
    assert len(tree) == len(paths(tree)) - 1 == min(most, len(wanted) - 1)


# --- trials -----------------------------------------------------------------------------------------------------------


def tried(draft: Draft) -> list[tuple[int, int]]:
    """The first row's trials: (slot, law)."""
    pairs = zip(draft.trials.nodes[0].tolist(), draft.trials.sources[0].tolist(), strict=True)
    return [(slot, law) for slot, law in pairs if slot]


def test_equal_siblings_share_a_node_and_keep_their_trials():
    parts = Fixed(chain(1, 2)), Sampled(chain(1, 3)), Sampled(chain(2, 4))
    draft = union(*parts).propose(context([1, 2]), [9])
    assert nodes(draft) == [[(1, 0), (2, 1), (3, 1), (2, 0), (4, 4)]]
    # all trials of a node come before those of its children, siblings in the order of the drafters
    assert tried(draft) == [(1, POINT_MASS), (1, 0), (4, 2), (2, POINT_MASS), (3, 1), (5, 3)]
    assert draft.trials.table.shape == (1, 4, VOCAB)
    check_draft(draft, [9], VOCAB, "sampled", "union")


def test_a_sampled_union_counts_trials():
    draft = union(Sampled(chain(1, 2)), Sampled(chain(1, 3)), max_nodes=3).propose(context([1, 2]), [9])
    assert nodes(draft) == [[(1, 0), (2, 1)]]
    assert tried(draft) == [(1, 0), (1, 2), (2, 1)]


def test_laws_keep_their_rows():
    first, second = Sampled(chain(1), chain(2, 3)), Sampled(chain(4, 1), [])
    draft = union(first, second).propose(context([1, 2], [1, 2]), [9, 9])
    assert draft.trials.nodes.tolist() == [[1, 2, 3], [1, 2, 0]]
    assert draft.trials.sources.tolist() == [[0, 2, 3], [0, 1, POINT_MASS]]


def test_parts_draw_from_streams_of_their_own_and_share_the_targets():
    running = context([1, 2])
    place, committed = torch.tensor([[0]]), torch.tensor([2])
    parts = [running, running.part(0), running.part(1), running.part(0).part(1), running.part(1).part(0)]
    assert len({int(part.draft_keys(place, place)) for part in parts}) == 5
    assert len({int(part.streams.own("accept", place, committed)) for part in parts}) == 5
    assert len({int(part.streams.target(place)) for part in parts}) == 1
    assert int(running.part(1).draft_keys(place, place)) == int(running.part(1).draft_keys(place, place))


def test_parts_share_the_scratch_of_the_whole():
    running = context([1, 2])
    running.part(0).scratch(running, lambda: ["first"])
    assert running.part(1).scratch(running, lambda: ["second"]) == ["first"]


# --- traits and options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "way"),
    [((NoDraft(),), "none"), ((NoDraft(), Ngram()), "point_mass"), ((Ngram(), Bigram(), NoDraft()), "sampled")],
)
def test_it_drafts_as_its_parts_do(parts, way):
    assert union(*parts).drafts_by == way
    assert union(union(*parts)).drafts_by == way


def composed(drafter, **more):
    spec = validate(PipelineSpec, {"drafter": drafter, **more}, "here")
    return compose(spec, load_registry(), SamplingParams(temperature=1.0), "run.yaml: pipelines.both")


WRITTEN = {"use": "union", "drafters": ["suffix", {"use": "recycling", "max_nodes": 4}], "max_nodes": 6}


def test_components_in_options_are_written_as_everywhere():
    composition = composed({"use": "adaptive", "drafter": WRITTEN, "costs": {1: 1.0}}, exact=True)
    assert composition.same_text
    inner = composition.drafter.config.drafter
    assert [type(part) for part in inner.config.drafters] == [Suffix, Recycling]
    assert inner.config.drafters[1].config.max_nodes == 4


def test_the_resolved_options_hold_those_of_the_parts_and_can_be_written_again():
    resolved = composed(WRITTEN).as_yaml()["drafter"]
    assert resolved["drafters"][0] == {"use": "suffix", **Suffix.Config().model_dump(mode="json")}
    assert resolved["drafters"][1]["carry_over"] is False
    assert composed(resolved).as_yaml()["drafter"] == resolved


@pytest.mark.parametrize(
    ("written", "kind", "message"),
    [
        (["ngrm"], PluginError, "unknown drafter 'ngrm'. Did you mean 'ngram'"),
        ([{"use": "ngram", "max": 3}], ConfigError, r"pipelines\.both\.drafter\.drafters\.max: unknown key"),
        ([{"max_nodes": 3}], ConfigError, r"drafter\.drafters: a component needs 'use: NAME'"),
        ([], ConfigError, r"drafter\.drafters: list should have at least 1 item"),
        ([7], ConfigError, r"drafter\.drafters: input should be"),
    ],
)
def test_a_mistake_inside_a_part_names_the_place(written, kind, message):
    with pytest.raises(kind, match=message):
        composed({"use": "union", "drafters": written})


def test_in_python_a_part_is_an_object_of_its_kind():
    for wrong in ("ngram", Stochastic(), Ngram):
        with pytest.raises(ValueError, match="should be a drafter, as an object of class Drafter"):
            Union.Config(drafters=[wrong])


def test_a_sampled_union_is_refused_where_samples_are():
    class PointsOnly(Stochastic):
        takes = frozenset({"none", "point_mass"})

    fit(union(Ngram(), Suffix()), Full(), PointsOnly(), SamplingParams())
    with pytest.raises(CompositionError, match="drafter 'union' drafts by 'sampled'"):
        fit(union(Ngram(), Bigram()), Full(), PointsOnly(), SamplingParams())


@pytest.mark.parametrize("order", ["given", "breadth"])
def test_the_contract_is_kept_with_point_masses(order):
    parts = [Suffix(), Recycling(), NoDraft(), Ngram()]
    check_component(Union, models=TinyModels(), drafters=parts, order=order, max_nodes=9)


def test_the_contract_is_kept_with_samples():
    few = Bigram(Bigram.Config(num_speculative_tokens=2))
    check_component(Union, models=TinyModels(), drafters=[Suffix(), few, Recycling()], max_nodes=5)
