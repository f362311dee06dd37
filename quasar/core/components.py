"""The three contracts. A component is a class with a name, a ``Config``, its traits, and one method.

A new drafter is one file::

    class Parrot(Drafter):
        '''Repeats the last token.'''

        name = "parrot"
        drafts_by = "point_mass"

        class Config(Drafter.Config):
            num_speculative_tokens: int = Field(3, ge=1, description="Draft tokens a step.")

        def propose(self, context, budget):
            return Draft.chains([[row.token_ids[-1]] * min(self.config.num_speculative_tokens, limit)
                                 for row, limit in zip(context.rows, budget)])
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

from quasar.core.component import Component
from quasar.core.context import Context
from quasar.core.errors import CompositionError
from quasar.core.models import LanguageModel
from quasar.core.sampling import SamplingParams
from quasar.core.types import Acceptance, Draft, Verification

DraftsBy = Literal["none", "point_mass", "sampled"]
"""How a drafter chooses tokens: never, without sampling, or by sampling from distributions that it returns."""

FULL = "full"
"""The precision of a verifier that is the target model itself."""


class Drafter(Component):
    """Proposes draft tokens.

    Attributes:
        drafts_by: how tokens are chosen. ``sampled`` obliges ``propose`` to return the distributions it sampled
            from. A drafter of drafters sets it for the instance, from its parts.
        next_distributions: every draft, an empty one too, carries ``Draft.next_distributions``.
        matched: every draft carries ``Draft.matched``, and nodes cost little: a scheduler may draft first, then choose.
    """

    kind = "drafter"
    earlier_names: ClassVar[Mapping[str, str]] = {
        **Component.earlier_names,
        "law": "drafts_by",
        "next_laws": "next_distributions",
        "meet": "attach_verifier",
    }
    drafts_by: DraftsBy
    next_distributions: bool = False
    matched: bool = False

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """How tokens are chosen, and what a draft carries beside them."""
        return {"drafts_by": cls.drafts_by, "next_distributions": cls.next_distributions, "matched": cls.matched}

    def attach_verifier(self, verifier: Verifier) -> None:
        """Take note of the loaded verifier that checks the drafts, once, after ``load``; e.g. to time its forwards.

        Drafters among the options meet the same one. A draft may depend on what a forward costs, never on its result.
        """
        for part in self._drafters():
            part.attach_verifier(verifier)

    def prefill(self, context: Context) -> None:
        """Read the prompts, before the verifier does; it counts as prefill. What is not read now is read later."""
        for part in self._drafters():
            part.prefill(context)

    def _drafters(self) -> Iterator[Drafter]:
        yield from (part for part in self.parts() if isinstance(part, Drafter))

    @abstractmethod
    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a draft for every row.

        Whether a node exists may depend on committed text, past steps, costs, the distribution at that node and the
        values of its ancestors; never on its own draw, a later one, or this step's target distribution. Draws come from
        ``context.streams.own("draft", ...)``, distributions from ``context.distributions``.

        Args:
            context: committed ids per row, parameters, streams, the last verification. Read-only.
            budget: per row, the longest path that can still be used; 0 for a row that has finished.
        """


class Verifier(Component):
    """Scores a draft with the target model.

    Attributes:
        precision: what the forward computes in, e.g. ``full`` or ``W8A8 int8``; names the model that a pipeline is
            exact with respect to.
    """

    kind = "verifier"
    earlier_names: ClassVar[Mapping[str, str]] = {**Component.earlier_names, "rows_forwarded": "positions_forwarded"}
    precision: ClassVar[str]

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """The precision."""
        return {"precision": cls.precision}

    def reference(self) -> str | None:
        """Name the distribution that this verifier computes: a pipeline is exact with respect to that, or to nothing.

        ``None`` for a verifier whose distribution depends on what is drafted: nothing can be exact with respect to it.
        """
        return "the model in full precision" if self.precision == FULL else f"the model in {self.precision}"

    def language_model(self) -> LanguageModel | None:
        """Return the model whose distributions these are, once it is loaded; ``None`` where there is not the one model.

        By default the attribute ``model``, for verifiers that have it.
        """
        model: LanguageModel | None = getattr(self, "model", None)
        return model

    def max_length(self) -> int | None:
        """Longest sequence the loaded model takes, in tokens; ``None`` for no limit."""
        return None

    def vocab_size(self) -> int | None:
        """Token ids are below this; ``None`` if unknown before the first forward."""
        return None

    def positions_forwarded(self, context: Context) -> int:
        """Columns computed so far for these requests, padding included; 0 if not counted."""
        return 0

    def layers_forwarded(self, context: Context) -> int:
        """Decoder layers computed so far, summed over all columns; drafting with the verifier's own is included."""
        return 0

    @abstractmethod
    def verify(self, context: Context, draft: Draft) -> Verification:
        """Return the target distributions at every slot of ``draft``, in one forward."""


class Acceptor(Component):
    """Decides which path of a draft is kept, and draws the token after it.

    Attributes:
        takes: kinds of drafts that it handles, by the trait ``drafts_by`` of their drafter.
        exact: whether committed tokens then follow the verifier's distribution; ``False`` makes the word "relaxed"
            appear in every output of the pipeline.
        greedy_only: refuses any temperature above 0.
        target_stream: with point-mass drafts every committed token is drawn from the target stream, so the text
            equals plain decoding's at any temperature.
        couples: drafts that are sampled through ``context.draft_keys`` are drawn with the target's noise; with
            ``target_stream`` the text then equals plain decoding's for sampled drafts as well.
    """

    kind = "acceptor"
    earlier_names: ClassVar[Mapping[str, str]] = {**Component.earlier_names, "laws": "takes"}
    takes: ClassVar[frozenset[str]] = frozenset(get_args(DraftsBy))
    exact: ClassVar[bool]
    greedy_only: ClassVar[bool] = False
    target_stream: ClassVar[bool] = False
    couples: ClassVar[bool] = False

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """What it takes, exactness, temperatures."""
        return {"takes": sorted(cls.takes), "exact": cls.exact, "greedy_only": cls.greedy_only}

    def is_exact(self) -> bool:
        """Whether this instance is exact; a relaxed rule may have options that make it so."""
        return self.exact

    def follows(self, drafter: Drafter) -> str | None:
        """Name what a relaxed rule is exact with respect to, given the drafter; ``None`` for no distribution at all."""
        return None

    def check(self, sampling: SamplingParams) -> None:
        """Raise ``CompositionError`` for sampling parameters that this rule cannot serve."""

    def refuse_drafts(self, drafter: Drafter) -> None:
        """Raise ``CompositionError`` for a drafter whose drafts this rule does not take."""
        if drafter.drafts_by not in self.takes:
            raise CompositionError(
                f"drafter '{drafter.name}' drafts by '{drafter.drafts_by}', and acceptor '{self.name}' takes "
                f"{', '.join(sorted(self.takes))} only."
            )

    @abstractmethod
    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the accepted path and the next token of every row."""


def joint_drafts_by(parts: Iterable[Drafter]) -> DraftsBy:
    """Return how a drafter chooses that drafts with any of ``parts``: it samples if one of them samples."""
    ways = {part.drafts_by for part in parts}
    return "sampled" if "sampled" in ways else "point_mass" if "point_mass" in ways else "none"
