"""Text in, ids out, and back again piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quasar.core.errors import ConfigError
from quasar.core.providers import TextCodec

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """A transformers tokenizer and its chat template.

    Args:
        inner: the loaded tokenizer.
        name: the model that it belongs to, for errors.
    """

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self._name = inner, name

    @property
    def has_chat_template(self) -> bool:
        """Whether ``render`` can lay a conversation out."""
        return bool(getattr(self._inner, "chat_template", None))

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, special tokens as the model expects them (a leading BOS where it has one)."""
        return list(self._inner(text)["input_ids"])

    def render(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the ids of a conversation in the model's chat template, ready for the assistant's answer.

        Raises:
            ConfigError: the tokenizer has no chat template.
        """
        if not self.has_chat_template:
            raise ConfigError(f"model '{self._name}' has no chat template; set 'chat_template: off'.")
        text = self._inner.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        return list(self._inner(text, add_special_tokens=False)["input_ids"])

    def conversation_start(self) -> list[int]:
        """Return the ids that stand before a user's first word in the chat template; without one the BOS, if any.

        A model that was trained with a BOS before every text computes something else without it.
        """
        if not self.has_chat_template:
            start = self.encode("")[:1]
            return start if start == [self._inner.bos_token_id] else []
        word = "quasar"
        text: str = self._inner.apply_chat_template([{"role": "user", "content": word}], tokenize=False)
        return self.encode_part(text.partition(word)[0])

    def encode_part(self, text: str) -> list[int]:
        """Return the ids of a piece of a text: no special token is put before or behind it."""
        return list(self._inner(text, add_special_tokens=False)["input_ids"])

    def tokens(self) -> dict[str, int]:
        """Return the id of every token, added ones included."""
        return dict(self._inner.get_vocab())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text


class TextStream:
    """Turns a stream of ids into a stream of text that is never taken back.

    Each push decodes only what follows the last piece that was given out, so the cost of a token does not grow with
    the text. A character whose bytes are not complete is held back until they are.

    Args:
        tokenizer: decodes.
    """

    def __init__(self, tokenizer: TextCodec) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # first id of the context that the next piece is decoded with
        self._done = 0  # ids whose text was given out

    def push(self, ids: Sequence[int]) -> str:
        """Add ids; return the text that is final because of them."""
        self._ids.extend(ids)
        text = self._tokenizer.decode(self._ids[self._start :])
        given = self._tokenizer.decode(self._ids[self._start : self._done])
        if text.endswith(_REPLACEMENT) or len(text) <= len(given):
            return ""
        self._start, self._done = self._done, len(self._ids)
        return text[len(given) :]

    def finish(self) -> str:
        """Return what was held back, incomplete characters included."""
        text = self._tokenizer.decode(self._ids[self._start :])
        given = self._tokenizer.decode(self._ids[self._start : self._done])
        self._start = self._done = len(self._ids)
        return text[len(given) :]
