"""What a user writes; ``mypy --strict`` must find nothing here, and nothing may be ``Any``."""

from typing import assert_type

from quasar import (
    Conversation,
    Generation,
    Output,
    Pipeline,
    QuasarError,
    SamplingParams,
    StepRecord,
    Stream,
    load_pipeline,
)


def main(model: str) -> None:
    pipeline = load_pipeline(
        model,
        drafter={"use": "ngram", "num_speculative_tokens": 3},
        acceptor="stochastic",
        exact=True,
        sampling=SamplingParams(temperature=0.7),
        quiet=True,
    )
    assert_type(pipeline, Pipeline)

    one = pipeline.generate("One, two, three", max_new_tokens=8, stop="\n", temperature=0.5)
    assert_type(one, Output)
    assert_type(one.text, str)
    assert_type(one.generation, Generation)
    assert_type(one.generation.acceptance_length, float | None)
    assert_type(one.generation.acceptance_rate, float | None)
    assert_type(one.generation.finish_reason, str)
    assert_type(one.generation.steps, tuple[StepRecord, ...])
    assert_type(one.generation.token_ids, tuple[int, ...])

    sampling = SamplingParams(max_new_tokens=4, stop=["\n", "."], logit_bias={5: 1.0}, seed=1, logprobs=True)
    assert_type(sampling.stop, tuple[str, ...])
    assert_type(sampling.temperature, float)
    several = pipeline.generate(("One, two", "Three, four"), sampling)
    assert_type(several, list[Output])
    assert_type(several[0].generation.logprobs, tuple[float, ...] | None)

    pieces: list[str] = []
    told = pipeline.generate("One, two", sampling, on_text=pieces.append)
    assert "".join(pieces) == told.text

    stream = pipeline.stream("One, two", max_new_tokens=4)
    assert_type(stream, Stream)
    for piece in stream:
        assert_type(piece, str)
    assert_type(stream.output, Output | None)

    try:
        conversation = pipeline.conversation(max_new_tokens=4)
        assert_type(conversation, Conversation)
        answer = conversation.say("Hello.")
        assert_type(answer, Output)
        assert_type(conversation.messages, list[dict[str, str]])
    except QuasarError as error:
        assert "chat template" in str(error)
