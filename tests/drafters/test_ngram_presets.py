"""Every preset of prompt lookup against the published rule, written out naively, over random texts.

The rules are stated here once more, each by itself and without our options, so that a wrong option cannot hide in both.
For the preset ``transformers`` the installed class itself is asked as well.
"""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_ngram import context, drafts
from transformers import LogitsProcessorList
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from quasar.core.sampling import SamplingParams
from quasar.drafters.ngram import PRESETS, Ngram
from quasar.hf.processors import build_processors

EOS = (0, 2)

small = st.lists(st.integers(0, 2), min_size=1, max_size=60)
large = st.lists(st.integers(0, 149), min_size=1, max_size=60)
repeating = st.tuples(large, st.integers(1, 6), st.integers(0, 5)).map(
    lambda t: (t[0] * t[1])[: len(t[0]) + 40] + t[0][: t[2]]
)
texts = st.one_of(small, large, repeating)
"""Over few ids everything has occurred before, over many nearly nothing, and real text is in between."""

controls = st.one_of(
    st.just({}),
    st.builds(lambda ids: {"suppress_tokens": tuple(ids)}, st.lists(st.integers(0, 5), max_size=3)),
    st.builds(lambda size: {"no_repeat_ngram_size": size}, st.integers(1, 4)),
    st.builds(lambda words: {"bad_words_ids": tuple(words)}, st.lists(st.tuples(*[st.integers(0, 2)] * 2), max_size=4)),
    st.builds(lambda count: {"min_new_tokens": count}, st.integers(1, 12)),
)
"""What may forbid a token."""


def earlier(ids, size):
    """Return where the text's last ``size`` tokens occurred before: (begin, end) pairs, earliest first."""
    found = []
    for begin in range(len(ids) - size):
        if ids[begin : begin + size] == ids[-size:]:
            found.append((begin, begin + size))
    return found


def vllm_v0(ids):
    """The first match of the largest n; five tokens after it, positions past the end read the last token."""
    for size in (3, 2, 1):
        if len(ids) > size and earlier(ids, size):
            _, start = earlier(ids, size)[0]
            return [ids[min(start + place, len(ids) - 1)] for place in range(5)]
    return []


def vllm_v1(ids, low=5, high=5, gamma=5):
    """The earliest match of the largest n; as many tokens after it as there are."""
    for size in range(high, low - 1, -1):
        if len(ids) > size and earlier(ids, size):
            _, start = earlier(ids, size)[0]
            return ids[start : start + gamma]
    return []


def spec_bench(ids):
    """The earliest match that ten tokens follow, at n = 3, else 2, else 1; else the one token 100."""
    for size in (3, 2, 1):
        for _, start in earlier(ids, size) if len(ids) > size else []:
            if start + 10 <= len(ids):
                return ids[start : start + 10]
    return [100]


def transformers(ids, eos, forbids):
    """The first match with a token that is allowed, n from min(2, len - 1) to 1; cut at what is forbidden, then at EOS.

    ``forbids(prefix, token)`` says whether a processor gives the token −inf after the prefix.
    """
    for size in range(min(2, len(ids) - 1), 0, -1):
        for _, start in earlier(ids, size):
            found = []
            for token in ids[start : start + 10]:
                if forbids(ids + found, token):
                    break
                found.append(token)
            if found:
                return found[: min([found.index(token) for token in eos if token in found], default=len(found))]
    return []


def proposed(preset, ids, **seen):
    drafter = Ngram(Ngram.Config(preset=preset))
    return drafts(drafter.propose(context(list(ids), **seen), [64]))[0]


@pytest.mark.parametrize("rule", [vllm_v0, vllm_v1, spec_bench])
@given(ids=texts)
@example(ids=[1, 2, 3])  # nothing occurs twice
@example(ids=[5] * 14)  # what is looked up overlaps itself
@example(ids=[1, 2, 7, 8, 9, 1, 2, 5, 1, 2])  # ten tokens after neither occurrence
@settings(max_examples=300, deadline=None)
def test_a_preset_drafts_what_its_published_rule_says(rule, ids):
    assert proposed(rule.__name__, ids) == rule(ids)


@given(ids=texts, low=st.integers(1, 4), more=st.integers(0, 3), gamma=st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_vllm_v1_with_other_lengths(ids, low, more, gamma):
    options = {"prompt_lookup_min": low, "prompt_lookup_max": low + more, "num_speculative_tokens": gamma}
    drafter = Ngram(Ngram.Config(preset="vllm_v1", **options))
    assert drafts(drafter.propose(context(ids), [64])) == [vllm_v1(ids, low, low + more, gamma)]


@given(ids=texts, controls=controls, new=st.integers(0, 10))
@settings(max_examples=300, deadline=None)
def test_the_preset_transformers_drafts_what_the_rule_and_the_class_say(ids, controls, new):
    prompt_length = max(1, len(ids) - new)
    processors = build_processors(SamplingParams(**controls), prompt_length, EOS)

    def forbids(prefix, token):
        logits = torch.zeros(1, 150)
        for processor in processors:
            logits = processor(torch.tensor([prefix]), logits)
        return logits[0, token] == -torch.inf

    ours = proposed("transformers", ids, eos_ids=EOS, processors=processors, vocab=150)
    assert ours == transformers(ids, EOS, forbids)
    theirs = PromptLookupCandidateGenerator(
        eos_token_id=torch.tensor(EOS), max_length=1000, vocab_size=150,
        logits_processor=LogitsProcessorList(processors) if processors else None,
    )  # fmt: skip
    candidates, _ = theirs.get_candidates(torch.tensor([ids]))
    assert ours == candidates[0, len(ids) :].tolist()


@pytest.mark.parametrize("preset", ["vllm_v0", "vllm_v1", "transformers", "spec_bench"])
@given(start=texts, blocks=st.lists(small, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_text_that_grew_by_blocks_gets_the_draft_of_one_read_at_once(preset, start, blocks):
    ids, drafter = list(start), Ngram(Ngram.Config(preset=preset))
    running = context(ids, eos_ids=EOS)
    for block in blocks:
        drafter.propose(running, [64])
        ids.extend(block)
    assert drafts(drafter.propose(running, [64])) == [proposed(preset, ids, eos_ids=EOS)]


def test_a_processor_that_writes_the_lowest_float_forbids_as_well():
    class Lowest:
        needs_prefix = True

        def __call__(self, prefix, logits):
            return logits.index_fill(1, torch.tensor([8]), torch.finfo(logits.dtype).min)

    assert proposed("transformers", [1, 2, 7, 8, 9, 1, 2], processors=(Lowest(),)) == [7]


def test_every_preset_is_checked_here():
    assert PRESETS.keys() == {"vllm_v0", "vllm_v1", "spec_bench", "transformers"}
