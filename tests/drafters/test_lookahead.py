"""Lookahead: the window against the published procedure, the pool, and what is drafted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from drafting import context, nodes, verified

from quasar.core import trees
from quasar.core.types import Draft
from quasar.drafters.lookahead import Guesses, Lookahead, Pool
from quasar.drafters.ngram import Ngram
from quasar.drafters.union import Union
from quasar.testing import TinyModels, check_component

VOCAB = 50


def drafter(**options) -> Lookahead:
    return Lookahead(Lookahead.Config(**options))


def after(path: tuple[int, ...]) -> int:
    """The likeliest token after a text, by a rule that looks at all of it."""
    return sum((place + 1) * token for place, token in enumerate(reversed(path))) % VOCAB


def logits(text: list[int], draft: Draft) -> torch.Tensor:
    found = torch.zeros((1, draft.nodes + 1, VOCAB))
    for slot, path in enumerate(trees.prefixes(draft, 0)):
        found[0, slot, after((*text, *path))] = 1
    return found


def prompted(ids: list[int], length: int):
    """Context over a list that begins with a prompt of this length."""
    running = context(ids)
    running.rows = (replace(running.rows[0], prompt_length=length),)
    return running


def decode(made, text: list[int], steps: int):
    """Drafts and texts of some steps of greedy decoding, beginning with the prompt's step."""
    prompt = prompted(text, len(text))
    prompt.verification = verified(Draft.empty(1), logits(text, Draft.empty(1)))
    text.append(after(tuple(text)))
    found = []
    for _ in range(steps):
        draft = made.propose(prompt, [99])
        prompt.verification = verified(draft, logits(text, draft))
        found.append((list(text), draft))
        slot, new = 0, []
        wanted = after(tuple(text))
        for node, (token, parent) in enumerate(nodes(draft)[0], start=1):
            if parent == slot and token == wanted:
                slot, new = node, [*new, token]
                wanted = after((*text, *new))
        text += [*new, wanted]
    return found


def published(prompt: list[int], texts: list[list[int]], window: int, level: int):
    """Yield the window before each step and what the pool has after it, by the published procedure written out."""
    columns = window + level - 2
    past = [[prompt[column * len(prompt) // columns] for column in range(columns)][1:]]  # P[0] without the last token
    pool: dict[int, list[tuple[int, ...]]] = {}
    for text in texts:
        yield [list(each) for each in past], {key: list(each) for key, each in pool.items()}
        base = [text[-1], *past[0]]
        width = len(base)
        new = [
            after((*text, *base[1 : column + 1], *[past[each][column] for each in range(1, len(past))]))
            for column in range(width)
        ]
        if len(past) < level - 1:
            past = [past[0][1:], *[each[1:] for each in past[1:]], new[1:]]
            continue
        for column in range(width):
            ngram = (*[past[each][column] for each in range(1, len(past))], new[column])
            known = pool.setdefault(base[column], [])
            if ngram in known:
                known.remove(ngram)
            known.append(ngram)
        past = [(past[1] if len(past) > 1 else new)[1:], *past[2:], *([new] if len(past) > 1 else [])]


@pytest.mark.parametrize(("window", "level"), [(3, 3), (1, 2), (4, 2), (1, 4), (5, 5), (2, 3)])
def test_window_and_pool_are_the_published_ones(window, level):
    made, text = drafter(window=window, level=level, guess_set=64), [3, 1, 4, 1, 5, 9, 2, 6]
    prompt = list(text)
    steps = decode(made, text, 12)
    for (committed, draft), (past, pool) in zip(
        steps, published(prompt, [text for text, _ in steps], window, level), strict=True
    ):
        wanted = set()
        for column in range(len(past[0]) + 1):
            path = (*past[0][:column], *[each[column] for each in past[1:]])
            wanted |= {path[:end] for end in range(1, len(path) + 1)}
        for ngram in pool.get(committed[-1], ()):
            wanted |= {ngram[:end] for end in range(1, len(ngram) + 1)}
        found = [tuple(path) for path in trees.prefixes(draft, 0)[1:]]
        assert len(found) == len(set(found))  # equal nodes are one
        assert set(found) == wanted


def test_the_pool_of_the_prompt_is_an_option_and_comes_before_the_window():
    prompt = [7, 8, 9, 4, 7, 8, 5, 2]
    from_prompt, window = [(8, 0), (5, 1), (9, 1)], [(9, 0), (7, 1), (5, 2)]
    for option, shallow, deep in (
        (True, from_prompt, [*from_prompt, *[(9, 0), (7, 4), (5, 5)]]),
        (False, [], window),
    ):
        made, running = drafter(pool_from_prompt=option), prompted([*prompt, 7], 8)
        assert nodes(made.propose(running, [2]))[0] == shallow  # the window is deeper than that
        assert nodes(made.propose(running, [3]))[0] == deep


def test_the_pool_forgets_what_was_seen_longest_ago():
    pool = Pool(2)
    for ngram in ((1, 1), (2, 2), (1, 1), (3, 3)):
        pool.add(5, ngram)
    assert list(pool.after(5)) == [(3, 3), (1, 1)]
    assert list(pool.after(1)) == []


def test_a_window_that_was_not_forwarded_stays_as_it_is():
    made, ids = drafter(window=3, level=3), [1, 2, 3, 4]
    running = prompted(ids, 3)
    window = nodes(made.propose(running, [9]))
    running.verification = verified(Draft.empty(1), torch.zeros((1, 1, VOCAB)))
    ids.append(7)
    assert nodes(made.propose(running, [9])) == window
    assert nodes(made.propose(running, [1])) == [[]]  # too deep for the budget


def test_the_window_is_found_again_in_a_union():
    alone, joint = drafter(), Union(Union.Config(drafters=[Ngram(), drafter()], max_nodes=64))
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    one, other = decode(alone, list(prompt), 8), decode(joint, list(prompt), 8)
    for (text, draft), (joint_text, joint_draft) in zip(one, other, strict=False):
        if text != joint_text:
            break
        assert {tuple(p) for p in trees.prefixes(draft, 0)} <= {tuple(p) for p in trees.prefixes(joint_draft, 0)}


def test_a_column_is_one_ngram():
    pool, guesses = Pool(9), Guesses([[0, 5], [6, 7]], full=2)
    guesses.advance(4, [8, 9], pool)
    assert (list(pool.after(4)), list(pool.after(5))) == ([(6, 8)], [(7, 9)])
    assert guesses.levels == [[6, 7], [8, 9]]


@pytest.mark.parametrize("options", [{"window": 1, "level": 2}, {"window": 2, "level": 4, "pool_from_prompt": True}])
def test_the_contract_is_kept(options):
    check_component(Lookahead, models=TinyModels(), **options)
