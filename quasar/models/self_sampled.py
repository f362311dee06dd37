"""Text that a model samples from itself: what components calibrate on and learn from. Nothing is downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quasar.core.models import EditableModel, LanguageModel
from quasar.core.providers import ModelProvider
from quasar.core.streams import Streams, draw
from quasar.core.types import Draft
from quasar.models.backend_choice import choose_backend, full_precision
from quasar.models.disk_cache import quasar_home, remember, remembered
from quasar.models.progress import progress_bar
from quasar.models.session import Session

TEXTS, TOKENS = 16, 256
"""Size of the text that is kept for drafters."""

_SUCCESSORS = 16
"""Likeliest next tokens that are kept for each token."""

_VERSION = 1
"""Part of the key on disk; raise it when the same model would write other texts."""


@dataclass(frozen=True, slots=True)
class SelfSampledTexts:
    """What a model wrote, and what it considered meanwhile.

    Attributes:
        texts: ids.
        successors: of each token that occurs, the likeliest next ones over all its occurrences, best first.
    """

    texts: list[list[int]]
    successors: dict[int, list[int]]

    def describe(self) -> str:
        """Return what there is, for reports."""
        return f"{sum(map(len, self.texts))} tokens that the model sampled, with {len(self.successors)} different ones"


def self_sampled_texts(
    model: LanguageModel,
    texts: int,
    tokens: int,
    prefix: Sequence[int] = (),
    on_token: Callable[[], object] = lambda: None,
    on_distributions: Callable[[list[int], Tensor], object] = lambda last, distributions: None,
) -> list[list[int]]:
    """Sample texts at temperature 1; the same model samples the same ones every time.

    Args:
        model: samples.
        texts: how many, sampled as one batch.
        tokens: length of each, ``prefix`` included; cut to what the model holds.
        prefix: what every text begins with. Without one a text begins with a token drawn from the whole vocabulary.
        on_token: called after every place, for progress.
        on_distributions: called with the last token of every text and the distributions after it, ``[texts, vocab]``
            float64.

    Returns:
        ``texts`` lists of ``tokens`` ids.
    """
    streams = Streams([(0, "calibration", number) for number in range(texts)])
    distributions = torch.ones((texts, model.vocab_size))
    session = Session(model, texts, tokens)
    length = min(tokens, model.max_length or tokens)
    found = [list(prefix[:length]) for _ in range(texts)]
    for place in range(len(prefix), length):
        if place:
            distributions = session.forward(found, Draft.empty(texts))[:, 0].double().softmax(dim=-1)
            on_distributions([text[-1] for text in found], distributions)
        keys = streams.target(torch.full((texts, 1), place))[:, 0]
        for text, token in zip(found, draw(distributions, keys).tolist(), strict=True):
            text.append(token)
        on_token()
    return found


def remembered_self_sampled_texts(models: ModelProvider) -> SelfSampledTexts:
    """Return conversations that the target wrote alone, sampled once for each model and kept in ``QUASAR_HOME``.

    Source: Magpie, Xu et al., arXiv 2406.08464, section 2, with the answer not asked for apart.
    """
    return models.derived("own texts", lambda: _read_or_sample(models))


def _read_or_sample(models: ModelProvider) -> SelfSampledTexts:
    target = models.target()
    prefix = models.tokenizer().conversation_start()
    words = f"{_VERSION} {fingerprint(target)} {TEXTS} {TOKENS} {_SUCCESSORS} {prefix}"
    file = quasar_home() / "own_texts" / f"{hashlib.blake2b(words.encode(), digest_size=12).hexdigest()}.json"
    found = _read(remembered(file), target.vocab_size)
    if found is None:
        model = full_precision(models, "auto", choose_backend(models, "auto", "auto")).model
        seen: dict[int, dict[int, float]] = {}
        with progress_bar(f"sampling texts from {target.name}", TOKENS - len(prefix)) as bar:
            texts = self_sampled_texts(
                model, TEXTS, TOKENS, prefix, bar.update, lambda last, distributions: _note(seen, last, distributions)
            )
        found = SelfSampledTexts(texts, {token: _best(weights) for token, weights in seen.items()})
        remember(file, {"texts": found.texts, "successors": list(found.successors.items())})
    return found


def _note(seen: dict[int, dict[int, float]], last: Sequence[int], distributions: Tensor) -> None:
    """Add the probabilities of what may follow each token."""
    likely = distributions.topk(min(_SUCCESSORS, distributions.shape[-1]), dim=-1)
    for token, shares, ids in zip(last, likely.values.tolist(), likely.indices.tolist(), strict=True):
        weights = seen.setdefault(token, {})
        for successor, share in zip(ids, shares, strict=True):
            weights[successor] = weights.get(successor, 0.0) + share


def _best(weights: dict[int, float]) -> list[int]:
    return sorted(weights, key=lambda token: -weights[token])[:_SUCCESSORS]


def _read(found: Any, vocab_size: int) -> SelfSampledTexts | None:
    """Return texts from the disk; ``None`` for what is missing or damaged."""
    try:
        texts, pairs = found["texts"], found["successors"]
        ids = [*(token for text in texts for token in text), *(token for _, row in pairs for token in row)]
        if all(isinstance(token, int) and 0 <= token < vocab_size for token in ids):
            return SelfSampledTexts(texts, dict(pairs))
    except (TypeError, ValueError, KeyError):
        pass
    return None


def fingerprint(model: EditableModel) -> str:
    """Return a short text that differs between models with different weights, from some values of every layer."""
    digest = hashlib.blake2b(f"{model.name} {model.dtype}".encode(), digest_size=12)
    for layer in model.linear_layers():
        values = layer.weight.reshape(-1)
        digest.update(f"{layer.name} {tuple(layer.weight.shape)}".encode())
        digest.update(values[:: max(1, len(values) // 256)].double().cpu().numpy().tobytes())
    return digest.hexdigest()
