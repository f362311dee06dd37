"""The compiled kernels through ctypes: the structs of ``csrc/model.h`` field by field, and the choice of library."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

import torch

FLOAT32, BFLOAT16, INT8 = 0, 1, 2
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.int8: INT8}
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
ISAS = ("portable", "avx2", "avx512")
PARTS = ("gemm", "attention", "rest")


def _struct(name: str, fields: dict[str, type]) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": list(fields.items())})


def _each(names: str, kind: type) -> dict[str, type]:
    return dict.fromkeys(names.split(), kind)


Matrix = _struct("Matrix", _each("weights scale bias", c_void_p) | _each("rows cols stride kind steps unused", c_int32))
Layer = _struct(
    "Layer",
    _each("q k v o gate up down", Matrix)
    | _each("attention_norm attention_post_norm mlp_norm mlp_post_norm q_norm k_norm rope_cos rope_sin", c_void_p)
    | _each("window unused", c_int32),
)
Model = _struct(
    "Model",
    {"layers": POINTER(Layer)}
    | _each("embedding head", Matrix)
    | {"final_norm": c_void_p}
    | _each("num_layers hidden heads kv_heads head_dim intermediate activation cache_kind", c_int32)
    | _each("norm_eps attention_scale embedding_scale unused", c_float),
)
Call = _struct(
    "Call",
    _each("token_ids positions offsets visible lengths", c_void_p)
    | _each("keys values", POINTER(c_void_p))
    | {"logits": c_void_p, "seconds": POINTER(c_double)}
    | _each("batch query num_logits capacity threads positions_held", c_int32),
)
Range = _struct("Range", _each("before after", c_void_p) | _each("begin end", c_int32))
STRUCTS = (Matrix, Layer, Model, Call, Range)


def _open(isa: str) -> ctypes.CDLL:
    # torch is imported above, so the OpenMP that it brought serves this library too: one pool of threads, not two.
    return ctypes.CDLL(str(Path(__file__).with_name(f"kernels_{isa}.so")))


def _refuse_other_structs(opened: ctypes.CDLL, isa: str) -> None:
    """Raise ``OSError`` for a library whose structs are not those above: it would read past them, or the wrong fields.

    Sizes are all that is compared, so two fields of a kind that change places still have to do so on both sides.
    """
    size_of = getattr(opened, "quasar_size_of", None)
    remedy = "build plugins/quasar-cpu again"
    if size_of is None:
        raise OSError(f"kernels_{isa}.so comes from older sources and does not say how its structs look; {remedy}")
    size_of.argtypes, size_of.restype = [c_char_p], c_int64
    for struct in STRUCTS:
        theirs, ours = size_of(struct.__name__.encode()), ctypes.sizeof(struct)
        if theirs != ours:
            raise OSError(
                f"struct {struct.__name__} has {theirs} bytes in kernels_{isa}.so and {ours} in library.py; {remedy}"
            )


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library for this processor; ``QUASAR_CPU_ISA`` may name a lesser one.

    Raises:
        OSError: it was not built, or cannot be opened here, or was built from other sources than these.
    """
    portable = _open("portable")
    portable.quasar_best_isa.restype = c_char_p
    best = portable.quasar_best_isa().decode()
    wanted = os.environ.get("QUASAR_CPU_ISA") or best
    if wanted not in ISAS or ISAS.index(wanted) > ISAS.index(best):
        raise OSError(f"QUASAR_CPU_ISA={wanted}: this processor runs {', '.join(ISAS[: ISAS.index(best) + 1])}")
    opened = _open(wanted)
    _refuse_other_structs(opened, wanted)
    opened.quasar_forward_layers.argtypes = [POINTER(Model), POINTER(Call), POINTER(Range)]
    opened.quasar_forward_layers.restype = c_int32
    opened.quasar_linear.argtypes = [POINTER(Matrix), c_void_p, c_void_p, c_int64, c_int32]
    opened.quasar_linear.restype = None
    opened.isa = wanted
    return opened
