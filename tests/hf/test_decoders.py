"""What backends are told of a decoder, against the model it was read from; and what is refused."""

import pytest
import torch
import transformers

from quasar.core.errors import UnsupportedModelError
from quasar.hf.adapter import HFModel

WINDOW, HIDDEN = 8, 44
_COMMON = {
    "vocab_size": 61, "hidden_size": HIDDEN, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 64}
_MIXED = ["sliding_attention", "full_attention"]

CONFIGS = {
    "llama": lambda **more: transformers.LlamaConfig(**_COMMON | more),
    "llama3": lambda **more: transformers.LlamaConfig(**_COMMON | {"rope_parameters": _LLAMA3} | more),
    "yarn": lambda **more: transformers.LlamaConfig(**_COMMON | {"rope_parameters": _YARN} | more),
    "qwen2": lambda **more: transformers.Qwen2Config(**_COMMON | more),
    "qwen3": lambda **more: transformers.Qwen3Config(**_COMMON | more),
    "mistral": lambda **more: transformers.MistralConfig(**_COMMON | {"sliding_window": WINDOW} | more),
    "gemma3": lambda **more: transformers.Gemma3TextConfig(
        **_COMMON | {"sliding_window": WINDOW, "layer_types": _MIXED, "query_pre_attn_scalar": 25} | more
    ),
}
FAMILIES = tuple(CONFIGS)
every_family = pytest.mark.parametrize("family", FAMILIES)


def model(family, dtype=torch.float32, **more):
    torch.manual_seed(4)
    module = transformers.AutoModelForCausalLM.from_config(CONFIGS[family](**more), dtype=dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:  # norms and biases start as ones and zeros, among which a mix-up is not seen
                parameter.add_(torch.randn(parameter.shape))
    return HFModel(module, family)


@every_family
def test_sizes_and_projections(family):
    base = model(family)
    decoder, body = base.decoder(), base.module.model
    assert (decoder.heads, decoder.kv_heads, decoder.head_dim, len(decoder.layers)) == (4, 2, 8, 2)
    assert decoder.norm_eps == base.config.rms_norm_eps
    assert decoder.attention_scale == pytest.approx(25**-0.5 if family == "gemma3" else 8**-0.5)
    assert decoder.activation == ("gelu_tanh" if family == "gemma3" else "silu")
    for index, (layer, module) in enumerate(zip(decoder.layers, body.layers, strict=True)):
        for name in ("q", "k", "v", "o", "gate", "up", "down"):
            parent = module.mlp if name in ("gate", "up", "down") else module.self_attn
            want, got = getattr(parent, f"{name}_proj"), getattr(layer, name)
            assert got.name == f"model.layers.{index}.{'mlp' if parent is module.mlp else 'self_attn'}.{name}_proj"
            assert got.weight.data_ptr() == want.weight.data_ptr()
            assert (got.bias is None) == (want.bias is None)
    assert (decoder.layers[0].q.bias is not None) == (family == "qwen2")


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_are_the_factors_in_float32_with_gemmas_one_added(family, dtype):
    base = model(family, dtype)
    decoder, plus = base.decoder(), 1.0 if family == "gemma3" else 0.0

    def check(got, module):
        assert got.dtype == torch.float32
        assert torch.equal(got, module.weight.detach().float() + plus)

    check(decoder.final_norm, base.module.model.norm)
    for layer, module in zip(decoder.layers, base.module.model.layers, strict=True):
        check(layer.attention_norm, module.input_layernorm)
        if family == "gemma3":
            check(layer.attention_post_norm, module.post_attention_layernorm)
            check(layer.mlp_norm, module.pre_feedforward_layernorm)
            check(layer.mlp_post_norm, module.post_feedforward_layernorm)
        else:
            check(layer.mlp_norm, module.post_attention_layernorm)
            assert layer.attention_post_norm is layer.mlp_post_norm is None
        if family in ("gemma3", "qwen3"):
            check(layer.q_norm, module.self_attn.q_norm)
            check(layer.k_norm, module.self_attn.k_norm)
        else:
            assert layer.q_norm is layer.k_norm is None


@pytest.mark.parametrize(
    ("family", "more", "windows"),
    [
        ("llama", {}, [None, None]),
        ("mistral", {}, [WINDOW, WINDOW]),
        ("mistral", {"sliding_window": None}, [None, None]),
        ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}, [None, WINDOW]),
        ("qwen2", {"sliding_window": WINDOW}, [None, None]),
        ("gemma3", {}, [WINDOW, None]),
        ("gemma3", {"layer_types": _MIXED[::-1]}, [None, WINDOW]),
        ("gemma3", {"layer_types": ["sliding_attention"] * 2}, [WINDOW, WINDOW]),
    ],
)
def test_windows_are_those_of_each_layer(family, more, windows):
    assert [layer.window for layer in model(family, **more).decoder().layers] == windows


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tables_of_angles_are_the_models_own_in_float32(family, dtype):
    base, positions = model(family, dtype), torch.tensor([0, 1, 17, 127])
    twin = model(family).module.model.rotary_emb
    for layer, kind in zip(base.decoder().layers, _MIXED, strict=True):
        cos, sin = layer.rope(positions)
        want = twin(torch.empty(0), positions[None], *([kind] if family == "gemma3" else []))
        assert (cos.dtype, cos.shape, sin.shape) == (torch.float32, (4, 4), (4, 4))
        for got, both in zip((cos, sin), want, strict=True):
            assert torch.equal(torch.cat([got, got], dim=-1), both[0])


def test_angles_are_positions_times_frequencies():
    for family, bases in (("llama", (1e4, 1e4)), ("gemma3", (1e4, 1e6))):
        ropes = [layer.rope for layer in model(family).decoder().layers]
        for rope, base in zip(ropes, bases, strict=True):
            angles = torch.tensor([[3.0]]) * base ** -(torch.arange(4) / 4)
            cos, sin = rope(torch.tensor([3]))
            assert torch.allclose(cos, angles.cos(), atol=1e-6)
            assert torch.allclose(sin, angles.sin(), atol=1e-6)
        assert (ropes[0] is ropes[1]) == (family == "llama")


@every_family
@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_head_are_one_tensor_where_they_are_tied(family, tied):
    base = model(family, tie_word_embeddings=tied)
    decoder = base.decoder()
    assert decoder.embedding.data_ptr() == base.module.get_input_embeddings().weight.data_ptr()
    assert (decoder.head.weight.data_ptr() == decoder.embedding.data_ptr()) == tied
    assert decoder.head.is_head


def test_only_gemma_scales_its_embeddings_and_rounds_the_factor_to_its_dtype():
    assert model("llama").decoder().embedding_scale == 1.0
    root = torch.tensor(HIDDEN**0.5)
    assert model("gemma3").decoder().embedding_scale == root.item()
    assert model("gemma3", torch.bfloat16).decoder().embedding_scale == root.bfloat16().item() != root.item()


def gpt2():
    return transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=1, n_head=4, n_positions=64)


_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
_PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (gpt2, "model type 'gpt2' is not of the Llama family (llama, mistral, qwen2, qwen3, gemma3_text)."),
        (
            lambda: CONFIGS["llama"](rope_parameters=_DYNAMIC),
            "rotary embedding 'dynamic' of model type 'llama' is not known.",
        ),
        (
            lambda: CONFIGS["llama"](rope_parameters=_PARTIAL),
            "rotary embedding 'default' of model type 'llama' is not known.",
        ),
        (
            lambda: CONFIGS["gemma3"](final_logit_softcapping=30.0),
            "option 'final_logit_softcapping' of model type 'gemma3_text' is not known.",
        ),
        (
            lambda: CONFIGS["gemma3"](attn_logit_softcapping=50.0),
            "option 'attn_logit_softcapping' of model type 'gemma3_text' is not known.",
        ),
        (lambda: CONFIGS["llama"](hidden_act="relu"), "activation 'relu' of model type 'llama' is not known."),
    ],
    ids=["gpt2", "dynamic", "partial", "final-cap", "attention-cap", "activation"],
)
def test_what_a_decoder_cannot_say_is_refused_by_name(config, said):
    module = transformers.AutoModelForCausalLM.from_config(config(), dtype=torch.float32)
    with pytest.raises(UnsupportedModelError) as caught:
        HFModel(module, "refused").decoder()
    assert str(caught.value) == said
