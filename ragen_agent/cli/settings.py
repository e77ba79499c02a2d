"""``ragen-agent settings``, and the flags of other commands that choose a game and change settings.

The way of a value: ``--set NAME=VALUE`` is read by ``settings_of_pairs``, laid over files and defaults by
``configure``, checked by ``ragen_agent.config.table.with_settings``, and read from its table, such as
``Config.training``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from itertools import accumulate, count
from pathlib import Path
from typing import Any, NamedTuple

from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.consent import effects
from ragen_agent.config.table import parts
from ragen_agent.config.trainers import OPENRLHF, OpenRLHF
from ragen_gym.core.command_line import add_command, terminal_width, wrap
from ragen_gym.core.settings import OPENS, Setting, declared
from ragen_gym.core.validation import did_you_mean, joined, json_or_text, named_values

ABOUT = """\
Lists every setting of a run: type, default, range, unit and meaning. Defaults in parentheses hold for the games named
there, and for a pretrained model (--model). A setting is given in a TOML file (--config) or as --set NAME=VALUE.

examples:
  ragen-agent settings
  ragen-agent settings training
  ragen-agent settings training.filter
  ragen-agent train --set training.groups=16 --set training.filter=top_p --set training.keep=0.9"""


class Group(NamedTuple):
    """The settings of one table; top-level settings have the empty name."""

    name: str
    about: str
    settings: Mapping[str, Setting]


def groups() -> Iterator[Group]:
    """All settings, table by table, by their dotted names."""
    for table, cls in {"": Config, **parts(Config), OPENRLHF: OpenRLHF}.items():
        prefix = f"{table}." if table else ""
        about = (cls.__doc__ or "").partition("\n")[0].replace("``", "")
        yield Group(table, about, {f"{prefix}{name}": each for name, each in declared(cls).items()})


@cache
def catalog() -> Mapping[str, Setting]:
    """All settings by their dotted names."""
    return {name: each for group in groups() for name, each in group.settings.items()}


def check_name(name: str) -> None:
    """Raise a ValueError with the nearest known names unless this dotted name is a setting."""
    if name not in catalog():
        table = name.rpartition(".")[0]
        near = [each for each in catalog() if each.rpartition(".")[0] == table] or [*catalog()]
        ends = {each.rpartition(".")[2]: each for each in catalog()}
        close = get_close_matches(name.rpartition(".")[2], ends, 1)  # in another table
        hint = did_you_mean(name, near) or "".join(f" Did you mean {ends[end]}?" for end in close)
        raise ValueError(f"unknown setting {name!r}.{hint} ragen-agent settings lists all.")


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    what = "list every setting with its default, range and meaning"
    parser = add_command(commands, "settings", what, _run, description=ABOUT)
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="only the settings that begin so")


def _run(options: argparse.Namespace) -> int:
    shown = [(group, [n for n in group.settings if n.startswith(options.prefix)]) for group in groups()]
    if not any(names for _, names in shown):
        check_name(options.prefix)
    width = min(118, terminal_width())
    for group, names in shown:
        if names and len(names) == len(group.settings):
            print("\n".join(wrap(group.about, width, f"[{group.name}] " if group.name else "", "")), end="\n\n")
        for name in names:
            print("\n".join(_lines(name, group.settings[name], width)))
    return 0


def _lines(name: str, each: Setting, width: int) -> list[str]:
    from ragen_agent.config.presets import other_defaults

    kind = "text" if each.type is str else getattr(each.type, "__name__", str(each.type))
    about = f"{kind}, default {json.dumps(each.default)}" + f" {each.unit}" * bool(each.unit)
    if elsewhere := [f"{who}: {json.dumps(value)}" for who, value in other_defaults(name)]:
        about += f" ({'; '.join(elsewhere)})"
    if each.range and not each.meanings:
        about += f"; {each.range}"
    lines = wrap(about, width, f"{name}  ", " " * 8)
    lines += wrap(f"{each.doc}; empty: {each.empty}" if each.empty else each.doc, width, " " * 4)
    longest = max(map(len, each.meanings), default=0)
    for choice, meaning in each.meanings.items():
        start = f"      {choice:{longest}}  "
        lines += wrap(meaning, width, start, " " * len(start))
    return [*lines, ""]


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose a game and change settings."""
    group = parser.add_argument_group("game and settings")
    group.add_argument(
        "--game", metavar="NAME", help="FrozenLake (default), Bandit, BanditRev, ...: see ragen-gym list"
    )
    group.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML, such as a run's config.toml")
    add_run_code(group)
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting, and any option of the game as env_options.NAME, such as training.learning_rate=5e-4; "
        "repeatable, each once; ragen-agent settings lists all",
    )
    group.add_argument(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:N, or auto (default): a GPU for a pretrained model where there is one",
    )


def configure(
    options: argparse.Namespace, flags: Settings, *, assumed: Settings | None = None, fetch: bool = False
) -> Config:
    """Defaults, the game's settings, the recipe, the file, ``assumed``, what was asked for: each over the one before.

    ``options`` are of a parser with ``add_settings``, ``flags`` the settings behind the command's own flags, which
    imply those ``assumed``; ``fetch`` brings a model that is named and not here.
    """
    from ragen_agent.config.presets import default_settings
    from ragen_gym.games.registry import full_name

    file, asked = _files(options), settings_of(options, {**given(options, "game"), **flags})
    if options.config is not None:  # before a game's module is imported
        games = {name: value for name, value in merged(file, asked).items() if name in ("game", "games")}
        check_consent(options.config, options.run_code, with_settings(Config(), games), asked=asked)
    game = full_name(asked.get("game") or file.get("game", Config.game))
    settings: Settings = merged(default_settings(game, str(asked.get("model") or file.get("model", ""))), file)
    settings = merged(merged(settings, assumed or {}), asked)
    settings.pop(OPENRLHF, None)  # one file serves both trainers
    config = with_settings(Config(), {**settings, "game": game})
    if options.config is not None:
        check_consent(options.config, options.run_code, config, asked=asked)
    if not config.model or not fetch:
        return config
    from ragen_agent.models.named_models import model_folder

    return replace(config, model=str(model_folder(config.model)))


def add_run_code(parser: argparse._ActionsContainer) -> None:
    """Adds ``--run-code``, for commands that read a file or folder of somebody else."""
    parser.add_argument(
        "--run-code",
        action="store_true",
        help="allow what a file or folder names: import modules of games, start programs, run code of repositories, "
        "pass flags to OpenRLHF, connect to addresses, upload to the Hub",
    )


def check_consent(
    source: Path,
    run_code: bool,
    *settings: Any,
    asked: Settings | None = None,
    kinds: Collection[str] = (*OPENS,),
) -> None:
    """Raises a ValueError if a file or folder has settings with effects (``consent.effects``), without ``--run-code``.

    ``asked`` are the settings that the user gave by flags, ``kinds`` the effects (``OPENS``) that the command has.
    """
    if run_code:
        return
    found: list[str] = []
    for each in settings:
        table = "" if isinstance(each, Config) else OPENRLHF
        own = (asked or {}).get(table, {}) if table else asked
        found += [said for kind, said in effects(each, own, table) if kind in kinds]
    if found:
        raise ValueError(f"{source} {'; it '.join(found)}: give --run-code to allow it, if you trust who wrote that.")


def given(options: argparse.Namespace, *names: str) -> Settings:
    """The values of those of these flags that were given."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def distributed(options: argparse.Namespace) -> Settings:
    """The settings of the distributed trainer that the recipe, the file and the flags name."""
    return merged(_table(_files(options)), _table(settings_of(options)))


def _table(settings: Settings) -> Settings:
    table = settings.get(OPENRLHF, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"{OPENRLHF} is {table!r}; it must be a table, such as [{OPENRLHF}] in TOML.")
    return dict(table)


def check_not_distributed(options: argparse.Namespace, advice: str = "leave it out") -> None:
    """Raises a ValueError if flags give a setting of the distributed trainer, which would have no effect.

    A file may hold the settings of both trainers. ``advice`` ends the message.
    """
    for name in _table(settings_of(options)):
        raise ValueError(f"{OPENRLHF}.{name} is a setting of the distributed trainer alone: {advice}.")


def settings_of(options: argparse.Namespace, flags: Settings | None = None) -> Settings:
    """Settings given by ``--set`` and ``flags``, which a command read itself.

    Raises:
        ValueError: one setting is given two values.
    """
    return joined(flags or {}, settings_of_pairs(options.set))


def settings_of_pairs(pairs: Sequence[str]) -> Settings:
    """NAME=VALUE pairs, of ``--set``, as nested tables.

    A value is read as JSON (3, 1e-3, true, [0.7, 0.3]), or else as text; values of text settings are always text.

    Raises:
        ValueError: a pair without a value, a name that is neither a setting nor an entry of a table setting, or two
            values of one setting.
    """
    settings: Settings = {}
    for name, value in named_values("--set", pairs, _read).items():
        for part in reversed(name.split(".")):
            value = {part: value}
        settings = joined(settings, value)
    return settings


def _read(name: str, text: str) -> Any:
    places = accumulate(name.split("."), lambda table, key: f"{table}.{key}")
    if not {*places} & {*catalog()} and name not in {group.name for group in groups()}:
        check_name(name)
    value = json_or_text(text)
    is_text = name in catalog() and catalog()[name].type is str
    return text if is_text and not isinstance(value, str) else value


def _files(options: argparse.Namespace) -> Settings:
    from ragen_agent.config.presets import read_recipe, read_settings_file

    name = getattr(options, "recipe", None)
    recipe = read_recipe(name).settings if name else {}
    return merged(recipe, read_settings_file(options.config)) if options.config is not None else recipe


def free_folder(name: str) -> Path:
    """The first of ``runs/NAME``, ``runs/NAME-2``, ... that is not there yet."""
    candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())


def help_text(each: Setting) -> str:
    """A setting's meaning, default, unit and range, for ``--help``."""
    default = f"default {each.default!r} {each.unit}".rstrip() if each.default != "" else ""
    empty = f"empty: {each.empty}" if each.empty else ""
    limits = "; ".join(part for part in (default, each.range, empty) if part)
    return (f"{each.doc} ({limits})" if limits else each.doc).replace("%", "%%")
