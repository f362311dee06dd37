"""What the conformance kit asks of a drafter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quasar.acceptors.stochastic import Stochastic
from quasar.core.context import Context
from quasar.core.streams import draw
from quasar.core.types import Draft
from quasar.testing.contexts import (
    PROMPTS,
    Fault,
    Findings,
    Guard,
    Make,
    SpyStreams,
    generate,
    make_context,
    probability_of_texts,
)
from quasar.testing.distributions import SMALLEST_P, draws_against_distributions, independence
from quasar.testing.drafts import check_shape, content, drawn
from quasar.testing.processors import SETTINGS, forbidden
from quasar.testing.references import TableVerifier, last_tokens

_BUDGETS = (4, 1, 0)
_SAMPLES = 1000
_FEW_SAMPLES = 300  # where processors look at the prefix, and rows are processed one by one
_LENGTH = 4
_TEXTS = 3000


def check_drafter(make: Make, findings: Findings) -> None:
    """Run a drafter in every way that a pipeline would; later questions are asked only if earlier ones are answered.

    Args:
        make: makes a fresh, loaded instance.
        findings: where faults go.
    """
    drafter = make()
    for check in (_check_drafts, _check_chance, _check_foreign, _check_distributions, _check_memory, _check_text):
        if findings or (
            drafter.drafts_by != "sampled" and check in (_check_foreign, _check_distributions, _check_text)
        ):
            continue
        check(make, findings)


def _contexts() -> list[tuple[Context, Sequence[int]]]:
    """Return contexts of every kind, with budgets."""
    found: list[tuple[Context, Sequence[int]]] = []
    for temperature, processors in SETTINGS:
        found += [(make_context([prompt], temperature, processors), (4,)) for prompt in PROMPTS]
        found.append((make_context(PROMPTS, temperature, processors), (9,) * len(PROMPTS)))
        found.append((make_context(PROMPTS[:3], temperature, processors), _BUDGETS))
        found.append((make_context(PROMPTS[:3], temperature, processors), _BUDGETS[::-1]))
    return found


def _check_drafts(make: Make, findings: Findings) -> None:
    for context, budget in _contexts():
        drafter, guard = make(), Guard(context)
        draft = drafter.propose(context, budget)
        change = guard.changed()
        if change is not None:
            findings.add(Fault.MUTATION, f"after 'propose' {change}.")
        else:
            check_shape(draft, budget, drafter, findings)
        if findings:
            return


def _check_chance(make: Make, findings: Findings) -> None:
    """Ask two fresh instances the same; then one instance again."""
    prompts = [*PROMPTS, *PROMPTS, *PROMPTS]  # many rows, lest drafts be equal by luck
    budget = (*_BUDGETS, *_BUDGETS, *_BUDGETS, *_BUDGETS)
    for temperature in (0.0, 1.0):
        asked = [make_context(prompts, temperature, samples=range(12)) for _ in range(3)]
        one = make()
        first, second = one.propose(asked[0], budget), make().propose(asked[1], budget)
        if content(first) != content(second):
            return findings.add(Fault.CHANCE, "the same request twice, asked of two instances, gave two drafts.")
        if content(first) != content(one.propose(asked[2], budget)):
            return findings.add(Fault.MEMORY, "the same request twice, asked of one instance, gave two drafts.")
    return None


def _check_foreign(make: Make, findings: Findings) -> None:
    """See whose random numbers are read, and whether the target's decide which nodes exist."""
    context = make_context([PROMPTS[-1]] * _SAMPLES, 1.0, samples=range(_SAMPLES))
    draft = make().propose(context, (_LENGTH,) * _SAMPLES)
    streams = context.streams
    assert isinstance(streams, SpyStreams)
    foreign = sorted({use for use, level in streams.asked if level == context.level and not use.startswith("draft")})
    if foreign:
        purposes = ", ".join(map(repr, foreign))
        return findings.add(Fault.FOREIGN, f"it draws from the streams of {purposes}; its own are called 'draft…'.")
    distributions = TableVerifier().verify(context, Draft.empty(_SAMPLES)).probs[:, 0]
    coming = draw(distributions, streams.target(context.committed()[:, None])[:, 0])
    last = [row.token_ids[-1] for row in context.rows]
    if independence(draft.num_nodes.tolist(), coming.tolist(), last) < SMALLEST_P:
        findings.add(Fault.FOREIGN, "how much is drafted depends on what the target stream will yield.")
    return None


def _check_distributions(make: Make, findings: Findings) -> None:
    """Compare many draws with the distributions that came with them, and these with what processors allow."""
    for number, (temperature, processors) in enumerate(SETTINGS):
        samples = _FEW_SAMPLES if any(each.needs_prefix for each in processors) else _SAMPLES
        context = make_context([PROMPTS[-1]] * samples, temperature, processors, range(samples))
        draft = make().propose(context, (_LENGTH,) * samples)
        if not draft.nodes:
            continue
        tried = drawn(draft)
        if tried is None:
            return findings.add(Fault.SHAPE, "trials or their distributions do not fit the draft.")
        rows, nodes, distributions = tried
        before = torch.cat([last_tokens(context), draft.token_ids], dim=1)[rows, draft.parents[rows, nodes]]
        wrong = forbidden(context, distributions, before)
        if wrong is not None:
            return findings.add(Fault.PROCESSORS, f"{wrong}.")
        p = draws_against_distributions(draft.token_ids[rows, nodes].tolist(), distributions.tolist())
        if p < SMALLEST_P:
            setting = "with" if number else "without"
            text = f"{setting} processors, {len(distributions)} draws do not follow what came with them (p = {p:.1g})."
            return findings.add(Fault.PROCESSORS if number else Fault.DISTRIBUTION, text)
    return None


def _check_memory(make: Make, findings: Findings) -> None:
    """Decode prompt A and then B with one instance, and B with a fresh one: the drafts for B must be the same."""
    for temperature in (0.0, 1.0):
        for earlier, prompt in ((PROMPTS[-1], PROMPTS[0]), (PROMPTS[-1], PROMPTS[1]), (PROMPTS[0], PROMPTS[-1])):
            used, fresh = TableVerifier(), TableVerifier()
            drafter = make()
            generate(drafter, Stochastic(), [earlier], temperature, 12)
            generate(drafter, Stochastic(), [prompt], temperature, 12, verifier=used)
            generate(make(), Stochastic(), [prompt], temperature, 12, verifier=fresh)
            if [content(each) for each in used.drafts] != [content(each) for each in fresh.drafts]:
                text = f"after prompt {earlier}, prompt {prompt} has other drafts than with a fresh instance."
                return findings.add(Fault.MEMORY, text)
    return None


def _check_text(make: Make, findings: Findings) -> None:
    """Compare many whole texts with the target's distribution, which they must follow under an exact acceptor."""
    p = probability_of_texts(make(), Stochastic(), _TEXTS)
    if p < SMALLEST_P:
        text = f"with an exact acceptor the texts do not follow the target's distribution (chi-square p = {p:.1g})."
        findings.add(Fault.EXACTNESS, text)
