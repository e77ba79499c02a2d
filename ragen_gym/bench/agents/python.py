"""``python:module:callable``: an agent that is Python code of yours.

What the callable may be:

- a reply function, ``reply(messages)`` or ``reply(messages, task)``, to a str or an ``Answer``;
- a step policy, ``policy(observation, info)`` or ``policy(observation, info, task)``, to an action's id; its kind is
  known from its first parameter's name (``observation``, ``obs`` or ``board``) or from the setting ``kind=step``; it is
  shown text, or what an attribute ``observation`` of the function says, ``"grid"`` or ``"rgb"``;
- a class with the methods of ``ReplyAgent`` or ``StepAgent``, which is made with the settings that were given;
- an object of such a class.

A function or method may leave its last argument, the task, out. A coroutine runs in the event loop, among all other
episodes. A plain function or method may block, so it is called in a thread of its own, several at once: if it must not
be, give ``--concurrency 1``. ``threads=false`` calls it in the event loop instead, which is quicker for what takes
microseconds, and cannot be interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import Parameter, isclass, iscoroutinefunction, signature
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

from ragen_gym.bench.agent import plain_dict
from ragen_gym.core.failures import describe_error
from ragen_gym.core.threads import in_thread

_KINDS = ("reply", "step")
_BOARDS = ("observation", "obs", "board")


def load(target: str, *, kind: str | None = None, threads: bool = True, **arguments: Any) -> Any:
    """The agent of ``module:callable``; see the module. The current folder is among those that modules come from.

    Raises:
        ValueError: there is no such module or callable, it is no agent, or making it failed.
    """
    name, given = f"python:{target}", {k: v for k, v in (("kind", kind), ("threads", threads)) if v not in (None, True)}
    if kind not in (None, *_KINDS):
        raise ValueError(f"kind={kind!r}: choose one of {', '.join(_KINDS)}.")
    if not isinstance(threads, bool):
        raise ValueError(f"threads={threads!r} must be true or false.")
    found = find(target)
    if isclass(found):
        agent = _made(name, found, arguments)
    elif arguments:
        raise ValueError(
            f"{name} is not a class, so it takes no settings but kind and threads: {', '.join(arguments)}."
        )
    else:
        agent = found
    if not hasattr(agent, "reply") and not hasattr(agent, "act"):
        if not callable(agent):
            raise ValueError(f"{name} is {agent!r}: an agent has a method `reply` or `act`, or is a function.")
        agent = _function_agent(agent, kind)
    return PythonAgent(agent, name, {**given, **arguments}, threads)


class PythonAgent:
    """An agent under the name it was asked for by; everything else is its own.

    Args:
        agent: a ``ReplyAgent`` or a ``StepAgent``.
        name: see ``ReplyAgent``.
        settings: as they were given.
        threads: whether a plain ``reply`` or ``act`` is called in a thread of its own.
    """

    def __init__(self, agent: Any, name: str, settings: dict[str, Any], threads: bool = True) -> None:
        self._agent, self.name = agent, name
        for method, needed in (("reply", 1), ("act", 2)):
            if function := getattr(agent, method, None):
                setattr(self, method, _caller(function, needed, threads))
        self.settings = {**plain_dict(agent, "settings"), **settings}
        self.circumstances = plain_dict(agent, "circumstances")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._agent, name)


def _caller(function: Callable[..., Any], needed: int, threads: bool) -> Callable[..., Any]:
    """The function with as many of its arguments as it takes, where it is to run."""
    parameters = [*signature(function).parameters.values()]
    named = [each for each in parameters if each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    due = sum(each.default is Parameter.empty for each in named)
    is_open = any(each.kind is Parameter.VAR_POSITIONAL for each in parameters)
    if (len(named) < needed and not is_open) or due > needed + 1:
        taken = due if due > needed else len(named)
        raise ValueError(f"{function!r} takes {taken} arguments; an agent's function takes {needed} or {needed + 1}.")
    task = [each for each in named[needed : needed + 1] if each.default is Parameter.empty or each.name == "task"]
    count = needed + (bool(task) if len(named) > needed else is_open)
    if threads and not _is_coroutine(function):
        return lambda *arguments: in_thread(function, *arguments[:count])
    return lambda *arguments: function(*arguments[:count])


def _is_coroutine(function: Callable[..., Any]) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _function_agent(function: Callable[..., Any], kind: str | None) -> SimpleNamespace:
    names = list(signature(function).parameters)
    kind = kind or ("step" if names and names[0] in _BOARDS else "reply")
    if kind == "reply":
        return SimpleNamespace(reply=function)
    return SimpleNamespace(act=function, observation=getattr(function, "observation", "text"))


def find(target: str) -> Any:
    """Object that ``module:name`` names; the current folder is among those that modules come from.

    Raises:
        ValueError: there is no such module or name, or importing the module failed.
    """
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise ValueError(f"{target!r}: write it as module:name, such as my_agent:reply.")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last: no file that lies there takes the place of a library
    try:
        return resolve_name(target)
    except Exception as error:
        if isinstance(error, AttributeError) and module_name in sys.modules:  # not raised by the module's own code
            raise ValueError(f"{target}: {module_name} has no {path}.") from error
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            ending = " Leave .py out." if module_name.endswith(".py") else ""
            raise ValueError(
                f"{target}: there is no module {module_name}; it is looked for in the current folder and among the "
                f"installed ones.{ending}"
            ) from error
        raise ValueError(f"{target}: importing {module_name} failed: {describe_error(error)}.") from error


def _made(name: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        signature(factory).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{name} takes {signature(factory)}; with the settings given: {error}.") from error
    try:
        return factory(**arguments)
    except Exception as error:
        raise ValueError(f"{name} could not be made: {describe_error(error)}.") from error
