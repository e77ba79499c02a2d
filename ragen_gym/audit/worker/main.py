"""The child process: opens the target, runs checks one after another, and writes each outcome as a line of JSON."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import sys
import traceback
import warnings
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Any

from . import check_episodes, check_seeds, session  # noqa: F401  # the checks fill CHECKS
from .context import Context
from .gym_like import CallableTarget, GymnasiumTarget
from .protocol import CHECKS, Outcome, Target
from .text_libraries import GemTarget, ReasoningGymTarget, TextArenaTarget

__all__ = ["CHECKS", "main", "open_target"]

#: Adapters by the prefix that chooses one; a name without a prefix is recognised by its form.
_PREFIXES = {"textarena": TextArenaTarget, "gem": GemTarget, "reasoning-gym": ReasoningGymTarget}
_ID = re.compile(r"(?:[\w.]+:)?(?:[\w-]+/)?[\w.-]+-v\d+")


def main(descriptor: int) -> None:
    """Read a request from standard input and answer it on a file descriptor of its own, which no ``print`` reaches.

    The request has ``target``, ``options``, ``actions``, ``checks`` (ids, ``["fingerprint"]``, or ``["session"]`` for
    ``session.serve``), ``limit`` (seconds of a check, after which this process ends), ``settings`` of the ``Context``, and ``path`` (folders to import from). The answer is the message ``opened`` with what ``Report`` has of the target, then
    ``begun`` and ``outcome`` of each check; or ``bad`` with the reason why the target cannot be opened.
    """
    request = json.loads(sys.stdin.readline())
    sys.path[:0] = request["path"]
    warnings.simplefilter("ignore")
    with os.fdopen(descriptor, "w") as out:

        def send(event: str, **message: Any) -> None:
            out.write(json.dumps({"event": event, **message}, default=repr) + "\n")
            out.flush()

        try:
            target = open_target(request["target"], request["options"], request["actions"])
            settings = dict(request["settings"])
            for name in ("train", "test"):
                if settings[name] is not None:
                    settings[name] = _side(target, name, settings[name])
            context = Context(target, **settings)
        except Exception as error:  # whatever an import or a constructor raises
            send("bad", reason=f"{type(error).__name__}: {error}")
            return
        send("opened", version=_version(target.library), code=target.code, random_text=target.random_text)
        if request["checks"] == ["session"]:
            session.serve(context, request["limit"], send)
            return
        for name in request["checks"]:
            faulthandler.dump_traceback_later(request["limit"], exit=True)
            if name == "fingerprint":
                try:
                    send(name, **check_seeds.fingerprint(context))
                except Exception as error:
                    send(name, failed=f"{type(error).__name__}: {error}")
                continue
            send("begun", check=name)
            try:
                outcome = context.run(CHECKS[name])
            except Exception as error:  # of the environment, in the midst of a check
                outcome = _raised(error)
            send("outcome", **outcome._asdict())


def open_target(name: str, options: dict[str, Any], menu: list[Any]) -> Target:
    """The target of a name.

    Args:
        name: a Gymnasium id, ``module:callable``, or ``PREFIX:NAME`` with one of ``_PREFIXES``.
        options: arguments of its constructor.
        menu: actions to choose from, where the environment does not list them.

    Raises:
        ValueError: the name has none of these forms, or names nothing.
    """
    prefix, _, rest = name.partition(":")
    if prefix in _PREFIXES and rest:
        return _PREFIXES[prefix](rest, options, menu)
    if _ID.fullmatch(name):
        return GymnasiumTarget(name, options, menu)
    if re.fullmatch(r"[\w.]+:[\w.]+", name):
        return CallableTarget(name, options, menu)
    raise ValueError(
        f"{name} is not a target: give a Gymnasium id (FrozenLake-v1), module:callable, or one of "
        f"{', '.join(f'{each}:NAME' for each in _PREFIXES)}."
    )


def _raised(error: Exception) -> Outcome:
    """A check that could not be carried out, with the place where the environment raised."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "/audit/worker/" not in frame.filename]
    where = f" ({inside[-1].filename.rpartition('/')[2]}, line {inside[-1].lineno})" if inside else ""
    return Outcome("not applicable", f"the environment raised {type(error).__name__}: {str(error)[:300]}{where}")


def _side(target: Target, name: str, text: str) -> tuple[list[int], dict[str, Any]]:
    """Seeds and options of one side of a split.

    ``0:1000`` is a range of seeds, ``module:callable`` returns the seeds, ``name=value`` is a constructor option with
    seeds 0 to 511; parts are joined by commas.
    """
    seeds: list[int] = []
    options: dict[str, Any] = {}
    for part in text.split(","):
        first, _, second = part.partition(":")
        if "=" in part:
            option, _, value = part.partition("=")
            try:
                options[option] = json.loads(value)
            except json.JSONDecodeError:
                options[option] = value
        elif first.isdecimal() and second.isdecimal() and int(first) < int(second):
            seeds += range(int(first), int(second))
        elif second and not first.isdecimal():
            seeds += list(getattr(importlib.import_module(first), second)())
        else:
            raise ValueError(
                f"{part} is no side of a split: give FIRST:LAST with FIRST below LAST, module:callable or name=value."
            )
    try:  # a mistyped split is an error before the checks
        target.make(**options).close()
    except Exception as error:  # whatever a constructor raises
        raise ValueError(f"--{name} {text}: {str(error) or type(error).__name__}") from error
    return seeds or list(range(512)), options


def _version(name: str) -> str:
    """A library and its version, as installed; its name alone where it is not."""
    try:
        return f"{name} {version(packages_distributions().get(name, [name])[0])}"
    except PackageNotFoundError:
        return name
