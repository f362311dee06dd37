"""Two models' distributions at the same places of the same text, and what their differences amount to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quasar.core.components import Verifier
from quasar.core.context import Context
from quasar.core.distributions import most_likely
from quasar.core.models import EditableModel, LanguageModel
from quasar.core.rows import Row, TokenView
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft
from quasar.fidelity.results import Summary
from quasar.models.session import Session
from quasar.models.verifier import ModelVerifier


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


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences of two models' distributions at the places of one text, ``[places]`` float64 each.

    Attributes:
        top1_agreement: 1 where the most likely token is the same, else 0.
        kl: KL(reference, model), nats.
        tv: total variation distance.
    """

    top1_agreement: Tensor
    kl: Tensor
    tv: Tensor


def verifier_logits(model: LanguageModel, verifier: Verifier, text: Continuation) -> Tensor:
    """Return what ``teacher_forced`` says of a verifier's model, as the verifier changes it if it does."""
    logits = teacher_forced(model, text)
    if not isinstance(verifier, ModelVerifier):
        return logits
    row = Row(TokenView(list(text.prompt)), len(text.prompt), "", 0, SamplingParams(temperature=1.0))
    draft = Draft.chains([text.token_ids[:-1]])
    return verifier.adjust(logits[None], Context((row,), Streams([(0, "", 0)])), draft)[0]


def teacher_forced(model: LanguageModel, text: Continuation) -> Tensor:
    """Return the logits of every place of a continuation, given all that stands before it. ``[tokens, vocab]``"""
    session = Session(model, 1, len(text.prompt) + len(text.token_ids))
    return session.forward([text.prompt], Draft.chains([list(text.token_ids[:-1])]))[0]


def differences(reference: Tensor, other: Tensor) -> Differences:
    """Return the measures at each place.

    Args:
        reference: logits ``[places, vocab]``; at temperature 1 they give the distribution that the other is measured
            against.
        other: logits of the same shape.
    """
    p, q = reference.double().log_softmax(dim=-1), other.double().log_softmax(dim=-1)
    same = most_likely(reference.float()) == most_likely(other.float())
    return Differences(
        top1_agreement=same.double(),
        kl=(p.exp() * (p - q)).sum(dim=-1),
        tv=(p.exp() - q.exp()).abs().sum(dim=-1) / 2,
    )


def summary(prompts: Sequence[Differences]) -> Summary:
    """Return the mean of every measure over all places, its standard error, and the numbers of places and prompts.

    Places of one prompt are not independent, so the error is that of a mean over clusters, with a prompt as a cluster;
    it is ``None`` for a single prompt.

    Args:
        prompts: what ``differences`` returned, prompt by prompt.
    """
    agreement, agreement_error = _mean([each.top1_agreement for each in prompts])
    kl, kl_error = _mean([each.kl for each in prompts])
    tv, tv_error = _mean([each.tv for each in prompts])
    places = sum(len(each.kl) for each in prompts)
    return Summary(agreement, agreement_error, kl, kl_error, tv, tv_error, places, len(prompts))


def _mean(prompts: Sequence[Tensor]) -> tuple[float, float | None]:
    """Return the mean over all places, and its standard error with a prompt as a cluster."""
    places, many = sum(map(len, prompts)), len(prompts)
    mean = sum(float(values.sum()) for values in prompts) / places
    squares = sum(float((values - mean).sum()) ** 2 for values in prompts)
    return mean, math.sqrt(squares * many / (many - 1)) / places if many > 1 else None


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
