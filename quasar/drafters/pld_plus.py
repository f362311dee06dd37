"""Prompt lookup that asks the model which of several earlier places is like this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from pydantic import Field
from torch import Tensor

from quasar.core.components import Drafter, Verifier
from quasar.core.context import Context
from quasar.core.description import Description
from quasar.core.types import Draft
from quasar.models.stages import EarlyExit, early_exit


@dataclass(slots=True)
class Places:
    """Where each token stands in a growing text, apart from its very end.

    Attributes:
        of: positions by token, ascending.
        read: the tokens that are in.
    """

    of: dict[int, list[int]] = field(default_factory=dict)
    read: list[int] = field(default_factory=list)

    def extend(self, ids: Sequence[int]) -> None:
        """Take in all tokens but the last; begin again if the text was replaced."""
        if list(ids[: len(self.read)]) != self.read:
            self.of, self.read = {}, []
        for token in ids[len(self.read) : len(ids) - 1]:
            self.of.setdefault(token, []).append(len(self.read))
            self.read.append(token)


class PldPlus(Drafter):
    """Copy what followed the earlier occurrence of the last token at which the model's hidden states are most alike.

    Compared are the states of the token *before* each occurrence and before the last token, by their cosine: the last
    token itself has not been forwarded when a draft is wanted. Of equal ones the latest wins; an occurrence at the very
    beginning of the text comes last.

    Source: PLD+ (Somasundaram et al., arXiv 2412.01447), its variant by hidden states; the one by the attention of
    induction heads is not built, because attention kernels do not hand out what they attend to.
    """

    name = "pld_plus"
    drafts_by = "point_mass"

    class Config(Drafter.Config):
        """Options."""

        num_speculative_tokens: int = Field(5, ge=1, le=256, description="Draft tokens a step.")
        layer: int | None = Field(
            None, ge=1, description="Decoder layer whose output is compared; the middle one if left out."
        )

    config: Config
    _exit: EarlyExit

    def attach_verifier(self, verifier: Verifier) -> None:
        """Ask for the states after the layer.

        Raises:
            CompositionError: the verifier's model cannot hand them out.
            ConfigError: the model has no such layer.
        """
        self._exit = early_exit(verifier, self.config.layer, self.name, "layer")

    def describe(self) -> Description:
        """The layer, and how many there are."""
        return Description(details={"layer": self._exit.layer, "num_layers": self._exit.model.num_layers})

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a chain per row, empty where the last token is new."""
        known = context.scratch(self, lambda: [Places() for _ in context.rows])
        found, sizes = list[list[int]](), [min(self.config.num_speculative_tokens, limit) for limit in budget]
        for row, places in zip(context.rows, known, strict=True):
            places.extend(row.token_ids[:])
            found.append(places.of.get(row.token_ids[-1], []))
        doubtful = any(size > 0 and len(earlier) > 1 for size, earlier in zip(sizes, found, strict=True))
        states = self._exit.states(context) if doubtful else None
        chains = list[list[int]]()
        for number, (row, earlier, size) in enumerate(zip(context.rows, found, sizes, strict=True)):
            ids = row.token_ids
            if not earlier or size <= 0:
                chains.append([])
                continue
            place = (
                earlier[0] if states is None or len(earlier) == 1 else _likest(states[number], earlier, len(ids) - 1)
            )
            chains.append(ids[place + 1 : place + 1 + size])
        return Draft.chains(chains)


def _likest(states: Tensor, earlier: Sequence[int], last: int) -> int:
    """Return the place before which the states ``[capacity, hidden]`` are most like those before ``last``."""
    latest_first = torch.tensor([place for place in reversed(earlier) if place > 0])
    before = states[(latest_first - 1).to(states.device)].float()  # [places, hidden]
    alike = torch.nn.functional.cosine_similarity(before, states[last - 1].float()[None], dim=-1)
    return int(latest_first[int(alike.argmax())])
