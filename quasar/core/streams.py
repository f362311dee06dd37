"""Random numbers as pure functions of a key: the one target stream, and everybody else's own streams.

The **target stream** is keyed (seed, prompt id, sample index, position) and indexed by token id. Plain decoding draws
from it, and so does every rule that samples from the target and compares (``stochastic`` with point-mass drafts), which
is why their texts are identical at any temperature. **Every other draw** has a key of its own that adds the purpose,
the level, the node and the committed length at the step's start. Sharing a key between two purposes is biased: a shared
uniform for draft and accept test turns (.40, .35, .05, .20) into (.57, .43, 0, 0).

Numbers come from a counter-based generator (SplitMix64 finaliser over key + counter), so any of them can be recomputed
at any time, in any batch, on any device. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014; Gumbel-max in its exponential form, e.g. Maddison et al., arXiv 1411.0030.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from quasar.core.wide_draws import BLOCK, FACTORS, GOLDEN, LAST_SHIFT, draw_one

_WIDE = 8 * BLOCK
"""Vocabularies from this size on are drawn from block by block on the CPU."""

_FEW = 16
"""Up to so many keys Python derives faster than torch begins its forty operations."""

_ALL = 2**64 - 1


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


def mix(x: Tensor) -> Tensor:
    """Scramble 64 bits (SplitMix64 finaliser); int64 in, int64 out, same shape."""
    return _mix_(x.clone(), torch.empty_like(x))


def _mix_(x: Tensor, other: Tensor) -> Tensor:
    """Scramble ``x`` in place, with room of its shape for what is shifted; new tensors of a vocabulary are slow."""
    for bits, factor in FACTORS:
        x ^= _shift_(x, bits, other)
        x *= _signed(factor)
    x ^= _shift_(x, LAST_SHIFT, other)
    return x


def _shift_(x: Tensor, bits: int, out: Tensor) -> Tensor:
    """Logical right shift of int64 into ``out``."""
    return torch.bitwise_right_shift(x, bits, out=out).bitwise_and_((1 << (64 - bits)) - 1)


def fold(key: Tensor, value: Tensor | int) -> Tensor:
    """Derive a key from ``key`` and a number; shapes broadcast."""
    other = torch.as_tensor(value, device=key.device)
    key, other = torch.broadcast_tensors(key, other)  # type: ignore[no-untyped-call]
    if key.numel() <= _FEW and key.device.type == "cpu":
        pairs = zip(key.flatten().tolist(), other.flatten().tolist(), strict=True)
        return torch.tensor([_signed(_folded(*pair)) for pair in pairs], dtype=torch.int64).reshape(key.shape)
    return mix(mix(key + _signed(GOLDEN)) ^ mix(other * _signed(GOLDEN) + 1))


def _folded(key: int, value: int) -> int:
    """As ``fold``, with whole numbers of Python; 64 bits, unsigned."""

    def mixed(x: int) -> int:
        x &= _ALL
        for bits, factor in FACTORS:
            x = (x ^ x >> bits) * factor & _ALL
        return x ^ x >> LAST_SHIFT

    return mixed(mixed(key + GOLDEN) ^ mixed(value * GOLDEN + 1))


def uniforms(keys: Tensor) -> Tensor:
    """Return one uniform number per key, float64, same shape: never 0 and never 1, to which 53 bits would round."""
    return _uniforms_(mix(keys))


def _uniforms_(bits: Tensor) -> Tensor:
    """Return what the upper 52 of 64 scrambled bits say; uses ``bits`` up."""
    return _shift_(bits, 12, bits).to(torch.float64).add_(0.5).mul_(2.0**-52)


def _exponentials_(keys: Tensor) -> Tensor:
    """Return one exponential number per key; uses ``keys`` up."""
    return _uniforms_(_mix_(keys, torch.empty_like(keys))).log_().neg_()


@cache
def _counters(count: int, device: torch.device) -> Tensor:
    """Return what tells the tokens of a vocabulary apart. Shared, never written."""
    return torch.arange(count, device=device) * _signed(GOLDEN)


@cache
def _blocks(vocab: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the block of every token, and its place in there. Shared, never written."""
    tokens = torch.arange(vocab, device=device)
    return tokens // BLOCK, tokens % BLOCK


def _least(keys: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Return the least noise in every block of tokens and the place in the block that has it, ``[..., blocks]``."""
    bits = mix(keys[..., None] - _counters(blocks + 1, keys.device)[1:])
    places = bits & (BLOCK - 1)  # bits that the number above them does not use
    return _uniforms_(bits).log_().div_(-BLOCK), places


def exponentials(keys: Tensor, vocab: int) -> Tensor:
    """Return exponential noise for each key, indexed by token id, ``[..., vocab]`` float64.

    The least of a block of tokens comes first, as a number of its own: what the others have beyond it is exponential
    again, because exponential numbers have no memory. So a draw can leave out blocks that cannot hold the answer.
    """
    least, places = _least(keys, -(-vocab // BLOCK))
    block, place = _blocks(vocab, keys.device)
    beyond = _exponentials_(keys[..., None] + _counters(vocab, keys.device))
    return beyond.masked_fill_(places[..., block] == place, 0.0).add_(least[..., block])


def draw(probs: Tensor, keys: Tensor) -> Tensor:
    """Draw one token per key by Gumbel-max: argmax of probability ÷ exponential noise, noise indexed by token id.

    Args:
        probs: distributions, need not be normalised. ``[..., vocab]``, float.
        keys: one key per distribution, ``[...]`` int64.

    Returns:
        Token ids, ``[...]`` int64. A one-hot distribution returns its token whatever the key.
    """
    keys, vocab = keys.to(probs.device), probs.shape[-1]
    if vocab < _WIDE or probs.device.type != "cpu" or probs.dtype not in (torch.float32, torch.float64):
        return (probs / exponentials(keys, vocab)).argmax(dim=-1)
    distributions = zip(probs.detach().reshape(-1, vocab).numpy(), keys.flatten().tolist(), strict=True)
    return torch.tensor([draw_one(distribution, key) for distribution, key in distributions]).reshape(keys.shape)


class Streams:
    """The keys of a batch of requests.

    Args:
        requests: (seed, prompt id, sample index) per row.
        device: where keys are made.
    """

    def __init__(self, requests: Sequence[tuple[int, str, int]], device: torch.device | str = "cpu") -> None:
        self._requests = tuple(requests)
        self._device = device
        self._bases: dict[str, Tensor] = {}

    def _base(self, purpose: str) -> Tensor:
        if purpose not in self._bases:
            words = [f"{seed}\x1f{prompt}\x1f{sample}\x1f{purpose}" for seed, prompt, sample in self._requests]
            digests = [hashlib.blake2b(word.encode(), digest_size=8).digest() for word in words]
            values = [int.from_bytes(digest, "little", signed=True) for digest in digests]
            self._bases[purpose] = torch.tensor(values, dtype=torch.int64, device=self._device)
        return self._bases[purpose]

    def target(self, positions: Tensor) -> Tensor:
        """Return the target stream's keys at ``positions`` ``[batch, n]`` (position of the token to be drawn)."""
        return fold(self._base("target")[:, None], positions.to(self._device))

    def own(self, purpose: str, nodes: Tensor, committed: Tensor, level: int = 0) -> Tensor:
        """Return keys of a stream of one's own.

        Args:
            purpose: what is drawn, e.g. ``draft``, ``accept``, ``residual``; never shared between two uses.
            nodes: node (or draw) number, ``[batch, n]`` int64.
            committed: committed length at the step's start, ``[batch]`` int64.
            level: level of the pipeline that draws.
        """
        base = fold(self._base(f"{purpose}/{level}")[:, None], committed.to(self._device)[:, None])
        return fold(base, nodes.to(self._device))

    def part(self, number: int) -> Streams:
        """Return the streams of one of several parts of a component: its own ones differ, the target's is the same."""
        return _Part(self, number)

    def inner(self, level: int, committed: Tensor, coupled: bool) -> Streams:
        """Return the streams of a pipeline inside a drafter, for one step of the pipeline around it.

        Every key has that step in it: what a rejected block drew must not come back in a later one, where components
        may have learnt from it. "The target stream" is the inner pipeline's own there, unless its drafts are coupled.

        Args:
            level: of the inner pipeline.
            committed: committed length at the outer step's start, ``[batch]`` int64.
            coupled: drafts are to be drawn with the outer target's noise.
        """
        return _Inner(self, level, committed, coupled)


class _Part(Streams):
    """Streams of a part: those of the whole, under other purposes."""

    def __init__(self, whole: Streams, number: int) -> None:
        self._whole, self._number = whole, number

    def target(self, positions: Tensor) -> Tensor:
        """As ``Streams.target``."""
        return self._whole.target(positions)

    def own(self, purpose: str, nodes: Tensor, committed: Tensor, level: int = 0) -> Tensor:
        """As ``Streams.own``."""
        return self._whole.own(f"{purpose}.{self._number}", nodes, committed, level)


class _Inner(Streams):
    """Streams of a pipeline inside a drafter: those of the one around it, with the outer step in every key."""

    def __init__(self, outer: Streams, level: int, committed: Tensor, coupled: bool) -> None:
        self._outer, self._level, self._committed, self._coupled = outer, level, committed, coupled

    def target(self, positions: Tensor) -> Tensor:
        """As ``Streams.target``."""
        if self._coupled:
            return self._outer.target(positions)
        return self.own("target", positions, self._committed, self._level)

    def own(self, purpose: str, nodes: Tensor, committed: Tensor, level: int = 0) -> Tensor:
        """As ``Streams.own``."""
        keys = self._outer.own(purpose, nodes, committed, level)
        return fold(keys, self._committed.to(keys.device)[:, None])
