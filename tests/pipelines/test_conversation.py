"""Conversations: a kept cache changes what is forwarded, and nothing that is said."""

import pytest

from quasar import SamplingParams, load_pipeline

TURNS = ("hello hello hello", "and hello again", "hello")


@pytest.fixture(scope="module", params=["none", "ngram", "bigram"])
def pipeline(tiny_model, request):
    return load_pipeline(
        str(tiny_model), drafter=request.param, verifier={"use": "full", "dtype": "float64"}, quiet=True
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_turn_is_a_fresh_run_over_the_whole_text_and_forwards_less(pipeline, temperature):
    sampling = SamplingParams(temperature=temperature, max_new_tokens=14, logprobs=True)
    talk = pipeline.conversation(sampling)
    for turn, message in enumerate(TURNS):
        said = talk.say(message)
        assert talk.messages[-2:] == [
            {"role": "user", "content": message},
            {"role": "assistant", "content": said.text},
        ]
        ids = pipeline.tokenizer.render(talk.messages[:-1])
        [fresh] = pipeline.run(pipeline.requests([ids], sampling, [f"turn {turn}"]))
        done = said.generation
        assert done.token_ids == fresh.token_ids
        assert done.finish_reason == fresh.finish_reason
        assert done.logprobs == pytest.approx(fresh.logprobs, abs=1e-9)
        assert fresh.steps[0].positions_forwarded == len(ids)
        columns = done.steps[0].positions_forwarded
        # What the turns before have in common with this one ends at the latest where the last answer began.
        earlier = len(pipeline.tokenizer.render(talk.messages[:-3])) if turn else 0
        assert columns <= len(ids) - earlier + 1
        assert [step.positions_forwarded for step in done.steps[1:]] == [
            step.positions_forwarded for step in fresh.steps[1:]
        ]


def test_an_answer_in_whole_characters_is_not_forwarded_again(tiny_model):
    """Only the last token of an answer is not cached, because nothing was drawn after it."""
    pipeline = load_pipeline(str(tiny_model), drafter="none", quiet=True)
    letters = [pipeline.tokenizer.encode(letter)[0] for letter in "abcdefgh"]
    others = tuple(token for token in range(257) if token not in letters)
    talk = pipeline.conversation(max_new_tokens=10, suppress_tokens=others)
    talk.say("hello")
    said = talk.say("and again")
    whole = len(pipeline.tokenizer.render(talk.messages[:-1]))
    before = len(pipeline.tokenizer.render(talk.messages[:1])) + 10
    assert said.generation.steps[0].positions_forwarded == whole - before + 1


def test_conversations_do_not_hear_each_other(pipeline):
    alone = pipeline.conversation(max_new_tokens=8)
    expected = [alone.say(message).generation.token_ids for message in TURNS[:2]]
    one, other = pipeline.conversation(max_new_tokens=8), pipeline.conversation(max_new_tokens=8)
    heard = []
    for message in TURNS[:2]:
        heard.append(one.say(message).generation.token_ids)
        other.say(message[::-1])
    assert heard == expected
