"""Which layers of a decoder to leave out, and the copy without them; nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from quasar.core.backends import STOCK, check_name
from quasar.core.description import Description
from quasar.core.errors import ConfigError
from quasar.core.models import Dtype, EditableModel, LanguageModel
from quasar.core.providers import ModelProvider
from quasar.models.backend_choice import choose_backend
from quasar.models.self_sampled import self_sampled_texts

Method = Literal["block_influence", "last", "uniform"]
"""Which layers go: those that change their input least, the deepest ones, or some in even distances."""

_TEXTS, _TOKENS = 8, 32
"""Size of the text that block influence is measured on."""


class PruningOptions(BaseModel):
    """What drafter and verifier ``pruned`` can be told, beside what every drafter or verifier can."""

    ratio: float = Field(0.75, gt=0, lt=1, description="Share of the decoder layers that stay.")
    method: Method = Field(
        "block_influence",
        description="Which layers go: those that change their input least, the last ones, or evenly spread ones.",
    )
    dtype: Dtype = Field("auto", description="What the forward computes in; auto is the checkpoint's own dtype.")
    backend: str = Field(
        "auto",
        description="What multiplies: torch, an installed backend, or auto, the fastest for the whole model.",
    )

    @field_validator("backend")
    @classmethod
    def _known(cls, value: str, info: ValidationInfo) -> str:
        return check_name(value, info)


@dataclass(frozen=True, slots=True)
class PrunedModel:
    """A copy with layers left out.

    Attributes:
        model: over the target's own tensors.
        kept: numbers of the target's layers that it has.
        num_layers: layers of the target.
        backend: what multiplies.
    """

    model: LanguageModel
    kept: tuple[int, ...]
    num_layers: int
    backend: str = STOCK

    def describe(self, model: Description) -> Description:
        """Return what is said of the model, with the layers that stayed and what runs them."""
        layers = {"layers_kept": list(self.kept), "layers_of_target": self.num_layers}
        return replace(model, backend=self.backend, details={**model.details, **layers})


def pruned_copy(models: ModelProvider, dtype: str, ratio: float, method: Method, backend: str = "auto") -> PrunedModel:
    """Return the target without some of its layers, made once for all that ask for the same.

    Args:
        models: hands out the target.
        dtype: of the target.
        ratio: share of the layers that stay, rounded to whole layers.
        method: which ones go.
        backend: ``auto``, ``torch``, or a backend's name; a copy with fewer layers is a decoder of the same family, so
            what serves the target serves it.

    Raises:
        ConfigError: no layer would stay, or the backend cannot be used here.
        UnsupportedModelError: the model's layers cannot be left out.
    """
    target = models.target(dtype)
    count = math.floor(ratio * target.num_layers + 0.5)
    if count < 1:
        raise ConfigError(
            f"ratio {ratio:g} keeps none of the {target.num_layers} layers of '{target.name}'; "
            f"take {1 / target.num_layers:.2g} or more."
        )

    chosen = choose_backend(models, dtype, backend)

    def make() -> PrunedModel:
        influences: Sequence[float] = ()
        if method == "block_influence":
            influences = models.derived(f"block_influences/{dtype}", lambda: block_influences(target))
        kept = layers_to_keep(target.num_layers, count, method, influences)
        dropped = set(range(target.num_layers)) - set(kept)
        built = chosen.build(target.without_layers(dropped), "full")
        return PrunedModel(built.model, kept, target.num_layers, built.backend)

    return models.derived(f"pruned/{dtype}/{count}/{method}/{chosen.name}", make)


def layers_to_keep(num_layers: int, count: int, method: Method, influences: Sequence[float] = ()) -> tuple[int, ...]:
    """Return the numbers of the ``count`` layers that stay, in order.

    Args:
        num_layers: layers of the model.
        count: how many stay.
        method: how they are chosen.
        influences: per layer, for ``block_influence``; of equal ones the earlier layer stays.

    ``last`` is early exit; ``uniform`` keeps the first and the last layer.

    Source: block influence as in ShortGPT, Men et al., arXiv 2403.03853, section 3.
    """
    if method == "last":
        return tuple(range(count))
    if method == "uniform":
        step = (num_layers - 1) / max(count - 1, 1)
        return tuple(math.floor(place * step + 0.5) for place in range(count))
    by_influence = sorted(range(num_layers), key=lambda layer: -influences[layer])
    return tuple(sorted(by_influence[:count]))


def block_influences(model: EditableModel) -> tuple[float, ...]:
    """Return 1 − mean cosine similarity of each layer's input and output, on text that the model samples itself.

    Source: ShortGPT, Men et al., arXiv 2403.03853, equation 1. There the text is a corpus; here nothing is downloaded,
    and no benchmark can leak in.
    """
    states = pairwise(model.layer_states(torch.tensor(self_sampled_texts(model, _TEXTS, _TOKENS))))
    return tuple(1 - float(torch.cosine_similarity(x.double(), y.double(), dim=-1).mean()) for x, y in states)
