"""Leave decoder layers out of a transformers model, and see what each of them does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quasar.core.errors import UnsupportedModelError


def drop_layers(module: PreTrainedModel, dropped: Collection[int]) -> None:
    """Remove decoder layers in place.

    The layers that stay are numbered anew, because caches are keyed by that number and masks are chosen by it.

    Args:
        module: a copy with modules and a configuration of its own.
        dropped: numbers of the layers, counted from 0.

    Raises:
        UnsupportedModelError: the layers are not a plain stack.
    """
    decoder, name, layers = find_layers(module)
    config = module.config.get_text_config()
    kept = [number for number in range(len(layers)) if number not in dropped]
    kinds = getattr(config, "layer_types", None)
    setattr(decoder, name, nn.ModuleList(layers[number] for number in kept))
    for new, old in enumerate(kept):
        for part in layers[old].modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = new  # type: ignore[assignment]
    config.num_hidden_layers = len(kept)
    if kinds:
        config.layer_types = [kinds[number] for number in kept]


@torch.inference_mode()
def layer_states(module: PreTrainedModel, token_ids: Tensor, given: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Return the hidden states before every decoder layer and after the last one, the final norm not yet applied.

    Args:
        module: the model.
        token_ids: whole texts, ``[batch, tokens]`` int64.
        given: what each layer reads, instead of what the layer before it wrote.

    Returns:
        ``layers + 1`` tensors ``[batch, tokens, hidden]``.

    Raises:
        UnsupportedModelError: the layers are not a plain stack.
    """
    _, _, layers = find_layers(module)
    states: list[Tensor] = []

    def before(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        number = numbers[layer]
        hidden = args[0] if args else named["hidden_states"]
        if given is not None:
            hidden = given[number].to(device=hidden.device, dtype=hidden.dtype)
            args, named = (hidden, *args[1:]), {key: each for key, each in named.items() if key != "hidden_states"}
        if number == 0:
            states.append(hidden)
        return args, named

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    numbers = {layer: number for number, layer in enumerate(layers)}
    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    hooks += [layer.register_forward_hook(after) for layer in layers]
    try:
        module(input_ids=token_ids.to(module.device), use_cache=False, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    return states


def find_layers(module: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return the decoder, the name of its list of layers, and the list.

    Raises:
        UnsupportedModelError: the layers are not a plain stack.
    """
    config, decoder = module.config.get_text_config(), module.get_decoder()
    found = [
        (name, child)
        for name, child in decoder.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers
    ]
    if len(found) != 1 or bool(getattr(config, "num_kv_shared_layers", None)):
        raise UnsupportedModelError(
            f"layers of a {type(module).__name__} cannot be left out or run apart: they are not one stack of "
            "independent layers."
        )
    return decoder, *found[0]
