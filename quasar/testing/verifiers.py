"""What the conformance kit asks of a verifier."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quasar.core import trees
from quasar.core.components import Verifier
from quasar.core.context import Context
from quasar.core.types import Draft, Verification
from quasar.testing.contexts import PROMPTS, Fault, Findings, Guard, Make, begin, make_context
from quasar.testing.processors import SETTINGS, are_distributions, forbidden
from quasar.testing.references import last_tokens

_ALIKE = 1e-6
"""Largest difference of probabilities between two blocks of one shape."""
_SIMILAR = 0.02
"""Largest difference of probabilities between blocks of two shapes: kernels may round otherwise, and int8 with them."""


def check_verifier(make: Make, findings: Findings) -> None:
    """Let a verifier judge drafts of every shape, and compare what it says of one text in several blocks.

    Args:
        make: makes a fresh, loaded instance.
        findings: where faults go.
    """
    for check in (_check_numbers, _check_steps, _check_neighbours, _check_memory):
        if not findings:
            check(make, findings)


def _drafts(batch: int) -> list[Draft]:
    """Return no draft, ragged chains, and ragged trees."""
    chains = [[(row + node) % 7 for node in range((3, 0, 2)[row % 3])] for row in range(batch)]
    nodes = [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)]
    return [
        Draft.empty(batch),
        Draft.chains(chains),
        Draft.trees([nodes[: (5, 2, 0)[row % 3]] for row in range(batch)]),
    ]


def _check_numbers(make: Make, findings: Findings) -> None:
    verifier = make()
    if verifier.reference() is not None and (not isinstance(verifier.reference(), str) or not verifier.reference()):
        findings.add(Fault.TRAITS, "reference() should name the distribution that it computes, or be None.")
    for name, value in (("max_length()", verifier.max_length()), ("vocab_size()", verifier.vocab_size())):
        if value is not None and (not isinstance(value, int) or value < 1):
            findings.add(Fault.TRAITS, f"{name} should be a positive integer or None, got {value!r}.")


def _check_steps(make: Make, findings: Findings) -> None:
    for temperature, processors in SETTINGS:
        for prompts in (PROMPTS, PROMPTS[:1]):
            for draft in _drafts(len(prompts)):
                context = make_context(prompts, temperature, processors)
                guard, before = Guard(context), _tensors(draft)
                verifier = make()
                found = verifier.verify(context, draft)
                change = guard.changed()
                if change is None and not all(map(torch.equal, before, _tensors(draft))):
                    change = "the draft was changed"
                if change is not None:
                    return findings.add(Fault.MUTATION, f"after 'verify' {change}.")
                _check_shape(found, draft, verifier, findings)
                if not findings:
                    _check_distributions(found, context, findings)
                if findings:
                    return None
    return None


def _tensors(draft: Draft) -> list[Tensor]:
    return [each.clone() for each in (draft.token_ids, draft.parents, draft.num_nodes)]


def _used_slots(draft: Draft) -> Tensor:
    """Slots that count, ``[batch, nodes + 1]`` bool."""
    return torch.cat([torch.ones((draft.batch, 1), dtype=torch.bool), trees.used(draft)], dim=1)


def _check_shape(found: Verification, draft: Draft, verifier: Verifier, findings: Findings) -> None:
    if not isinstance(found, Verification):
        return findings.add(Fault.SHAPE, f"'verify' returned {type(found).__name__}, not a Verification.")
    if found.draft is not draft:
        return findings.add(Fault.SHAPE, "the verification should hold the draft that it judged.")
    probs, vocab = found.probs, verifier.vocab_size()
    if not isinstance(probs, Tensor) or probs.dtype not in (torch.float32, torch.float64):
        return findings.add(Fault.SHAPE, f"probs should be float32 or float64, got {getattr(probs, 'dtype', probs)}.")
    expected = [draft.batch, draft.nodes + 1, vocab or (probs.shape[-1] if probs.dim() else 0)]
    if list(probs.shape) != expected:
        return findings.add(Fault.SHAPE, f"probs should have shape {expected}, got {list(probs.shape)}.")
    if not are_distributions(probs[_used_slots(draft)]):
        return findings.add(Fault.SHAPE, "probs should be distributions: no negative entries, sums of 1.")
    if found.logits is not None and found.logits.shape != probs.shape:
        findings.add(Fault.SHAPE, f"logits should be shaped like probs, got {list(found.logits.shape)}.")
    return None


def _check_distributions(found: Verification, context: Context, findings: Findings) -> None:
    """See that the distributions come after the processors of every place."""
    used = _used_slots(found.draft)
    before = torch.cat([last_tokens(context), found.draft.token_ids], dim=1)[used]
    text = forbidden(context, found.probs[used], before)
    if text is None and found.logits is not None:
        expected = context.distributions(found.logits, found.draft)[used]
        if not torch.allclose(found.probs[used], expected, rtol=0, atol=1e-4):
            text = "the distributions are not those of its logits after the processors"
    if text is not None:
        findings.add(Fault.PROCESSORS, f"{text}.")


def _distribution(make: Make, text: Sequence[int]) -> Tensor:
    """Return the distribution after ``text``, computed alone by a fresh instance."""
    context = _committed([text])
    found: Verification = make().verify(context, Draft.empty(1))
    return found.probs[0, 0]


def _committed(texts: Sequence[Sequence[int]]) -> Context:
    """Return a context whose rows have committed exactly these ids."""
    rows = [list(text[:-1]) for text in texts]
    context = begin(rows, 1.0)
    for row, text in zip(rows, texts, strict=True):
        row.append(text[-1])
    return context


def _check_neighbours(make: Make, findings: Findings) -> None:
    """A distribution may depend on the text before its slot, and on nothing else."""
    texts = [[*prompt, 6, 2] for prompt in PROMPTS]
    one, other = (make().verify(_committed(texts[-1:]), Draft.chains([[3, 4, last]])).probs for last in (5, 0))
    if not torch.allclose(one[:, :3], other[:, :3], rtol=0, atol=_ALIKE):
        return findings.add(Fault.NEIGHBOURS, "a later draft token changes the distribution at an earlier slot.")
    for draft in _drafts(len(texts)):
        probs = make().verify(_committed(texts), draft).probs
        for row, text in enumerate(texts):
            for slot, path in enumerate(trees.prefixes(draft, row)):
                gap = float((probs[row, slot] - _distribution(make, [*text, *path])).abs().max())
                if not gap < _SIMILAR:
                    where = f"row {row}, slot {slot} of {'a chain' if trees.is_chain(draft) else 'a tree'}"
                    detail = f"the distribution at {where} differs by {gap:.2g} from that of the same text alone."
                    return findings.add(Fault.NEIGHBOURS, detail)
    return None


def _check_memory(make: Make, findings: Findings) -> None:
    """Go on with one request for some steps, then begin another with the same instance."""
    verifier = make()
    for prompt, first in ((PROMPTS[-1], 1), (PROMPTS[0], 5)):
        ids = list(prompt)
        context = begin([ids], 1.0)
        ids.append(first)
        for chain, accepted, following in (([1, 2, 3], 3, 4), ([5, 6], 0, 0), ([2, 2, 2], 1, 6), ([], 0, 1)):
            draft = Draft.chains([chain])
            probs = verifier.verify(context, draft).probs
            for slot in range(len(chain) + 1):
                gap = float((probs[0, slot] - _distribution(make, [*ids, *chain[:slot]])).abs().max())
                if not gap < _SIMILAR:
                    seen = [*ids, *chain[:slot]]
                    detail = f"after earlier steps or prompts the distribution after {seen} differs by {gap:.2g}."
                    return findings.add(Fault.MEMORY, detail)
            ids += [*chain[:accepted], following]
    return None
