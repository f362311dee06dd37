"""The stop rules of one request, on hand-made blocks."""

import pytest
import torch

from quasar.core.sampling import SamplingParams
from quasar.core.stopping import NewTokens, StopRule
from quasar.core.types import Draft, Verification

EOS = 9


def rule(stop=(), max_new_tokens=100, prompt_length=5, max_length=None, ignore_eos=False, decode=None):
    sampling = SamplingParams(stop=stop, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos)
    return StopRule(sampling, [EOS], prompt_length, max_length, decode or letters)


def cut(rule, output, new):
    verification = Verification(Draft.empty(1), torch.zeros(1, 1, 1))
    return rule.cut(output, NewTokens(0, new, list(range(len(new))), verification))


def letters(ids) -> str:
    return "".join(chr(ord("a") + token) for token in ids)


# --- no reason to stop ------------------------------------------------------------------------------------------------


def test_a_block_without_a_reason_to_stop_is_kept_whole():
    assert cut(rule(), [1, 2], [3, 4, 5]) == (3, None)


def test_text_is_not_decoded_without_stop_strings():
    def refuse(ids):
        raise AssertionError("decoded")

    assert cut(rule(decode=refuse), [1], [2, 3]) == (2, None)


# --- EOS --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(4))
def test_eos_is_kept_and_nothing_after_it(place):
    block = [1, 2, 3, 4]
    block[place] = EOS
    assert cut(rule(), [], block) == (place + 1, "eos")


def test_any_of_several_eos_ids_ends_the_text():
    both = StopRule(SamplingParams(), [8, EOS], 5, None, None)
    assert cut(both, [], [1, EOS, 8]) == (2, "eos")
    assert cut(both, [], [1, 8, EOS]) == (2, "eos")


def test_eos_does_not_end_a_text_that_ignores_it():
    assert cut(rule(ignore_eos=True), [], [1, EOS, 2]) == (3, None)


def test_eos_at_the_last_place_is_the_reason_before_length():
    assert cut(rule(max_new_tokens=2), [], [1, EOS]) == (2, "eos")


# --- lengths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", range(4))
def test_a_block_is_cut_at_the_asked_length(done):
    assert cut(rule(max_new_tokens=4), [0] * done, [1, 2, 3, 4, 5]) == (4 - done, "length")


def test_a_block_is_cut_at_the_end_of_the_model():
    assert cut(rule(prompt_length=5, max_length=8), [], [1, 2, 3, 4]) == (3, "capacity")


def test_a_length_that_just_fits_the_model_is_a_length():
    assert cut(rule(max_new_tokens=3, prompt_length=5, max_length=8), [], [1, 2, 3]) == (3, "length")


# --- stop strings -----------------------------------------------------------------------------------------------------


def test_a_stop_string_inside_a_block_ends_it_with_its_last_token():
    assert cut(rule(stop="cd"), [0], [1, 2, 3, 4]) == (3, "stop")


def test_a_stop_string_that_began_in_an_earlier_block_is_seen():
    assert cut(rule(stop="cd"), [0, 2], [3, 4]) == (1, "stop")


def test_a_stop_string_that_is_not_finished_does_not_stop():
    assert cut(rule(stop="cde"), [0], [2, 3]) == (2, None)


def test_the_earliest_of_several_stop_strings_ends_the_text():
    assert cut(rule(stop=("ef", "cd")), [], [2, 3, 4, 5]) == (2, "stop")


def test_a_stop_string_before_eos_wins():
    assert cut(rule(stop="b"), [], [1, EOS]) == (1, "stop")


def test_eos_before_a_stop_string_wins():
    assert cut(rule(stop="b"), [], [EOS, 1]) == (1, "eos")


def test_a_stop_string_in_the_middle_of_one_token_stops():
    words = {1: "one ", 2: "stopping ", 3: "three "}
    assert cut(rule(stop="top", decode=lambda ids: "".join(words[token] for token in ids)), [], [1, 2, 3]) == (
        2,
        "stop",
    )


def test_a_stop_string_of_many_byte_tokens_is_seen_far_back():
    # one character may be four byte-level tokens: this one spans 40 of them
    text = "𝔘𝔫𝔦𝔠𝔬𝔡𝔢𝔰𝔱𝔬"
    data = list(text.encode())
    found = rule(stop=text, decode=lambda ids: bytes(ids).decode(errors="ignore"), ignore_eos=True)
    assert cut(found, [65, *data[:-1]], [data[-1], 66]) == (1, "stop")


def test_a_window_that_begins_inside_a_character_still_finds_the_stop_string():
    data = list(("é" * 30 + "!?").encode())
    found = rule(stop="!?", decode=lambda ids: bytes(ids).decode(errors="replace"), ignore_eos=True)
    assert cut(found, data[:-1], [data[-1]]) == (1, "stop")


def test_a_long_text_is_not_decoded_from_its_beginning():
    seen = []
    found = rule(stop="zz", max_new_tokens=1000, decode=lambda ids: seen.append(len(ids)) or letters(ids))
    cut(found, [1] * 500, [2, 3])
    assert max(seen) < 50
