"""Makes a torchvision that was built for another torch importable.

The registry's torchvision is built for CUDA. Next to the CPU's torch its operators do not load, and importing it fails
with ``operator torchvision::nms does not exist``; ``transformers`` then fails wherever it looks at pictures, and vLLM
at its start. Nothing here needs the operators, only that they have a name. ``prepare`` gives them one in every process
that imports ``ragen_gym.inference`` or ``ragen_agent``, once torchvision is imported and not before; where its own are
there, nothing is done.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["OPERATORS", "define", "prepare"]

MODULE = "torchvision.extension"
"""Where torchvision loads its operators, before any other module of it names one."""

OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
"""Operators that torchvision's own modules name when they are imported, and their signatures."""


class _Finder(importlib.abc.MetaPathFinder):
    """Defines the operators right after ``MODULE`` is executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            define()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def prepare() -> None:
    """Prepares this process, without importing torch; a second call has no effect."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def define() -> None:
    """Names the operators that are missing. None of them can be called."""
    import torch

    for name, signature in OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", signature)
