"""Drafters with models read the prompt when the verifier does, and what their caches hold is counted."""

from __future__ import annotations

import pytest

from quasar.acceptors.stochastic import Stochastic
from quasar.core.engine import Engine, Request
from quasar.core.records import StepRecord
from quasar.core.sampling import SamplingParams
from quasar.drafters.adaptive import Adaptive
from quasar.drafters.best_first import BestFirst
from quasar.drafters.cascade import Cascade
from quasar.drafters.draft_model import DraftModel
from quasar.drafters.ngram import Ngram
from quasar.drafters.none import NoDraft
from quasar.drafters.pruned import Pruned
from quasar.drafters.routed import Routed
from quasar.drafters.union import Union
from quasar.models.session import Session
from quasar.testing import TinyModels
from quasar.verifiers.full import Full

PROMPT = [place * place % 7 for place in range(50)]


def small() -> DraftModel:
    return DraftModel(DraftModel.Config(model="other", num_speculative_tokens=3))


def cascade(drafter) -> Cascade:
    return Cascade(Cascade.Config(drafter=drafter, verifier=Full(), acceptor=Stochastic(), num_speculative_tokens=4))


DRAFTERS = {
    "draft model": (small, 1),
    "tree": (lambda: DraftModel(DraftModel.Config(model="other", expansion=(2, 2))), 1),
    "best first": (lambda: BestFirst(BestFirst.Config(drafter=small())), 1),
    "pruned": (lambda: Pruned(Pruned.Config(ratio=0.5, method="last")), 1),
    "cascade": (lambda: cascade(Ngram()), 1),
    "three levels": (lambda: cascade(cascade(small())), 3),
    "union": (lambda: Union(Union.Config(drafters=[Ngram(), small(), cascade(Ngram())])), 2),
    "adaptive": (lambda: Adaptive(Adaptive.Config(drafter=small(), costs={1: 1.0, 4: 1.1})), 1),
    "routed": (
        lambda: Routed(Routed.Config(arms={"low": small(), "mid": small(), "high": small()}, policy="length")),
        1,
    ),
}
"""Each with the caches that it has beside the verifier's."""


@pytest.fixture
def sessions(monkeypatch) -> list[Session]:
    """Every session that is made."""
    made, init = [], Session.__init__

    def noted(session, *args):
        init(session, *args)
        made.append(session)

    monkeypatch.setattr(Session, "__init__", noted)
    return made


def loaded(name: str):
    drafter = DRAFTERS[name][0]()
    drafter.load(TinyModels())
    return drafter


def run(drafter, sessions: list[Session], new_tokens: int = 16):
    """Generate, with a clock that counts the columns that all models together have computed."""
    verifier = Full()
    verifier.load(TinyModels())
    sessions.clear()
    steps: list[StepRecord] = []
    engine = Engine(
        drafter, verifier, Stochastic(), on_step=steps.append,
        clock=lambda: sum(session.columns_forwarded for session in sessions),
    )  # fmt: skip
    [done] = engine.generate([Request(PROMPT, SamplingParams(max_new_tokens=new_tokens), "p")])
    return done


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_prompt_is_read_in_prefill_and_once(name, sessions):
    done = run(loaded(name), sessions)
    prefill, *decode = done.steps
    caches = DRAFTERS[name][1]
    assert prefill.seconds_draft == caches * len(PROMPT)
    assert prefill.seconds_verify == len(PROMPT)
    assert max(step.seconds_draft for step in decode) < len(PROMPT)
    assert sum(session.columns_forwarded > 0 for session in sessions) == 1 + caches


@pytest.mark.parametrize("name", DRAFTERS)
def test_what_caches_hold_is_counted(name, sessions):
    done = run(loaded(name), sessions)
    assert done.peak_bytes == sum(session.nbytes for session in sessions)
    assert done.peak_bytes > 1.4 * run(NoDraft(), sessions).peak_bytes


def test_nothing_is_read_for_a_text_of_one_token(sessions):
    done = run(loaded("cascade"), sessions, new_tokens=1)
    assert [step.seconds_draft for step in done.steps] == [0]


def test_the_inner_levels_have_no_step_for_the_prompt(sessions):
    done = run(loaded("three levels"), sessions)
    assert not any(step.is_prefill for step in done.inner_steps)
    assert max(step.positions_forwarded for step in done.inner_steps) < len(PROMPT)


def test_a_drafter_that_was_not_asked_to_read_reads_later(sessions, monkeypatch):
    read = run(loaded("cascade"), sessions)
    monkeypatch.setattr(Cascade, "prefill", lambda *_: None)
    unread = run(loaded("cascade"), sessions)
    assert unread.token_ids == read.token_ids
    assert unread.steps[0].seconds_draft == 0
    assert unread.steps[1].seconds_draft >= len(PROMPT)
