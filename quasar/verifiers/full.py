"""The target model as it is."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field, ValidationInfo, field_validator

from quasar.core.backends import Built, check_name
from quasar.core.description import Description
from quasar.core.models import Dtype, LanguageModel
from quasar.core.providers import ModelProvider
from quasar.models.backend_choice import choose_backend, full_precision
from quasar.models.verifier import ModelVerifier


class Full(ModelVerifier):
    """Verify with the target model in full precision."""

    name = "full"
    precision = "full"

    class Config(ModelVerifier.Config):
        """Options."""

        dtype: Dtype = Field("auto", description="What the forward computes in; auto is the checkpoint's own dtype.")
        backend: str = Field(
            "auto",
            description="What multiplies: torch, an installed backend, or auto, the fastest by measurement.",
        )

        @field_validator("backend")
        @classmethod
        def _known(cls, value: str, info: ValidationInfo) -> str:
            return check_name(value, info)

    config: Config
    _built: Built

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return the target model on the backend that was asked for, made once for all arms with these options."""
        backend = choose_backend(models, self.config.dtype, self.config.backend)
        self._built = full_precision(models, self.config.dtype, backend)
        return self._built.model

    def reference(self) -> str:
        """The model in its own dtype or the one asked for."""
        return "the model in full precision" + ("" if self.config.dtype == "auto" else f" ({self.config.dtype})")

    def describe(self) -> Description:
        """The backend beside what every model verifier says."""
        return replace(super().describe(), backend=self._built.backend)
