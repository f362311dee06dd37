"""Two models' distributions at the same places of the same text, and what their differences amount to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quasar.core.distributions import most_likely
from quasar.core.models import EditableModel, LanguageModel
from quasar.core.types import Draft
from quasar.models.session import Session

MEASURES = ("top1_agreement", "kl", "tv")
"""Share of places with the same most likely token; KL(reference, model) in nats; total variation distance."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt and the reference's greedy text after it.

    Attributes:
        task: what the prompt belongs to.
        prompt: its ids.
        token_ids: ids of the text, one at least.
    """

    task: str
    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]


def teacher_forced(model: LanguageModel, text: Continuation) -> Tensor:
    """Return the logits of every place of a continuation, given all that stands before it. ``[tokens, vocab]``"""
    session = Session(model, 1, len(text.prompt) + len(text.token_ids))
    return session.forward([text.prompt], Draft.chains([list(text.token_ids[:-1])]))[0]


def differences(reference: Tensor, other: Tensor) -> dict[str, Tensor]:
    """Return the measures at each place, ``[places]`` float64.

    Args:
        reference: logits ``[places, vocab]``; at temperature 1 they give the distribution that the other is measured
            against.
        other: logits of the same shape.
    """
    p, q = reference.double().log_softmax(dim=-1), other.double().log_softmax(dim=-1)
    same = most_likely(reference.float()) == most_likely(other.float())
    return {
        "top1_agreement": same.double(),
        "kl": (p.exp() * (p - q)).sum(dim=-1),
        "tv": (p.exp() - q.exp()).abs().sum(dim=-1) / 2,
    }


def summary(prompts: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
    """Return the mean of every measure over all places, its standard error, and the numbers of places and prompts.

    Places of one prompt are not independent, so the error is that of a mean over clusters, with a prompt as a cluster;
    it is ``None`` for a single prompt.

    Args:
        prompts: what ``differences`` returned, prompt by prompt.
    """
    places = sum(len(each["kl"]) for each in prompts)
    found: dict[str, Any] = {}
    for name in MEASURES:
        mean = sum(float(each[name].sum()) for each in prompts) / places
        squares = sum(float((each[name] - mean).sum()) ** 2 for each in prompts)
        many = len(prompts)
        found[name] = mean
        found[f"{name}_standard_error"] = math.sqrt(squares * many / (many - 1)) / places if many > 1 else None
    return found | {"positions": places, "prompts": len(prompts)}


def layer_errors(reference: EditableModel, other: EditableModel, text: Continuation) -> list[float]:
    """Return the error of each decoder layer of ``other``, given the input that the layer has in ``reference``.

    The error is relative to what the layer adds to its input: errors of earlier layers do not count, and folding
    factors into norms and weights, which changes what single projections compute, does not either.

    Raises:
        UnsupportedModelError: the layers of one of the models are not a plain stack.
    """
    ids = torch.tensor([[*text.prompt, *text.token_ids]])
    states = reference.layer_states(ids)
    outputs = other.layer_states(ids, given=states[:-1])[1:]
    errors = []
    for before, after, output in zip(states, states[1:], outputs, strict=False):
        added = (after.double() - before.double()).norm(dim=-1)
        errors.append(float(((output.double() - after.double()).norm(dim=-1) / added).mean()))
    return errors
