"""Quasar's verifier: the target model with int8 weights and int8 activations (W8A8)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quasar.core.backend_choice import choose_backend
from quasar.core.backends import STOCK, Built
from quasar.core.errors import ConfigError
from quasar.core.model_verifier import ModelVerifier
from quasar.core.models import LanguageModel, ModelProvider
from quasar.verifiers.quantization.convert import available_backends, convert
from quasar.verifiers.quantization.convert import choose_backend as choose_layer_backend


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

        backend: str = Field(
            "auto",
            description="What multiplies: an installed backend, or layer by layer fbgemm, torchao or reference (exact "
            "integers); torch is the best of these three, auto the fastest of all by measurement.",
        )
        dtype: Literal["auto", "bfloat16", "float16", "float32", "float64"] = Field(
            "auto", description="What everything beside the quantised layers computes in; auto is the checkpoint's."
        )
        quantize_lm_head: bool = Field(False, description="Quantise the output projection too.")

    _built: Built

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return a quantised copy of the target, made once for all arms with these options."""
        dtype, head, wanted = self.config.dtype, self.config.quantize_lm_head, self.config.backend
        whole = None if wanted in available_backends() else choose_backend(models, dtype, wanted)
        target = models.target(dtype)
        name = choose_layer_backend("auto" if wanted == STOCK else wanted, target) if whole is None else whole.name

        def make() -> Built:
            model = target.sharing_copy()
            if whole is not None:
                return whole.build(model, "int8", quantize_lm_head=head)
            report = convert(model, name, quantize_lm_head=head)
            return Built(model, report.backend, report.converted, report.skipped)

        self._built = models.derived(f"int8/{name}/{dtype}/{head}", make)
        return self._built.model

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
        if wanted in available_backends():
            choose_layer_backend(wanted)
        return f"the model in W8A8 int8 ({wanted} backend)"

    def describe(self) -> dict[str, object]:
        """Backend and what was converted, beside what every model verifier says."""
        return {
            "backend": self._built.backend,
            "converted_layers": len(self._built.converted),
            "skipped_layers": list(self._built.skipped),
            **super().describe(),
        }
