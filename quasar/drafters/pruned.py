"""The target model with layers left out, as a draft model that needs no download."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quasar.core.model_drafter import ModelDrafter
from quasar.core.models import LanguageModel, ModelProvider
from quasar.core.pruning import Method, PrunedModel, pruned_copy


class Pruned(ModelDrafter):
    """Sample drafts from a copy of the target that has layers left out.

    The copy is over the target's own tensors; only its key-value cache costs memory.

    Source: the paper Quasar, its table of structural pruning, which fits a pruned drafter with one draft token a step;
    layers as in ShortGPT, arXiv 2403.03853.
    """

    name = "pruned"

    class Config(ModelDrafter.Config):
        """Options."""

        ratio: float = Field(0.75, gt=0, lt=1, description="Share of the decoder layers that stay.")
        method: Method = Field(
            "block_influence",
            description="Which layers go: those that change their input least, the last ones, or evenly spread ones.",
        )
        dtype: Literal["auto", "bfloat16", "float16", "float32", "float64"] = Field(
            "auto", description="What the forward computes in; auto is the checkpoint's own dtype."
        )

    _pruned: PrunedModel

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return the target without some of its layers."""
        self._pruned = pruned_copy(models, self.config.dtype, self.config.ratio, self.config.method)
        return self._pruned.model

    def describe(self) -> dict[str, object]:
        """Which layers stayed, beside what every model drafter says."""
        return {**self._pruned.describe(), **super().describe()}
