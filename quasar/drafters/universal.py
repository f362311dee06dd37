"""A draft model with any tokenizer: it reads and writes text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.description import Description
from quasar.core.models import Dtype, LanguageModel, describe
from quasar.core.providers import ModelProvider, TextCodec
from quasar.core.rows import Row
from quasar.core.types import Draft
from quasar.models.session import Session

_TAIL = 4
"""Committed tokens that are spelt again together with a draft, so that tokens meet as they do within a text."""


class Universal(Drafter):
    """Let a model with another tokenizer draft: its greedy continuation, spelt in the target's tokens.

    What comes back from text has no draft distribution, so it is a point mass, and exact at any temperature. The prompt
    is spelt in the draft model's tokens once, the output again at every step.

    Source: universal assisted generation in transformers (Hugging Face and Intel, 2024); string-level exact match in
    Timor et al., arXiv 2502.05202, algorithm 2.
    """

    name = "universal"
    drafts_by = "point_mass"

    class Config(Drafter.Config):
        """Options."""

        model: str = Field("smollm2-135m", description="The draft model: a built-in name, a folder, or a hub id.")
        num_speculative_tokens: int = Field(
            4, ge=1, le=64, description="Tokens that the draft model writes a step, and most that the draft has."
        )
        dtype: Dtype = Field(
            "auto", description="What the draft model computes in; auto is its checkpoint's own dtype."
        )

    config: Config
    model: LanguageModel
    _target: TextCodec
    _own: TextCodec

    def load(self, models: ModelProvider) -> None:
        """Load the draft model and both tokenizers."""
        self._target, self._own = models.tokenizer(), models.tokenizer(self.config.model)
        self.model = models.other(self.config.model, self.config.dtype)

    def describe(self) -> Description:
        """The draft model, and dtype, device and bytes of its weights."""
        return replace(describe(self.model), details={"model": self.model.name})

    def storages(self) -> dict[int, int]:
        """Those of the draft model."""
        return self.model.storages()

    def peak_bytes(self, context: Context) -> int:
        """Bytes of the draft model's cache."""
        return context.scratch(self, lambda: self._begin(context))[1].nbytes

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return chains."""
        if not any(budget):
            return Draft.empty(context.batch)
        vocab = context.verification.vocab_size if context.verification is not None else 0
        size = self.config.num_speculative_tokens
        prompts, session = context.scratch(self, lambda: self._begin(context))
        texts = [
            [*prompt, *self._own.encode_part(_text_after(self._target, row.token_ids, row.prompt_length))]
            for prompt, row in zip(prompts, context.rows, strict=True)
        ]
        written = self._continue(session, texts)
        chains = []
        for row, text, new, limit in zip(context.rows, texts, written, budget, strict=True):
            added = _text_after(self._own, [*text, *new], len(text)) if limit else ""
            chain = [] if added.endswith("\N{REPLACEMENT CHARACTER}") else self._spell(row, added)
            chains.append([token for token in chain if token < vocab][: min(size, limit)])
        return Draft.chains(chains)

    def _begin(self, context: Context) -> tuple[list[list[int]], Session]:
        """Return every prompt in the draft model's tokens, and its session."""
        prompts = [self._own.encode(self._target.decode(row.token_ids[: row.prompt_length])) for row in context.rows]
        room = max(2 * len(ids) + row.sampling.max_new_tokens for ids, row in zip(prompts, context.rows, strict=True))
        return prompts, Session(self.model, context.batch, room)

    def _continue(self, session: Session, texts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the likeliest tokens after every text, none where the draft model has no room or nothing to read."""
        most = self.model.max_length
        can = [
            bool(text) and (most is None or len(text) + self.config.num_speculative_tokens <= most) for text in texts
        ]
        grown = [list(text) if fits else [0] for text, fits in zip(texts, can, strict=True)]
        for _ in range(self.config.num_speculative_tokens if any(can) else 0):
            tokens = session.forward(grown, Draft.empty(len(grown)))[:, 0].argmax(dim=-1).tolist()
            for text, token in zip(grown, tokens, strict=True):
                text.append(token)
        return [text[len(old) :] if fits else [] for text, old, fits in zip(grown, texts, can, strict=True)]

    def _spell(self, row: Row, added: str) -> list[int]:
        """Return ``added`` in the target's tokens, as it is spelt after the end of the row's text."""
        tail = row.token_ids[-_TAIL:]
        together = self._target.encode_part(self._target.decode(tail) + added)
        return together[len(tail) :] if together[: len(tail)] == tail else self._target.encode_part(added)


def _text_after(codec: TextCodec, ids: Sequence[int], start: int) -> str:
    """Return the text of ``ids[start:]`` as it reads after the token before: some tokenizers drop a leading space."""
    before = max(start - 1, 0)
    return codec.decode(ids[before:])[len(codec.decode(ids[before:start])) :]
