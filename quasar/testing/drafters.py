"""What the conformance kit asks of a drafter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quasar.core import trees
from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.draft_contract import check_draft
from quasar.core.errors import ContractError
from quasar.core.streams import draw
from quasar.core.types import POINT_MASS, Draft
from quasar.testing.contexts import (
    PROMPTS,
    SETTINGS,
    Fault,
    Findings,
    Guard,
    KeepLikely,
    Make,
    NoRepeat,
    SpyStreams,
    generate,
    make_context,
    probability_of_texts,
    processor_of,
)
from quasar.testing.distributions import SMALLEST_P, draws_against_distributions, independence
from quasar.testing.references import ExactAcceptor, TableVerifier
from quasar.testing.tiny_model import VOCAB

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
            _check_shape(draft, budget, drafter, findings)
        if findings:
            return


def _check_shape(draft: Draft, budget: Sequence[int], drafter: Drafter, findings: Findings) -> None:
    """Look at one draft; what has no name of its own is left to the check that the engine makes."""
    if isinstance(draft, Draft) and _is_square(draft, len(budget)):
        used = trees.used(draft)
        if drafter.drafts_by == "none" and bool(used.any()):
            return findings.add(Fault.TRAITS, "it drafts by 'none' and it drafted.")
        wrong = draft.token_ids[used & ((draft.token_ids < 0) | (draft.token_ids >= VOCAB))]
        if wrong.numel():
            return findings.add(Fault.RANGE, f"token ids {sorted(set(wrong.tolist()))}, the vocabulary has {VOCAB}.")
        if bool((draft.parents <= torch.arange(draft.nodes))[used].all()) and bool((draft.parents >= 0)[used].all()):
            for row, (longest, most) in enumerate(zip(trees.longest_paths(draft), budget, strict=True)):
                if longest > most:
                    fault = Fault.BUDGET if most else Fault.FINISHED
                    return findings.add(fault, f"a path of {longest} tokens in row {row}, whose budget is {most}.")
        if _drawn(draft) is not None and not _possible(draft):
            return None  # a token that its distribution excludes: the check of the distributions says more
    if drafter.next_distributions and not _are_distributions(
        draft.next_distributions, (draft.batch, draft.nodes + 1, VOCAB)
    ):
        return findings.add(
            Fault.SHAPE,
            "its trait 'next_distributions' promises a distribution after every slot, in 'next_distributions'.",
        )
    if drafter.matched and draft.matched is None:
        return findings.add(Fault.SHAPE, "its trait 'matched' promises evidence for every node, in 'matched'.")
    try:
        check_draft(draft, budget, VOCAB, drafter.drafts_by, drafter.name)
    except ContractError as error:
        findings.add(Fault.SHAPE, str(error))
    return None


def _are_distributions(distributions: Tensor | None, shape: tuple[int, ...]) -> bool:
    if not isinstance(distributions, Tensor) or tuple(distributions.shape) != shape:
        return False
    return bool((distributions >= 0).all()) and bool(((distributions.sum(dim=-1) - 1).abs() < 1e-3).all())


def _is_square(draft: Draft, batch: int) -> bool:
    """Whether the three tensors of integers are such, and of one size."""
    tensors = (draft.token_ids, draft.parents, draft.num_nodes)
    if not all(isinstance(each, Tensor) and each.dtype == torch.int64 for each in tensors):
        return False
    sizes = [tuple(each.shape) for each in tensors]
    return len(sizes[0]) == 2 and sizes == [(batch, sizes[0][1]), (batch, sizes[0][1]), (batch,)]


def _drawn(draft: Draft) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return (rows, nodes, distributions ``[n, vocab]``) of every sampled trial; ``None`` if unsound."""
    trials = draft.trials
    if trials is None:
        return None
    try:
        rows, columns = ((trials.nodes > 0) & (trials.sources != POINT_MASS)).nonzero().unbind(dim=1)
        distributions = trials.table[rows, trials.sources[rows, columns]]
        nodes = trials.nodes[rows, columns] - 1
        draft.token_ids[rows, nodes]
    except (IndexError, RuntimeError, TypeError, AttributeError):
        return None
    return (rows, nodes, distributions) if distributions.shape[-1] == VOCAB else None


def _possible(draft: Draft) -> bool:
    drawn = _drawn(draft)
    assert drawn is not None
    rows, nodes, distributions = drawn
    return bool((distributions.gather(1, draft.token_ids[rows, nodes][:, None]) > 0).all())


def _check_chance(make: Make, findings: Findings) -> None:
    """Ask two fresh instances the same; then one instance again."""
    prompts = [*PROMPTS, *PROMPTS, *PROMPTS]  # many rows, lest drafts be equal by luck
    budget = (*_BUDGETS, *_BUDGETS, *_BUDGETS, *_BUDGETS)
    for temperature in (0.0, 1.0):
        asked = [make_context(prompts, temperature, samples=range(12)) for _ in range(3)]
        one = make()
        first, second = one.propose(asked[0], budget), make().propose(asked[1], budget)
        if _content(first) != _content(second):
            return findings.add(Fault.CHANCE, "the same request twice, asked of two instances, gave two drafts.")
        if _content(first) != _content(one.propose(asked[2], budget)):
            return findings.add(Fault.MEMORY, "the same request twice, asked of one instance, gave two drafts.")
    return None


def _content(draft: Draft) -> object:
    """Return what counts of a draft, comparable."""
    counts = draft.num_nodes.tolist()
    rows = [row[:count] for row, count in zip(draft.token_ids.tolist(), counts, strict=True)]
    parents = [row[:count] for row, count in zip(draft.parents.tolist(), counts, strict=True)]
    drawn = _drawn(draft)
    return rows, parents, None if drawn is None else [each.tolist() for each in drawn]


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
        drawn = _drawn(draft)
        if drawn is None:
            return findings.add(Fault.SHAPE, "trials or their distributions do not fit the draft.")
        rows, nodes, distributions = drawn
        forbidden = _forbidden(context, draft, rows, nodes, distributions)
        if forbidden is not None:
            return findings.add(Fault.PROCESSORS, f"{forbidden}.")
        p = draws_against_distributions(draft.token_ids[rows, nodes].tolist(), distributions.tolist())
        if p < SMALLEST_P:
            setting = "with" if number else "without"
            text = f"{setting} processors, {len(distributions)} draws do not follow what came with them (p = {p:.1g})."
            return findings.add(Fault.PROCESSORS if number else Fault.DISTRIBUTION, text)
    return None


def _forbidden(context: Context, draft: Draft, rows: Tensor, nodes: Tensor, distributions: Tensor) -> str | None:
    """Say what is wrong with distributions after these processors, if anything is."""
    likely = processor_of(context, KeepLikely)
    if context.rows[0].sampling.temperature == 0 and bool((distributions.amax(dim=-1) < 1 - 1e-6).any()):
        return "at temperature 0 a distribution is not one-hot"
    if likely and bool(((distributions > 0).sum(dim=-1) > likely.count).any()):
        return f"under top-k {likely.count} a distribution gives probability to more tokens"
    if processor_of(context, NoRepeat):
        last = torch.tensor([[each.token_ids[-1]] for each in context.rows])
        before = torch.cat([last, draft.token_ids], dim=1)[rows, draft.parents[rows, nodes]]
        if bool((distributions.gather(1, before[:, None]) > 0).any()):
            return (
                "where no token may come twice in a row, a distribution gives probability to the token before its place"
            )
    return None


def _check_memory(make: Make, findings: Findings) -> None:
    """Decode prompt A and then B with one instance, and B with a fresh one: the drafts for B must be the same."""
    for temperature in (0.0, 1.0):
        for earlier, prompt in ((PROMPTS[-1], PROMPTS[0]), (PROMPTS[-1], PROMPTS[1]), (PROMPTS[0], PROMPTS[-1])):
            used, fresh = TableVerifier(), TableVerifier()
            drafter = make()
            generate(drafter, ExactAcceptor(), [earlier], temperature, 12)
            generate(drafter, ExactAcceptor(), [prompt], temperature, 12, verifier=used)
            generate(make(), ExactAcceptor(), [prompt], temperature, 12, verifier=fresh)
            if [_content(each) for each in used.drafts] != [_content(each) for each in fresh.drafts]:
                text = f"after prompt {earlier}, prompt {prompt} has other drafts than with a fresh instance."
                return findings.add(Fault.MEMORY, text)
    return None


def _check_text(make: Make, findings: Findings) -> None:
    """Compare many whole texts with the target's distribution, which they must follow under an exact acceptor."""
    p = probability_of_texts(make(), ExactAcceptor(), _TEXTS)
    if p < SMALLEST_P:
        text = f"with an exact acceptor the texts do not follow the target's distribution (chi-square p = {p:.1g})."
        findings.add(Fault.EXACTNESS, text)
