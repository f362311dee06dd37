"""Which earlier occurrence is continued: the one that the model's states say is like the end of the text."""

from __future__ import annotations

import pytest
import torch
from drafting import chains, context

from quasar.core.errors import CompositionError, ConfigError
from quasar.drafters.pld_plus import PldPlus
from quasar.testing import TinyModels, check_component
from quasar.verifiers.full import Full
from quasar.verifiers.routed import Routed

TEXT = [5, 7, 1, 6, 7, 2, 4, 7, 3, 8, 7]
"""Token 7 stands at 1, 4, 7 and at the end."""
AXES = torch.eye(4)


class KnownStates:
    """An exit that hands out given states and counts how often it is asked."""

    def __init__(self, states: torch.Tensor) -> None:
        self.given, self.asked = states, 0

    def states(self, running) -> torch.Tensor:
        self.asked += 1
        return self.given.expand(running.batch, *self.given.shape)


def like(*directions: int) -> torch.Tensor:
    """States that point along an axis, with lengths that a cosine must not see. ``[tokens + 5, 4]``"""
    states = torch.stack([(1 + place) * AXES[axis] for place, axis in enumerate(directions)])
    return torch.cat([states, torch.full((5, 4), torch.nan)])  # beyond the text stands anything


def drafter(states: torch.Tensor, **options) -> PldPlus:
    made = PldPlus(PldPlus.Config(**options))
    made._exit = KnownStates(states)
    return made


@pytest.mark.parametrize(("alike", "place"), [(0, 1), (3, 4), (6, 7)])
def test_the_place_with_the_likest_state_before_it_is_continued(alike, place):
    directions = [1] * 10
    directions[9] = directions[alike] = 2  # 9 is before the last token
    draft = drafter(like(*directions), num_speculative_tokens=3).propose(context(TEXT), [9])
    assert chains(draft) == [TEXT[place + 1 : place + 4]]


def test_of_equally_like_places_the_latest_is_continued():
    assert chains(drafter(like(*[1] * 10)).propose(context(TEXT), [9])) == [[3, 8, 7]]


def test_states_of_the_occurrence_itself_do_not_count():
    directions = [1, 2, 1, 1, 1, 1, 3, 1, 1, 2]  # the state *at* place 1 is the likest
    assert chains(drafter(like(*directions)).propose(context(TEXT), [9])) != [TEXT[2:7]]


def test_an_occurrence_at_the_very_beginning_comes_last():
    directions, text = [2, 3, 3, 2], [7, 1, 5, 7, 7]
    made = drafter(like(*directions))
    assert chains(made.propose(context(text), [9])) == [[7]]
    assert chains(made.propose(context(text[:4]), [9])) == [[1, 5, 7]]
    assert made._exit.asked == 1  # where there is one place only, nobody is asked


def test_a_new_token_and_a_spent_budget_draft_nothing():
    made = drafter(like(*[1] * 10))
    assert chains(made.propose(context([*TEXT, 9], TEXT), [9, 0])) == [[], []]
    assert made._exit.asked == 0


def test_rows_have_their_own_texts_and_budgets():
    directions = [1] * 10
    directions[9] = directions[0] = 2
    found = drafter(like(*directions)).propose(context(TEXT, TEXT, [7, 7]), [2, 9, 9])
    assert chains(found) == [[1, 6], [1, 6, 7, 2, 4], [7]]


def test_a_text_that_was_replaced_is_read_anew():
    made, ids = drafter(like(*[1] * 10)), list(TEXT)
    running = context(ids)
    made.propose(running, [9])
    ids[:] = [1, 2, 3, 1]
    assert chains(made.propose(running, [9])) == [[2, 3, 1]]


@pytest.mark.parametrize("layer", [3, 50])
def test_a_layer_that_is_not_there_is_refused(layer):
    verifier = Full()
    verifier.load(TinyModels())
    with pytest.raises(ConfigError, match=rf"^drafter 'pld_plus': layer {layer} is not within 1\.\.2: model 'tiny'"):
        PldPlus(PldPlus.Config(layer=layer)).attach_verifier(verifier)


def test_a_verifier_of_several_models_is_refused():
    verifier = Routed(Routed.Config(arms={"low": Full(), "mid": Full(), "high": Full()}, policy="length"))
    with pytest.raises(
        CompositionError, match=r"^drafter .pld_plus. works with the layers of the verifier.s own model"
    ):
        PldPlus().attach_verifier(verifier)


@pytest.mark.parametrize("layer", [1, 2])
def test_the_contract_is_kept(layer):
    check_component(PldPlus, models=TinyModels(), layer=layer)
