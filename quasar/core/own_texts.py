"""Text that a model samples from itself: what components calibrate on. Nothing is downloaded, and nothing leaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from quasar.core.models import LanguageModel
from quasar.core.session import Session
from quasar.core.streams import Streams, draw
from quasar.core.types import Draft


def own_texts(
    model: LanguageModel,
    texts: int,
    tokens: int,
    prefix: Sequence[int] = (),
    on_token: Callable[[], object] = lambda: None,
) -> list[list[int]]:
    """Sample texts at temperature 1; the same model samples the same ones every time.

    Args:
        model: samples.
        texts: how many, sampled as one batch.
        tokens: length of each, ``prefix`` included; cut to what the model holds.
        prefix: what every text begins with. Without one a text begins with a token drawn from the whole vocabulary.
        on_token: called after every place, for progress.

    Returns:
        ``texts`` lists of ``tokens`` ids.
    """
    streams = Streams([(0, "calibration", number) for number in range(texts)])
    laws = torch.ones((texts, model.vocab_size))
    session = Session(model, texts, tokens)
    length = min(tokens, model.max_length or tokens)
    found = [list(prefix[:length]) for _ in range(texts)]
    for place in range(len(prefix), length):
        if place:
            laws = session.forward(found, Draft.empty(texts))[:, 0].double().softmax(dim=-1)
        keys = streams.target(torch.full((texts, 1), place))[:, 0]
        for text, token in zip(found, draw(laws, keys).tolist(), strict=True):
            text.append(token)
        on_token()
    return found
