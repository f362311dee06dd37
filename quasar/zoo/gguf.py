"""Converts the GGUF file of a built-in model, once, into a folder that transformers loads like any other.

transformers reads such a file itself, but only with accelerate installed, anew at every start, and its result cannot
be saved; so weights and configuration are read here, and only the tokenizer is left to transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copymode
from typing import TYPE_CHECKING, Any

from quasar.core.errors import UnsupportedModelError

if TYPE_CHECKING:
    from torch import Tensor

CONVERTER_VERSION = 1
"""Part of what makes a converted folder current; raise it when the same GGUF file would be written differently."""


@dataclass(frozen=True, slots=True)
class _Architecture:
    """How a GGUF file of one architecture spells a model of transformers."""

    model_type: str
    """What transformers calls it in ``config.json``."""
    tokenizer_class: str
    """The class of transformers that fits its vocabulary."""
    modules: Mapping[str, str]
    """GGUF name within a layer -> module of transformers."""
    interleaved_rotary: bool = False
    """Rows of q and k are stored pair by pair, while transformers rotates halves."""
    norm_offset: float = 0.0
    """What the file adds to the weights of norms; transformers' Gemma adds it in the forward instead."""


_SHARED_MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
}
_ARCHITECTURES = {
    "llama": _Architecture(
        "llama",
        "PreTrainedTokenizerFast",
        _SHARED_MODULES | {"ffn_norm": "post_attention_layernorm"},
        interleaved_rotary=True,
    ),
    "gemma3": _Architecture(
        "gemma3_text",
        "GemmaTokenizer",
        _SHARED_MODULES
        | {
            "attn_q_norm": "self_attn.q_norm",
            "attn_k_norm": "self_attn.k_norm",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        norm_offset=1.0,
    ),
}
_OUTER_MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONFIG_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
}
_GEMMA3_LOCAL_ROPE_THETA = 10_000.0
"""The same in every Gemma 3, and not in the file."""


def convert_gguf(
    gguf: Path,
    folder: Path,
    *,
    eos_tokens: Sequence[str],
    on_stage: Callable[[str], None] = lambda stage: None,
) -> None:
    """Write ``gguf`` into ``folder`` as ``config.json``, ``model.safetensors`` and the tokenizer's files.

    Weights are dequantised and stored in bfloat16, a tied head is left out.

    Args:
        gguf: file of a llama or gemma3 model.
        folder: an existing folder.
        eos_tokens: tokens that end a text or a turn, as spelt in the vocabulary; all of them are configured as EOS.
        on_stage: is called with ``convert`` and ``write`` when these begin.

    Raises:
        UnsupportedModelError: the architecture, or a tensor or token in the file, is not one that we know.
    """
    import transformers
    from gguf import GGUFReader
    from safetensors.torch import save_file

    on_stage("convert")
    reader = GGUFReader(gguf)
    kind = reader.fields["general.architecture"].contents()
    if kind not in _ARCHITECTURES:
        raise UnsupportedModelError(f"cannot convert GGUF files of architecture '{kind}', only {list(_ARCHITECTURES)}")
    architecture = _ARCHITECTURES[kind]
    with _quiet_transformers():
        tokenizer = getattr(transformers, architecture.tokenizer_class).from_pretrained(
            gguf.parent, gguf_file=gguf.name, local_files_only=True
        )
        for option in ("is_local", "local_files_only"):  # of this call; transformers would store them
            tokenizer.init_kwargs.pop(option, None)
        _restore_pre_tokenizer(tokenizer, reader)
        config = _read_config(reader, kind, _token_ids(tokenizer, eos_tokens))
        weights = _read_weights(reader, architecture, config)
        config.architectures = [_check_against_model(weights, config)]

        on_stage("write")
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformers.GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
        ).save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # safetensors writes for the owner only, whatever the user's mask says.
    copymode(folder / "config.json", folder / "model.safetensors")


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers' messages and progress bars within the block, and restore both afterwards."""
    from transformers.utils import logging

    verbosity, had_progress_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_progress_bars:
            logging.enable_progress_bar()


def _read_config(reader: Any, kind: str, eos_token_ids: Sequence[int]) -> Any:
    """Return transformers' configuration of the model in the file, in bfloat16."""
    from transformers import AutoConfig

    def value(key: str, group: str = kind) -> Any:
        return reader.fields[f"{group}.{key}"].contents()

    shapes = {tensor.name: tensor.shape for tensor in reader.tensors}
    settings = {attribute: value(key) for attribute, key in _CONFIG_KEYS.items()}
    # The file holds a float32; the published number is the short decimal that it came from.
    settings["rms_norm_eps"] = float(f"{value('attention.layer_norm_rms_epsilon'):.6g}")
    rope = {"rope_type": "default", "rope_theta": value("rope.freq_base")}
    if kind == "gemma3":
        settings["head_dim"] = value("attention.key_length")
        settings["sliding_window"] = value("attention.sliding_window")
        rope = {"full_attention": rope, "sliding_attention": rope | {"rope_theta": _GEMMA3_LOCAL_ROPE_THETA}}
    return AutoConfig.for_model(
        _ARCHITECTURES[kind].model_type,
        **settings,
        rope_parameters=rope,
        vocab_size=int(shapes["token_embd.weight"][1]),
        tie_word_embeddings="output.weight" not in shapes,
        bos_token_id=value("bos_token_id", "tokenizer.ggml"),
        pad_token_id=value("padding_token_id", "tokenizer.ggml"),
        eos_token_id=eos_token_ids[0] if len(eos_token_ids) == 1 else list(eos_token_ids),
        dtype="bfloat16",
    )


def _read_weights(reader: Any, architecture: _Architecture, config: Any) -> dict[str, Tensor]:
    """Return the tensors of the file under transformers' names, ``[out_features, in_features]``, bfloat16."""
    import torch
    from gguf import dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in reader.tensors:
        module = tensor.name.split(".")[-2]
        # A copy: the file is mapped read-only and is deleted after the conversion.
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if module in heads and architecture.interleaved_rotary:
            rows, columns = weight.shape
            pairs = weight.reshape(heads[module], rows // heads[module] // 2, 2, columns)
            weight = pairs.transpose(1, 2).reshape(rows, columns)
        if module.endswith("norm"):
            # In float32: next to 1 bfloat16 would round away most of a small weight.
            weight = weight - architecture.norm_offset
        weights[_parameter_name(tensor.name, architecture)] = weight.to(torch.bfloat16).contiguous()
    return weights


def _parameter_name(tensor_name: str, architecture: _Architecture) -> str:
    """Return transformers' name of ``blk.<layer>.<module>.<kind>`` or ``<module>.<kind>``."""
    *place, module, kind = tensor_name.split(".")
    known = architecture.modules if place else _OUTER_MODULES
    if module not in known or (place and place[0] != "blk"):
        raise UnsupportedModelError(f"cannot convert the tensor '{tensor_name}' of the GGUF file")
    layer = f"model.layers.{place[1]}." if place else ""
    return f"{layer}{known[module]}.{kind}"


def _check_against_model(weights: Mapping[str, Tensor], config: Any) -> str:
    """Compare names and shapes with those of the model that ``config`` describes; returns the name of its class."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        expected.pop("lm_head.weight")
    found = {name: tensor.shape for name, tensor in weights.items()}
    if found != expected:
        differing = sorted(name for name in expected | found if expected.get(name) != found.get(name))
        raise UnsupportedModelError(f"the GGUF file does not hold a {type(model).__name__}: '{differing[0]}' differs")
    return type(model).__name__


def _restore_pre_tokenizer(tokenizer: Any, reader: Any) -> None:
    """Split digits from the text around them where the file asks for it; transformers ignores this kind of request.

    Without it white space before a number falls apart into tokens that the model never saw in training.
    """
    from tokenizers import pre_tokenizers

    if reader.fields["tokenizer.ggml.pre"].contents() == "smollm":
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])


def _token_ids(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        raise UnsupportedModelError(f"the vocabulary of the GGUF file has no {', '.join(missing)}")
    return [vocabulary[token] for token in tokens]
