"""Weights of linear layers, prepacked into the layout in which a CPU's matrix units read them.

PyTorch packs a bfloat16 weight anew in each product. A decoding step multiplies few rows with every weight, so that
packing takes about as long as the product itself. Here a weight is packed once after each change. The products are the
same; the packed copies take as much memory as the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ragen_gym.core.cpu import bfloat16_units

__all__ = ["PrepackedLinears"]

ROWS = 64
"""For so many rows the layout is chosen; others are multiplied in it too."""


class PrepackedLinears:
    """The linear layers of a model on a CPU with units for bfloat16; of any other model, none.

    Args:
        model: the model; what changes its weights later is seen, unless it writes to their ``.data``.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [layer for layer in model.modules() if type(layer) is nn.Linear] if _helps() else []
        self._packed: dict[nn.Linear, tuple[tuple[int, int], Tensor]] = {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within it the layers multiply with the packed copies, without gradient."""
        try:
            for layer in self._layers:
                if layer.weight.dtype == torch.bfloat16 and layer.weight.is_cpu:
                    layer.forward = partial(_multiply, self._weight(layer), layer.bias)  # type: ignore[method-assign]
            yield
        finally:
            for layer in self._layers:
                layer.__dict__.pop("forward", None)

    def _weight(self, layer: nn.Linear) -> Tensor:
        """The packed weight of a layer as it is now."""
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
