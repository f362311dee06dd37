"""Copy what followed the longest end of the text that occurred before, in the text itself or in a corpus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.description import Description
from quasar.core.errors import ConfigError
from quasar.core.providers import ModelProvider
from quasar.core.types import Draft
from quasar.drafters.matching.automaton import END, SuffixAutomaton, Text
from quasar.models.self_sampled import SelfSampledTexts, remembered_self_sampled_texts


class Suffix(Drafter):
    """Copy what mostly followed the longest end of the text that occurred before; a longer match, a longer draft.

    Source: SuffixDecoding (Oliaro et al., arXiv 2411.04975), with a suffix automaton instead of a suffix tree, and one
    chain instead of a tree.
    """

    name = "suffix"
    drafts_by = "point_mass"
    matched = True

    class Config(Drafter.Config):
        """Options."""

        num_speculative_tokens: int = Field(16, ge=1, le=256, description="Most draft tokens a step.")
        factor: float = Field(1.0, gt=0, le=64, description="Draft tokens for each token of the match.")
        min_match: int = Field(1, ge=1, le=64, description="Shortest match that is continued, in tokens.")
        max_match: int = Field(32, ge=1, le=256, description="Longest match that is looked for, in tokens.")
        min_token_prob: float = Field(
            0.1, ge=0, le=1, description="Smallest share that a draft has of what followed; it ends before."
        )
        prefer: Literal["frequent", "recent"] = Field("frequent", description="Which continuation is drafted.")
        corpus: Path | None = Field(
            None, description="JSONL file of texts to copy from as well: token ids or a string on each line."
        )
        own_texts: bool = Field(
            False, description="Copy from texts that the model samples itself as well, once for each model."
        )

    config: Config
    corpus: SuffixAutomaton | None = None
    _own: SelfSampledTexts | None = None

    def load(self, models: ModelProvider) -> None:
        """Read the corpus, and read or sample the model's own texts.

        Raises:
            ConfigError: the file cannot be read, or a line is not a text of the model's vocabulary.
        """
        texts: list[list[int]] = []
        if self.config.own_texts:
            self._own = remembered_self_sampled_texts(models)
            texts += self._own.texts
        if self.config.corpus is not None:
            texts += read_corpus(self.config.corpus, models)
        if not texts:
            return
        self.corpus = SuffixAutomaton(self.config.max_match, self.config.prefer == "recent")
        for ids in texts:
            for token in (*ids, END):
                self.corpus.append(token)

    def describe(self) -> Description:
        """What is copied from beside the text itself."""
        corpus = {} if self.config.corpus is None else {"corpus": str(self.config.corpus)}
        own = {} if self._own is None else {"own_texts": self._own.describe()}
        return Description(details=corpus | own)

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a chain per row, empty where nothing matches."""
        config = self.config
        recent = config.prefer == "recent"
        texts = context.scratch(self, lambda: [Text(config.max_match, recent, self.corpus) for _ in context.rows])
        drafts: list[list[tuple[int, int]]] = []
        for row, text, limit in zip(context.rows, texts, budget, strict=True):
            if limit <= 0:
                drafts.append([])
                continue
            text.extend(row.token_ids)
            source, (state, length) = text.own, text.own.match()
            if self.corpus is not None and text.elsewhere[1] > length:
                source, (state, length) = self.corpus, text.elsewhere
            size = min(config.num_speculative_tokens, limit, int(config.factor * length))
            known = length >= config.min_match
            drafts.append(source.continuation(state, length, size, config.min_token_prob) if known else [])
        tokens = [[token for token, _ in chain] for chain in drafts]
        return Draft.chains(tokens, matched=[[length for _, length in chain] for chain in drafts])


def read_corpus(path: Path, models: ModelProvider) -> Iterable[list[int]]:
    """Yield the token ids of each line of a JSONL file.

    Raises:
        ConfigError: the file cannot be read, or a line is neither a list of the model's token ids nor a string.
    """
    vocab_size = models.target().vocab_size
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"drafter 'suffix': corpus {path} cannot be read as UTF-8 text: {error}.") from error
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            value = None
        ids = models.tokenizer().encode_part(value) if isinstance(value, str) else value
        if not isinstance(ids, list) or not all(isinstance(token, int) and 0 <= token < vocab_size for token in ids):
            raise ConfigError(
                f"drafter 'suffix': corpus {path}, line {number}: should be a list of token ids below {vocab_size}, "
                "or a string."
            )
        yield ids
