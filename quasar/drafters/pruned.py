"""The target model with layers left out, as a draft model that needs no download."""

from __future__ import annotations

from quasar.core.description import Description
from quasar.core.models import LanguageModel
from quasar.core.providers import ModelProvider
from quasar.models.drafter import ModelDrafter
from quasar.models.pruning import PrunedModel, PruningOptions, pruned_copy


class Pruned(ModelDrafter):
    """Sample drafts from a copy of the target that has layers left out.

    The copy is over the target's own tensors; only its key-value cache costs memory.

    Source: the paper Quasar, its table of structural pruning, which fits a pruned drafter with one draft token a step;
    layers as in ShortGPT, arXiv 2403.03853.
    """

    name = "pruned"

    class Config(PruningOptions, ModelDrafter.Config):
        """Options."""

    config: Config
    _pruned: PrunedModel

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return the target without some of its layers."""
        options = self.config
        self._pruned = pruned_copy(models, options.dtype, options.ratio, options.method, options.backend)
        return self._pruned.model

    def describe(self) -> Description:
        """Which layers stayed, beside what every model drafter says."""
        return self._pruned.describe(super().describe())
