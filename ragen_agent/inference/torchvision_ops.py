"""Makes a torchvision that was built for another torch importable.

The registry's torchvision is built for CUDA. With a CPU build of torch its operators do not load, and importing it
fails with ``operator torchvision::nms does not exist``; ``transformers`` then fails on pictures, and vLLM at its start.
Here the operators need only be defined, not work. ``prepare``, which `ragen-agent` calls, defines missing ones at
the moment when torchvision is imported; importing this package changes nothing.

vLLM starts processes of its own, which import torchvision before this package. ``install`` prepares every process of an
environment: it copies this file, which needs only the standard library, into site-packages, with a ``.pth`` file by
which Python runs it at each start. ``make test-openrlhf`` calls it.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

TYPE_CHECKING = False  # not imported: this runs at every start of Python
if TYPE_CHECKING:
    from pathlib import Path

MODULE = "torchvision.extension"
"""The torchvision module that loads the operators, before any other module uses one."""

OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
"""Operators that torchvision's modules use on import, and their signatures."""

COPY = "_ragen_gym_torchvision"
"""The name of this module in site-packages."""


class PatchAfterImport:
    """An entry of ``sys.meta_path`` that calls a function with a module right after it is executed.

    Args:
        patches: the functions, by the module's name.
    """

    def __init__(self, patches: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self.patches_after_import = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder.find_spec``."""
        patch = self.patches_after_import.get(fullname)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def prepare() -> None:
    """Prepares this process without importing torch; further calls, by the installed copy too, have no effect."""
    if not any(MODULE in getattr(finder, "patches_after_import", ()) for finder in sys.meta_path):
        sys.meta_path.insert(0, PatchAfterImport({MODULE: lambda module: define()}))


def install(folder: Path | None = None) -> Path:
    """Prepares all later processes of this environment; returns the ``.pth`` file.

    Args:
        folder: a folder where Python reads ``.pth`` files; None for this environment's site-packages.
    """
    import sysconfig
    from pathlib import Path

    folder = folder or Path(sysconfig.get_path("purelib"))
    (folder / f"{COPY}.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    start = folder / f"{COPY}.pth"
    start.write_text(f"import {COPY}; {COPY}.prepare()\n", encoding="utf-8")
    return start


def define() -> None:
    """Defines the missing operators; calling one fails."""
    import torch

    for name, signature in OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", signature)
