"""Files of a suite: its table ``suite.toml``, and the problems of text tasks.

A table, of which a suite needs only ``name`` and ``splits``, and a split only ``name``, ``env`` and ``levels``::

    name = "my-suite-v0"
    about = "What it measures."
    temperature = 0.5
    noise = "index"  # noise seeds: an instance's place, as in training's evaluations; 16 hexadecimal digits: a key;
                     # without it the suite's hash
    source = "a paper and its code"  # of a protocol that others published
    differs = ["In what the suite is not that protocol, a sentence each."]

    [[published]]                   # success of others on several splits together
    who = "Somebody's agent"
    success = 0.5
    splits = ["slippery"]

    [budgets]                       # of every split; the options of ``TurnConfig``
    max_actions = 10

    [[splits]]
    name = "slippery"
    env = "FrozenLake"
    about = "What it asks for."
    levels = "slippery.txt"         # in the table's folder, as ``ragen-gym levels export`` writes it
    env_options = { success_rate = 0.5 }  # or such as vocabulary = { name = "mine", symbols = "…" }
    budgets = { max_turns = 3 }     # override those of the suite
    published = { "Somebody's agent" = 0.5 }  # on this split, the main result first
    freeze = { count = 128 }        # how ``ragen_gym.bench.suites.freeze`` makes the file of levels

A split of a text task names it as ``env = "my_module:Task"``, its ``env_options`` are the task's arguments, and its
problems are of the split ``test`` unless ``env_options`` has another ``split``. Of the budgets ``max_turns`` holds. Its
file of levels has a line of JSON for each problem: a task makes its problems of seeds, so a line holds a seed and what
it gave when the file was written. If the task has changed since, the suite refuses to load, since its scores would be
of other problems.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any

from ragen_gym.core.levels import check_file
from ragen_gym.core.storage import json_line, write_atomic
from ragen_gym.core.text import Vocabulary
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.core.validation import shown
from ragen_gym.envs.task import TaskEnv

SUITE_FILE = "suite.toml"

_TURN_OPTIONS = tuple(field.name for field in fields(TurnConfig))
_SUITE_KEYS = ("name", "about", "temperature", "noise", "source", "differs", "published", "budgets", "splits")
_PUBLISHED_KEYS = ("who", "success", "splits")
_SPLIT_KEYS = ("name", "env", "levels", "about", "env_options", "budgets", "published", "freeze")


def read_table(path: Path) -> dict[str, Any]:
    """The table of a suite, its keys checked.

    Raises:
        ValueError: it is no TOML, a key is missing or unknown, or two splits share a name.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}: a suite is a folder with a {SUITE_FILE}, or such a file.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        _check("the suite", table, _SUITE_KEYS, ("name", "splits"))
        _check_name("the suite", table["name"])
        _check("[budgets]", table.get("budgets", {}), _TURN_OPTIONS)
        if not isinstance(table["splits"], list) or not table["splits"]:
            raise ValueError("splits must be a list of tables: write one [[splits]] or more.")
        for row in table["splits"]:
            what = f"split {row.get('name', '')!r}" if isinstance(row, dict) else "a split"
            _check(what, row, _SPLIT_KEYS, ("name", "env", "levels"))
            _check(f"budgets of {what}", row.get("budgets", {}), _TURN_OPTIONS)
            _check(f"env_options of {what}", row.get("env_options", {}))
            _check_name(what, row["name"])
            _check_file(what, row["levels"])
            if "levels" in row.get("env_options", {}):
                raise ValueError(f"{what}: env_options cannot hold levels, which are those of {row['levels']}.")
        if not re.fullmatch("index|[0-9a-f]{16}", str(table.get("noise", "index"))):
            raise ValueError(
                f'noise={shown(table["noise"])} must be "index" or 16 hexadecimal digits: or leave it out.'
            )
        names = [row["name"] for row in table["splits"]]
        for row in table.get("published", ()):
            _check("[[published]]", row, _PUBLISHED_KEYS, _PUBLISHED_KEYS)
            if unknown := set(row["splits"]) - set(names):
                raise ValueError(f"[[published]] names the split {min(unknown)!r}: choose from {', '.join(names)}.")
            if not 0 <= row["success"] <= 1:
                raise ValueError(f"[[published]] success={row['success']} must be a number from 0 to 1.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two splits are called {twice[0]!r}: give each a name of its own.")
    except (ValueError, TypeError, RecursionError) as error:  # not TOML, nested too deeply, a value of another type
        raise ValueError(f"{path}: {error}") from None
    return table


def _check_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError(f"{what}: name={shown(name)} must be a text of printable characters.")


def _check_file(what: str, levels: Any) -> None:
    """A ValueError unless a file of levels lies in the table's folder: one from elsewhere is not written or read."""
    if not isinstance(levels, str) or not levels or Path(levels).is_absolute() or ".." in Path(levels).parts:
        raise ValueError(
            f"{what}: levels={shown(levels)} must be the name of a file in the folder of the table, such as "
            '"slippery.txt".'
        )


def env_options(options: dict[str, Any]) -> dict[str, Any]:
    """The ``env_options`` of a table as arguments of ``ragen_gym.envs.step.StepEnv``.

    Raises:
        ValueError: symbols that are not a vocabulary.
    """
    chosen = options.get("vocabulary")
    if not isinstance(chosen, dict):
        return options
    _check("vocabulary", chosen, ("name", "symbols"), ("name", "symbols"))
    return {**options, "vocabulary": Vocabulary(chosen["name"], chosen["symbols"])}


def _check(what: str, table: Any, allowed: Iterable[str] | None = None, needed: Iterable[str] = ()) -> None:
    """A ValueError unless ``table`` is a table with only the keys ``allowed`` (None: any) and all those ``needed``."""
    if not isinstance(table, dict):
        raise ValueError(f"{what} must be a table, not {table!r}.")
    for key in table:
        if allowed is not None and key not in allowed:
            raise ValueError(f"{what} has no key {key!r}: choose from {', '.join(allowed)}.")
    for key in needed:
        if key not in table:
            raise ValueError(f"{what} lacks its {key!r}.")


_SEEDS_EACH = 1000  # seeds tried for each problem before a task is taken to have no more


@dataclass(frozen=True)
class Problem:
    """One problem of a text task; in a file, a line of JSON with these fields."""

    seed: int  # of ``TaskEnv.reset``, 0 to 2**53 - 1
    id: str  # the ``level_id`` that it gives
    text: str  # the first message

    @property
    def family(self) -> int:
        """Hash of the problem, as in ``TaskEnv.level_families``."""
        return int(self.id, 16)


def _problem(env: TaskEnv, seed: int) -> Problem:
    text, info = env.reset(seed=seed)
    return Problem(seed, info["level_id"], text)


def draw_problems(env: TaskEnv, seed: int, number: int) -> list[Problem]:
    """The first so many different problems of the seeds from ``seed`` on; fewer where the task has no more."""
    found: dict[str, Problem] = {}
    tried = 0
    for each in count(seed):
        if len(found) == number or tried == _SEEDS_EACH:
            break
        problem = _problem(env, each)
        tried = 0 if problem.id not in found else tried + 1
        found.setdefault(problem.id, problem)
    return [*found.values()]


def read_problems(path: Path, env: TaskEnv) -> tuple[Problem, ...]:
    """The problems of a file, each compared with what its seed gives.

    Raises:
        ValueError: there is no such file, a line is no problem, or a seed gives another one.
    """
    check_file(path)
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line:
            continue
        try:
            problem = Problem(**json.loads(line))
            if type(problem.seed) is not int or not 0 <= problem.seed < 2**53:
                raise ValueError(f"seed is {shown(problem.seed)}")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a problem with its seed, id and text ({error}).") from None
        found = _problem(env, problem.seed)
        if found != problem:
            raise ValueError(
                f"{path}, line {number}: seed {problem.seed} of {env.name} gives {shown(found.text)} ({found.id}) and "
                f"not {shown(problem.text)} ({problem.id}): the task or its options have changed since the file was "
                "written. Write it again (`ragen-gym bench freeze`), and give the suite another name."
            )
        problems.append(problem)
    if not problems:
        raise ValueError(f"{path} holds no problem: write it with `ragen-gym bench freeze`.")
    return tuple(problems)


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Write problems as a file that ``read_problems`` reads; the write is atomic."""
    write_atomic(path, b"".join(json_line(asdict(problem)) for problem in problems))
