"""``ragen-gym levels export``, ``ragen-gym solve`` and ``ragen-gym check``: export levels, solve boards, test games."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from ragen_gym.cli.command import add_seed, progress_bar, wrapped
from ragen_gym.cli.env_options import add_environment_options, chosen_environment, environment_flags
from ragen_gym.core.command_line import add_command, named_values, print_json
from ragen_gym.core.console import track
from ragen_gym.core.levels import Level, text_of_levels
from ragen_gym.core.storage import check_free, write_atomic
from ragen_gym.envs.episode_stream import distinct_boards
from ragen_gym.envs.policies import action_budget
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.game import Solution
from ragen_gym.games.registry import build_game, load_task

_EXPORT_EXAMPLES = """\
The file's ending chooses the form: .txt (boards under comments, which --levels reads again) or .jsonl. Boards are
written in the game's own symbols.

example:
  ragen-gym levels export Sokoban --split test -n 100 --out sokoban-test.jsonl
"""

_SOLVE_EXAMPLES = """\
A file holds boards of any size, a blank line between two, in any vocabulary of the game; for Sokoban, in XSB too.

examples:
  ragen-gym solve Sokoban level.txt
  printf 'P___\\n_O__\\n___O\\n___G\\n' | ragen-gym solve FrozenLake -
"""

_CHECK_EXAMPLES = """\
examples:
  ragen-gym check FrozenLake
  ragen-gym check Sokoban --option size=5 --option generator=reverse_walk
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the three commands."""
    levels = commands.add_parser("levels", help="write levels to a file", description="Write levels to a file.")
    actions = levels.add_subparsers(metavar="ACTION")
    what = "write distinct levels with their ids, splits and optimal play"
    export = add_command(actions, "export", what, _export, _EXPORT_EXAMPLES)
    add_environment_options(export, board_text=False)
    export.add_argument("-n", type=int, default=100, metavar="N", help="how many (default: 100)")
    add_seed(export, "the levels")
    export.add_argument("--out", required=True, metavar="FILE", help="a file that ends in .txt or .jsonl")
    export.add_argument("--force", action="store_true", help="replace the file if it is there")
    about = "Optimal success, return and plan of the boards of a file."
    solve = add_command(commands, "solve", "solve the boards of a file", _solve, _SOLVE_EXAMPLES, about)
    add_environment_options(solve, rules_only=True)
    solve.add_argument("file", metavar="FILE", help="a file of boards, or - for the standard input")
    solve.add_argument("--actions", type=int, metavar="N", help="the most actions (default: the id's horizon)")
    solve.add_argument("--json", action="store_true", help="print JSON")
    check = add_command(
        commands,
        "check",
        "test whether a game keeps the suite's contract",
        _check,
        _CHECK_EXAMPLES,
        "Test a game and its environment by ragen_gym.testing: determinism, oracle, splits, spaces, text. "
        "The environment is tested once the game passes. What could not be checked, such as the oracle of a game "
        "too large to search, is printed below. The exit code is 0 if all tests pass, else 1.",
    )
    add_environment_options(check)


@dataclass(frozen=True)
class LevelRecord:
    """A level and optimal play of it."""

    id: str  # ``Level.id``
    game: str  # name of its game
    split: str | None  # the split that owns it, if one does
    text: str  # its first board in the game's own symbols
    actions: int  # the number of actions that the next two allow
    optimal_success: float = 0.0  # the highest probability of success, in [0, 1]
    optimal_return: float = 0.0  # the highest expected sum of rewards
    first_action: str = ""  # name of a best first action
    plan: tuple[str, ...] | None = None  # actions of a best episode where nothing is random and it succeeds
    problem: str | None = None  # why the oracle gave no answer; the four before it are then empty


def _distinct_levels(env: StepEnv, n: int, seed: int) -> list[Level]:
    """The first ``n`` different levels of a seed."""
    if n < 1:
        raise ValueError(f"-n {n}: ask for one level or more.")
    count = env.game.level_count(env.split) if env._levels is None else len(set(env._levels))
    boards: list[bytes] = []
    if count is None or n <= count:
        with progress_bar("levels drawn", n) as bar:
            for board in islice(distinct_boards(env.game, seed, env.split, env._levels), n):
                boards.append(board)
                bar.advance()
        count = len(boards)
    if count < n:
        where = f"of split {env.split}" if env.split else "of all splits"
        of, more = (
            (env.game_spec.id, ", or for a larger board") if env._levels is None else ("the file of --levels", "")
        )
        raise ValueError(f"{of} has only {count} different levels {where}; ask for -n {count} or fewer{more}.")
    return [env.game.for_board(board).level(board) for board in boards]


def _record_of(env: StepEnv, level: Level, actions: int | None) -> LevelRecord:
    """Oracle's answers for a level within so many actions (None: those of ``action_budget``)."""
    env.reset(seed=0, options={"level": level})
    game = env.game
    board, state = env.state
    left = actions or action_budget(env)
    known = level.id, level.game, game.split_of(board), level.text, left
    try:
        solution = env.solution()
        success = solution.success(board, state, left)
        total = solution.expected_return(board, state, left)
        first = env.action_names[solution.action(board, state, left)]
        plan = _plan(env, solution, left) if success == 1 and not game.stochastic else None
    except RuntimeError as error:  # a search that met its limit: reported, never a wrong answer
        return LevelRecord(*known, problem=str(error))
    return LevelRecord(*known, success, total, first, plan)


def _file_bytes(suffix: str, levels: list[LevelRecord]) -> bytes:
    """A level file of the form that its suffix names."""
    if suffix == ".txt":
        return text_of_levels(Level(level.game, level.text) for level in levels).encode()
    if suffix == ".jsonl":
        return "".join(json.dumps(asdict(level), ensure_ascii=False) + "\n" for level in levels).encode()
    raise ValueError(f"--out: {suffix or 'no ending'} is not a form of level file: end it in .txt or .jsonl.")


def _plan(env: StepEnv, solution: Solution, left: int) -> tuple[str, ...]:
    names: list[str] = []
    while True:
        action = solution.action(*env.state, left - len(names))
        names.append(env.action_names[action])
        if env.step(action)[2]:
            return tuple(names)


def _export(arguments: argparse.Namespace) -> int:
    spec, chosen = chosen_environment(arguments)
    out = Path(arguments.out)
    check_free(out, arguments.force)
    env = StepEnv(spec.name, **chosen)
    _file_bytes(out.suffix, [])  # a form that cannot be written is an error before the work
    levels = _distinct_levels(env, arguments.n, arguments.seed)
    solving = track(levels, len(levels), "levels solved", prefix="ragen-gym: ")
    records = [_record_of(env, level, None) for level in solving]
    check_free(out, arguments.force)
    write_atomic(out, _file_bytes(out.suffix, records))
    print(f"{out}: {len(levels)} distinct levels of {spec.id}, split {env.split or 'any'}")
    return 0


def _solve(arguments: argparse.Namespace) -> int:
    if arguments.actions is not None and arguments.actions < 1:
        raise ValueError(f"--actions {arguments.actions}: give 1 or more.")
    arguments.levels = f"{sys.stdin.read()}\n" if arguments.file == "-" else arguments.file
    if not arguments.levels.strip():
        raise ValueError("the standard input holds no board: write one row a line, a blank line between boards.")
    spec, chosen = chosen_environment(arguments)
    env = StepEnv(spec.name, **chosen)
    solved = []
    for number in track(range(count := len(env._levels or ())), count, "boards", prefix="ragen-gym: "):
        env.reset(seed=0, options={"level": number})
        solved.append(_record_of(env, env.level, arguments.actions))
        if not arguments.json:
            _print(solved[-1])
    if arguments.json:
        print_json([asdict(record) for record in solved])
    return 1 if any(record.problem for record in solved) else 0


def _print(record: LevelRecord) -> None:
    print(f"level {record.id}, split {record.split or 'none'}\n{record.text}")
    if record.problem:
        print(f"  {record.problem}\n")
        return
    within = f"{record.actions} action{'s' * (record.actions != 1)}"
    print(f"  optimal success {100 * record.optimal_success:.2f} % within {within}")
    print(f"  optimal return  {record.optimal_return:g}")
    if record.plan is not None:
        print(f"  plan            {' '.join(record.plan)}")
    else:
        print(f"  first action    {record.first_action}")
    print()


def _check(arguments: argparse.Namespace) -> int:
    from ragen_gym.testing import check_env, check_game, check_task

    steps: tuple[tuple[str, Callable[[], list[str] | None]], ...]
    if load_task(arguments.id) is not None:
        for name in environment_flags(arguments):
            raise ValueError(f"--{name.replace('_', '-')} is for games: leave it out for a text task.")
        options = named_values("--option", arguments.options)
        steps = (("the task: seeds, splits, replies, oracle", lambda: check_task(arguments.id, **options)),)
    else:
        spec, chosen = chosen_environment(arguments)
        own = {name: value for name, value in chosen.items() if name in spec.game_class.options()}
        game = build_game(spec, own, chosen.get("preset"))  # no environment: what the class lacks would break it
        steps = (
            ("the game: generator, splits, text, rule, mask, oracle", lambda: check_game(game)),
            ("the environment: spaces, seeds, resets, processes, batches", lambda: check_env(spec.name, **chosen)),
        )
    for what, run in steps:
        try:
            unchecked = run() or []
        except AssertionError as error:
            print(f"FAILED  {what}\n{error}")
            return 1
        print(f"ok      {what}", flush=True)
        for said in unchecked:
            print(wrapped(said, "        not checked: "), flush=True)
    return 0
