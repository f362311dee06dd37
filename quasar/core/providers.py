"""Where components get models from: one interface, whoever loaded them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from quasar.core.backends import Backend
from quasar.core.models import EditableModel

Made = TypeVar("Made")


class TextCodec(Protocol):
    """A model's tokenizer, as far as components need it."""

    def tokens(self) -> Mapping[str, int]:
        """Return the id of every token, added ones included."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a whole text, with the special tokens that the model expects at its beginning."""
        ...

    def encode_part(self, text: str) -> list[int]:
        """Return the ids of a piece of a text: no special token is put before or behind it."""
        ...

    def conversation_start(self) -> list[int]:
        """Return the ids that stand before a user's first word in the chat template; without one the BOS, if any."""
        ...


class ChatCodec(TextCodec, Protocol):
    """A tokenizer that knows the model's chat template, if the model has one."""

    @property
    def has_chat_template(self) -> bool:
        """Whether ``render`` can lay a conversation out."""
        ...

    def render(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the ids of a conversation, ready for the assistant's answer.

        Args:
            messages: ``role`` and ``content`` of each turn.

        Raises:
            ConfigError: there is no chat template.
        """
        ...


class Catalogue(Protocol):
    """What is installed, as far as whoever loads models has to know it; the plugin registry is one."""

    def model(self, name: str) -> Any | None:
        """Return the built-in model of that name (it has ``fetch``), ``None`` if there is none."""
        ...

    def backends(self) -> Sequence[type[Backend]]:
        """Return the backends that plugins provide."""
        ...


class ModelProvider(Protocol):
    """Hands out models; the same model in the same precision is loaded once.

    Attributes:
        device: where models are.
        measurements: what was measured when components were loaded and decides later, by what it is of; JSON values. A
            comparison keeps it with the run and reads it back, so that a resumed run repeats itself.
    """

    device: str
    measurements: dict[str, Any]

    def target(self, dtype: str = "auto") -> EditableModel:
        """Return the pipeline's target model in ``dtype`` (``auto`` is the checkpoint's)."""
        ...

    def backends(self) -> Sequence[type[Backend]]:
        """Return the backends that plugins provide, usable here or not."""
        ...

    def derived(self, key: str, make: Callable[[], Made]) -> Made:
        """Return what ``make`` made under ``key``, made once: two arms with one precision share a model."""
        ...

    def other(self, name: str, dtype: str = "auto") -> EditableModel:
        """Return the model that a pipeline would find under ``name``: a built-in name, a folder or a hub id."""
        ...

    def tokenizer(self, name: str | None = None) -> TextCodec:
        """Return the tokenizer of the model ``name``, of the target for ``None``."""
        ...
