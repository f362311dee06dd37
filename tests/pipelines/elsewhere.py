"""A device that is not there: tensors that calculate on the CPU and refuse to mix with tensors of the CPU.

PyTorch mixes devices in few places (scalars, and indices on the host into a tensor on a device); elsewhere it raises, and
only a machine with that device would show it. Here every operation is looked at before it runs, and the numbers are real.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
"""Label of the device; nothing runs there."""

_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_COPYING = {"_to_copy", "copy_"}


class Elsewhere(torch.Tensor):
    """A tensor that says that it is on ``DEVICE`` and holds its numbers on the CPU."""

    @staticmethod
    def __new__(cls, inner):
        size, stride = inner.size(), inner.stride()
        return torch.Tensor._make_wrapper_subclass(cls, size, strides=stride, dtype=inner.dtype, device=DEVICE)

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Elsewhere({self.inner})"

    def tolist(self):
        return self.inner.tolist()  # a copy to the host, like `.cpu()`

    def __getitem__(self, index):
        return super().__getitem__(_as_tensors(index))

    def __setitem__(self, index, value):
        super().__setitem__(_as_tensors(index), value)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class Watch(TorchDispatchMode):
    """Within it tensors can be made on ``DEVICE`` and moved there, e.g. by ``tensor.to(DEVICE)``."""

    def __enter__(self):
        self._tensor = make = torch.tensor
        # With a device `torch.tensor` moves its data past the dispatcher; this moves it where we see it.
        torch.tensor = lambda data, device="cpu", **options: make(data, **options).to(device)
        return super().__enter__()

    def __exit__(self, *raised):
        torch.tensor = self._tensor
        return super().__exit__(*raised)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _as_tensors(index):
    """Return an index without lists: PyTorch would make tensors of them past the dispatcher."""
    parts = index if isinstance(index, tuple) else (index,)
    parts = tuple(torch.tensor(list(part)) if isinstance(part, (list, range)) else part for part in parts)
    return parts if isinstance(index, tuple) else parts[0]


def _run(func, args, kwargs):
    name = func.overloadpacket.__name__
    _refuse_mixture(name, args, kwargs)
    flat, _ = tree_flatten((args, kwargs))
    assert all(isinstance(t, Elsewhere) or t.device != DEVICE for t in flat if isinstance(t, torch.Tensor)), name
    wanted = kwargs.get("device")
    there = torch.device(wanted) == DEVICE if wanted is not None else any(isinstance(t, Elsewhere) for t in flat)
    own = {id(tensor.inner): tensor for tensor in flat if isinstance(tensor, Elsewhere)}

    def unwrap(value):
        return value.inner if isinstance(value, Elsewhere) else value

    def wrap(value):
        if not isinstance(value, torch.Tensor) or id(value) in own:  # in place: the tensor that was given
            return own.get(id(value), value)
        return Elsewhere(value) if there else value

    kwargs = {key: torch.device("cpu") if key == "device" and there else value for key, value in kwargs.items()}
    return tree_map(wrap, func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs)))


def _refuse_mixture(name, args, kwargs):
    if name in _COPYING:
        return
    first, *others = args or [None]
    if name in _INDEXING and not isinstance(first, Elsewhere):
        tensors = [first, others]  # the other way round is refused: indices there into a tensor of the host
    elif name in _INDEXING:
        tensors = [first, others[1:]]
    else:
        tensors = [args, kwargs]
    found = [t for t in tree_flatten(tensors)[0] if isinstance(t, torch.Tensor) and t.dim() > 0]
    if len({isinstance(tensor, Elsewhere) for tensor in found}) > 1:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, found two")
