"""What verifiers over a language model have in common: a session per batch, and one forward a step."""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

from quasar.core.components import Verifier
from quasar.core.context import Context
from quasar.core.description import Description
from quasar.core.models import LanguageModel, StagedModel, describe
from quasar.core.providers import ModelProvider
from quasar.core.types import Draft, Verification
from quasar.models.session import Session
from quasar.models.stages import EarlyExit, StagedSession


class ModelVerifier(Verifier):
    """A verifier that is a language model; a subclass says how to get it.

    Attributes:
        model: the loaded model.
    """

    model: LanguageModel
    _exits: frozenset[int] = frozenset()

    @abstractmethod
    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return the model that scores drafts."""

    def load(self, models: ModelProvider) -> None:
        """Load the model."""
        self.model = self.load_model(models)

    def max_length(self) -> int | None:
        """Positions of the model."""
        return self.model.max_length

    def vocab_size(self) -> int | None:
        """Size of the model's output layer."""
        return self.model.vocab_size

    def describe(self) -> Description:
        """Dtype, device and bytes of weights."""
        return describe(self.model)

    def storages(self) -> dict[int, int]:
        """Those of the model."""
        return self.model.storages()

    def early_exit(self, layer: int) -> EarlyExit:
        """Let a drafter in after the first ``layer`` layers; see ``quasar.models.stages.early_exit``."""
        self._exits |= {layer}
        return EarlyExit(cast(StagedModel, self.model), layer, self._session)

    def _session(self, context: Context) -> Session | StagedSession:
        def make() -> Session | StagedSession:
            room = 32 + max(len(row.token_ids) + row.sampling.max_new_tokens for row in context.rows)
            if self._exits:
                return StagedSession(cast(StagedModel, self.model), context.batch, room, sorted(self._exits))
            return Session(self.model, context.batch, room)

        return context.scratch(self, make)

    def positions_forwarded(self, context: Context) -> int:
        """Columns computed so far for these requests."""
        return self._session(context).columns_forwarded

    def layers_forwarded(self, context: Context) -> int:
        """Decoder layers computed so far, summed over all columns."""
        return self._session(context).layers_forwarded

    def peak_bytes(self, context: Context) -> int:
        """Bytes of the key-value cache."""
        return self._session(context).nbytes

    def verify(self, context: Context, draft: Draft) -> Verification:
        """Forward the tokens that are not cached and the draft; return the distributions after each slot."""
        logits = self._session(context).forward([row.token_ids for row in context.rows], draft)
        return context.verification_of(draft, logits)
