"""Adapters for what looks like Gymnasium: an id, and a callable that makes an environment.

Older and looser forms are taken, too: ``reset`` that returns no info, a step of three or four values, ``seed(s)``
instead of ``reset(seed=s)``, and methods that are coroutines.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import random  # noqa: TID251  # a generator of its own; the global one is audited, not used
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

from .protocol import AuditedEnv, Step, Target, keywords

_TRIED = 5  # seeds until one resets the environment
_MOST_ACTIONS = 10_000  # that are listed; of more, some are drawn


class GymEnv(AuditedEnv):
    """An environment with ``reset`` and ``step``, whatever they return.

    Args:
        env: the environment.
        menu: actions to choose from, instead of those of its action space.
        noise: whether ``reset`` takes ``options={"noise_seed": k}``.
    """

    def __init__(self, env: Any, menu: list[Any], noise: bool = False) -> None:
        self.env = env
        self.core = getattr(env, "unwrapped", env)
        self.observation_space = getattr(env, "observation_space", None)
        self.action_space = getattr(env, "action_space", None) or getattr(env, "ACTION_SPACE", None)
        self._menu, self._noise = menu, noise
        self._seeded_by = seeded_by(env)

    def reset(self, seed: int | None, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        if self._seeded_by == "reset":
            arguments["seed"] = seed
        elif self._seeded_by and seed is not None:
            self.env.seed(seed)
        result = settled(self.env.reset(**arguments))
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def step(self, action: Any) -> Step:
        result = settled(self.env.step(action))
        if len(result) == 5:
            return Step(*result)
        if len(result) == 4:
            observation, reward, done, info = result
            return Step(observation, reward, bool(done), False, info)
        observation, reward, done = result
        return Step(observation, reward, bool(done), False, {})

    def close(self) -> None:
        if hasattr(self.env, "close"):
            settled(self.env.close())

    def actions(self) -> list[Any]:
        if self._menu:
            return self._menu
        if hasattr(self.core, "get_all_actions"):
            return [each.item() if hasattr(each, "item") else each for each in self.core.get_all_actions()]
        space = self.action_space
        # MultiBinary has an n, too, and a shape besides.
        if hasattr(space, "n") and not getattr(space, "shape", ()) and int(space.n) <= _MOST_ACTIONS:
            start = int(getattr(space, "start", 0))
            return list(range(start, start + int(space.n)))
        return []

    def sample(self, seed: int) -> Any:
        if menu := self.actions():
            return random.Random(seed).choice(menu)
        if self.action_space is None:
            return super().sample(seed)
        self.action_space.seed(seed)
        return self.action_space.sample()

    def reset_with_noise(self, seed: int, noise: int) -> tuple[Any, dict[str, Any]]:
        if self._noise:
            return self.reset(seed, options={"noise_seed": noise})
        begun, found = self.reset(seed), False
        for value in getattr(self.core, "__dict__", {}).values():
            if hasattr(value, "bit_generator"):  # Gymnasium's np_random, or a numpy.random.Generator of another name
                value.bit_generator.state = type(value.bit_generator)(noise).state
            elif isinstance(value, random.Random) or type(value).__name__ == "RandomState":
                value.seed(noise)
            else:
                continue
            found = True
        return begun if found else super().reset_with_noise(seed, noise)


class CallableTarget(Target):
    """``module:callable``: whatever it returns is the environment.

    Args:
        name: ``module:callable``.
        options: arguments of the callable.
        menu: actions to choose from.
    """

    def __init__(self, name: str, options: dict[str, Any], menu: list[Any]) -> None:
        self.name, self.options, self.menu = name, options, menu
        self.library = name.partition(":")[0].partition(".")[0]
        self.factory = load(name)
        self._inspect()

    def _inspect(self) -> None:
        env = self.make()
        core = env.env
        if hasattr(core, "num_envs"):
            raise ValueError(f"{self.name} makes {core.num_envs} environments in one: name what makes a single one.")
        self.takes_seed = bool(seeded_by(core))
        inner = getattr(core, "unwrapped", core)
        self.separate_noise = "noise_seed" in f"{type(core).__doc__} {type(inner).__doc__} {core.reset.__doc__}"
        module, _, attribute = self.name.partition(":")
        plain = _first_reset(core)
        result = "[0]" if isinstance(plain, tuple) else ""
        seed = "seed=s" if seeded_by(core) == "reset" else ""
        first = f"(e.seed(s), e.reset(){result})[1]" if seeded_by(core) == "seed" else f"e.reset({seed}){result}"
        if inspect.iscoroutinefunction(core.reset):
            self.code = _ASYNC_CODE.format(make=self.make_code(module, attribute), seed=seed, result=result)
        else:
            self.code = f"{self.make_code(module, attribute)}; start = lambda e, s: {first}; {_ACT}"
        if "numpy" in sys.modules:  # repr shows all of an array, so that it can be compared
            self.code = f"import numpy, sys; numpy.set_printoptions(threshold=sys.maxsize); {self.code}"
        self.random_text = type(env.action_space).__name__ == "Text" and not env.actions()  # gymnasium.spaces.Text
        env.close()

    def make_code(self, module: str, attribute: str) -> str:
        """Python that defines ``new``."""
        return f"import {module}; new = lambda **k: {module}.{attribute}({keywords(self.options)})"

    def make(self, **options: Any) -> GymEnv:
        env = self.factory(**{**self.options, **options})
        return GymEnv(env, self.menu, self.separate_noise)

    def splits(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if not self._reads_split():
            return None
        for training, test in (("train", "test"), ("train", "validation"), ("train", "eval")):
            try:
                self.make(split=training).close()
                self.make(split=test).close()
            except Exception:  # it has no such split
                continue
            return {"split": training}, {"split": test}
        return None

    def _reads_split(self) -> bool:
        """True if there is an argument ``split``: what takes arguments of any name may read none."""
        env = self.make()
        env.close()
        for made_by in (self.factory, type(env.core)):
            with suppress(TypeError, ValueError):  # what is not written in Python
                if "split" in inspect.signature(made_by).parameters:
                    return True
        return False


class GymnasiumTarget(CallableTarget):
    """A Gymnasium id, with its module before a colon where that must be imported first."""

    def __init__(self, name: str, options: dict[str, Any], menu: list[Any]) -> None:
        import gymnasium

        self.name, self.options, self.menu = name, options, menu
        self.library = name.partition(":")[0] if ":" in name else "gymnasium"
        if name.startswith("ragen/"):
            self.library = "ragen_gym"
            importlib.import_module(self.library)
        self.factory = lambda **given: gymnasium.make(name, disable_env_checker=True, **given)
        self._inspect()

    def make_code(self, module: str, attribute: str) -> str:
        first = "import gymnasium, ragen_gym" if self.name.startswith("ragen/") else "import gymnasium"
        return f"{first}; new = lambda **k: gymnasium.make({self.name!r}, {keywords(self.options)})"


_ACT = "act = lambda e, a: e.step(a)[:-1]"
_ASYNC_CODE = (
    "import asyncio, functools, threading; loop = functools.cache(lambda thread: asyncio.new_event_loop()); "
    "run = lambda c: loop(threading.get_ident()).run_until_complete(c); {make}; "
    "start = lambda e, s: run(e.reset({seed})){result}; act = lambda e, a: run(e.step(a))[:3]"
)
_LOCAL = threading.local()  # an event loop for each thread


def _first_reset(env: Any) -> Any:
    """What ``reset`` returns for the first of some seeds that does not raise; a check says which do."""
    given = seeded_by(env) == "reset"
    for seed in range(1, _TRIED):
        try:
            return settled(env.reset(**({"seed": seed} if given else {})))
        except Exception:  # the last seed tells
            continue
    return settled(env.reset(**({"seed": _TRIED} if given else {})))


def settled(value: Any) -> Any:
    """A value, or what a coroutine returns."""
    if not inspect.isawaitable(value):
        return value
    if not hasattr(_LOCAL, "loop"):
        _LOCAL.loop = asyncio.new_event_loop()
    return _LOCAL.loop.run_until_complete(_awaited(value))


async def _awaited(value: Any) -> Any:
    return await value


def _accepts_seed(reset: Callable[..., Any]) -> str:
    """Form in which a ``reset`` takes a seed: "named", "any" where it takes arguments of any name, "" where it does not.

    A wrapper's that passes everything on takes what the inner one takes.
    """
    owner = getattr(reset, "__self__", None)
    while True:
        parameters = inspect.signature(reset).parameters
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
        owner = getattr(owner, "env", None)
        if "seed" in parameters:
            return "named"
        if not takes_any or owner is None or not hasattr(owner, "reset"):
            return "any" if takes_any else ""
        reset = owner.reset


def seeded_by(env: Any) -> str:
    """The method that gives an environment its seed: "reset", "seed", or "" where there is none."""
    accepts = _accepts_seed(env.reset)
    if accepts != "named" and callable(getattr(env, "seed", None)):
        return "seed"
    return "reset" if accepts else ""


def load(name: str) -> Callable[..., Any]:
    """Object that ``module:callable`` names; raises ValueError where there is none."""
    try:
        found: Any = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name} cannot be loaded: {error}. Write module:callable, importable from here.") from error
    if not callable(found):
        raise ValueError(f"{name} is no callable but {found!r}: name a class or a function that makes an environment.")
    return found  # type: ignore[no-any-return]
