"""Contracts, mathematics and the loop; imports nothing else of quasar.

These names are what plugins are written with, beside those of ``quasar`` itself, ``quasar.core.trees``,
``quasar.models``, ``quasar.acceptors.rules`` and ``quasar.testing``; ``docs/api.md`` lists them. Whatever else is in
the modules may change without notice.
"""

from typing import TYPE_CHECKING

from quasar.core.lazy import lazy_names

if TYPE_CHECKING:
    from quasar.core.backends import STOCK, Backend, Built, Precision
    from quasar.core.cache import KVCache
    from quasar.core.component import Component
    from quasar.core.components import FULL, Acceptor, Drafter, DraftsBy, Verifier, joint_drafts_by
    from quasar.core.context import Context
    from quasar.core.decoders import Decoder, DecoderLayer, LinearLayer
    from quasar.core.description import Description
    from quasar.core.distributions import most_likely, residual, soft_distributions, softmax_or_one_hot
    from quasar.core.errors import (
        CapacityError,
        CompositionError,
        ConfigError,
        ContractError,
        PluginError,
        QuasarError,
        UnsupportedModelError,
        did_you_mean,
    )
    from quasar.core.models import Block, ChannelGroup, Dtype, EditableModel, LanguageModel, StagedModel
    from quasar.core.providers import ChatCodec, ModelProvider, TextCodec
    from quasar.core.records import Generation, StepRecord
    from quasar.core.rows import LogitsProcessor, Row, TokenView
    from quasar.core.sampling import SamplingOptions, SamplingParams
    from quasar.core.streams import Streams, draw, uniforms
    from quasar.core.types import POINT_MASS, Acceptance, Draft, OneHot, Trials, Verification
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "FULL",
    "POINT_MASS",
    "STOCK",
    "Acceptance",
    "Acceptor",
    "Backend",
    "Block",
    "Built",
    "CapacityError",
    "ChannelGroup",
    "ChatCodec",
    "Component",
    "CompositionError",
    "ConfigError",
    "Context",
    "ContractError",
    "Decoder",
    "DecoderLayer",
    "Description",
    "Draft",
    "Drafter",
    "DraftsBy",
    "Dtype",
    "EditableModel",
    "Generation",
    "KVCache",
    "LanguageModel",
    "LinearLayer",
    "LogitsProcessor",
    "ModelProvider",
    "OneHot",
    "PluginError",
    "Precision",
    "QuasarError",
    "Row",
    "SamplingOptions",
    "SamplingParams",
    "StagedModel",
    "StepRecord",
    "Streams",
    "TextCodec",
    "TokenView",
    "Trials",
    "UnsupportedModelError",
    "Verification",
    "Verifier",
    "did_you_mean",
    "draw",
    "joint_drafts_by",
    "most_likely",
    "residual",
    "soft_distributions",
    "softmax_or_one_hot",
    "uniforms",
]
