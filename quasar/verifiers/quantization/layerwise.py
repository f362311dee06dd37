"""What verifiers that quantise layer by layer, on a GPU or emulated, have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from quasar.core.description import Description
from quasar.core.errors import ConfigError
from quasar.core.models import LanguageModel
from quasar.core.providers import ModelProvider
from quasar.models.verifier import ModelVerifier
from quasar.verifiers.quantization.replace_layers import ConversionReport, matching_layers, replace_layers
from quasar.verifiers.quantization.scheme import QuantizedLinear


class LayerwiseVerifier(ModelVerifier):
    """A verifier whose linear layers are replaced one by one in a copy of the target.

    Attributes:
        layers: the classes of the layer: on a GPU, and emulated.
    """

    layers: ClassVar[tuple[type[QuantizedLinear], type[QuantizedLinear]]]

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
    _report: ConversionReport

    @abstractmethod
    def make_layer(self, kind: Any, weight: Tensor, bias: Tensor | None) -> QuantizedLinear:
        """Return a layer of class ``kind`` with the verifier's options."""

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return a quantised copy of the target, made once for all arms with these options.

        Raises:
            ConfigError: the model's device or dtype is not served, or no layer was quantised.
        """
        kind, options = self.layers[self.config.emulated], self.config
        target = models.target(options.dtype)
        if reason := kind.refuses(target.device, target.dtype):
            raise ConfigError(f"verifier '{self.name}' ({kind.backend}) cannot serve this model: {reason}.")
        keep = matching_layers(target, options.keep)

        def make() -> tuple[LanguageModel, ConversionReport]:
            model = target.sharing_copy()
            return model, replace_layers(
                model, lambda weight, bias: self.make_layer(kind, weight, bias), kind.backend, self.name,
                quantize_lm_head=options.quantize_lm_head, keep=keep,
            )  # fmt: skip

        model, self._report = models.derived(f"{self.name}/{options.model_dump_json()}", make)
        return model

    def reference(self) -> str:
        """The quantised model; an emulated one is named so, and what is kept in full precision.

        Raises:
            ConfigError: there are no kernels here, which is known before a weight is read.
        """
        kind = self.layers[self.config.emulated]
        if reason := kind.unusable():
            raise ConfigError(
                f"verifier '{self.name}': {reason}. Its numerics can be had anywhere, slowly, by 'emulated: true'."
            )
        told = ["emulated"] if self.config.emulated else []
        told += [f"{', '.join(self.config.keep)} in full precision"] if self.config.keep else []
        return f"the model in {self.precision}" + (f" ({'; '.join(told)})" if told else "")

    def describe(self) -> Description:
        """Backend and what was converted, beside what every model verifier says."""
        layers = {"converted_layers": len(self._report.converted), "skipped_layers": list(self._report.skipped)}
        return replace(super().describe(), backend=self._report.backend, details=layers)
