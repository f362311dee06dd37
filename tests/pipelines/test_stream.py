"""Streaming: pieces are final, a character comes whole, and a stream that is left does no more work."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quasar import load_pipeline
from quasar.hf.tokenizer import TextStream

TEXT = "naïve café — 你好, 世界! 🎉🎉 e\N{COMBINING ACUTE ACCENT}\nnaïve café — 你好, 世界! 🎉🎉 end"
"""Characters of one to four bytes, each byte a token of the tiny model, and a second half that prompt lookup finds."""


@pytest.fixture(scope="module", params=["none", "ngram"])
def pipeline(tiny_model, request):
    return load_pipeline(str(tiny_model), drafter=request.param, verifier="full", quiet=True)


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return load_pipeline(str(tiny_model), drafter="none", quiet=True).tokenizer


def saying(pipeline, text):
    """Return options for a prompt whose continuation is ``text``, by a processor that is a function of the length."""
    ids, prompt = pipeline.tokenizer.encode(text), "?"
    start = len(pipeline.tokenizer.encode(prompt))

    def script(prefix, logits):
        place = min(max(prefix.shape[1] - start, 0), len(ids) - 1)
        return torch.full_like(logits, -torch.inf).index_fill(1, torch.tensor([ids[place]]), 0.0)

    return {"prompt": prompt, "chat": False, "max_new_tokens": len(ids), "logits_processors": [script]}


def test_pieces_add_up_to_the_text_and_every_character_comes_whole(pipeline):
    stream = pipeline.stream(**saying(pipeline, TEXT))
    pieces = list(stream)
    assert "".join(pieces) == stream.output.text == TEXT
    assert all(pieces)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert len(pieces) <= len(TEXT)
    if pipeline.composition.drafter.name == "ngram":
        assert stream.output.generation.num_accepted > 0


def test_the_stream_is_what_generate_returns(pipeline):
    options = {"temperature": 1.0, "max_new_tokens": 60, "seed": 5}
    whole, stream, heard = pipeline.generate("abc abc", **options), pipeline.stream("abc abc", **options), []
    assert "".join(stream) == stream.output.text == whole.text  # random bytes, so halves of characters as well
    assert stream.output.generation.token_ids == whole.generation.token_ids
    assert pipeline.generate("abc abc", on_text=heard.append, **options).text == "".join(heard) == whole.text


def test_what_is_left_of_half_a_character_comes_at_the_end(pipeline):
    options = saying(pipeline, "a🎉")
    options["max_new_tokens"] -= 1
    stream = pipeline.stream(**options)
    pieces = list(stream)
    assert pieces[0] == "a"
    assert "".join(pieces) == stream.output.text
    assert "🎉" not in stream.output.text


def test_a_piece_comes_before_the_next_step_and_a_stream_that_is_closed_takes_no_more(pipeline, monkeypatch):
    verifier, steps = pipeline.composition.verifier, []
    verify = verifier.verify
    monkeypatch.setattr(verifier, "verify", lambda *arguments: steps.append(1) or verify(*arguments))
    stream = pipeline.stream(**saying(pipeline, "abcdefghij"))
    assert not steps  # nothing happens before the first piece is asked for
    pieces = iter(stream)
    assert next(pieces) == "a"
    assert len(steps) == 1
    assert next(pieces) == "b"
    pieces.close()
    assert next(pieces, None) is None
    assert len(steps) == 2
    assert stream.output is None


def test_a_pipeline_goes_on_after_a_stream_was_left(pipeline):
    before = pipeline.generate("abc", max_new_tokens=12, ignore_eos=True).generation.token_ids
    for _ in pipeline.stream("xyz", max_new_tokens=30, ignore_eos=True):
        break
    assert pipeline.generate("abc", max_new_tokens=12, ignore_eos=True).generation.token_ids == before


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30), data=st.data())
@settings(max_examples=150, deadline=None)
def test_text_in_any_blocks_is_never_revoked(tokenizer, text, data):
    ids, stream, said = tokenizer.encode(text), TextStream(tokenizer), ""
    while ids:
        size = data.draw(st.integers(1, min(6, len(ids))))
        said += stream.push(ids[:size])
        ids = ids[size:]
        assert text.startswith(said)
    assert said + stream.finish() == text
