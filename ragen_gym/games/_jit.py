"""The one place that knows numba: what is compiled, and when.

To compile a game's generator takes seconds and to import numba takes half of one. So a function under ``kernel`` runs
as Python first, as often as that is quicker than to wait for the compiler:

- All calls run as Python until they have taken ``PLAIN_SECONDS`` together. From then on each function is compiled when
  it is called next.
- Within ``compiling`` (a batch, many levels at once) a function is compiled before it runs.
- A level that takes longer than ``LEVEL_SECONDS`` as Python is begun anew in compiled form; see ``level_by_level``.

Both forms are the same function and give the same bits. Compiled code is cached on disk next to the sources, or in the
user's cache folder where those cannot be written.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import EnumType
from functools import cache, cached_property, update_wrapper, wraps
from math import inf
from types import CodeType, FunctionType, ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")
R = TypeVar("R")

#: Seconds that all calls may take as Python together before what they call is compiled.
PLAIN_SECONDS = 1.0
#: Seconds that one level may take as Python.
LEVEL_SECONDS = 1.0
#: Seconds of waiting for the compiler after which standard error says so.
NOTICE_SECONDS = 2.0

_LARGEST_BLOCK = 256
#: Of an array's flags those that its type in compiled code follows from: C-contiguous, aligned, writeable.
_FLAGS = 0x0001 | 0x0100 | 0x0400


class _Mode(threading.local):
    """Mode of a thread's kernels: compiled at once, or as Python up to a moment (of ``time.monotonic``)."""

    compiling = False
    deadline = inf


class _TooLongError(Exception):
    """A call has met its deadline."""


_mode = _Mode()
_plain_seconds = 0.0  # that calls have taken as Python


class Kernel(Generic[P, R]):
    """A function of numbers and arrays that runs as Python until its compiled form is ready; see the module.

    Compiled functions can call it. It takes positional arguments only.

    Args:
        function: the function. The kernels that it calls are globals of its module.
        plain: another function that does the same as Python, sooner.
    """

    def __init__(self, function: Callable[P, R], plain: Callable[P, R] | None = None) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._plain = plain
        self._ready: set[tuple[Any, ...]] = set()

    def __call__(self, *args: P.args, **_: P.kwargs) -> R:
        global _plain_seconds  # noqa: PLW0603  # of all kernels
        signature = _signature(args)
        if signature not in self._ready and (_mode.compiling or _plain_seconds >= PLAIN_SECONDS):
            self.compile(signature, args)
        if signature in self._ready:
            return cast(R, self.native(*args))
        began = time.perf_counter()
        with np.errstate(over="ignore"):  # as compiled code does: words of 64 bits wrap around
            result = cast(R, cast(Any, self.plain)(*args))
        _plain_seconds += time.perf_counter() - began
        return result

    @property
    def is_ready(self) -> bool:
        """True if the compiled form is ready, for some types of arguments."""
        return bool(self._ready)

    @cached_property
    def native(self) -> Any:
        """The compiled form."""
        return _cached(_named_by_content(self.py_func, self.py_func.__qualname__))

    @cached_property
    def plain(self) -> Callable[P, R]:
        """The function as Python, in which each kernel that it calls is Python too."""
        if self._plain is not None:
            return self._plain
        made = cast(FunctionType, self.py_func)
        found = {name: made.__globals__.get(name) for code in _codes_of(made.__code__) for name in code.co_names}
        others = {name: value.plain for name, value in found.items() if isinstance(value, Kernel)}
        return cast(Callable[P, R], FunctionType(made.__code__, {**made.__globals__, **others}, made.__name__))

    def compile(self, signature: tuple[Any, ...], args: tuple[Any, ...]) -> None:
        """Compile the function for arguments like these, or load it from the cache."""
        if hasattr(self.native, "compile"):  # which it has not where numba's compiler is switched off
            self.native.compile(tuple(map(_numba().typeof, args)))
        self._ready.add(signature)

    @property
    def _numba_type_(self) -> Any:
        return self.native._numba_type_


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """A ``Kernel``; the decorator of what single environments call."""
    return Kernel(function)


def _signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the compiled form depends on of the arguments."""
    return tuple(
        [
            (arg.dtype.num, arg.ndim, arg.flags.num & _FLAGS)
            if arg.__class__ is np.ndarray
            else _signature(arg)
            if arg.__class__ is tuple
            else arg.__class__
            for arg in args
        ]
    )


@contextmanager
def compiling() -> Iterator[None]:
    """A block in which kernels are compiled before they run; for batches."""
    before, _mode.compiling = _mode.compiling, True
    try:
        yield
    finally:
        _mode.compiling = before


def in_time(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Result of the function; where its kernels take longer than ``LEVEL_SECONDS`` as Python, it is called again.

    So it must not have changed what it was given when it is stopped, but for arrays that it overwrites.
    """
    before, _mode.deadline = _mode.deadline, time.monotonic() + LEVEL_SECONDS
    try:
        return function(*args, **kwargs)
    except _TooLongError:
        with compiling():
            return function(*args, **kwargs)
    finally:
        _mode.deadline = before


def check_time() -> None:
    """Stop a call that has met its deadline; kernels that run as Python call it now and then."""
    if time.monotonic() > _mode.deadline:
        raise _TooLongError


def level_by_level(main: Callable[[Any], Kernel[Any, Any]]) -> Callable[[F], F]:
    """Decorate a generator of levels, a function of a game, keys and a split.

    A few levels are made one at a time while the kernel ``main(game)``, which takes most of the time, runs as Python,
    each within ``LEVEL_SECONDS``.
    """

    def decorate(generate: F) -> F:
        @wraps(generate)
        def generate_all(game: Any, keys: Any, split: str | None) -> Any:
            if len(keys) > _LARGEST_BLOCK:
                with compiling():
                    return generate(game, keys, split)
            boards: list[Any] = []
            while len(boards) < len(keys) - 1 and not (main(game).is_ready or _mode.compiling):
                boards.append(in_time(generate, game, keys[len(boards) : len(boards) + 1], split))
            rest = in_time(generate, game, keys[len(boards) :], split)
            return np.concatenate([*boards, rest]) if boards else rest

        return cast(F, generate_all)

    return decorate


@cache
def _numba() -> Any:
    """Numba, which is imported when something is compiled."""
    import numba
    from numba.core import config, event

    # Numba would read a file of the current folder at each compilation: it can move the cache, which holds pickles.
    config._config_fname = ""
    config.reload_config()

    class Notice(event.Listener):
        """Says once on standard error what is waited for, where compiling one of our functions takes long."""

        timer: threading.Timer | None = None
        depth = 0

        def on_start(self, event: Any) -> None:
            self.depth += self.is_ours(event)
            if self.depth and self.timer is None:
                self.timer = threading.Timer(NOTICE_SECONDS, _say_what_is_waited_for)
                self.timer.daemon = True
                self.timer.start()

        def on_end(self, event: Any) -> None:
            self.depth -= self.is_ours(event)
            if not self.depth and self.timer is not None and self.timer.is_alive():
                self.timer.cancel()
                self.timer = None

        def is_ours(self, event: Any) -> bool:
            return str(event.data["dispatcher"].py_func.__module__).startswith("ragen_gym.")

    event.register("numba:compile", Notice())
    return numba


def _say_what_is_waited_for() -> None:
    text = "ragen-gym: numba compiles the game for this machine, once; up to a minute, kept on disk."
    print(text, file=sys.stderr, flush=True)


def compiled(function: F) -> F:
    """Compile a function of numbers and arrays on its first call; the result is cached on disk. Imports numba.

    The cache is numba's own, which looks no further than the function's file: after an edit of a function in another
    file that it calls, it would go on with machine code that holds the old one. So the name under which the function is
    cached says what the machine code follows from; see ``_content_of``.
    """
    return cast(F, _cached(_named_by_content(function, function.__qualname__)))


def compiled_with(template: F, **rules: Callable[..., Any]) -> F:
    """Compile a copy of ``template`` in which each global name of ``rules`` is that function, compiled.

    The copy is cached under a name of its own, so that the kernels of two games do not displace each other. (A closure
    over the rule would never be found in the cache, since numba names closures by objects of the process.)
    """
    inner = {name: _numba().njit(nogil=True, error_model="numpy")(rule) for name, rule in rules.items()}
    copy = FunctionType(template.__code__, {**template.__globals__, **inner}, template.__name__)
    copy.__module__, copy.__doc__ = template.__module__, template.__doc__
    names = [template.__name__, *(f"{rule.__module__}_{rule.__qualname__}" for rule in rules.values())]
    name = "".join(c if c.isalnum() else "_" for c in "_".join(names))
    return cast(F, _cached(_named_by_content(copy, name)))


def _cached(function: FunctionType) -> Any:
    try:
        return _numba().njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # there is nowhere to write, or the function was typed in and has no file
        return _numba().njit(nogil=True, error_model="numpy")(function)


def compiled_params(params: Any) -> Any:
    """``ragen_gym.games.game.Game.params`` as a compiled rule takes it soonest: ``array.array`` as numpy's arrays."""
    if isinstance(params, array):
        return np.asarray(params)
    return tuple(np.asarray(each) if isinstance(each, array) else each for each in params)


@cache
def _content_of(function: Callable[..., object]) -> str:
    """16 hexadecimal digits that change with the code of a function, of those that it calls, and with its constants.

    They do not follow what the function takes by an attribute of another module, nor what its own module has yet to
    define: what compiled code calls is imported by name and stands above it.
    """
    made = cast(FunctionType, function)
    parts = [repr(made.__defaults__)]
    names = [*zip(made.__code__.co_freevars, (cell.cell_contents for cell in made.__closure__ or ()), strict=True)]
    for code in _codes_of(made.__code__):
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        parts.append(repr((code.co_code, constants, code.co_names, code.co_varnames)))
        names += [(name, made.__globals__.get(name)) for name in code.co_names]  # some are attributes' names
    for name, value in names:
        value = getattr(value, "py_func", value)
        if value is not None and value is not made:
            parts.append(f"{name}={_content_of(value) if isinstance(value, FunctionType) else _said(value)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    """The code and that of the functions and comprehensions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_of(constant)


def _said(value: Any) -> str:
    """What compiled code takes over of a value that is no function."""
    if isinstance(value, ModuleType):
        return f"{value.__name__} {getattr(value, '__version__', '')}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, EnumType):
        return repr((value, *value.__members__.items()))
    return repr((value, *getattr(value, "_fields", ())))


def _named_by_content(function: Callable[..., object], name: str) -> FunctionType:
    """A copy of the function under a name that holds its content."""
    made = cast(FunctionType, function)
    copy = FunctionType(made.__code__, made.__globals__, made.__name__, made.__defaults__, made.__closure__)
    copy.__module__, copy.__doc__, copy.__annotations__ = made.__module__, made.__doc__, made.__annotations__
    copy.__qualname__ = f"{name}_{_content_of(made)}"
    return copy
