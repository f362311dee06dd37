"""The components that come with quasar, registered through the same hooks and entry point as anyone's plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quasar.plugins.registry import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quasar.core.components import Acceptor, Drafter, Verifier

# Imports stand inside the hooks, so that `quasar --help` does not wait for torch.


@hookimpl
def quasar_drafters() -> Iterable[type[Drafter]]:
    """Return the built-in drafters."""
    from quasar.drafters.adaptive import Adaptive
    from quasar.drafters.best_first import BestFirst
    from quasar.drafters.bigram import Bigram
    from quasar.drafters.draft_model import DraftModel
    from quasar.drafters.layer_skip import LayerSkip
    from quasar.drafters.lookahead import Lookahead
    from quasar.drafters.ngram import Ngram
    from quasar.drafters.none import NoDraft
    from quasar.drafters.pipeline import Pipeline
    from quasar.drafters.pld_plus import PldPlus
    from quasar.drafters.pruned import Pruned
    from quasar.drafters.recycling import Recycling
    from quasar.drafters.retrieval import Retrieval
    from quasar.drafters.routed import Routed
    from quasar.drafters.suffix import Suffix
    from quasar.drafters.union import Union
    from quasar.drafters.universal import Universal

    without_models: list[type[Drafter]] = [Ngram, Suffix, Recycling, Lookahead, Retrieval]
    with_the_verifiers_layers: list[type[Drafter]] = [PldPlus, LayerSkip]
    of_drafters: list[type[Drafter]] = [Union, Adaptive, Pipeline, Routed]
    of_models: list[type[Drafter]] = [DraftModel, Pruned, BestFirst, Universal]
    return [NoDraft, *without_models, *with_the_verifiers_layers, *of_drafters, Bigram, *of_models]


@hookimpl
def quasar_verifiers() -> Iterable[type[Verifier]]:
    """Return the built-in verifiers."""
    from quasar.verifiers.fp8 import Fp8
    from quasar.verifiers.full import Full
    from quasar.verifiers.int4 import Int4
    from quasar.verifiers.int8 import Int8
    from quasar.verifiers.pruned import Pruned
    from quasar.verifiers.quasar import Quasar
    from quasar.verifiers.routed import Routed

    return [Full, Int8, Fp8, Int4, Pruned, Quasar, Routed]


@hookimpl
def quasar_acceptors() -> Iterable[type[Acceptor]]:
    """Return the built-in acceptors."""
    from quasar.acceptors.block import Block
    from quasar.acceptors.coupled import Coupled
    from quasar.acceptors.greedy import Greedy
    from quasar.acceptors.k_seq import KSeq
    from quasar.acceptors.relaxed import Relaxed
    from quasar.acceptors.stochastic import Stochastic
    from quasar.acceptors.top_k_ratio import TopKRatio
    from quasar.acceptors.typical import Typical

    return [Stochastic, Block, KSeq, Greedy, Coupled, Relaxed, Typical, TopKRatio]


@hookimpl
def quasar_models() -> Iterable[Any]:
    """Return the built-in models."""
    from quasar.zoo.builtin_models import builtin_models

    models: Iterable[Any] = builtin_models()
    return models
