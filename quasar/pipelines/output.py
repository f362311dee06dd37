"""What a pipeline gives back: a finished text, or its pieces as they become final."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quasar.core.engine import Engine, Request
from quasar.core.providers import TextCodec
from quasar.core.records import Generation


@dataclass(frozen=True, slots=True)
class Output:
    """A finished text.

    Attributes:
        text: the new text, special tokens left out.
        generation: ids, finish reason, step records and counts.
    """

    text: str
    generation: Generation


class Stream:
    """Pieces of text as they become final; iterate once, then read ``output``.

    Args:
        engine: steps the request.
        requests: one request.
        tokenizer: decodes.

    Attributes:
        output: the finished text and its counts; ``None`` until the end.
    """

    def __init__(self, engine: Engine, requests: Sequence[Request], tokenizer: TextCodec) -> None:
        self._engine, self._requests, self._tokenizer = engine, requests, tokenizer
        self.output: Output | None = None

    def __iter__(self) -> Iterator[str]:
        from quasar.hf.tokenizer import TextStream

        text, batch = TextStream(self._tokenizer), self._engine.start(self._requests)
        while not batch.finished:
            for new in self._engine.step(batch):
                if piece := text.push(new.token_ids):
                    yield piece
        if rest := text.finish():
            yield rest
        [done] = batch.generations()
        self.output = Output(self._tokenizer.decode(done.token_ids), done)
