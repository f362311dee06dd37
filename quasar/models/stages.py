"""A verifier's model run in stages: what drafting computes with the first layers, verification does not do again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quasar.core import trees
from quasar.core.cache import KVCache
from quasar.core.components import Verifier
from quasar.core.context import Context
from quasar.core.errors import CompositionError, ConfigError
from quasar.core.models import Block, StagedModel
from quasar.core.types import Draft
from quasar.models.session import Session


class _Stage:
    """Consecutive layers of a model as a model of their own; it leaves the states after them in its cache."""

    def __init__(self, model: StagedModel, layers: range, before: Session | None) -> None:
        self._model, self._layers, self._before = model, layers, before
        self.max_length: int | None = model.max_length
        self.num_layers = len(layers)

    def forward(self, block: Block, cache: KVCache) -> Tensor:
        """Run the layers, on the states that the stage before left for the same entries."""
        entries, states = block.lengths[:, None] + block.offsets, None
        if self._before is not None:
            # Padding of a ragged batch may lie beyond what the stage before has written.
            self._before.cache.reserve(int(entries.max()) + 1)
            stored = self._before.cache.states()
            rows = torch.arange(len(entries), device=stored.device)[:, None]
            states = stored[rows, entries.to(stored.device)]  # [batch, query, hidden]
        after, logits = self._model.forward_layers(block, cache, self._layers, states)
        if self._layers.stop < self._model.num_layers:
            cache.write_states(after, entries.to(after.device))
        return logits  # [batch, num_logits, vocab]


class StagedSession:
    """A session whose model is left after some layers; each stage has a session, and none computes a column twice.

    A stage is behind or ahead of another as it may: it compares texts like any session. The states that a stage left
    for an entry are what the next one reads.

    Args:
        model: has ``forward_layers``.
        batch: rows.
        capacity: cache entries per row to begin with.
        exits: numbers of layers after which a stage ends, ascending.
    """

    def __init__(self, model: StagedModel, batch: int, capacity: int, exits: Sequence[int]) -> None:
        self._sessions: list[Session] = []
        self._ends = [*exits, model.num_layers]
        for begin, end in zip([0, *exits], self._ends, strict=True):
            before = self._sessions[-1] if self._sessions else None
            stage: Any = _Stage(model, range(begin, end), before)
            self._sessions.append(Session(stage, batch, capacity))

    @property
    def nbytes(self) -> int:
        """Bytes of the caches, hidden states included."""
        return sum(session.nbytes for session in self._sessions)

    @property
    def columns_forwarded(self) -> int:
        """Columns that went through the last layers."""
        return self._sessions[-1].columns_forwarded

    @property
    def layers_forwarded(self) -> int:
        """Decoder layers computed so far, summed over all columns, those of drafting included."""
        return sum(session.layers_forwarded for session in self._sessions)

    def forward(self, texts: Sequence[Sequence[int]], draft: Draft) -> Tensor:
        """Return logits at every slot of ``draft``; see ``Session.forward``.

        A chain counts as text below the last stage, so what a stage has computed of it is kept; a tree is run anew.
        """
        if trees.is_chain(draft):
            chains = [[*text, *tokens] for text, (tokens, _) in zip(texts, draft.rows, strict=True)]
            self._read(chains, Draft.empty(len(texts)), len(self._sessions) - 1)
        else:
            self._read(texts, draft, len(self._sessions) - 1)
        return self._sessions[-1].forward(texts, draft)

    def exit_logits(self, layer: int, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return what the head says of the states after ``layer`` layers, at each text's end. ``[batch, vocab]``"""
        stage, nothing = self._ends.index(layer), Draft.empty(len(texts))
        self._read(texts, nothing, stage)
        return self._sessions[stage].forward(texts, nothing)[:, 0]

    def states(self, layer: int, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return the hidden states of whole texts after ``layer`` layers, ``[batch, capacity, hidden]``."""
        stage = self._ends.index(layer)
        self._read(texts, Draft.empty(len(texts)), stage + 1)
        return self._sessions[stage].cache.states()

    def _read(self, texts: Sequence[Sequence[int]], draft: Draft, stages: int) -> None:
        for session in self._sessions[:stages]:
            session.read(texts, draft)


@dataclass(frozen=True, slots=True)
class EarlyExit:
    """What a drafter gets of the model that verifies, left after its first layers.

    Attributes:
        model: the whole model.
        layer: how many layers are run.
        session: the verifier's own session of a batch.
    """

    model: StagedModel
    layer: int
    session: Callable[[Context], StagedSession]

    def logits(self, context: Context, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return the final norm and head of the states after the exit layer, at each text's last token.

        Args:
            context: of the batch.
            texts: committed ids of every row, and chains of draft tokens behind them. What is computed of them is kept
                for verification, as far as these tokens are then drafted.

        Returns:
            ``[batch, vocab]``.
        """
        return self.session(context).exit_logits(self.layer, texts)

    def states(self, context: Context) -> Tensor:
        """Return the states after the exit layer of committed tokens, but for the last one, which is not forwarded yet.

        Returns:
            ``[batch, capacity, hidden]``; entry i belongs to token i of the row's text, entries beyond hold anything.
            Hidden is 0 where no text has two tokens.
        """
        return self.session(context).states(self.layer, [row.token_ids[:-1] for row in context.rows])


def early_exit(verifier: Verifier, layer: int | None, drafter: str, option: str) -> EarlyExit:
    """Open a loaded verifier's model after its first layers; for ``Drafter.attach_verifier``.

    Args:
        verifier: from then on it runs its model in stages.
        layer: how many layers; half of them for ``None``.
        drafter: name of the drafter that asks.
        option: name of the option that ``layer`` comes from.

    Raises:
        CompositionError: the verifier has no model of its own, or the model cannot be run in stages.
        ConfigError: there is no such layer.
    """
    opened: Callable[[int], EarlyExit] | None = getattr(verifier, "early_exit", None)
    model: Any = verifier.language_model()
    if opened is None or model is None:
        raise CompositionError(
            f"drafter '{drafter}' works with the layers of the verifier's own model, and verifier '{verifier.name}' "
            "does not let it; use 'full' or 'int8'."
        )
    if not hasattr(type(model), "forward_layers"):  # of the class: objects may pass what they lack on to others
        raise CompositionError(
            f"drafter '{drafter}' runs the verifier's model layer by layer, which the backend of verifier "
            f"'{verifier.name}' cannot; set its 'backend' to 'torch'."
        )
    last = model.num_layers - 1
    chosen = max(1, model.num_layers // 2) if layer is None else layer
    if not 1 <= chosen <= last:
        raise ConfigError(
            f"drafter '{drafter}': {option} {chosen} is not within 1..{last}: model '{model.name}' has "
            f"{model.num_layers} layers."
        )
    # One token, lest a model of an unknown family be found out in the middle of a text.
    StagedSession(model, 1, 1, [chosen]).forward([[0]], Draft.empty(1))
    return opened(chosen)
