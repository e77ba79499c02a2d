"""Makes a torchvision that was built for another torch importable.

The registry's torchvision is built for CUDA. Next to the CPU's torch its operators do not load, and importing it fails
with ``operator torchvision::nms does not exist``; ``transformers`` then fails wherever it looks at pictures, and vLLM
at its start. Nothing here needs the operators, only that they have a name. ``prepare`` gives them one in every process
that imports ``ragen_agent``, once torchvision is imported and not before; where its own are there, nothing is done.

vLLM starts processes of its own, which import torchvision before anything of ours. ``install`` prepares every process
of an environment: it copies this file, which needs the standard library alone, into site-packages, and next to it a
``.pth`` file, by which Python runs it at each start. ``ragen-agent doctor --fix`` calls it where it is needed.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

TYPE_CHECKING = False  # not imported: this runs at every start of Python
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["OPERATORS", "PatchAfterImport", "define", "install", "prepare"]

MODULE = "torchvision.extension"
"""Where torchvision loads its operators, before any other module of it names one."""

OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
"""Operators that torchvision's own modules name when they are imported, and their signatures."""

COPY = "_ragen_gym_torchvision"
"""The name of this module in site-packages."""


class PatchAfterImport:
    """An entry of ``sys.meta_path`` that calls a function with a module right after the module was executed.

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
    """Prepares this process, without importing torch; a second call has no effect, also of the copy that starts it."""
    if not any(MODULE in getattr(finder, "patches_after_import", ()) for finder in sys.meta_path):
        sys.meta_path.insert(0, PatchAfterImport({MODULE: lambda module: define()}))


def install(folder: Path | None = None) -> Path:
    """Prepares every process that is started later in this environment; returns the ``.pth`` file that does it.

    Args:
        folder: where Python reads such files; None for this environment's site-packages.
    """
    import sysconfig
    from pathlib import Path

    folder = folder or Path(sysconfig.get_path("purelib"))
    (folder / f"{COPY}.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    start = folder / f"{COPY}.pth"
    start.write_text(f"import {COPY}; {COPY}.prepare()\n", encoding="utf-8")
    return start


def define() -> None:
    """Names the operators that are missing. None of them can be called."""
    import torch

    for name, signature in OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", signature)
