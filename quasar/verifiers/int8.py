"""Quasar's verifier: the target model with int8 weights and int8 activations (W8A8)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quasar.core.errors import ConfigError
from quasar.core.model_verifier import ModelVerifier
from quasar.core.models import LanguageModel, ModelProvider
from quasar.verifiers.quantization.convert import ConversionReport, choose_backend, convert


class Int8(ModelVerifier):
    """Verify with a W8A8 copy of the target: int8 weights per output channel, int8 activations per row.

    One quantised model does prefill, draft-less steps and verification, as in the paper's released code. The copy
    shares every tensor that is not quantised with the full-precision model, and changes none of them.

    Source: the paper Quasar; per-token dynamic activations as in ZeroQuant, arXiv 2206.01861.
    """

    name = "int8"
    precision = "W8A8 int8"

    class Config(ModelVerifier.Config):
        """Options."""

        backend: Literal["auto", "fbgemm", "torchao", "reference"] = Field(
            "auto", description="What multiplies: auto takes the fastest that works here; reference is exact integers."
        )
        dtype: Literal["auto", "bfloat16", "float16", "float32", "float64"] = Field(
            "auto", description="What everything beside the quantised layers computes in; auto is the checkpoint's."
        )
        quantize_lm_head: bool = Field(False, description="Quantise the output projection too.")

    _report: ConversionReport

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return a quantised copy of the target, made once for all arms with these options."""
        dtype, head = self.config.dtype, self.config.quantize_lm_head
        target = models.target(dtype)
        backend = choose_backend(self.config.backend, target)

        def make() -> tuple[LanguageModel, ConversionReport]:
            model = target.sharing_copy()
            return model, convert(model, backend, quantize_lm_head=head)

        model, self._report = models.derived(f"int8/{backend}/{dtype}/{head}", make)
        return model

    def reference(self) -> str:
        """The quantised model; a backend that was asked for is named, because they round differently.

        Raises:
            ConfigError: the backend cannot be used here, which is known before a weight is read.
        """
        wanted = self.config.backend
        if wanted == "auto":
            return "the model in W8A8 int8"
        if wanted == "fbgemm" and self.config.dtype == "float64":
            raise ConfigError("verifier 'int8': backend 'fbgemm' computes in float32; for float64 take 'reference'.")
        return f"the model in W8A8 int8 ({choose_backend(wanted)} backend)"

    def describe(self) -> dict[str, object]:
        """Backend and what was converted, beside what every model verifier says."""
        return {
            "backend": self._report.backend,
            "converted_layers": len(self._report.converted),
            "skipped_layers": list(self._report.skipped),
            **super().describe(),
        }
