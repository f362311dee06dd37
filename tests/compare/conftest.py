"""A tiny model in a folder, complete with a byte-level tokenizer and a chat template, for runs of real commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save_tiny_model(folder: Path, max_length: int = 512) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<eos>": 0, **{character: index + 1 for index, character in enumerate(alphabet)}}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=max_length, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def questions_file(tmp_path: Path) -> Path:
    lines = [
        {"question_id": 1, "category": "chat", "turns": ["hello hello hello", "and again hello"]},
        {"question_id": 2, "category": "code", "turns": ["abc abc abc abc"]},
        {"question_id": "three", "category": "code", "turns": ["x = 1\nx = 1\nx ="]},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def run_file(tmp_path: Path, tiny_model: Path, questions_file: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"""\
model: {tiny_model}
sampling: {{temperature: 0.0, max_new_tokens: 12, seed: 3}}
data: {{source: {questions_file.name}}}
pipelines:
  vanilla: {{drafter: none, verifier: full}}
  again: {{drafter: none, verifier: full}}
  ngram: {{drafter: {{use: ngram, num_speculative_tokens: 4}}, verifier: full, exact: true}}
  quasar: {{drafter: ngram, verifier: {{use: int8, backend: reference}}}}
""",
        encoding="utf-8",
    )
    return path
