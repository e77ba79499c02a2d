"""Consent: imports, programs and connections of a file or folder beyond the user's own flags.

Code that a model's files name is never run, whatever the consent; errors of loading do not advise to run it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ragen_agent.config.table import parts
from ragen_gym.core.settings import declared
from ragen_gym.games.registry import TABLE, own_module, task_of

HERE = ("auto", "local")
"""Addresses of a Ray cluster that runs on this machine."""


def effects(settings: Any, asked: Mapping[str, Any] | None = None, table: str = "") -> Iterator[tuple[str, str]]:
    """Effects of settings that need consent: each with its kind (``ragen_gym.core.settings.OPENS``) and a sentence.

    Args:
        settings: a ``Config``, or the settings of one trainer.
        asked: values of the user's flags, as nested tables; they need no further consent.
        table: the name of the settings' table, such as ``openrlhf``; empty for a ``Config``.
    """
    asked = asked or {}
    named = {own_module(game) for name in ("game", "games") if name in asked for game in _games(asked[name])}
    for name, each in declared(type(settings)).items():
        value, where = getattr(settings, name), f"{table}.{name}" if table else name
        if each.opens == "module":
            for game in _games(value):
                if (module := own_module(game)) and module not in named and not _imported(game, module):
                    yield "module", f"plays {game}, a game of the module {module}"
        elif name in asked or not value:
            continue
        elif each.opens == "address" and value not in HERE:
            said = f"connects to {value} ({where}), whose machines run the run's code and read its environment"
            yield "address", said
        elif each.opens == "command":
            yield "command", f"starts the program {value!r} ({where})"
        elif each.opens == "flags":
            yield "flags", f"passes the flags {value!r} to another program ({where})"
        elif each.opens == "upload":
            yield "upload", f"uploads the run to {value!r} of the Hub with your token ({where})"
        elif each.opens == "kernel" and "/" in value:
            yield "kernel", f"runs code of the Hub's repository {value!r} ({where})"
    for name in parts(type(settings)):
        yield from effects(getattr(settings, name), asked.get(name), name)


def _games(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(row.get("game", "")) for row in value]


def _imported(game: str, module: str) -> bool:
    return module in sys.modules and (task_of(game) is not None or game.rpartition(":")[2] in TABLE)


def check_no_kernels(config: Any) -> None:
    """Raises a ValueError if a model's configuration names Hub code, which transformers would fetch and run."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        for name in ("attn_implementation", "experts_implementation"):
            if "/" in str(value := getattr(part, f"_{name}", None)):
                raise ValueError(
                    f"its config.json names code of the Hub ({name}: {value}), which is never run: remove it"
                )


def load_problem(error: BaseException) -> str:
    """The reason why a file was not loaded.

    torch and transformers advise ``weights_only=False`` and ``trust_remote_code=True``, with which the file's own code
    would run.
    """
    text = str(error)
    if "trust_remote_code" in text:
        return (
            "it names code of its own (auto_map), which is never run: use a model of a type that the installed "
            "transformers knows, and remove auto_map from its files"
        )
    if "weights_only" in text or "WeightsUnpickler" in text:
        return "it is damaged, or holds other objects than tensors, which are never unpickled"
    return text
