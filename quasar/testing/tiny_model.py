"""A language model of a few hundred weights, for running components that load models without any file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quasar.core.cache import KVCache
from quasar.core.decoders import Decoder, LinearLayer
from quasar.core.errors import UnsupportedModelError
from quasar.core.models import Block, ChannelGroup, EditableModel
from quasar.core.providers import Made

if TYPE_CHECKING:
    from quasar.core.backends import Backend

VOCAB = 7
"""Size of the kit's vocabulary."""

_LAYERS = 3


class TinyModel:
    """A decoder with uniform attention: what comes next depends on all tokens seen, and on their places.

    Attributes:
        name: ``tiny``.
        vocab_size: ``VOCAB``.
        max_length: ``None``, texts may have any length.
        dtype: of the weights and the logits.
        device: the CPU.
        num_layers: 3, less those that were left out.

    Args:
        dtype: as above.
        seed: of the weights.
    """

    name = "tiny"
    vocab_size = VOCAB
    max_length: int | None = None

    def __init__(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        self.dtype, self.device = dtype, torch.device("cpu")
        generator = torch.Generator().manual_seed(seed)
        mixes = {f"mix {number}": nn.Linear(2 * VOCAB, VOCAB) for number in range(_LAYERS)}
        self.layers = nn.ModuleDict({**mixes, "head": nn.Linear(VOCAB, VOCAB)})
        for parameter in self.layers.parameters():
            parameter.requires_grad_(False)
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.layers.to(dtype)
        self.num_layers = _LAYERS

    def forward(self, block: Block, cache: KVCache) -> Tensor:
        """Run one block; see ``LanguageModel.forward``."""
        return self.forward_layers(block, cache, range(self.num_layers))[1]

    @torch.inference_mode()
    def forward_layers(
        self, block: Block, cache: KVCache, layers: range, states: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run some of the layers over one block; see ``StagedModel.forward_layers``."""
        batch, query = block.token_ids.shape
        lengths = block.lengths[:, None]
        end = int(lengths.max()) + query
        seen = (torch.arange(end) < lengths)[:, None, :].repeat(1, query, 1)  # [batch, query, end]
        new = (lengths + torch.arange(query))[:, None, :].expand(batch, query, query)
        seen.scatter_(2, new, block.visible)
        weights = seen.to(self.dtype) / seen.sum(dim=-1, keepdim=True)
        hidden = self._embed(block.token_ids, block.positions) if states is None else states
        for number in layers:
            mix = self._mixes()[number]
            _, values = cache.write(number, hidden[:, None], hidden[:, None], lengths + block.offsets, end)
            hidden = hidden + mix(torch.cat([hidden, weights @ values[:, 0]], dim=-1)).tanh()
        logits: Tensor = self.layers["head"](hidden)[:, query - block.num_logits :]
        return hidden, logits  # [batch, query, hidden], [batch, num_logits, vocab]

    def _embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        place = (0.7 * positions[..., None]).sin() + 2
        return (nn.functional.one_hot(token_ids, VOCAB) * place).to(self.dtype)  # [batch, tokens, vocab]

    def _mixes(self) -> list[nn.Module]:
        return [layer for name, layer in self.layers.items() if name != "head"]

    def without_layers(self, dropped: Collection[int]) -> TinyModel:
        """Return a model over the same weights that lacks these layers."""
        twin = self.sharing_copy()
        for name in [name for number, name in enumerate(self.layers) if number in dropped]:
            del twin.layers[name]
        twin.num_layers = len(twin._mixes())
        return twin

    @torch.inference_mode()
    def layer_states(self, token_ids: Tensor, given: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the hidden states round every layer; see ``EditableModel.layer_states``."""
        length = token_ids.shape[1]
        weights = torch.ones((length, length), dtype=self.dtype).tril()
        weights /= weights.sum(dim=-1, keepdim=True)
        states = [self._embed(token_ids, torch.arange(length).expand_as(token_ids))]
        for number, mix in enumerate(self._mixes()):
            hidden = states[-1] if given is None else given[number]
            states.append(hidden + mix(torch.cat([hidden, weights @ hidden], dim=-1)).tanh())
        return states

    def sharing_copy(self) -> TinyModel:
        """Return a model with modules of its own over the same weights."""
        twin = copy.copy(self)
        twin.layers = copy.deepcopy(self.layers, {id(each): each for each in self.layers.parameters()})
        return twin

    def linear_layers(self) -> Iterator[LinearLayer]:
        """Iterate over the layers and the head."""
        for name, layer in list(self.layers.items()):
            if isinstance(layer, nn.Linear):
                yield LinearLayer(name, layer.weight, layer.bias, self._replacer(name), name == "head")

    def channel_groups(self) -> list[ChannelGroup]:
        """Refuse: the inputs of its layers are sums.

        Raises:
            UnsupportedModelError: always.
        """
        raise UnsupportedModelError("the kit's model has no inputs that can be scaled.")

    def decoder(self) -> Decoder:
        """Refuse: it is no Llama.

        Raises:
            UnsupportedModelError: always.
        """
        raise UnsupportedModelError("the kit's model is not of the Llama family.")

    def _replacer(self, name: str) -> Callable[[nn.Module], None]:
        def replace(module: nn.Module) -> None:
            self.layers[name] = module

        return replace

    def storages(self) -> dict[int, int]:
        """Return bytes by storage."""
        tensors = [*self.layers.parameters(), *self.layers.buffers()]
        return {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}


class Letters:
    """A tokenizer: every token is a letter, from ``a``.

    Args:
        alphabet: letters in the order of their ids.
    """

    def __init__(self, alphabet: str = "abcdefg") -> None:
        self._alphabet = alphabet

    def tokens(self) -> dict[str, int]:
        """Return the id of every letter."""
        return {letter: number for number, letter in enumerate(self._alphabet)}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the letters."""
        return "".join(self._alphabet[number] for number in ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of letters; there are no special tokens."""
        return self.encode_part(text)

    def conversation_start(self) -> list[int]:
        """Return nothing: there is no chat template."""
        return []

    def encode_part(self, text: str) -> list[int]:
        """Return the ids of letters; others are left out."""
        return [self._alphabet.index(letter) for letter in text if letter in self._alphabet]


class TinyModels:
    """Hands out tiny models of one kind, the same object for the same weights and dtype; see ``ModelProvider``.

    Attributes:
        device: ``cpu``.
        measurements: see ``ModelProvider``.
        letters: alphabet of the tokenizer, one letter a token.

    Args:
        backends: what ``backends`` returns.
    """

    device = "cpu"
    letters = "abcdefg"

    def __init__(self, backends: Sequence[type[Backend]] = ()) -> None:
        self.measurements: dict[str, Any] = {}
        self._backends = backends
        self._made: dict[str, object] = {}

    def make(self, dtype: torch.dtype, seed: int) -> EditableModel:
        """Return a new model with random weights."""
        return TinyModel(dtype, seed)

    def target(self, dtype: str = "auto") -> EditableModel:
        """Return the model, in float32 for ``auto``: every backend multiplies that, and its rounding is small."""
        return self._model(dtype, seed=0)

    def backends(self) -> Sequence[type[Backend]]:
        """Return the backends that it was given."""
        return self._backends

    def other(self, name: str, dtype: str = "auto") -> EditableModel:
        """Return another model of that kind, its weights drawn from its name."""
        return self._model(dtype, seed=sum(name.encode()))

    def tokenizer(self, name: str | None = None) -> Letters:
        """Return the same tokenizer for every model."""
        return Letters(self.letters)

    def derived(self, key: str, make: Callable[[], Made]) -> Made:
        """Return what ``make`` made under ``key``; see ``ModelProvider.derived``."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]  # type: ignore[assignment]
        return made

    def _model(self, dtype: str, seed: int) -> EditableModel:
        precision = "float32" if dtype == "auto" else dtype
        return self.derived(f"{seed}/{precision}", lambda: self.make(getattr(torch, precision), seed))
