"""The table of environments. Ids, documentation, tests and the command line derive from it.

Each entry is one id: a game, the options that make it this environment, and its horizon. Adding a game is a module or
a folder in ``games/`` and one entry here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ragen_gym.core.failures import describe_error
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.core.validation import did_you_mean, plain_number, shown

if TYPE_CHECKING:
    from ragen_gym.games.game import Game


@dataclass(frozen=True)
class GameSpec:
    """One environment of the suite.

    Attributes:
        name: name of the id, ``ragen/<name>-v0``.
        game: where its ``Game`` class is, ``"module:Class"``, imported when first needed.
        horizon: ``max_episode_steps`` of the id, the paper's budget of actions; None where the rules end the episode.
        summary: one line for lists.
        options: what differs from the defaults of the class.
        vocabulary: name of the vocabulary that texts use; None for the game's own.
        about: a paragraph on what a variant asks, for its page.
    """

    name: str
    game: str
    horizon: int | None
    summary: str
    options: dict[str, Any] = field(default_factory=dict)
    vocabulary: str | None = None
    about: str = ""

    @property
    def id(self) -> str:
        """The Gymnasium id."""
        return f"ragen/{self.name}-v0"

    @property
    def game_class(self) -> type[Game]:
        """The game's class.

        Raises:
            ValueError: there is no class where the entry says.
        """
        try:
            loaded: type[Game] = resolve_name(self.game)
        except AttributeError as error:
            raise ValueError(f"{self.name}: its entry says game={self.game!r}, and {error}") from error
        return loaded


TABLE: dict[str, GameSpec] = {
    spec.name: spec
    for spec in (
        GameSpec("Bandit", "ragen_gym.games.bandit:Bandit", None, "two arms with telling names, one pull"),
        GameSpec("BanditRev", "ragen_gym.games.bandit:BanditRev", None, "the same names, meaning the opposite"),
        GameSpec(
            "FrozenLake",
            "ragen_gym.games.frozen_lake:FrozenLake",
            10,
            "cross slippery ice to the goal, around the holes",
        ),
        GameSpec("Sokoban", "ragen_gym.games.sokoban:Sokoban", 10, "push one box onto its target"),
        GameSpec(
            "LargeSokoban",
            "ragen_gym.games.sokoban:Sokoban",
            10,
            "push two boxes onto targets on a larger board",
            {"height": 8, "width": 8, "boxes": 2, "search_depth": 10},
        ),
        GameSpec(
            "NewVocab",
            "ragen_gym.games.sokoban:Sokoban",
            10,
            "Sokoban in other symbols",
            vocabulary="new_vocab",
            about="Does a lower score than Sokoban's show a lack of understanding, or of reading? As a grid it may be "
            "either: tokenizers join the cells of both games, but into other tokens, so a model meets new spellings as "
            'well as new meanings. With ``text_format="spaced"`` each symbol is one token wherever it stands, and what '
            "is left of the difference is understanding of the legend.",
        ),
    )
}

_LOADED = set[str]()  # names that ``load`` and ``load_task`` were given, with a module


def find(name: str) -> GameSpec:
    """The entry of a name or id: ``FrozenLake``, ``ragen/FrozenLake-v0`` or ``ragen_gym:ragen/FrozenLake-v0``.

    A game of another package, ``my_package.my_game:MyGame``, is found once its module has been imported; this function
    imports nothing (``load`` does), so it may be given names that come from elsewhere.

    Raises:
        ValueError: there is no such environment.
    """
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is not a name: choose one of {', '.join(TABLE)}.")
    short = name.rpartition(":")[2].removeprefix("ragen/").removesuffix("-v0")
    if short not in TABLE:
        module = module_of(name)
        if task_of(name) is not None or module == "ragen_gym.tasks":
            raise ValueError(
                f"{name!r} is a text task: it has no board and no moves, and this needs a game; ragen_gym.TaskEnv "
                "plays text tasks."
            )
        if module and module not in sys.modules:
            raise ValueError(
                f"{name!r} is not known here, and {module} has not been imported: import it first (`ragen-gym serve` "
                f"does with --game {name}); ragen_gym.TaskEnv plays text tasks."
            )
        if own_module(name):
            raise ValueError(
                f"{name!r} is not known here: {module} has registered no game of that name (ragen_gym.register). "
                "ragen_gym.TaskEnv plays a text task; a file or a request cannot name one that you did not."
            )
        hint = did_you_mean(short, TABLE)
        raise ValueError(f"{name!r} is not a game of this suite: choose one of {', '.join(TABLE)}.{hint}")
    return TABLE[short]


def module_of(name: str) -> str:
    """The module of a game of one's own, ``my_package.my_game`` of ``my_package.my_game:MyGame``; else empty."""
    module = name.rpartition(":")[0]
    return "" if module == "ragen_gym" else module


def own_module(name: str) -> str:
    """The module of a game that is none of this package's games and tasks; else empty."""
    module = module_of(name)
    return "" if module == "ragen_gym.tasks" else module


def load(name: str) -> GameSpec:
    """The entry of a name or id, as ``find`` gives it, after importing the module that stands before a colon.

    The module calls ``ragen_gym.register``; it is looked for where Python looks, then in the current folder. Importing
    runs its code: give only names that the user chose, not those of a request or of a file from elsewhere.

    Raises:
        ValueError: there is no such game, or its module cannot be imported.
    """
    module = module_of(name) if isinstance(name, str) else ""
    if not module:
        return find(name)
    _import(name, module)
    if task_of(name) is not None:
        return find(name)
    try:
        return find(name)
    except ValueError:
        homes = {game: spec.game.partition(":")[0] for game, spec in TABLE.items()}
        added = sorted(game for game, home in homes.items() if f"{home}.".startswith(f"{module}."))
        raise ValueError(
            f"{name}: the module {module} adds no game of that name (it adds {', '.join(added) or 'none'}): call "
            "ragen_gym.register in it. It defines no text task of that name either."
            f"{did_you_mean(name.rpartition(':')[2], added)}"
        ) from None


def full_name(name: str) -> str:
    """The name by which another process finds the same game or text task: with its module if it is not of this suite.

    Raises:
        ValueError: see ``load``.
    """
    if load_task(name) is not None:
        return name
    spec, module = load(name), module_of(name)
    return f"{module}:{spec.name}" if module else spec.name


def task_of(name: str) -> Callable[..., Any] | None:
    """Maker of the text task ``my_module:MyTask`` (``ragen_gym.envs.task``); None if it is none, or not imported.

    A text task is not registered: it is any class with ``reset`` and ``step``, or a function, of that name in the
    module. It is called, so one that is not of this package counts only once ``load`` or ``load_task`` was given its
    name: a name from elsewhere may be ``os:system``.
    """
    module, _, attribute = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    found = getattr(sys.modules.get(module), attribute, None) if module not in ("", "ragen_gym") else None
    if attribute in TABLE or not callable(found) or (own_module(name) and name not in _LOADED):
        return None
    return found if hasattr(found, "step") or not isinstance(found, type) else None


def load_task(name: str) -> Callable[..., Any] | None:
    """``task_of``, after importing the module as ``load`` does.

    Raises:
        ValueError: the module cannot be imported.
    """
    module = module_of(name) if isinstance(name, str) else ""
    if module:
        _import(name, module)
    return task_of(name)


def _import(name: str, module: str) -> None:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        import_module(module)
        _LOADED.add(name)
    except ImportError as error:
        raise ValueError(f"{name}: importing the module {module} failed here, in {os.getcwd()}: {error}.") from None
    except AssertionError:  # of a check that the module runs when it is imported
        raise
    except Exception as error:
        raise ValueError(f"{name}: importing the module {module} failed: {describe_error(error)}.") from error


def build_game(
    spec: GameSpec, options: dict[str, Any], preset: str | None = None, arguments: Iterable[str] = ()
) -> Game:
    """The game of an entry: these options over those of the preset, those over the entry's own.

    Args:
        spec: the entry.
        options: of the game.
        preset: the name of a preset.
        arguments: what else the caller takes: an option may be one of them, misspelt.

    Raises:
        ValueError: an option or preset that the game does not have, a value out of range, or an abstract class.
    """
    if lacking := ", ".join(sorted(spec.game_class.__abstractmethods__)):
        raise ValueError(f"{spec.name} lacks {lacking}: its class {spec.game} must define what is abstract in Game.")
    known, presets = spec.game_class.options(), spec.game_class.presets
    if preset is not None and (not isinstance(preset, str) or preset not in presets):
        raise ValueError(f"{spec.name} has no preset {shown(preset)}: it has {', '.join(presets) or 'none'}.")
    for option in options:
        if option not in known:
            turns = [each.name for each in fields(TurnConfig)]
            hint = did_you_mean(option, (*known, *arguments, *turns))
            if option in turns:
                hint = f" {option} is an option of turns: ragen_gym.make_turn takes it."
            elif option in spec.game_class.foreign_options:
                hint = f" Here {option} is {spec.game_class.foreign_options[option]}."
            raise ValueError(f"{spec.name} has no option {option!r}: it has {', '.join(known)}.{hint}")
    below = {**spec.options, **(presets[preset] if preset else {})}
    if (size := options.get("size")) is not None:
        for side in ("height", "width"):  # the game does not see that a side was given which is its default
            if side in options and options[side] != size:
                given = shown(options[side])
                raise ValueError(f"{spec.name}: size={shown(size)} and {side}={given} disagree; leave one out.")
        below = {option: value for option, value in below.items() if option not in ("height", "width")}
    return spec.game_class(**{option: plain_number(value) for option, value in {**below, **options}.items()})


def add(spec: GameSpec) -> None:
    """Put an environment into the table; ``ragen_gym.register`` also makes its id known to Gymnasium.

    Raises:
        ValueError: the name is taken by another one.
    """
    if TABLE.setdefault(spec.name, spec) != spec:
        raise ValueError(f"{spec.id} is taken by {TABLE[spec.name].game}: choose another name.")
