"""Sources of a function's machine code, so that a cache on disk never gives that of an older one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from enum import EnumType
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

import numpy as np

__all__ = ["codes_of", "content_of", "named_by_content"]


@cache
def content_of(function: Callable[..., object]) -> str:
    """16 hexadecimal digits that change with the code of a function, of those that it calls, and with its constants.

    They do not follow what the function takes by an attribute of another module, nor what its own module has yet to
    define: what compiled code calls is imported by name and stands above it.
    """
    made = cast(FunctionType, function)
    parts = [repr(made.__defaults__)]
    names = [*zip(made.__code__.co_freevars, (cell.cell_contents for cell in made.__closure__ or ()), strict=True)]
    for code in codes_of(made.__code__):
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        parts.append(repr((code.co_code, constants, code.co_names, code.co_varnames)))
        names += [(name, made.__globals__.get(name)) for name in code.co_names]  # some are attributes' names
    for name, value in names:
        value = getattr(value, "py_func", value)
        if value is not None and value is not made:
            parts.append(f"{name}={content_of(value) if isinstance(value, FunctionType) else _said(value)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """The code and that of the functions and comprehensions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def _said(value: Any) -> str:
    """What compiled code takes over of a value that is no function."""
    if isinstance(value, ModuleType):
        return f"{value.__name__} {getattr(value, '__version__', '')}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, EnumType):
        return repr((value, *value.__members__.items()))
    return repr((value, *getattr(value, "_fields", ())))


def named_by_content(function: Callable[..., object], name: str) -> FunctionType:
    """A copy of the function under a name that holds its content."""
    made = cast(FunctionType, function)
    copy = FunctionType(made.__code__, made.__globals__, made.__name__, made.__defaults__, made.__closure__)
    copy.__module__, copy.__doc__, copy.__annotations__ = made.__module__, made.__doc__, made.__annotations__
    copy.__qualname__ = f"{name}_{content_of(made)}"
    return copy
