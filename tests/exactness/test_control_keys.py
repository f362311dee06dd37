"""Negative controls: random numbers that are used twice. The ring's chi-square must see each of them.

Where a fault's law is known, the test finds those numbers as well.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ring import FEWER, p_value, refutes, second_token
from torch import Tensor
from toys import (
    NestedPipeline,
    TableVerifier,
    TreeDrafter,
    Twig,
    same_everywhere,
)
from worlds import CHAIN, DRAFT, OTHER, WORLD

from quasar.core.context import Context
from quasar.core.streams import Streams, draw, uniforms
from quasar.drafters.none import NoDraft

TWO_TOKENS = CHAIN[:2]
SKEWED = (0.40, 0.35, 0.05, 0.20)
SKEWED_DRAFT = same_everywhere((0.1, 0.2, 0.3, 0.4))


class DrawsFromTheAcceptTest(TreeDrafter):
    """Draws a token by inverse CDF from the number that the accept test will use."""

    def pick(self, context: Context, law: Tensor, index: int, committed: Tensor) -> Tensor:
        numbers = torch.full((context.batch, 1), index)
        uniform = uniforms(context.streams.own("accept", numbers, committed, context.level))
        return (law.double().cumsum(dim=1) < uniform).sum(dim=1).clamp_max(law.shape[1] - 1)


class DrawsFromTheResidual(TreeDrafter):
    """Draws a token with the noise that the residual will be drawn with."""

    def pick(self, context: Context, law: Tensor, index: int, committed: Tensor) -> Tensor:
        return draw(law, context.streams.own("next", torch.full((context.batch, 1), index), committed)[:, 0])


def test_a_uniform_shared_by_draft_and_accept_test_is_caught():
    p, law = second_token(DrawsFromTheAcceptTest([SKEWED_DRAFT], [Twig(0)]), SKEWED)
    assert refutes(p)
    assert law == pytest.approx([0.567, 0.433, 0.0, 0.0], abs=0.015)


def test_a_uniform_shared_by_draft_and_accept_test_is_caught_in_longer_drafts():
    assert refutes(p_value(DrawsFromTheAcceptTest([DRAFT], CHAIN), WORLD, samples=FEWER))


def test_noise_shared_by_draft_and_residual_is_caught():
    p, law = second_token(DrawsFromTheResidual([SKEWED_DRAFT], [Twig(0)]), SKEWED)
    assert refutes(p)
    assert law == pytest.approx([0.435, 0.314, 0.051, 0.200], abs=0.015)


Own = Callable[..., Tensor]


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Callable[[Own], None]:
    """Replace ``Streams.own``; the new one gets the old one first."""
    original = Streams.own

    def use(broken: Own) -> None:
        monkeypatch.setattr(Streams, "own", lambda self, *key, **more: broken(original, self, *key, **more))

    return use


def test_a_target_key_shared_by_draft_and_target_draw_is_caught(streams):
    def shared(own, self, purpose, nodes, committed, level=0):
        position = committed[:, None] + nodes
        return own(self, purpose, nodes, committed, level) if purpose == "accept" else self.target(position)

    streams(shared)
    p, law = second_token(TreeDrafter([SKEWED_DRAFT], [Twig(0)]), SKEWED)
    assert refutes(p)
    assert law == pytest.approx([0.435, 0.314, 0.051, 0.200], abs=0.015)


def test_keys_without_their_purpose_are_caught(streams):
    streams(lambda own, self, purpose, nodes, committed, level=0: own(self, "any", nodes, committed, level))
    assert refutes(p_value(TreeDrafter([DRAFT], TWO_TOKENS), WORLD, samples=FEWER))


def test_keys_without_the_committed_length_are_caught(streams):
    streams(lambda own, self, purpose, nodes, committed, level=0: own(self, purpose, nodes, committed * 0, level))
    assert refutes(p_value(TreeDrafter([DRAFT], TWO_TOKENS), WORLD, samples=FEWER))


def test_keys_without_the_node_are_caught(streams):
    streams(lambda own, self, purpose, nodes, committed, level=0: own(self, purpose, nodes * 0, committed, level))
    assert refutes(p_value(TreeDrafter([DRAFT], CHAIN), WORLD, samples=FEWER))


def test_keys_without_the_level_are_caught(streams):
    streams(lambda own, self, purpose, nodes, committed, level=0: own(self, purpose, nodes, committed, 0))
    inner = TreeDrafter([DRAFT], TWO_TOKENS)
    assert refutes(p_value(NestedPipeline(inner, TableVerifier(OTHER), length=2), WORLD, samples=FEWER))


def test_target_keys_without_the_position_are_caught(monkeypatch):
    target = Streams.target
    monkeypatch.setattr(Streams, "target", lambda self, positions: target(self, positions * 0))
    assert refutes(p_value(NoDraft(), WORLD, samples=FEWER))
