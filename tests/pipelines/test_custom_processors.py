"""Logits processors of a user: any pure function is taken, the others are refused with the reason."""

import itertools

import pytest
import torch

from quasar import QuasarError, load_pipeline

LETTER = 40


@pytest.fixture(scope="module")
def pipeline(tiny_model):
    return load_pipeline(str(tiny_model), drafter="ngram", verifier={"use": "full", "dtype": "float64"}, quiet=True)


def without(logits: torch.Tensor, token: int) -> torch.Tensor:
    return logits.index_fill(1, torch.tensor([token]), -torch.inf)


class Remembers:
    """Forbids what it has seen at the end of a prefix so far."""

    def __init__(self):
        self.seen = [LETTER]

    def __call__(self, prefix, logits):
        self.seen.append(int(prefix[0, -1]))
        return logits.index_fill(1, torch.tensor(self.seen), -torch.inf)

    def method(self, prefix, logits):
        self.seen.append(0)
        return logits


class Odd:
    """Keeps its state where nobody looks, but its answers give it away."""

    __slots__ = ("calls",)

    def __init__(self):
        self.calls = itertools.count()

    def __call__(self, prefix, logits):
        return without(logits, next(self.calls))


def noisy(prefix, logits):
    return logits + torch.rand_like(logits)


def last_token_only(prefix, logits):
    return logits[:, -1:]


def forgets_to_return(prefix, logits):
    logits[:, LETTER] = -torch.inf


REFUSED = {
    "a list that grows": (Remembers(), "'Remembers' changes its own attributes when called; it must be pure."),
    "a bound method": (Remembers().method, "'method' changes its own attributes when called; it must be pure."),
    "hidden state": (Odd(), "'Odd' answers the same prefix differently the second time."),
    "a random number": (noisy, "'noisy' answers the same prefix differently the second time."),
    "another shape": (last_token_only, "'last_token_only' should return logits [1, 257], got [1, 1]."),
    "no answer": (forgets_to_return, "'forgets_to_return' should return logits [1, 257], got NoneType."),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("way", ["generate", "stream"])
def test_a_processor_that_is_no_pure_function_is_refused_with_the_reason(pipeline, case, way):
    processor, reason = REFUSED[case]
    with pytest.raises(QuasarError) as refused:
        getattr(pipeline, way)("abc", max_new_tokens=4, logits_processors=[processor])
    assert str(refused.value) == f"logits processor {reason}"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_processor_may_write_into_the_logits_it_gets_and_log_probabilities_stay_the_model_s(tiny_model, dtype):
    pipeline = load_pipeline(str(tiny_model), verifier={"use": "full", "dtype": dtype}, quiet=True)

    def in_place(prefix, logits):
        logits[:, int(prefix[0, -1])] = -torch.inf
        return logits

    def aside(prefix, logits):
        return without(logits, int(prefix[0, -1]))

    options = {"max_new_tokens": 20, "logprobs": True, "ignore_eos": True}
    written = pipeline.generate("aaaa", logits_processors=[in_place], **options).generation
    returned = pipeline.generate("aaaa", logits_processors=[aside], **options).generation
    assert written.token_ids == returned.token_ids
    assert written.logprobs == returned.logprobs
    assert all(value > -10 for value in written.logprobs)  # -inf only after the processor


def test_a_processor_has_its_effect_at_every_place_of_a_block(pipeline):
    def count_up(prefix, logits):
        return torch.full_like(logits, -torch.inf).index_fill(1, 50 + torch.tensor([prefix.shape[1] % 5]), 0.0)

    done = pipeline.generate("abc", max_new_tokens=40, logits_processors=[count_up]).generation
    first = done.token_ids[0] - 50
    assert [token - 50 for token in done.token_ids] == [(first + place) % 5 for place in range(40)]
    assert done.num_accepted > 20  # blocks, not single places
