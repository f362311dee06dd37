"""A request ends where plain decoding would have ended, at whatever place of a block that is."""

from dataclasses import replace

import pytest
from doubles import Oracle
from harness import DRAFTERS, GAMMA, PROMPTS, generate, outcomes, params, plain, requests, truth
from tiny_models import MAX_LENGTH

from quasar.core.engine import Request
from quasar.core.errors import CapacityError, ConfigError
from quasar.drafters.none import NoDraft

FAMILY = "llama-gqa"
RAGGED = tuple(PROMPTS)
PLACES = range(2 * (GAMMA + 1))
"""Every place of two blocks, the correction's and the bonus token's included."""
any_temperature = pytest.mark.parametrize("temperature", [0.0, 1.0])
drafters = pytest.mark.parametrize("drafter", ["oracle", "partial-1", "partial-3", "flaky", "tree", "ngram-last-pad"])


def letters(ids) -> str:
    """Text of token ids: one character an id."""
    return "".join(chr(0x4E00 + token) for token in ids)


# --- EOS --------------------------------------------------------------------------------------------------------------


@drafters
@any_temperature
@pytest.mark.parametrize("place", PLACES)
def test_eos_ends_the_text_at_every_place_of_a_block(place, temperature, drafter):
    sampling = params(temperature)
    known = truth(FAMILY, ("looping",), sampling)
    whole = known["looping"]
    eos = (whole[place],)
    drafted = generate(FAMILY, DRAFTERS[drafter](known), requests(("looping",), sampling, eos), eos)
    assert outcomes(drafted) == [(whole[: whole.index(eos[0]) + 1], "eos")]


@drafters
@any_temperature
def test_eos_of_one_row_leaves_the_others_going(drafter, temperature):
    sampling = params(temperature)
    known = truth(FAMILY, RAGGED, sampling)
    for place in PLACES[::2]:
        eos = tuple({known["long"][place], known["single"][place // 2]})
        drafted = generate(FAMILY, DRAFTERS[drafter](known), requests(RAGGED, sampling, eos), eos)
        assert outcomes(drafted) == outcomes(plain(FAMILY, RAGGED, sampling, eos))


def test_the_chosen_places_cover_a_whole_block():
    # guards the tests above: a text that repeats itself early would move every cut to the front
    whole = truth(FAMILY, ("looping",), params(1.0))["looping"]
    assert {whole.index(whole[place]) for place in PLACES} >= set(range(GAMMA + 2))


def test_an_accepted_count_leaves_out_what_eos_cut_off():
    sampling = params(1.0)
    known = truth(FAMILY, ("looping",), sampling)
    eos = (known["looping"][3],)  # the third place of the first block of four drafts
    done = generate(FAMILY, DRAFTERS["oracle"](known), requests(("looping",), sampling, eos), eos)[0]
    assert [(step.drafted, step.accepted, step.committed) for step in done.decode_steps] == [(GAMMA, 3, 3)]


@drafters
@any_temperature
def test_a_stop_id_ends_the_text_at_every_place_of_a_block(drafter, temperature):
    known = truth(FAMILY, ("looping",), params(temperature))
    whole = known["looping"]
    for place in PLACES:
        sampling = params(temperature, stop_token_ids=(whole[place],))
        drafted = generate(FAMILY, DRAFTERS[drafter](known), requests(("looping",), sampling))
        assert outcomes(drafted) == [(whole[: whole.index(whole[place]) + 1], "stop")]


def test_eos_is_a_token_like_any_other_when_it_is_ignored():
    sampling = params(1.0, ignore_eos=True)
    known = truth(FAMILY, RAGGED, params(1.0))
    eos = tuple(tokens[5] for tokens in known.values())
    drafted = generate(FAMILY, DRAFTERS["tree"](known), requests(RAGGED, sampling, eos), eos)
    assert outcomes(drafted) == [(known[name], "length") for name in RAGGED]


def test_the_listener_hears_exactly_the_ids_that_are_returned():
    from doubles import WatchedVerifier
    from tiny_models import tiny_model

    from quasar.acceptors.stochastic import Stochastic
    from quasar.core.engine import Engine

    sampling = params(1.0)
    known = truth(FAMILY, RAGGED, sampling)
    eos = (known["long"][6],)
    heard = [[] for _ in RAGGED]
    engine = Engine(Oracle(known, GAMMA), WatchedVerifier(tiny_model(FAMILY)), Stochastic(), eos_ids=eos)
    done = engine.generate(requests(RAGGED, sampling, eos), lambda row, ids: heard[row].extend(ids))
    assert [tuple(ids) for ids in heard] == [each.token_ids for each in done]


# --- stop strings -----------------------------------------------------------------------------------------------------


@drafters
@any_temperature
@pytest.mark.parametrize("place", PLACES)
def test_a_stop_string_of_two_tokens_ends_the_text_wherever_it_lies(place, temperature, drafter):
    # the places cover both ends in one block, and a start in one block with the end in the next
    sampling = params(temperature)
    known = truth(FAMILY, ("looping",), sampling)
    text = letters(known["looping"])
    stop = text[place : place + 2]
    wanted = [replace(each, sampling=params(temperature, stop=stop)) for each in requests(("looping",), sampling)]
    drafted = generate(FAMILY, DRAFTERS[drafter](known), wanted, decode=letters)
    assert outcomes(drafted) == [(known["looping"][: text.index(stop) + 2], "stop")]


def test_a_stop_string_that_stands_in_the_prompt_only_does_not_end_the_text():
    sampling = params(1.0, stop=letters(PROMPTS["looping"][-2:]))
    known = truth(FAMILY, ("looping",), params(1.0))
    drafted = generate(FAMILY, DRAFTERS["oracle"](known), requests(("looping",), sampling), decode=letters)
    assert outcomes(drafted) == [(known["looping"], "length")]


def test_a_stop_string_half_in_the_prompt_does_not_end_the_text():
    known = truth(FAMILY, ("looping",), params(1.0))
    sampling = params(1.0, stop=letters([PROMPTS["looping"][-1], known["looping"][0]]))
    drafted = generate(FAMILY, DRAFTERS["oracle"](known), requests(("looping",), sampling), decode=letters)
    assert outcomes(drafted) == [(known["looping"], "length")]


# --- lengths ----------------------------------------------------------------------------------------------------------


@drafters
@pytest.mark.parametrize("length", [1, 2, 3, GAMMA, GAMMA + 1, GAMMA + 2])
def test_a_text_has_exactly_as_many_tokens_as_were_asked_for(length, drafter):
    known = truth(FAMILY, RAGGED, params(1.0))
    wanted = requests(RAGGED, params(1.0, max_new_tokens=length))
    drafted = generate(FAMILY, DRAFTERS[drafter](known), wanted)
    assert outcomes(drafted) == [(known[name][:length], "length") for name in RAGGED]


@pytest.mark.parametrize("length", [2, 3, GAMMA, GAMMA + 1, GAMMA + 2, 2 * GAMMA])
def test_no_more_is_drafted_than_can_be_committed_with_a_token_after_it(length):
    known = truth(FAMILY, ("looping",), params(1.0))
    done = generate(FAMILY, DRAFTERS["oracle"](known), requests(("looping",), params(1.0, max_new_tokens=length)))[0]
    left = length
    for step in done.steps:
        assert step.drafted <= left - 1
        left -= step.committed


def test_rows_of_a_batch_end_at_lengths_of_their_own():
    known = truth(FAMILY, RAGGED, params(0.0))
    lengths = dict(zip(RAGGED, (2, 11, 5), strict=True))
    wanted = [requests((name,), params(0.0, max_new_tokens=length))[0] for name, length in lengths.items()]
    drafted = generate(FAMILY, DRAFTERS["oracle"](known), wanted)
    assert outcomes(drafted) == [(known[name][:length], "length") for name, length in lengths.items()]


@drafters
@any_temperature
def test_eos_cannot_come_before_min_new_tokens(drafter, temperature):
    early = truth(FAMILY, RAGGED, params(temperature))
    eos = tuple({tokens[place] for tokens in early.values() for place in (0, 2)})
    sampling = params(temperature, min_new_tokens=GAMMA + 2)
    expected = plain(FAMILY, RAGGED, sampling, eos)
    known = {name: done.token_ids for name, done in zip(RAGGED, expected, strict=True)}
    drafted = generate(FAMILY, DRAFTERS[drafter](known), requests(RAGGED, sampling, eos), eos)
    assert outcomes(drafted) == outcomes(expected)
    assert not any(set(done.token_ids[: GAMMA + 2]) & set(eos) for done in drafted)
    assert early != known  # or nothing was forbidden


@drafters
@any_temperature
@pytest.mark.parametrize("place", range(1, GAMMA + 2))
def test_eos_may_come_as_the_first_token_after_min_new_tokens(place, temperature, drafter):
    known = truth(FAMILY, ("long",), params(temperature))
    whole = known["long"]
    eos = (whole[place],)
    assert eos[0] not in whole[:place]
    sampling = params(temperature, min_new_tokens=place)
    drafted = generate(FAMILY, DRAFTERS[drafter](known), requests(("long",), sampling, eos), eos)
    assert outcomes(drafted) == [(whole[: place + 1], "eos")]


# --- the end of the model ---------------------------------------------------------------------------------------------


def near_the_end(missing: int, **others) -> list[Request]:
    prompt = [(7 * place) % 97 for place in range(MAX_LENGTH - missing)]
    return [Request(prompt, params(others.pop("temperature", 0.0), **others), "near the end")]


@any_temperature
@pytest.mark.parametrize("family", ["llama-gqa", "gpt2", "gemma3-mixed"])
def test_drafts_stop_at_the_last_position_of_the_model(family, temperature):
    plainly = generate(family, NoDraft(), near_the_end(3, temperature=temperature))
    known = {"near the end": [*plainly[0].token_ids, *range(8)]}
    drafted = generate(family, Oracle(known, 8), near_the_end(3, temperature=temperature))
    assert outcomes(drafted) == outcomes(plainly)
    assert (len(plainly[0].token_ids), plainly[0].finish_reason) == (3, "capacity")


def test_a_short_row_beside_one_at_the_end_of_the_model_is_not_disturbed():
    sampling = params(0.0)
    for family in ("llama-gqa", "gpt2"):
        known = {**truth(family, ("looping",), sampling), "near the end": range(30)}
        wanted = [*near_the_end(3), *requests(("looping",), sampling)]
        drafted = generate(family, Oracle(known, 8), wanted)
        assert drafted[1].token_ids == known["looping"]
        assert drafted[0].finish_reason == "capacity"


def test_a_request_that_just_fits_ends_by_its_length():
    done = generate(FAMILY, NoDraft(), near_the_end(3, max_new_tokens=3))[0]
    assert (len(done.token_ids), done.finish_reason) == (3, "length")


@pytest.mark.parametrize("missing", [0, -1, -40])
def test_a_prompt_that_leaves_no_room_is_refused_in_one_line(missing):
    with pytest.raises(CapacityError, match=f"{MAX_LENGTH - missing} tokens") as refused:
        generate(FAMILY, NoDraft(), near_the_end(missing))
    assert "\n" not in str(refused.value)


def test_an_empty_prompt_is_refused():
    with pytest.raises(ConfigError, match="no tokens"):
        generate(FAMILY, NoDraft(), [Request([], params(0.0), "nothing")])
