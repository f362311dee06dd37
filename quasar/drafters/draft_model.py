"""A smaller model that drafts for a larger one, or a cheaper copy of the target itself."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, model_validator

from quasar.core.description import Description, description_of
from quasar.core.errors import CompositionError
from quasar.core.models import Dtype, LanguageModel
from quasar.core.providers import ModelProvider
from quasar.models.drafter import ModelDrafter
from quasar.models.verifier import ModelVerifier


class DraftModel(ModelDrafter):
    """Sample drafts from another model with the target's tokenizer, or from a cheaper copy of the target.

    Tokenizers are compared by what they hold, not by name. Padded vocabularies may differ in length: what the target
    cannot say is not drafted, and its probability goes to the rest. Without ``model`` and ``target_copy`` the target
    drafts for itself, which accepts everything and saves nothing: a check.

    Source: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318; trees as in ``ModelDrafter``.
    """

    name = "draft_model"

    class Config(ModelDrafter.Config):
        """Options."""

        model: str | None = Field(None, description="The draft model: a built-in name, a folder, or a hub id.")
        target_copy: ModelVerifier | None = Field(
            None,
            examples=["int8"],
            description="Instead of a model: the target as this verifier has it, for example int8 or pruned.",
        )
        dtype: Dtype = Field(
            "auto", description="What the draft model computes in; auto is its checkpoint's own dtype."
        )

        @model_validator(mode="after")
        def _one_model(self) -> DraftModel.Config:
            if self.model is not None and self.target_copy is not None:
                raise ValueError("model and target_copy both say what drafts; give one of them")
            if self.target_copy is not None and self.dtype != "auto":
                raise ValueError("dtype is an option of target_copy's verifier; give it there")
            return self

    config: Config

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return the draft model.

        Raises:
            CompositionError: its tokenizer is not the target's.
        """
        if self.config.target_copy is not None:
            self.config.target_copy.load(models)
            return self.config.target_copy.model
        name = self.config.model
        if name is None:
            return models.target(self.config.dtype)
        target, own = models.tokenizer().tokens(), models.tokenizer(name).tokens()
        difference = _difference(target, own)
        if difference is not None:
            raise CompositionError(
                f"drafter 'draft_model': '{name}' has another tokenizer than the target ({len(own)} and {len(target)} "
                f"tokens; {difference}); use drafter 'universal' for it."
            )
        return models.other(name, self.config.dtype)

    def describe(self) -> Description:
        """What drafts, beside what every model drafter says."""
        copy = self.config.target_copy
        said = Description() if copy is None else description_of(copy)
        return Description.of({"model": self.model.name, **super().describe(), **said})


def _difference(target: Mapping[str, int], own: Mapping[str, int]) -> str | None:
    """Return the first id that means two different tokens; ids that only one of them has are padding or additions."""
    by_id = {number: token for token, number in target.items()}
    for token, number in sorted(own.items(), key=lambda item: item[1]):
        if by_id.get(number, token) != token:
            return f"id {number} is {token!r} and {by_id[number]!r}"
    return None
