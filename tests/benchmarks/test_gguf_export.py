"""What is written for llama.cpp reads back, by the converter of built-in models, as the weights that went in."""

from __future__ import annotations

from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from gguf_export import _write, export

from quasar.core.errors import ConfigError
from quasar.zoo.gguf import _ARCHITECTURES, _read_weights

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 64, 4, 2, 16, 96, 40
SHAPES = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    "model.layers.0.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
    "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "model.layers.0.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
    "model.layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
    "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
    "model.layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
    "model.layers.0.input_layernorm.weight": (HIDDEN,),
    "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
}


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in SHAPES.items()}


@pytest.fixture
def original(tmp_path):
    """A package's file: metadata that is to be copied, and tensors whose values must not be."""
    writer = gguf.GGUFWriter(tmp_path / "original.gguf", "llama")
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_token_list(["a", "b"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
    for name, shape in SHAPES.items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.GGUFReader(tmp_path / "original.gguf")


def read_back(path):
    reader = gguf.GGUFReader(path)
    config = SimpleNamespace(num_attention_heads=HEADS, num_key_value_heads=KV_HEADS)
    return reader, _read_weights(reader, _ARCHITECTURES["llama"], config)


def test_f16_holds_our_weights_under_their_names_and_in_llama_s_order_of_rows(original, weights, tmp_path):
    _write(original, weights, "F16", tmp_path / "out.gguf")
    reader, found = read_back(tmp_path / "out.gguf")
    assert found.keys() == weights.keys()
    # bfloat16 has fewer digits than float16, and these values are in its range.
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    queries = next(tensor for tensor in reader.tensors if tensor.name == "blk.0.attn_q.weight")
    ours = weights["model.layers.0.self_attn.q_proj.weight"].float().numpy()
    assert (queries.data[1].astype(np.float32) == ours[HEAD_DIM // 2]).all()  # the partner of row 0 comes next


def test_q8_0_is_within_its_rounding_and_norms_stay_exact(original, weights, tmp_path):
    _write(original, weights, "Q8_0", tmp_path / "out.gguf")
    reader, found = read_back(tmp_path / "out.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["token_embd.weight"] == kinds["blk.0.ffn_down.weight"] == "Q8_0"
    assert kinds["blk.0.attn_norm.weight"] == kinds["output_norm.weight"] == "F32"
    for name, weight in weights.items():
        error = (found[name].float() - weight.float()).abs().max()
        assert error <= (0.03 if weight.ndim == 2 else 0)


def test_metadata_is_copied_but_for_the_kind_of_file(original, weights, tmp_path):
    _write(original, weights, "Q8_0", tmp_path / "out.gguf")
    fields = gguf.GGUFReader(tmp_path / "out.gguf").fields
    assert fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert fields["llama.attention.head_count_kv"].contents() == KV_HEADS
    assert fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q8_0


def test_a_missing_tensor_is_named(original, weights, tmp_path):
    del weights["model.norm.weight"]
    with pytest.raises(ConfigError, match="output_norm"):
        _write(original, weights, "F16", tmp_path / "out.gguf")


def test_only_built_in_models_have_metadata():
    with pytest.raises(ConfigError, match="no built-in model"):
        export("./my-folder", "F16", quiet=True)
