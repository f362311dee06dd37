"""The components and commands that come with quasar, through the same hooks and entry point as anyone's plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quasar.plugins.registry import hookimpl

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from quasar.core.components import Acceptor, Drafter, Verifier

# Imports stand inside the hooks, so that `quasar --help` does not wait for torch.


@hookimpl
def quasar_drafters() -> Iterable[type[Drafter]]:
    """Return the built-in drafters."""
    from quasar.drafters.adaptive import Adaptive
    from quasar.drafters.best_first import BestFirst
    from quasar.drafters.bigram import Bigram
    from quasar.drafters.cascade import Cascade
    from quasar.drafters.draft_model import DraftModel
    from quasar.drafters.layer_skip import LayerSkip
    from quasar.drafters.lookahead import Lookahead
    from quasar.drafters.ngram import Ngram
    from quasar.drafters.none import NoDraft
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
    of_drafters: list[type[Drafter]] = [Union, Adaptive, Cascade, Routed]
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
    from quasar.acceptors.block import BlockVerification
    from quasar.acceptors.coupled import Coupled
    from quasar.acceptors.greedy import Greedy
    from quasar.acceptors.k_seq import KSeq
    from quasar.acceptors.relaxed import Relaxed
    from quasar.acceptors.stochastic import Stochastic
    from quasar.acceptors.top_k_ratio import TopKRatio
    from quasar.acceptors.typical import Typical

    return [Stochastic, BlockVerification, KSeq, Greedy, Coupled, Relaxed, Typical, TopKRatio]


@hookimpl
def quasar_models() -> Iterable[Any]:
    """Return the built-in models."""
    from quasar.zoo.builtin_models import builtin_models

    models: Iterable[Any] = builtin_models()
    return models


@hookimpl
def quasar_commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the built-in commands, in the order of ``quasar --help``."""
    from quasar.commands.check import add_check
    from quasar.commands.compare import add_compare
    from quasar.commands.datastore import add_datastore
    from quasar.commands.fidelity import add_fidelity
    from quasar.commands.generate import add_generate
    from quasar.commands.ls import add_ls
    from quasar.commands.models import add_models
    from quasar.commands.profile import add_profile
    from quasar.commands.show import add_show

    for add in (
        add_compare, add_check, add_generate, add_ls, add_show, add_models, add_profile, add_datastore, add_fidelity
    ):  # fmt: skip
        add(subparsers)
