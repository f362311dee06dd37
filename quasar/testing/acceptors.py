"""What the conformance kit asks of an acceptor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Acceptor, Drafter
from quasar.core.context import Context
from quasar.core.errors import CompositionError
from quasar.core.sampling import SamplingParams
from quasar.core.types import Acceptance, Draft, Verification
from quasar.testing.contexts import (
    PROMPTS,
    Fault,
    Findings,
    Guard,
    Make,
    generate,
    make_context,
    probability_of_texts,
)
from quasar.testing.distributions import SMALLEST_P
from quasar.testing.references import NoDrafts, PointChain, PointTree, SampledDrafts, TableVerifier
from quasar.testing.tiny_model import VOCAB

_TEXTS = 5000
_DRAFTERS: dict[str, tuple[Callable[[], Drafter], ...]] = {
    "none": (NoDrafts,),
    "point_mass": (PointChain, PointTree),
    "sampled": (lambda: SampledDrafts(tree=False), lambda: SampledDrafts(tree=True)),
}


def check_acceptor(make: Make, findings: Findings) -> None:
    """Show an acceptor drafts of every kind that it takes, then compare its texts with what it promises.

    Args:
        make: makes a fresh instance.
        findings: where faults go.
    """
    for check in (_check_temperatures, _check_steps, _check_memory, _check_texts):
        if not findings:
            check(make, findings)


def _temperatures(acceptor: Acceptor) -> tuple[float, ...]:
    return (0.0,) if acceptor.greedy_only else (0.0, 1.0)


def _drafters(acceptor: Acceptor) -> list[Callable[[], Drafter]]:
    return [drafter for kind in sorted(acceptor.takes) for drafter in _DRAFTERS[kind]]


def _check_temperatures(make: Make, findings: Findings) -> None:
    """Compare ``greedy_only`` with what ``check`` refuses."""
    acceptor = make()
    for temperature in (0.0, 1.0):
        try:
            acceptor.check(SamplingParams(temperature=temperature))
            refused = False
        except CompositionError:
            refused = True
        if refused == (temperature in _temperatures(acceptor)):
            answer = f"'check' {'refuses' if refused else 'takes'} temperature {temperature:g}"
            findings.add(Fault.TRAITS, f"greedy_only is {acceptor.greedy_only}, and {answer}.")


def _check_steps(make: Make, findings: Findings) -> None:
    """Judge one draft of every kind, in a ragged batch and alone."""
    acceptor = make()
    for temperature in _temperatures(acceptor):
        for drafter in _drafters(acceptor):
            for prompts in (PROMPTS, PROMPTS[-1:]):
                for budget in (range(len(prompts)), [2] * len(prompts)):  # the first row of the first has no draft
                    context = make_context(prompts, temperature)
                    draft = drafter().propose(context, budget)
                    _check_step(make, context, TableVerifier().verify(context, draft), findings)
                    if findings:
                        return


def _check_step(make: Make, context: Context, verification: Verification, findings: Findings) -> None:
    guard, before = Guard(context), [each.clone() for each in _tensors(verification)]
    acceptance = make().accept(verification, context)
    change = guard.changed()
    if change is None and not all(map(torch.equal, before, _tensors(verification))):
        change = "the verification that it judged was changed"
    if change is not None:
        return findings.add(Fault.MUTATION, f"after 'accept' {change}.")
    fault = _shape_fault(acceptance, verification.draft)
    if fault is not None:
        return findings.add(*fault)
    _check_paths(acceptance, verification.draft, findings)
    if not findings:
        again = make().accept(verification, context)
        if _content(again) != _content(acceptance):
            findings.add(Fault.CHANCE, "the same verification twice, shown to two instances, was judged in two ways.")
    return None


def _tensors(verification: Verification) -> list[Tensor]:
    draft, trials = verification.draft, verification.draft.trials
    found = [verification.probs, draft.token_ids, draft.parents, draft.num_nodes]
    found += [] if verification.logits is None else [verification.logits]
    return found if trials is None else [*found, trials.nodes, trials.sources, trials.table]


def _shape_fault(acceptance: Acceptance, draft: Draft) -> tuple[Fault, str] | None:
    if not isinstance(acceptance, Acceptance):
        return Fault.SHAPE, f"'accept' returned {type(acceptance).__name__}, not an Acceptance."
    for name, dims in (("path", 2), ("num_accepted", 1), ("next_token", 1)):
        value = getattr(acceptance, name)
        if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.dim() != dims:
            actual = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            return Fault.SHAPE, f"{name} should be int64 with {dims} dimensions, got {actual}."
        if value.shape[0] != draft.batch:
            return Fault.SHAPE, f"{name} has {value.shape[0]} rows, the batch has {draft.batch}."
    counts = acceptance.num_accepted
    if bool(((counts < 0) | (counts > acceptance.path.shape[1])).any()):
        return Fault.PATH, f"num_accepted is {counts.tolist()}, and a path has {acceptance.path.shape[1]} places."
    tokens = acceptance.next_token
    if bool(((tokens < 0) | (tokens >= VOCAB)).any()):
        return Fault.RANGE, f"next_token is {tokens.tolist()}, the vocabulary has {VOCAB}."
    return None


def _check_paths(acceptance: Acceptance, draft: Draft, findings: Findings) -> None:
    for row, (slots, count) in enumerate(zip(acceptance.path.tolist(), acceptance.num_accepted.tolist(), strict=True)):
        before, limit = 0, int(draft.num_nodes[row])
        for slot in slots[:count]:
            if not 1 <= slot <= limit:
                return findings.add(Fault.PATH, f"slot {slot} was accepted in row {row}, which has {limit} nodes.")
            parent = int(draft.parents[row, slot - 1])
            if parent != before:
                text = f"slot {slot} was accepted after slot {before}, and its parent is slot {parent}."
                return findings.add(Fault.PATH, text)
            before = slot
    return None


def _content(acceptance: Acceptance) -> list[tuple[list[int], int]]:
    counts = acceptance.num_accepted.tolist()
    paths = [path[:count] for path, count in zip(acceptance.path.tolist(), counts, strict=True)]
    return list(zip(paths, acceptance.next_token.tolist(), strict=True))


def _check_memory(make: Make, findings: Findings) -> None:
    """Decode prompt A and then B with one instance, and B with a fresh one."""
    acceptor, earlier, prompt = make(), PROMPTS[-1], PROMPTS[0]
    for temperature in _temperatures(acceptor):
        for drafter in _drafters(acceptor):
            used = make()
            generate(drafter(), used, [earlier], temperature, 8)
            after = generate(drafter(), used, [prompt], temperature, 8)[0].token_ids
            if after != generate(drafter(), make(), [prompt], temperature, 8)[0].token_ids:
                text = f"after prompt {earlier}, prompt {prompt} is continued otherwise than with a fresh instance."
                return findings.add(Fault.MEMORY, text)
    return None


def _check_texts(make: Make, findings: Findings) -> None:
    """Compare texts with plain decoding's where they must be the same, and with the target's distribution elsewhere."""
    acceptor = make()
    plain = {t: generate(NoDrafts(), Stochastic(), PROMPTS, t, 12) for t in _temperatures(acceptor)}
    for drafter in _drafters(acceptor):
        if findings:
            return
        name = drafter().name
        stream = acceptor.target_stream and (drafter().drafts_by != "sampled" or acceptor.couples)
        for temperature, expected in plain.items():
            same_text = acceptor.is_exact() and (temperature == 0 or stream)
            done = generate(drafter(), make(), PROMPTS, temperature, 12) if same_text else expected
            if [each.token_ids for each in done] != [each.token_ids for each in expected]:
                fault = Fault.EXACTNESS if temperature == 0 else Fault.STREAM
                findings.add(fault, f"at temperature {temperature:g} the text is not plain decoding's ({name}).")
        if acceptor.is_exact() and not acceptor.greedy_only and not stream:
            p = probability_of_texts(drafter(), make(), _TEXTS)
            if p < SMALLEST_P:
                text = f"the texts do not follow the target's distribution (chi-square p = {p:.1g}, drafts of {name})."
                findings.add(Fault.EXACTNESS, text)
