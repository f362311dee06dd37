"""The first layers of the model that verifies, as the draft model; what they compute is computed once."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor

from quasar.core.components import Verifier
from quasar.core.context import Context
from quasar.core.description import Description
from quasar.models.drafter import SamplingDrafter
from quasar.models.stages import EarlyExit, early_exit


class LayerSkip(SamplingDrafter):
    """Sample a chain from the verifier's own model, left after some layers through its final norm and head.

    Layers up to the exit have one key-value cache and run once for each token: verification of a drafted token begins
    behind the exit, with the states that drafting left there. Only the last token of a chain, after which nothing was
    drafted, and a tree, into which another drafter may put the chain, run through all layers then.

    Source: self-speculative decoding in LayerSkip (Elhoushi et al., arXiv 2404.16710, section 4.3), for any model; the
    paper trains models with layer dropout and a loss at every exit, without which an exit accepts little.
    """

    name = "layer_skip"

    class Config(SamplingDrafter.Config):
        """Options."""

        exit_layer: int | None = Field(
            None, ge=1, description="Decoder layers that draft; half of the model's if left out."
        )

    config: Config
    _exit: EarlyExit

    def attach_verifier(self, verifier: Verifier) -> None:
        """Take the exit.

        Raises:
            CompositionError: the verifier's model cannot be left early.
            ConfigError: the model has no such layer.
        """
        self._exit = early_exit(verifier, self.config.exit_layer, self.name, "exit_layer")

    def describe(self) -> Description:
        """How many layers draft, and of how many."""
        return Description(details={"exit_layer": self._exit.layer, "num_layers": self._exit.model.num_layers})

    def max_length(self) -> int | None:
        """Positions of the verifier's model."""
        return self._exit.model.max_length

    def next_logits(self, context: Context, texts: Sequence[list[int]]) -> Tensor:
        """Ask the head after the first layers."""
        return self._exit.logits(context, texts)[:, None]
