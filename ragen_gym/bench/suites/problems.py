"""Problems of text tasks in files: what a split of a task has in place of levels.

A task makes its problems of seeds, so a file holds seeds, and next to each what it gave when the file was written. A
task that has changed since gives something else, and the suite refuses to load: its scores would be of other problems.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from ragen_gym.core.levels import check_file
from ragen_gym.core.storage import json_line, write_atomic
from ragen_gym.core.validation import shown
from ragen_gym.envs.task import TaskEnv

__all__ = ["Problem", "draw_problems", "read_problems", "write_problems"]

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
