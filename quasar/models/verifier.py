"""What verifiers over a language model have in common: a session per batch, and one forward a step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

from torch import Tensor

from quasar.core.components import FULL, Verifier
from quasar.core.context import Context
from quasar.core.description import Description
from quasar.core.errors import ContractError
from quasar.core.models import LanguageModel, StagedModel, describe
from quasar.core.providers import ModelProvider
from quasar.core.types import Draft, Verification
from quasar.models.session import Session
from quasar.models.stages import EarlyExit, StagedSession


class ModelVerifier(Verifier):
    """A verifier that is a language model; a subclass says how to get it.

    A verifier that changes what the model says overrides ``adjust``::

        class Sharper(ModelVerifier):
            '''Doubles the logits of the target.'''

            name, precision = "sharper", "full precision, logits doubled"

            def load_model(self, models):
                return target_on_backend(models).model

            def adjust(self, logits, context, draft):
                return 2 * logits

    Attributes:
        model: the loaded model.
    """

    model: LanguageModel
    _exits: frozenset[int] = frozenset()

    def __init_subclass__(cls, **more: Any) -> None:
        """Refuse a class that changes logits and says that it is the target itself."""
        super().__init_subclass__(**more)
        if cls.adjust is not ModelVerifier.adjust and getattr(cls, "precision", None) == FULL:
            raise ContractError(
                f"class {cls.__name__} changes logits, so it is not the model in precision '{FULL}'; name what it is "
                f"by its `precision`, e.g. 'full precision, {getattr(cls, 'name', 'adjusted')}'."
            )

    @abstractmethod
    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return the model that scores drafts."""

    def adjust(self, logits: Tensor, context: Context, draft: Draft) -> Tensor:
        """Return the logits that this verifier stands for; the model's own unless a subclass says otherwise.

        Called in ``verify``, before processors and temperature, so the verification's logits and distributions are the
        adjusted ones, and everything made of them is: acceptance, log-probabilities, replays, ``quasar fidelity``.
        Drafters that run this verifier's model by themselves draft with the model's own logits, and ``quasar profile``
        times the model without this.

        What a slot gets may depend on the text up to that slot and on nothing else, lest the text depend on the draft.

        Args:
            logits: ``[batch, nodes + 1, vocab]`` in the model's dtype; row ``s`` follows slot ``s``.
            context: the requests; ``context.rows[i].token_ids`` ends with slot 0.
            draft: the nodes behind them; ``quasar.core.trees.prefixes(draft, i)`` has the draft tokens up to each slot.

        Returns:
            Logits of the same shape; a new tensor, or ``logits`` itself if nothing changes.
        """
        return logits

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
        """Let a drafter in after the first ``layer`` layers; see ``quasar.models.early_exit``."""
        self._exits |= {layer}
        return EarlyExit(cast(StagedModel, self.model), layer, self._staged_session)

    def _session(self, context: Context) -> Session | StagedSession:
        def make() -> Session | StagedSession:
            room = 32 + max(len(row.token_ids) + row.sampling.max_new_tokens for row in context.rows)
            if self._exits:
                return StagedSession(cast(StagedModel, self.model), context.batch, room, sorted(self._exits))
            return Session(self.model, context.batch, room)

        return context.scratch(self, make)

    def _staged_session(self, context: Context) -> StagedSession:
        session = self._session(context)
        assert isinstance(session, StagedSession)  # an exit is open
        return session

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
        """Forward the tokens that are not cached and the draft; return the distributions after each slot.

        Raises:
            ContractError: ``adjust`` returned something else than logits of the same shape.
        """
        logits = self._session(context).forward([row.token_ids for row in context.rows], draft)
        adjusted = self.adjust(logits, context, draft)
        if not isinstance(adjusted, Tensor) or adjusted.shape != logits.shape:
            found = list(adjusted.shape) if isinstance(adjusted, Tensor) else type(adjusted).__name__
            raise ContractError(
                f"verifier '{self.name}': 'adjust' should return logits of shape {list(logits.shape)}, got {found}."
            )
        return context.verification_of(draft, adjusted)
