"""Protocols of a check: a target that makes environments, and an environment with ``reset`` and ``step``."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

#: A number that is reported is wrong; it may be wrong.
SEVERITIES = ("error", "warning")

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DEEPEST = 8


class NotApplicable(Exception):
    """A check that says nothing about this environment; the message is the reason."""


class Step(NamedTuple):
    """Answer of an environment to an action."""

    observation: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def done(self) -> bool:
        """True if the episode is over."""
        return self.terminated or self.truncated


class Outcome(NamedTuple):
    """Result of one check."""

    status: str  # "passed", "finding" or "not applicable"
    detail: str  # what was seen, or why the check does not apply; one sentence
    evidence: str = ""  # Python that ends in an assertion which fails where the finding is true


@dataclass(frozen=True)
class Check:
    """One question that is asked of every environment.

    ``run`` takes a ``Context``. It is None where the parent process answers, since it takes more than one process to
    tell.
    """

    id: str
    severity: str
    title: str  # what holds where it passes
    why: str
    fix: str
    run: Callable[[Any], Outcome] | None


CHECKS: dict[str, Check] = {}


def check(severity: str, why: str, fix: str) -> Callable[[Callable[[Any], Outcome]], Callable[[Any], Outcome]]:
    """Make a function a row of ``CHECKS``; the first line of its docstring is the title."""

    def add(run: Callable[[Any], Outcome]) -> Callable[[Any], Outcome]:
        title = (run.__doc__ or "").partition("\n")[0].rstrip(".")
        CHECKS[run.__name__] = Check(run.__name__, severity, title, why, fix, run)
        return run

    return add


class AuditedEnv:
    """One environment; an adapter overrides what its library has. All methods may raise the library's own errors."""

    observation_space: Any = None  # with ``contains``, or None
    action_space: Any = None  # with ``contains`` and ``sample``, or None

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Start the episode of a seed."""
        raise NotImplementedError

    def reset_with_noise(self, seed: int, noise: int) -> tuple[Any, dict[str, Any]]:
        """Start the episode of a seed with another seed of its dynamics alone."""
        raise NotApplicable("no generator of the dynamics is known")

    def step(self, action: Any) -> Step:
        """Play an action."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the environment holds."""

    def actions(self) -> list[Any]:
        """The actions that may be taken now, where they are few; else an empty list."""
        return []

    def sample(self, seed: int) -> Any:
        """An action drawn from a seed."""
        raise NotApplicable("no actions are known: give some with --action")

    def state(self) -> Any:
        """The hidden state as data, beyond the observation; None where it is not known."""
        return None

    def oracle(self) -> list[Any] | None:
        """Actions that solve the episode just begun, where the environment knows some."""
        return None


class RenewedEnv:
    """An environment that is made anew for each episode, for targets whose reset leaves something behind."""

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        self._target, self._options = target, options
        self._inner, self._used = target.make(**options), False

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        if self._used:
            self._inner.close()
            self._inner = self._target.make(**self._options)
        self._used = True
        return self._inner.reset(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Target:
    """Audited target; one adapter a library."""

    library = ""  # the package that its environments come from
    name = ""
    takes_seed = True  # whether ``reset`` has a seed at all
    separate_noise = False  # whether ``reset`` takes a seed of the dynamics alone
    random_text = False  # whether the actions are texts of random characters, as no real one is known
    #: Python that defines new(), start(env, seed) -> what the episode begins with, act(env, action) -> what follows
    code = ""

    def make(self, **options: Any) -> AuditedEnv:
        """A new environment; ``options`` go to its constructor over those given with the target."""
        raise NotImplementedError

    def splits(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Constructor options of the training and of the test split, where the target declares them."""
        return None


def literal(value: Any) -> str:
    """Python that gives an action, of NumPy's arrays too, exactly; their ``repr`` is rounded, and names what is unknown.

    ``numpy`` must be imported there.
    """
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return f"numpy.array({value.tolist()!r}, {str(value.dtype)!r}){'' if value.shape else '[()]'}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {literal(each)}' for name, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        inner = f"[{', '.join(map(literal, value))}]"
        return inner if isinstance(value, list) else f"tuple({inner})"
    return repr(value)


def keywords(options: Mapping[str, Any]) -> str:
    """Python that hands on the arguments of ``new = lambda **k: …`` over these options."""
    return f"**{{**{options!r}, **k}}" if options else "**k"


def freeze(value: Any, depth: int = 0) -> Any:  # noqa: PLR0911  # a case each
    """A value as nested tuples of plain data that compare as the value does: arrays, sets, models and messages too."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if depth > _DEEPEST:
        return "..."
    if hasattr(value, "tobytes") and hasattr(value, "shape"):
        return ("array", tuple(value.shape), str(value.dtype), value.tobytes())
    if hasattr(value, "model_dump"):
        return freeze(value.model_dump(), depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, freeze(vars(value), depth + 1))
    if isinstance(value, Mapping):
        return ("dict", tuple(sorted((str(k), freeze(v, depth + 1)) for k, v in value.items())))
    if isinstance(value, (set, frozenset)):
        return ("set", tuple(sorted(repr(freeze(each, depth + 1)) for each in value)))
    if isinstance(value, (list, tuple)):
        return tuple(freeze(each, depth + 1) for each in value)
    return _ADDRESS.sub("", repr(value))


def key(value: Any) -> str:
    """A short text that two values share exactly if they are equal."""
    return hashlib.blake2b(repr(freeze(value)).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
