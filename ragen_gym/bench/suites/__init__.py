"""Suites as data: splits of frozen levels with the budgets to play them under.

A suite is a folder with a table ``suite.toml``, see ``ragen_gym.bench.suites.table``, and the level files that it
names.

A suite that changes gets another name: results are compared by its content hash, which covers the table and the levels.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ragen_gym.bench.suites.table import SUITE_FILE, Problem, env_options, read_problems, read_table
from ragen_gym.core.levels import Level
from ragen_gym.core.text import Vocabulary
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.core.validation import check_number, did_you_mean
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.task import TaskEnv
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games.given_levels import SIZE_OPTIONS, given_levels
from ragen_gym.games.registry import find, load, load_task, module_of, own_module, task_of

__all__ = [
    "SUITES",
    "SUITE_FILE",
    "Published",
    "Split",
    "Suite",
    "env_options",
    "load_suite",
    "noise_seed",
    "read_table",
    "task_env",
    "without_levels",
]

#: The options of a turn that a suite's hash always covers; any other one only where it differs from its default, so
#: that a new option leaves the hashes of older suites as they are.
_HASHED = ("max_turns", "max_actions_per_turn", "max_actions", "format_penalty", "think")


@dataclass(frozen=True)
class Split:
    """Levels of one kind."""

    name: str  # such as ``"sokoban"``
    #: name of a row of the registry, such as ``"Sokoban"``, or ``"module:Name"`` of a game of one's own or a text task
    env: str
    #: arguments of ``ragen_gym.make_turn`` besides the levels and the options of a turn, such as ``{"success_rate":
    #: 0.8}``; plain values, or a ``Vocabulary``. Of a text task, its arguments.
    env_options: dict[str, Any]
    #: the instances, in order; the same level may occur twice, its place is what names an instance
    levels: tuple[Level, ...] | tuple[Problem, ...]
    turn_config: TurnConfig = field(default_factory=TurnConfig)  # how replies are read, bounded and rewarded
    about: str = ""  # one sentence for a table: what the split asks for
    #: success rates that others report on this split, from 0 to 1, by their name and source
    published: dict[str, float] = field(default_factory=dict)

    @property
    def is_task(self) -> bool:
        """True if a text task is played, and no game."""
        return any(isinstance(level, Problem) for level in self.levels[:1])

    @property
    def boards(self) -> tuple[Level, ...]:
        """The levels of a game, in order; none of a text task."""
        return tuple(level for level in self.levels if isinstance(level, Level))

    @property
    def one_of_each_size(self) -> list[Level]:
        """The first level of each size."""
        return list({tuple(map(len, level.text.split("\n"))): level for level in reversed(self.boards)}.values())[::-1]

    def make_env(self) -> TurnEnv | TaskEnv:
        """The environment of every episode; ``begin`` chooses the instance."""
        return task_env(self.env, self.turn_config, self.env_options) if self.is_task else self.make_game()

    def make_game(self) -> TurnEnv:
        """``make_env`` of a game.

        It is given one level of each size, so that it plays all of them and a reset never generates one in vain.

        Raises:
            ValueError: the split is one of a text task.
        """
        if self.is_task:
            raise ValueError(f"the split {self.name!r} plays the text task {self.env}, and this needs a game.")
        return make_turn(self.env, self.turn_config, levels=self.one_of_each_size, **self.env_options)

    def begin(self, env: ReplyEnv | StepEnv, index: int, noise_seed: int) -> tuple[Any, dict[str, Any]]:
        """Start the episode of an instance in an environment of the split: what its ``reset`` gives."""
        level = self.levels[index]
        if isinstance(level, Problem):
            return env.reset(seed=level.seed, options={"noise_seed": noise_seed})
        return env.reset(options={"level": level, "noise_seed": noise_seed})

    @cached_property
    def families(self) -> tuple[int, ...]:
        """The family of the level of each instance, in order; see ``ragen_gym.games.game.Game.family``.

        A problem of a text task is a family of its own.
        """
        if self.is_task:
            return tuple(level.family for level in self.levels if isinstance(level, Problem))
        game = self.make_game().game
        sized = {level: game.at_own_size(level) for level in dict.fromkeys(self.boards)}
        known = {level: at.family(board) for level, (at, board) in sized.items()}
        return tuple(known[level] for level in self.boards)

    def content(self) -> dict[str, Any]:
        """All that decides what is played, as JSON."""
        return {
            "name": self.name,
            "env": self.env,
            "knobs": {  # a name that is in every suite's hash
                name: asdict(value) if isinstance(value, Vocabulary) else value
                for name, value in self.env_options.items()
            },
            "budgets": {
                option.name: getattr(self.turn_config, option.name)
                for option in fields(TurnConfig)
                if option.name in _HASHED or getattr(self.turn_config, option.name) != option.default
            },
            "levels": [asdict(level) if isinstance(level, Problem) else level.text for level in self.levels],
        }


@dataclass(frozen=True)
class Published:
    """A success rate that others report."""

    who: str  # the agent, and where in the source it stands
    success: float  # from 0 to 1
    splits: tuple[str, ...]  # on which splits of the suite, all their instances together


@dataclass(frozen=True)
class Suite:
    """A benchmark."""

    name: str  # such as ``"ragen-v1"``
    splits: tuple[Split, ...]  # in the order of the report
    temperature: float = 0.5  # at which language models are sampled
    about: str = ""  # what the suite measures, in a sentence or two
    source: str = ""  # where the protocol is published; empty for one of this package
    noise: str = ""  # what noise seeds are made of: "index", a key, or "" for the suite's hash; see ``noise_seed``
    differs: tuple[str, ...] = ()  # in what the suite is not that protocol, a sentence each
    pooled: tuple[Published, ...] = ()  # what others report on several splits together

    @property
    def published(self) -> tuple[Published, ...]:
        """All that others report, on several splits together and on each, the main results first."""
        single = (Published(who, rate, (each.name,)) for each in self.splits for who, rate in each.published.items())
        return (*self.pooled, *single)

    @cached_property
    def hash(self) -> str:
        """Content hash, 16 hexadecimal digits of SHA-256: every result carries it."""
        content = [self.name, self.temperature, [split.content() for split in self.splits]]
        content += [self.noise] * bool(self.noise)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def noise_seed(suite: Suite, split: Split, index: int, rollout: int) -> int:
    """The seed of an episode's noise, 0 to 2**32 - 1: one for each instance and rollout, the same for all agents."""
    if suite.noise == "index":
        return index + rollout * len(split.levels)
    name = f"{suite.noise or suite.hash}/{split.name}/{index}/{rollout}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


#: The folders of the suites of this package, by name.
SUITES: dict[str, Path] = {
    name: Path(__file__).with_name(name)
    for name in (
        "ragen-v1",
        "generalization",
        "difficulty",
        "beyond-blind",
        "ragen-2",
        "spa",
        "echo",
        "rllm-frozenlake",
        "vagen-v1",
        "visual-generalization",
        "budget-v1",
        "smoke",
    )
}


def load_suite(name_or_path: str | Path, *, run_code: bool = True) -> Suite:
    """The suite of that name, or of a folder or a file of one's own.

    Args:
        name_or_path: the name or the path.
        run_code: whether the modules may be imported of games and tasks that are not of this package.

    Raises:
        ValueError: there is no such suite, or what is wrong with its table or with a level.
    """
    if str(name_or_path) in SUITES:
        return _load_own(str(name_or_path))
    path = Path(name_or_path)
    if not path.exists():
        raise ValueError(
            f"{str(name_or_path)!r} is not a suite: choose one of {', '.join(SUITES)}, "
            f"or give the path of a folder with a {SUITE_FILE}.{did_you_mean(str(name_or_path), SUITES)}"
        )
    return _load(path / SUITE_FILE if path.is_dir() else path, run_code=run_code)


@cache
def _load_own(name: str) -> Suite:
    return _load(SUITES[name] / SUITE_FILE, run_code=False)


def _names_task(name: str, *, run_code: bool) -> bool:
    """True if a text task has that name, or else a game; code that a file names is run only if it may be."""
    module = module_of(name) if isinstance(name, str) else ""
    if run_code or (module and not own_module(name)):
        if load_task(name) is None:
            load(name)
    elif module and module not in sys.modules:
        raise ValueError(
            f"{name} is a game of the module {module}, which is imported only for a suite that you name: give the "
            "suite's folder with --suite, if you trust who wrote it."
        )
    elif task_of(name) is None:
        find(name)
    return task_of(name) is not None


def without_levels(env: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A game's options but for those that give its levels, such as Gymnasium's ``desc``: a split has a file of them."""
    rest = {name: value for name, value in options.items() if name != "levels"}
    find(env).game_class.foreign_levels(rest)
    return rest


def task_env(name: str, turn_config: TurnConfig, options: dict[str, Any]) -> TaskEnv:
    """The environment of a text task with these options, of the split ``test`` unless they say otherwise."""
    return TaskEnv(name, turn_config, **{"split": "test", **options})


def _load(path: Path, *, run_code: bool) -> Suite:
    table = read_table(path)
    try:
        temperature = table.get("temperature", 0.5)
        check_number("the suite", "temperature", temperature, 0)
        splits = tuple(_split(row, table.get("budgets", {}), path.parent, run_code=run_code) for row in table["splits"])
        return Suite(
            name=table["name"],
            splits=splits,
            temperature=float(temperature),
            about=str(table.get("about", "")),
            source=str(table.get("source", "")),
            noise=str(table.get("noise", "")),
            differs=tuple(map(str, table.get("differs", ()))),
            pooled=tuple(
                Published(str(row["who"]), float(row["success"]), tuple(row["splits"]))
                for row in table.get("published", ())
            ),
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _split(row: dict[str, Any], shared: dict[str, Any], folder: Path, *, run_code: bool) -> Split:
    try:
        is_task = _names_task(row["env"], run_code=run_code)
        turn_config = TurnConfig(**{**shared, **row.get("budgets", {})})
        options = row.get("env_options", {})
        options = options if is_task else env_options(options)
        if "freeze" in row and not (folder / row["levels"]).is_file():
            raise ValueError(f"there is no file {row['levels']} yet: `ragen-gym bench freeze` of this suite writes it.")
        levels: tuple[Level, ...] | tuple[Problem, ...]
        if is_task:
            levels = read_problems(folder / row["levels"], task_env(row["env"], turn_config, options))
        else:
            game, own_size = make_turn(row["env"], turn_config, **options).game, not SIZE_OPTIONS & options.keys()
            boards = given_levels(game, folder / row["levels"], None, own_size=own_size).boards
            levels = tuple(game.for_board(board).level(board) for board in boards)
        return Split(
            name=row["name"],
            env=row["env"],
            env_options=options,
            levels=levels,
            turn_config=turn_config,
            about=row.get("about", ""),
            published={str(name): float(rate) for name, rate in row.get("published", {}).items()},
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"split {row['name']!r}: {error}") from None
