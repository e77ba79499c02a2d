"""Weights of linear layers in the order in which a CPU's matrix units read them.

PyTorch puts a bfloat16 weight into that order anew in each product. A decoding step multiplies few rows with every
weight, so that this takes about as long as the product itself. Here it is done once after each change of a weight.
The products are the same; the copies take as much memory as the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ragen_gym.core.cpu import bfloat16_units

__all__ = ["OrderedLinears"]

ROWS = 64
"""For so many rows the order is best; others are multiplied in it too."""


class OrderedLinears:
    """The linear layers of a model on a CPU with units for bfloat16; of any other model, none.

    Args:
        model: the model; what changes its weights later is seen.
    """

    def __init__(self, model: nn.Module) -> None:
        found = [layer for layer in model.modules() if type(layer) is nn.Linear] if _helps() else []
        self._layers = [layer for layer in found if layer.weight.dtype == torch.bfloat16 and layer.weight.is_cpu]
        self._copies: list[tuple[tuple[int, int], Tensor]] = [((-1, -1), torch.empty(0))] * len(self._layers)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within it the layers multiply with the ordered copies, without gradient."""
        try:
            for index, layer in enumerate(self._layers):
                state = layer.weight.data_ptr(), layer.weight._version
                if self._copies[index][0] != state:
                    ordered = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)
                    self._copies[index] = state, ordered
                layer.forward = partial(_multiply, self._copies[index][1], layer.bias)  # type: ignore[method-assign]
            yield
        finally:
            for layer in self._layers:
                layer.__dict__.pop("forward", None)


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
