"""Quasar's verifier: the target model with int8 weights and int8 activations (W8A8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from quasar.core.backends import Built, check_name
from quasar.core.description import Description
from quasar.core.errors import ConfigError
from quasar.core.models import Dtype, LanguageModel
from quasar.core.providers import ModelProvider
from quasar.models.backend_choice import choose_backend, refuse_unusable
from quasar.models.verifier import ModelVerifier
from quasar.verifiers.quantization.fbgemm import Fbgemm
from quasar.verifiers.quantization.gptq_weights import round_by_gptq
from quasar.verifiers.quantization.reference import Reference
from quasar.verifiers.quantization.replace_layers import matching_layers
from quasar.verifiers.quantization.smoothed_copy import smoothed_copy
from quasar.verifiers.quantization.torchao import Torchao

LAYER_BACKENDS = {backend.name: backend for backend in (Fbgemm, Reference, Torchao)}
"""Backends that come with the verifier and build layer by layer, by name, best first."""


class Int8(ModelVerifier):
    """Verify with a W8A8 copy of the target: int8 weights per output channel, int8 activations per row.

    One quantised model does prefill, draft-less steps and verification, as in the paper's released code. The copy
    shares every tensor that is not quantised with the full-precision model, and changes none of them.

    Source: the paper Quasar; per-token dynamic activations as in ZeroQuant, arXiv 2206.01861; smoothing as in
    SmoothQuant, arXiv 2211.10438; GPTQ, arXiv 2210.17323.
    """

    name = "int8"
    precision = "W8A8 int8"

    class Config(ModelVerifier.Config):
        """Options."""

        backend: str = Field(
            "auto",
            description="What multiplies: an installed backend, or layer by layer fbgemm, torchao or reference (exact "
            "integers); torch is the best of these three, auto the fastest of all by measurement.",
        )
        dtype: Dtype = Field(
            "auto", description="What everything beside the quantised layers computes in; auto is the checkpoint's."
        )
        quantize_lm_head: bool = Field(False, description="Quantise the output projection too.")
        activation_bits: int = Field(
            8,
            ge=8,
            le=12,
            description="Bits of the activations beside the int8 weights; more than 8 costs nothing where a backend "
            "multiplies in 16 bits, as native_cpu does, and is nearer to full precision.",
        )
        weight_rounding: Literal["nearest", "gptq"] = Field(
            "nearest",
            description="gptq lets the weights of a layer make up for each other's rounding, for real inputs; it takes "
            "minutes once for each model, and the integers are kept in QUASAR_HOME.",
        )
        keep: tuple[str, ...] = Field(
            (), description="Layers that stay in full precision, by name or pattern, e.g. '*.down_proj'."
        )
        smooth_alpha: float | None = Field(
            None,
            ge=0,
            le=1,
            description="SmoothQuant's alpha: how much of the outliers moves from activations into weights; 0 turns "
            "smoothing off. By default each input gets the best of seven, found once and kept in QUASAR_HOME.",
        )
        compiled: bool = Field(
            False, description="Compile the layers of backend 'torchao', without which they are slow; meant for CUDA."
        )
        calibration: str | None = Field(
            None,
            description="A file of plain text to calibrate on; the default is text that the model samples itself.",
        )

        @field_validator("backend")
        @classmethod
        def _known(cls, value: str, info: ValidationInfo) -> str:
            return check_name(value, info, LAYER_BACKENDS)

    config: Config
    _built: Built
    _smoothing: str

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return a quantised copy of the target, made once for all arms with these options."""
        options = self.config
        backend = choose_backend(
            models, options.dtype, options.backend, "int8",
            activation_bits=options.activation_bits, built_in=tuple(LAYER_BACKENDS.values()),
        )  # fmt: skip
        keep = matching_layers(models.target(options.dtype), options.keep)

        def make() -> tuple[Built, str]:
            smoothed = smoothed_copy(models, options.dtype, backend, options.smooth_alpha, options.calibration)
            if options.weight_rounding == "gptq":
                head = {layer.name for layer in smoothed.model.linear_layers() if layer.is_head}
                skipped = keep | (set() if options.quantize_lm_head else head)
                round_by_gptq(models, smoothed.model, backend.weight_steps, options.calibration, skipped)
            more: dict[str, Any] = {"compiled": True} if options.compiled else {}
            built = backend.build(
                smoothed.model, "int8", quantize_lm_head=options.quantize_lm_head, keep=keep,
                activation_bits=options.activation_bits, **more,
            )  # fmt: skip
            return built, smoothed.how

        key = f"int8/{backend.name}/{options.model_dump_json(exclude={'backend'})}"
        self._built, self._smoothing = models.derived(key, make)
        return self._built.model

    def reference(self) -> str:
        """The quantised model; a backend that was asked for is named, because they round differently.

        Raises:
            ConfigError: the backend cannot be used here, which is known before a weight is read.
        """
        wanted, options = self.config.backend, self.config
        if options.compiled and wanted != "torchao":
            raise ConfigError(f"verifier 'int8': 'compiled' is for backend 'torchao', not for '{wanted}'.")
        if options.calibration is not None and options.smooth_alpha == 0 and options.weight_rounding == "nearest":
            raise ConfigError("verifier 'int8': smooth_alpha 0 leaves nothing to calibrate; leave 'calibration' out.")
        if wanted == "fbgemm" and self.config.dtype == "float64":
            raise ConfigError("verifier 'int8': backend 'fbgemm' computes in float32; for float64 take 'reference'.")
        if wanted in LAYER_BACKENDS:
            refuse_unusable(LAYER_BACKENDS[wanted], "int8", options.activation_bits)
        told = [] if wanted == "auto" else [f"{wanted} backend"]
        told += ["not smoothed"] if options.smooth_alpha == 0 else []
        told += [f"smooth_alpha {options.smooth_alpha:g}"] if options.smooth_alpha else []
        told += ["GPTQ"] if options.weight_rounding == "gptq" else []
        told += [f"calibrated on {options.calibration}"] if options.calibration else []
        told += [f"{', '.join(options.keep)} in full precision"] if options.keep else []
        return f"the model in W8A{options.activation_bits} int8" + (f" ({'; '.join(told)})" if told else "")

    def describe(self) -> Description:
        """Backend and what was converted, beside what every model verifier says."""
        details = {
            "smoothing": self._smoothing,
            "weight_rounding": self.config.weight_rounding,
            "compiled": self.config.compiled,
            "converted_layers": len(self._built.converted),
            "skipped_layers": list(self._built.skipped),
        }
        return replace(super().describe(), backend=self._built.backend, details=details)
