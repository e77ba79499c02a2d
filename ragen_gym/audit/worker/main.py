"""The child process: opens the target, runs checks one after another, and writes each outcome as a line of JSON."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import traceback
import warnings
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Any

from .check_seeds import fingerprint
from .context import Context, not_applicable
from .protocol import Outcome, Target
from .table import CHECKS
from .targets import open_target

__all__ = ["main", "run"]


def main(descriptor: int) -> None:
    """Read a request from standard input and answer it on a file descriptor of its own, which no ``print`` reaches."""
    request = json.load(sys.stdin)
    with os.fdopen(descriptor, "w") as out:

        def send(message: dict[str, Any]) -> None:
            out.write(json.dumps(message, default=repr) + "\n")
            out.flush()

        run(request, send)


def run(request: dict[str, Any], send: Any) -> None:
    """Answer a request.

    Args:
        request: ``target``, ``options``, ``actions``, ``checks`` (ids, or ``["fingerprint"]``), ``settings`` of the
            ``Context``, ``path`` (folders to import from).
        send: takes a message: ``opened`` with kind and version, then ``begun`` and ``outcome`` of each check; or
            ``bad`` with the reason why the target cannot be opened.
    """
    sys.path[:0] = request.get("path", [])
    warnings.simplefilter("ignore")
    try:
        target = open_target(request["target"], request["options"], request["actions"])
        settings = dict(request["settings"])
        for name in ("train", "test"):
            if settings.get(name) is not None:
                settings[name] = _side(target, name, settings[name])
        context = Context(target, **settings)
    except Exception as error:  # whatever an import or a constructor raises
        send({"event": "bad", "reason": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})
        return
    send({"event": "opened", "kind": target.kind, "version": _version(target.library), "code": target.code})
    for name in request["checks"]:
        send({"event": "begun", "check": name})
        if name == "fingerprint":
            try:
                send({"event": "fingerprint", **fingerprint(context)})
            except Exception as error:
                send({"event": "fingerprint", "failed": f"{type(error).__name__}: {error}"})
            continue
        check = CHECKS[name].run
        assert check is not None, name
        try:
            outcome = context.run(check)
        except Exception as error:  # of the environment, in the midst of a check
            outcome = _raised(error)
        send({"event": "outcome", "check": name, **dataclasses.asdict(outcome)})


def _raised(error: Exception) -> Outcome:
    """A check that could not be carried out, with the place where the environment raised."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "/audit/worker/" not in frame.filename]
    where = f" ({inside[-1].filename.rpartition('/')[2]}, line {inside[-1].lineno})" if inside else ""
    return not_applicable(f"the environment raised {type(error).__name__}: {str(error)[:300]}{where}", raised=True)


def _side(target: Target, name: str, text: str) -> tuple[list[int], dict[str, Any]]:
    """``_split``; raises a ValueError where no environment can be made with its options, such as a mistyped split."""
    seeds, options = _split(text)
    if options:
        try:
            env = target.make(**options)
            try:
                env.reset(seeds[0] if target.takes_seed else None)
            finally:
                env.close()
        except Exception as error:  # whatever a constructor raises
            raise ValueError(f"--{name} {text}: {str(error) or type(error).__name__}") from error
    return seeds, options


def _version(name: str) -> str:
    """A library and its version, as installed; its name alone where it is not."""
    try:
        return f"{name} {version(packages_distributions().get(name, [name])[0])}"
    except PackageNotFoundError:
        return name


def _split(text: str) -> tuple[list[int], dict[str, Any]]:
    """Seeds and options of one side of a split.

    ``0:1000`` is a range of seeds, ``module:callable`` returns the seeds, ``name=value`` is a constructor option with
    seeds 0 to 511; parts are joined by commas.
    """
    seeds: list[int] = []
    options: dict[str, Any] = {}
    for part in text.split(","):
        first, _, second = part.partition(":")
        if "=" in part:
            name, _, value = part.partition("=")
            try:
                options[name] = json.loads(value)
            except json.JSONDecodeError:
                options[name] = value
        elif first.isdecimal() and second.isdecimal():
            seeds += range(int(first), int(second))
        elif second:
            seeds += list(getattr(importlib.import_module(first), second)())
        else:
            raise ValueError(f"{part} is no side of a split: give FIRST:LAST, module:callable or name=value.")
    return seeds or list(range(512)), options
