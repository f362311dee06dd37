"""Converts the GGUF file of a built-in model, once, into a folder that transformers loads like any other.

transformers reads such a file itself, but only with accelerate installed, again at every start, and its result cannot be
saved; so the weights are read here, and configuration and tokenizer are left to transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quasar.core.errors import UnsupportedModelError

if TYPE_CHECKING:
    from torch import Tensor

CONVERTER_VERSION = 1
"""Part of what makes a converted folder current; raise it when the same GGUF file would be written differently."""


@dataclass(frozen=True, slots=True)
class _Architecture:
    """How a GGUF file of one architecture spells a model of transformers."""

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
    "llama": _Architecture(_SHARED_MODULES | {"ffn_norm": "post_attention_layernorm"}, interleaved_rotary=True),
    "gemma3": _Architecture(
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


def convert_gguf(
    gguf: Path,
    folder: Path,
    *,
    name: str,
    eos_tokens: Sequence[str],
    on_stage: Callable[[str], None] = lambda stage: None,
) -> None:
    """Write ``gguf`` into ``folder`` as ``config.json``, ``model.safetensors`` and the tokenizer's files.

    Weights are dequantised and stored in bfloat16, a tied head is left out.

    Args:
        gguf: file of a llama or gemma3 model.
        folder: an existing folder.
        name: what the configuration calls the model.
        eos_tokens: tokens that end a text or a turn, as spelt in the vocabulary; the first is the configured EOS.
        on_stage: is called with ``convert`` and ``write`` when these begin.

    Raises:
        UnsupportedModelError: the architecture, or a tensor or token in the file, is not one that we know.
    """
    from gguf import GGUFReader
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    on_stage("convert")
    with quiet_transformers():
        config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        reader = GGUFReader(gguf)
        _restore_pre_tokenizer(tokenizer, reader)
        eos_token_ids = _token_ids(tokenizer, eos_tokens)
        config.name_or_path = name
        config.dtype = "bfloat16"
        config.eos_token_id = eos_token_ids[0] if len(eos_token_ids) == 1 else eos_token_ids
        weights = _read_weights(reader, config)
        config.architectures = [_check_against_model(weights, config)]

        on_stage("write")
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
        ).save_pretrained(folder)


@contextmanager
def quiet_transformers() -> Iterator[None]:
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


def _read_weights(reader: Any, config: Any) -> dict[str, Tensor]:
    """Return the tensors of the file under transformers' names, ``[out_features, in_features]``, bfloat16."""
    import torch
    from gguf import dequantize

    kind = reader.fields["general.architecture"].contents()
    if kind not in _ARCHITECTURES:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise UnsupportedModelError(f"cannot convert a GGUF file of architecture '{kind}'; known: {known}")
    architecture = _ARCHITECTURES[kind]
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
        raise UnsupportedModelError(
            f"the GGUF file does not hold a {type(model).__name__}: {len(differing)} tensors differ, "
            f"the first is '{differing[0]}'"
        )
    return type(model).__name__


def _restore_pre_tokenizer(tokenizer: Any, reader: Any) -> None:
    """Split digits from the text around them where the file asks for it; transformers ignores this kind of request.

    Without it white space before a number falls apart into tokens that the model never saw in training.
    """
    from tokenizers import pre_tokenizers

    field = reader.fields.get("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])


def _token_ids(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        raise UnsupportedModelError(f"the vocabulary of the GGUF file has no {', '.join(missing)}")
    return [vocabulary[token] for token in tokens]
