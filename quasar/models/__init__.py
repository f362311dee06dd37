"""Running a model: sessions, stages, what verifiers and drafters over a model share, and what is kept on disk."""

from typing import TYPE_CHECKING

from quasar.core.lazy import lazy_names

if TYPE_CHECKING:
    from quasar.models.backend_choice import target_on_backend
    from quasar.models.disk_cache import quasar_home, remember, remembered
    from quasar.models.drafter import ModelDrafter, SamplingDrafter
    from quasar.models.pruning import PrunedModel, PruningOptions, pruned_copy
    from quasar.models.self_sampled import SelfSampledTexts, remembered_self_sampled_texts, self_sampled_texts
    from quasar.models.session import Session
    from quasar.models.stages import EarlyExit, early_exit
    from quasar.models.verifier import ModelVerifier
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "EarlyExit",
    "ModelDrafter",
    "ModelVerifier",
    "PrunedModel",
    "PruningOptions",
    "SamplingDrafter",
    "SelfSampledTexts",
    "Session",
    "early_exit",
    "pruned_copy",
    "quasar_home",
    "remember",
    "remembered",
    "remembered_self_sampled_texts",
    "self_sampled_texts",
    "target_on_backend",
]
