"""The conformance kit: run a component as pipelines would, and name what it does wrong. See ``quasar.testing.kit``."""

from quasar.testing.contexts import Fault
from quasar.testing.kit import ConformanceError, check_component, conformance_report
from quasar.testing.tiny_model import VOCAB, Letters, TinyModel, TinyModels

__all__ = [
    "VOCAB",
    "ConformanceError",
    "Fault",
    "Letters",
    "TinyModel",
    "TinyModels",
    "check_component",
    "conformance_report",
]
