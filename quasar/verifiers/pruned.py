"""The target model with layers left out, as a verifier: cheaper, and another model."""

from __future__ import annotations

from quasar.core.description import Description
from quasar.core.models import LanguageModel
from quasar.core.providers import ModelProvider
from quasar.models.pruning import PrunedModel, PruningOptions, pruned_copy
from quasar.models.verifier import ModelVerifier


class Pruned(ModelVerifier):
    """Verify with a copy of the target that has layers left out; exact with respect to that copy only.

    The copy is over the target's own tensors, so it costs no memory. Nothing is trained: expect the quality to fall
    quickly.

    Source: the paper Quasar, its table of structurally pruned verifiers; layers as in ShortGPT, arXiv 2403.03853.
    """

    name = "pruned"
    precision = "pruned"

    class Config(PruningOptions, ModelVerifier.Config):
        """Options."""

    config: Config
    _pruned: PrunedModel

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return the target without some of its layers."""
        options = self.config
        self._pruned = pruned_copy(models, options.dtype, options.ratio, options.method, options.backend)
        return self._pruned.model

    def reference(self) -> str:
        """The copy, by ratio and method, and dtype if one was asked for."""
        dtype = "" if self.config.dtype == "auto" else f", {self.config.dtype}"
        return f"the model pruned {self.config.ratio:g} ({self.config.method}{dtype})"

    def describe(self) -> Description:
        """Which layers stayed, beside what every model verifier says."""
        return self._pruned.describe(super().describe())
