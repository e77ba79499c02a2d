"""A stand-in for flash-attn while OpenRLHF imports it, on machines without it.

``openrlhf.models`` imports flash-attn's helpers for packed rows whether or not rows are packed, and flash-attn has no
wheel for most machines. The stand-in is seen by that import alone: transformers and vLLM, which ask whether flash-attn
is installed, still find that it is not. Its functions raise; ``sdpa`` without packing calls none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["HOOK", "check_attention", "installed", "stand_in"]

HOOK = "ragen_agent.openrlhf.flash_attention.stand_in"
"""The name by which Ray finds ``stand_in``."""

IMPORTER = "openrlhf.models.ring_attn_utils"
MODULES = {
    "flash_attn": (),
    "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "flash_attn.utils": (),
    "flash_attn.utils.distributed": ("all_gather",),
}
CURE = "use --set openrlhf.attention=sdpa, which pads rows, or pip install flash-attn --no-build-isolation"


def installed() -> bool:
    """True if flash-attn itself is installed."""
    return find_spec("flash_attn") is not None


def check_attention(attention: str) -> None:
    """Raises a ValueError for flash attention without flash-attn, whose helpers pack its rows."""
    if "flash" in attention and not installed():
        raise ValueError(f"openrlhf.attention is {attention!r}, but flash-attn is not installed here: {CURE}.")


def stand_in() -> None:
    """Lets this process import OpenRLHF without flash-attn; without effect where flash-attn is installed."""
    if not installed() and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """An entry of ``sys.meta_path`` that puts the stand-in in place while one module is executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != IMPORTER or (spec := PathFinder.find_spec(fullname, path)) is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            sys.modules.update({name: _module(name, functions) for name, functions in MODULES.items()})
            try:
                execute(module)
            finally:
                for name in MODULES:
                    del sys.modules[name]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _module(name: str, functions: Sequence[str]) -> ModuleType:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"this needs flash-attn, which is not installed: {CURE}")

    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []  # a package, so that its submodules are looked up in sys.modules
    module.__dict__.update(dict.fromkeys(functions, missing))
    return module
