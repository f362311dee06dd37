"""Prompts as token ids: plain text, or turns in the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence

from quasar.core.providers import ChatCodec
from quasar.prompts.questions import Question


class Conversations:
    """Prompts as ids, in the model's chat template if it has one and the run wants it.

    Attributes:
        tokenizer: of the target model.
        uses_template: whether prompts are laid out as conversations.

    Args:
        tokenizer: of the target model.
        chat_template: ``auto`` or ``off``.
    """

    def __init__(self, tokenizer: ChatCodec, chat_template: str) -> None:
        self.tokenizer = tokenizer
        self.uses_template = chat_template == "auto" and tokenizer.has_chat_template

    def ids(self, question: Question, answers: Sequence[str]) -> list[int]:
        """Return the prompt of the turn that follows ``answers``."""
        turns = question.turns[: len(answers) + 1]
        if self.uses_template:
            messages = [{"role": "user", "content": turns[0]}]
            for answer, turn in zip(answers, turns[1:], strict=True):
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
            return self.tokenizer.render(messages)
        pieces = [turns[0]]
        for answer, turn in zip(answers, turns[1:], strict=True):
            pieces += [answer, turn]
        return self.tokenizer.encode("\n".join(pieces))
