"""The paper's verifier in its two readings: one W8A8 model for everything, or W8A8 only where a draft is verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from quasar.core.cache import KVCache
from quasar.core.components import Verifier
from quasar.core.context import Context
from quasar.core.description import Description, description_of
from quasar.core.errors import CompositionError
from quasar.core.models import Block, LanguageModel
from quasar.core.providers import ModelProvider
from quasar.core.types import Draft, Verification
from quasar.models.session import Session
from quasar.models.verifier import ModelVerifier


class Quasar(Verifier):
    """The paper's verifier: ``mode: full`` is the released code's reading, ``verify_only`` that of its abstract.

    ``full``: the quantised model reads the prompt, does draft-less steps and verifies; this is ``int8`` under another
    name, and exact with respect to the quantised model. ``verify_only``: the full-precision model reads the prompt and
    does draft-less steps, the quantised one runs only where a draft is verified, and both write one key-value cache.
    The distribution of a token then depends on whether something was drafted there, so the text is exact with respect
    to nothing. Rows of a batch are forwarded one by one in that mode, because they may need different models.

    Source: the paper Quasar and its released code.
    """

    name = "quasar"
    precision = "W8A8 int8"

    class Config(Verifier.Config):
        """Options."""

        mode: Literal["full", "verify_only"] = Field("full", description="Whether the quantised model does everything.")
        int8: ModelVerifier = Field("int8", validate_default=True, description="The quantised model.")
        full: ModelVerifier = Field("full", validate_default=True, description="The other one, for verify_only.")

    config: Config

    def load(self, models: ModelProvider) -> None:
        """Load the model or models.

        Raises:
            CompositionError: the two compute in different dtypes, and cannot share a cache.
        """
        int8, full = self.config.int8, self.config.full
        int8.load(models)
        if self.config.mode == "verify_only":
            full.load(models)
            if int8.model.dtype != full.model.dtype:
                raise CompositionError(
                    f"verifier 'quasar': '{int8.name}' computes in {int8.model.dtype} and '{full.name}' in "
                    f"{full.model.dtype}, and verify_only has one key-value cache for both; give them one dtype."
                )

    def reference(self) -> str | None:
        """The quantised model, or nothing."""
        return self.config.int8.reference() if self.config.mode == "full" else None

    def language_model(self) -> LanguageModel | None:
        """The quantised model where it does everything; of two models neither is the one."""
        model: LanguageModel | None = self.config.int8.language_model() if self.config.mode == "full" else None
        return model

    def max_length(self) -> int | None:
        """Positions of the model."""
        return self.config.int8.max_length()

    def vocab_size(self) -> int | None:
        """Size of the model's output layer."""
        return self.config.int8.vocab_size()

    def describe(self) -> Description:
        """The mode, and what the models say."""
        int8, full = self.config.int8, self.config.full
        said = description_of(int8)
        details = {"mode": self.config.mode, **said.details}
        if self.config.mode == "verify_only":
            details["full"] = description_of(full).flat()
        return replace(said, weight_bytes=sum(self.storages().values()), details=details)

    def storages(self) -> dict[int, int]:
        """Those of the models that were loaded."""
        found = self.config.int8.storages()
        return found if self.config.mode == "full" else found | self.config.full.storages()

    def positions_forwarded(self, context: Context) -> int:
        """Columns computed so far for these requests."""
        if self.config.mode == "full":
            return self.config.int8.positions_forwarded(context)
        return sum(session.columns_forwarded for session in self._sessions(context))

    def peak_bytes(self, context: Context) -> int:
        """Bytes of the key-value cache."""
        if self.config.mode == "full":
            return self.config.int8.peak_bytes(context)
        return sum(session.nbytes for session in self._sessions(context))

    def verify(self, context: Context, draft: Draft) -> Verification:
        """Return the distributions after each slot, from the quantised model in rows that have a draft."""
        if self.config.mode == "full":
            return self.config.int8.verify(context, draft)
        found: list[Tensor] = []
        for number, (session, row) in enumerate(zip(self._sessions(context), context.rows, strict=True)):
            one, count = slice(number, number + 1), int(draft.num_nodes[number])
            alone = Draft(draft.token_ids[one, :count], draft.parents[one, :count], draft.num_nodes[one])
            found.append(session.forward([row.token_ids], alone)[0])
        logits = pad_sequence(found, batch_first=True)  # [batch, nodes + 1, vocab]
        int8, full = (each.adjust(logits, context, draft) for each in (self.config.int8, self.config.full))
        if int8 is not full:
            logits = torch.where((draft.num_nodes > 0)[:, None, None].to(logits.device), int8, full)
        return context.verification_of(draft, logits)

    def _sessions(self, context: Context) -> list[Session]:
        def make() -> list[Session]:
            model = _ByDraft(self.config.full.model, self.config.int8.model)
            return [Session(model, 1, len(row.token_ids) + row.sampling.max_new_tokens + 32) for row in context.rows]

        return context.scratch(self, make)


class _ByDraft:
    """Two models over one cache: ``drafts`` runs the blocks that hold a draft, ``plain`` all others."""

    def __init__(self, plain: LanguageModel, drafts: LanguageModel) -> None:
        self._plain, self._drafts = plain, drafts
        self.vocab_size, self.max_length, self.num_layers = plain.vocab_size, plain.max_length, plain.num_layers
        self.dtype, self.device, self.name = plain.dtype, plain.device, plain.name

    def forward(self, block: Block, cache: KVCache) -> Tensor:
        """As ``LanguageModel.forward``; logits of more than one column are wanted only where there is a draft."""
        model = self._drafts if block.num_logits > 1 else self._plain
        return model.forward(block, cache)

    def storages(self) -> dict[int, int]:
        """Those of both."""
        return self._plain.storages() | self._drafts.storages()
