"""AdamW over what a module trains, with float32 copies of weights that play in bfloat16.

A step of fine-tuning changes a weight by a millionth of itself, and bfloat16 distinguishes numbers that differ by a
hundredth: added to the weight itself, most steps would round to nothing. So the sum is kept in float32, and the
weights that play are its rounding. (An autocast over float32 weights would do the same arithmetic, but round all
weights anew for every sampled token.) An adapter is float32 itself, and so needs no copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Float32AdamW", "adamw"]


def adamw(module: nn.Module, learning_rate: float, **how: Any) -> torch.optim.Optimizer:
    """AdamW over the weights that ask for gradients; torch's own where all of them are float32."""
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if all(weight.dtype == torch.float32 for weight in weights):
        return torch.optim.AdamW(weights, lr=learning_rate, **how)
    return Float32AdamW(weights, learning_rate, **how)


class Float32AdamW(torch.optim.AdamW):
    """AdamW on float32 copies of ``weights``; each step ends by rounding the copies into the weights."""

    def __init__(self, weights: list[nn.Parameter], learning_rate: float, **how: Any) -> None:
        self.weights = weights
        self.copies = [weight.detach().float().clone() for weight in weights]
        super().__init__(self.copies, lr=learning_rate, **how)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the weights' gradients."""
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Steps the copies by the weights' gradients, and rounds them into the weights."""
        for weight, copy in zip(self.weights, self.copies, strict=True):
            copy.grad = None if weight.grad is None else weight.grad.float()
        result = super().step(closure)
        for weight, copy in zip(self.weights, self.copies, strict=True):
            weight.copy_(copy)
            copy.grad = None
        return result

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state, and the copies."""
        return {**super().state_dict(), "copies": [copy.clone() for copy in self.copies]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Puts back what ``state_dict`` gave."""
        copies: list[Tensor] = state_dict["copies"]
        super().load_state_dict({name: part for name, part in state_dict.items() if name != "copies"})
        for copy, saved in zip(self.copies, copies, strict=True):
            copy.copy_(saved)
