"""Weights of a model: their device and dtype, and copies prepacked into the layout of a CPU's matrix units.

PyTorch packs a bfloat16 weight anew in each product. A decoding step multiplies few rows, so packing takes about as
long as the product itself. Here a weight is packed once after each change. The results are the same; the packed copies
take as much memory as the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ragen_gym.core.threads import bfloat16_units

_Model = TypeVar("_Model", bound=nn.Module)

PREFIX, BASE = "base_model.model.", ".base_layer."
"""Parts of names under peft: a prefix of all weights, and the place of an adapted layer's base weights."""

ROWS = 64
"""Number of rows for which the layout is chosen; it is used for any number."""


def move(model: _Model, device: str, dtype: torch.dtype = torch.float32) -> _Model:
    """The same model, on ``device`` and with weights of ``dtype``.

    Buffers keep the dtype that ``transformers`` gives them. Rotary frequencies in particular must stay in float32, as
    in every other program: rounded to bfloat16 they are up to 0.4 % off.
    """
    for weight in model.parameters():  # first, so that a GPU never holds them in float32
        weight.data = weight.data.to(device, dtype)
    nn.Module.to(model, torch.device(device))
    return model


def merged_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of the plain model, by its own names, with adapters of peft added; without one its parameters."""
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    for name, parameter in nn.Module.named_parameters(model):
        if ".lora_" in name:
            continue
        plain = name.removeprefix(PREFIX).replace(BASE, ".")
        layer: Any = adapted.get(name.rpartition(BASE)[0])
        if layer is not None and name.endswith(f"{BASE}weight"):
            with torch.no_grad():
                added = sum(layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters)
                weight = (parameter.data.float() + added).to(parameter.dtype)
            parameter = nn.Parameter(weight, requires_grad=False)
        yield plain, parameter


class PrepackedLinears:
    """The linear layers of a model on a CPU with bfloat16 units; no layers for any other model.

    Args:
        model: the model; later changes of its weights are noticed unless written to their ``.data``.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [layer for layer in model.modules() if type(layer) is nn.Linear] if _helps() else []
        self._packed: dict[nn.Linear, tuple[tuple[int, int], Tensor]] = {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within it, the layers multiply with the packed copies, without gradient."""
        try:
            for layer in self._layers:
                if layer.weight.dtype == torch.bfloat16 and layer.weight.is_cpu:
                    layer.forward = partial(_multiply, self._weight(layer), layer.bias)  # type: ignore[method-assign]
            yield
        finally:
            for layer in self._layers:
                layer.__dict__.pop("forward", None)

    def _weight(self, layer: nn.Linear) -> Tensor:
        """The packed form of a layer's current weight."""
        state = layer.weight.data_ptr(), layer.weight._version
        if layer not in self._packed or self._packed[layer][0] != state:
            self._packed[layer] = state, torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)
        return self._packed[layer][1]


def _helps() -> bool:
    operators: Any = torch.ops.mkldnn
    return (
        bool(bfloat16_units())
        and torch.backends.mkldnn.is_available()
        and all(hasattr(operators, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    )


def _multiply(weight: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return product
