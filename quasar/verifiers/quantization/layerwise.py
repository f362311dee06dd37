"""What verifiers that quantise layer by layer, on a GPU or emulated, have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from quasar.core.backends import Built
from quasar.core.description import Description
from quasar.core.errors import ConfigError
from quasar.core.models import LanguageModel
from quasar.core.providers import ModelProvider
from quasar.models.verifier import ModelVerifier
from quasar.verifiers.quantization.replace_layers import LayerBackend, matching_layers


class LayerwiseVerifier(ModelVerifier):
    """A verifier whose linear layers are replaced one by one in a copy of the target.

    Attributes:
        backends: on a GPU, and emulated; they build the precision that the verifier is named after.
    """

    backends: ClassVar[tuple[type[LayerBackend], type[LayerBackend]]]

    class Config(ModelVerifier.Config):
        """Options."""

        emulated: bool = Field(
            False,
            examples=[True],
            description="Compute the same numbers slowly on any device, where the kernels are not to be had.",
        )
        dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
            "auto", description="What everything beside the quantised layers computes in; auto is the checkpoint's."
        )
        quantize_lm_head: bool = Field(False, description="Quantise the output projection too.")
        keep: tuple[str, ...] = Field(
            (), description="Layers that stay in full precision, by name or pattern, e.g. '*.down_proj'."
        )

    config: Config
    _built: Built

    def layer_options(self) -> dict[str, Any]:
        """Return what the layers are told of the verifier's options."""
        return {}

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return a quantised copy of the target, made once for all arms with these options.

        Raises:
            ConfigError: the model's device or dtype is not served, or no layer was quantised.
        """
        backend, options = self.backends[self.config.emulated], self.config
        target = models.target(options.dtype)
        if reason := backend.refuses(target):
            raise ConfigError(f"verifier '{self.name}' ({backend.name}) cannot serve this model: {reason}.")
        [precision], keep = backend.precisions, matching_layers(target, options.keep)
        self._built = models.derived(
            f"{self.name}/{options.model_dump_json()}",
            lambda: backend.build(
                target.sharing_copy(), precision, quantize_lm_head=options.quantize_lm_head, keep=keep,
                **self.layer_options(),
            ),
        )  # fmt: skip
        return self._built.model

    def reference(self) -> str:
        """The quantised model; an emulated one is named so, and what is kept in full precision.

        Raises:
            ConfigError: there are no kernels here, which is known before a weight is read.
        """
        if reason := self.backends[self.config.emulated].unusable():
            raise ConfigError(
                f"verifier '{self.name}': {reason}. Its numerics can be had anywhere, slowly, by 'emulated: true'."
            )
        told = ["emulated"] if self.config.emulated else []
        told += [f"{', '.join(self.config.keep)} in full precision"] if self.config.keep else []
        return f"the model in {self.precision}" + (f" ({'; '.join(told)})" if told else "")

    def describe(self) -> Description:
        """Backend and what was converted, beside what every model verifier says."""
        layers = {"converted_layers": len(self._built.converted), "skipped_layers": list(self._built.skipped)}
        return replace(super().describe(), backend=self._built.backend, details=layers)
