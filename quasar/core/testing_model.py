"""A language model of a few hundred weights, for running components that load models without any file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from quasar.core.cache import KVCache
from quasar.core.models import Block, LinearLayer, Made

VOCAB = 7
"""Size of the kit's vocabulary."""


class TinyModel:
    """A decoder with one layer of uniform attention: what comes next depends on all tokens seen, and on their places.

    Attributes:
        name: ``tiny``.
        vocab_size: ``VOCAB``.
        max_length: ``None``, texts may have any length.
        dtype: of the weights and the logits.
        device: the CPU.

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
        self.layers = nn.ModuleDict({"mix": nn.Linear(2 * VOCAB, 16), "head": nn.Linear(16, VOCAB)})
        for parameter in self.layers.parameters():
            parameter.requires_grad_(False)
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.layers.to(dtype)

    @torch.inference_mode()
    def forward(self, block: Block, cache: KVCache) -> Tensor:
        """Run one block; see ``LanguageModel.forward``."""
        batch, query = block.token_ids.shape
        lengths = block.lengths[:, None]
        end = int(lengths.max()) + query
        own = nn.functional.one_hot(block.token_ids, VOCAB)
        place = (0.7 * block.positions[..., None]).sin() + 2
        features = (own * place).to(self.dtype)  # [batch, query, vocab]
        _, values = cache.write(0, features[:, None], features[:, None], lengths + block.offsets, end)
        seen = (torch.arange(end) < lengths)[:, None, :].repeat(1, query, 1)  # [batch, query, end]
        new = (lengths + torch.arange(query))[:, None, :].expand(batch, query, query)
        seen.scatter_(2, new, block.visible)
        weights = seen.to(self.dtype)
        mean = weights @ values[:, 0] / weights.sum(dim=-1, keepdim=True)
        hidden = self.layers["mix"](torch.cat([features, mean], dim=-1)).tanh()
        logits: Tensor = self.layers["head"](hidden)[:, query - block.num_logits :]
        return logits  # [batch, num_logits, vocab]

    def sharing_copy(self) -> TinyModel:
        """Return a model with modules of its own over the same weights."""
        twin = copy.copy(self)
        twin.layers = copy.deepcopy(self.layers, {id(each): each for each in self.layers.parameters()})
        return twin

    def linear_layers(self) -> Iterator[LinearLayer]:
        """Iterate over the two layers."""
        for name, layer in list(self.layers.items()):
            if isinstance(layer, nn.Linear):
                yield LinearLayer(name, layer.weight, layer.bias, self._replacer(name), name == "head")

    def _replacer(self, name: str) -> Callable[[nn.Module], None]:
        def replace(module: nn.Module) -> None:
            self.layers[name] = module

        return replace

    def storages(self) -> dict[int, int]:
        """Return bytes by storage."""
        tensors = [*self.layers.parameters(), *self.layers.buffers()]
        return {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}


class TinyModels:
    """Hands out ``TinyModel`` as the target: a model provider for tests.

    Attributes:
        device: ``cpu``.
    """

    device = "cpu"

    def __init__(self) -> None:
        self._made: dict[str, object] = {}

    def target(self, dtype: str = "auto") -> TinyModel:
        """Return the tiny model, in float32 for ``auto``."""
        return self.derived(f"target/{dtype}", lambda: TinyModel(_DTYPES[dtype]))

    def derived(self, key: str, make: Callable[[], Made]) -> Made:
        """Return what ``make`` made under ``key``; see ``ModelProvider.derived``."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]  # type: ignore[assignment]
        return made


_DTYPES = {
    "auto": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
