"""Quasar: composable speculative decoding. ``load_pipeline`` gives something that generates; see ``docs/api.md``."""

from typing import TYPE_CHECKING

from quasar.core.lazy import lazy_names
from quasar.version import __version__

if TYPE_CHECKING:
    from quasar.core.components import Acceptor, Drafter, Verifier
    from quasar.core.context import Context
    from quasar.core.errors import (
        CapacityError,
        CompositionError,
        ConfigError,
        ContractError,
        PluginError,
        QuasarError,
        UnsupportedModelError,
    )
    from quasar.core.records import Generation, StepRecord
    from quasar.core.sampling import SamplingOptions, SamplingParams
    from quasar.core.types import Acceptance, Draft, Verification
    from quasar.pipelines.load import load_pipeline
    from quasar.pipelines.output import Output, Stream
    from quasar.pipelines.pipeline import Conversation, Pipeline
    from quasar.plugins.registry import Registry, hookimpl, load_registry
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "Acceptance",
    "Acceptor",
    "CapacityError",
    "CompositionError",
    "ConfigError",
    "Context",
    "ContractError",
    "Conversation",
    "Draft",
    "Drafter",
    "Generation",
    "Output",
    "Pipeline",
    "PluginError",
    "QuasarError",
    "Registry",
    "SamplingOptions",
    "SamplingParams",
    "StepRecord",
    "Stream",
    "UnsupportedModelError",
    "Verification",
    "Verifier",
    "__version__",
    "hookimpl",
    "load_pipeline",
    "load_registry",
]
