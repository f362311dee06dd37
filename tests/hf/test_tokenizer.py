"""What a text that a model writes by itself begins with."""

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from quasar.hf.tokenizer import Tokenizer

VOCABULARY = {"<bos>": 0, "<eos>": 1, "<user>": 2, "quasar": 3, "hi": 4}
BOS, EOS, USER = VOCABULARY["<bos>"], VOCABULARY["<eos>"], VOCABULARY["<user>"]


def tokenizer(around: str, chat_template: str | None = None) -> Tokenizer:
    """Return a tokenizer of whole words that lays every text out as ``around``."""
    inner = Inner(models.WordLevel(VOCABULARY, unk_token="hi"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single=around, special_tokens=[("<bos>", BOS), ("<eos>", EOS)])
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>")
    fast.add_special_tokens({"additional_special_tokens": ["<user>"]})
    fast.chat_template = chat_template
    return Tokenizer(fast, "words")


@pytest.mark.parametrize(
    ("around", "start"), [("<bos> $A", [BOS]), ("<bos> $A <eos>", [BOS]), ("$A <eos>", []), ("$A", [])]
)
def test_without_a_template_a_text_begins_with_the_bos_that_texts_have(around, start):
    assert tokenizer(around).conversation_start() == start


def test_with_a_template_it_begins_with_what_stands_before_the_user():
    template = "{{ '<bos> <user> ' + messages[0]['content'] }}"
    assert tokenizer("<bos> $A", template).conversation_start() == [BOS, USER]
