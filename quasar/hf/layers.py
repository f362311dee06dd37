"""Run some consecutive decoder layers of an unmodified transformers model."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from quasar.hf.layer_surgery import find_layers


class LayerRange:
    """A shell round a model's own modules that has some of its layers only; the layers keep their numbers.

    Args:
        module: the model; what is replaced within its layers later is replaced here too.
        layers: consecutive ones.

    Raises:
        UnsupportedModelError: the layers are not a plain stack.
    """

    def __init__(self, module: PreTrainedModel, layers: range) -> None:
        decoder, name, every = find_layers(module)
        self._first, self._last = every[layers.start], every[layers.stop - 1]
        self.module = _shell(module)
        place, inner = self.module, module
        for step in _path(module, decoder):
            inner = getattr(inner, step)
            twin = _shell(inner)
            place._modules[step], place = twin, twin
        place._modules[name] = nn.ModuleList(every[number] for number in layers)
        self.module.config = copy.deepcopy(module.config)
        own = self.module.config.get_text_config()
        place.config = own
        own.num_hidden_layers = len(layers)
        kinds = getattr(own, "layer_types", None)
        if kinds:
            own.layer_types = [kinds[number] for number in layers]
        self._decoder: nn.Module = place

    def run(self, states: Tensor | None, num_logits: int, **arguments: Any) -> tuple[Tensor, Tensor]:
        """Run the layers; see ``StagedModel.forward_layers``.

        Args:
            states: before the first layer.
            num_logits: as in ``Block``.
            arguments: of the model's forward.
        """
        found: list[Tensor] = []

        def before(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return (states, *args[1:]), {key: value for key, value in named.items() if key != "hidden_states"}

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            found.append(output[0] if isinstance(output, tuple) else output)

        hooks = [self._last.register_forward_hook(after)]
        if states is not None:
            hooks.append(self._first.register_forward_pre_hook(before, with_kwargs=True))
        try:
            if num_logits:
                logits = self.module(**arguments, logits_to_keep=num_logits).logits
            else:
                self._decoder(**arguments)
                logits = found[0].new_empty((len(found[0]), 0, 0))
        finally:
            for hook in hooks:
                hook.remove()
        return found[0], logits


def _path(module: nn.Module, wanted: nn.Module) -> list[str]:
    """Return the names that lead from a module to one inside it."""
    return next(name.split(".") for name, inner in module.named_modules() if inner is wanted)


def _shell(module: Any) -> Any:
    """Return an object of the same class with the same children, of which single ones can be exchanged."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
