"""What a verification and an acceptance must be before anything is committed; each fault is one line."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from quasar.core.draft_contract import check_integers
from quasar.core.errors import ContractError
from quasar.core.types import Acceptance, Draft, OneHot, Verification


def check_verification(verification: Verification, draft: Draft, vocab_size: int | None, who: str) -> None:
    """Refuse a verification that does not fit its draft; probabilities are not looked at.

    Raises:
        ContractError: naming the verifier, the field, what was expected and what came.
    """

    def refuse(field: str, expected: str, actual: object) -> NoReturn:
        raise ContractError(
            f"verifier '{who}' returned a bad verification: {field} should be {expected}, got {actual}."
        )

    if not isinstance(verification, Verification):
        refuse("the value", "a Verification", type(verification).__name__)
    if verification.draft is not draft:
        refuse("draft", "the draft that was to be verified", "another one")
    found, logits = verification.distributions, verification.logits
    shape = [*found.token_ids.shape, found.vocab_size] if isinstance(found, OneHot) else list(found.shape)
    expected = [draft.batch, draft.nodes + 1, vocab_size or shape[-1]]
    if shape != expected:
        refuse("distributions", f"of shape {expected}", shape)
    if found.dtype not in (torch.float32, torch.float64):
        refuse("distributions", "float32 or float64", found.dtype)
    if logits is not None and list(logits.shape) != expected:
        refuse("logits", f"of shape {expected}", list(logits.shape))


def check_acceptance(acceptance: Acceptance, verification: Verification, who: str) -> None:
    """Refuse an acceptance that is not a path of the draft with a token behind it; its length is looked at later.

    Raises:
        ContractError: naming the acceptor, the field, what was expected and what came.
    """

    def refuse(field: str, expected: str, actual: object) -> NoReturn:
        raise ContractError(f"acceptor '{who}' returned a bad acceptance: {field} should be {expected}, got {actual}.")

    if not isinstance(acceptance, Acceptance):
        refuse("the value", "an Acceptance", type(acceptance).__name__)
    draft, path = verification.draft, acceptance.path
    width = path.shape[1] if isinstance(path, Tensor) and path.dim() == 2 else draft.nodes
    check_integers("path", path, (draft.batch, width), refuse)
    check_integers("num_accepted", acceptance.num_accepted, (draft.batch,), refuse)
    check_integers("next_token", acceptance.next_token, (draft.batch,), refuse)
    for row, (slots, count) in enumerate(zip(path.tolist(), acceptance.num_accepted.tolist(), strict=True)):
        behind = dict(enumerate(draft.rows[row][1], 1))
        if count <= width and [behind.get(slot) for slot in slots[:count]] != [0, *slots[:count]][:count]:
            refuse("path", "slots that each follow the one before, from slot 0 on", f"{slots[:count]} in row {row}")
    following, largest = acceptance.next_token.tolist(), verification.vocab_size - 1
    if not all(0 <= token <= largest for token in following):
        refuse("next_token", f"within 0..{largest}", following)
