"""``ragen-gym levels export``, ``ragen-gym solve`` and ``ragen-gym check``: export levels, solve boards, test games."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean

import ragen_gym
from ragen_gym.cli.command import add_seed, progress_bar, wrapped
from ragen_gym.cli.env_options import add_environment_options, chosen_environment, environment_flags
from ragen_gym.core.command_line import add_command, print_json
from ragen_gym.core.console import track
from ragen_gym.core.levels import Level, text_of_levels
from ragen_gym.core.seeding import Stream, episode_key, stream_key
from ragen_gym.core.stats import wilson
from ragen_gym.core.storage import check_free, write_atomic
from ragen_gym.core.validation import named_values
from ragen_gym.envs.episode_stream import distinct_boards
from ragen_gym.envs.policies import action_budget, blind_value, hashed_draw, play_episode, random_policy
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


_FIELDS = {
    ".jsonl": "A line a level: `id`, a hash of its content; `game`; `split`; `text`, its first board; `actions`, the\n"
    "moves allowed; `optimal_success` and `optimal_return`, of the oracle; `first_action`, a best one; `plan`, a best\n"
    "episode where nothing is random; `problem`, why the oracle gave no answer.",
    ".txt": "Boards, a blank line between two, under comments. `ragen-gym` reads them again with `--levels`.",
}


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
    export.add_argument("--card", metavar="FILE", help="also write a dataset card, such as README.md (default: none)")
    export.add_argument("--force", action="store_true", help="replace the files if they are there")
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
    for path in filter(None, (arguments.out, arguments.card)):
        check_free(Path(path), arguments.force)
    env = StepEnv(spec.name, **chosen)
    _file_bytes(out.suffix, [])  # a form that cannot be written is an error before the work
    levels = _distinct_levels(env, arguments.n, arguments.seed)
    solving = track(levels, len(levels), "levels solved", prefix="ragen-gym: ")
    records = [_record_of(env, level, None) for level in solving]
    card = ""
    if arguments.card:
        card = _card(env, levels, records, out.name, arguments.seed, _command(arguments, out))
    check_free(out, arguments.force)
    write_atomic(out, _file_bytes(out.suffix, records))
    if arguments.card:
        write_atomic(arguments.card, card)
    print(f"{out}: {len(levels)} distinct levels of {spec.id}, split {env.split or 'any'}")
    return 0


def _card(env: StepEnv, levels: list[Level], records: list[LevelRecord], file: str, seed: int, command: str) -> str:
    """A dataset card in Markdown, with YAML for Hugging Face; ``env`` plays the levels, random play draws by seed."""
    budget, key, successes = action_budget(env), stream_key(seed, Stream.DYNAMICS), 0
    blindly: list[float] = []
    for number, level in enumerate(levels):
        env.reset(seed=number, options={"level": level})
        blindly += [blind_value(env, budget)[0]] if env.game.blind else []
        policy = random_policy(hashed_draw(episode_key(key, number)))
        successes += play_episode(env, policy, budget).success
    rate = wilson(successes, len(levels))
    solved = [record.optimal_success for record in records if record.problem is None]
    ours = env._levels is None and env.game_spec.game.startswith("ragen_gym.")
    template = Path(__file__).with_name("templates") / "dataset_card.md.txt"
    return template.read_text(encoding="utf-8").format(
        license="license: mit\n" if ours else "",
        file=file,
        n=len(levels),
        game=env.game_spec.name,
        summary=env.game_spec.summary[:1].upper() + env.game_spec.summary[1:],
        split=f"the split {env.split}" if env.split else "any split",
        random=f"{100 * rate.rate:.1f}",
        low=f"{100 * rate.low:.1f}",
        high=f"{100 * rate.high:.1f}",
        blind=f"| blind script | {100 * fmean(blindly):.1f} | exact | {len(blindly)} |\n" if blindly else "",
        script=" The blind script goes for the goal and ignores what is in the way." if blindly else "",
        optimal=f"{100 * fmean(solved):.1f}" if solved else "unknown",
        solved=len(solved),
        actions=budget,
        version=ragen_gym.__version__,
        command=command,
        fields=_FIELDS[f".{file.rpartition('.')[2]}"],
        licence="MIT, as ragen-gym, whose generator made the levels."
        if ours
        else "The owner of the levels or of the game chooses it, and adds it above as `license`.",
    )


def _command(arguments: argparse.Namespace, out: Path) -> str:
    """The command that writes the same levels, with names of files alone."""
    words = ["ragen-gym", "levels", "export", arguments.id]
    words += [word for option in arguments.options for word in ("--option", option)]
    file = Path(arguments.levels).name if arguments.levels else None
    for flag, value in (("--preset", arguments.preset), ("--split", arguments.split), ("--levels", file)):
        words += [flag, value] if value else []
    return shlex.join([*words, "-n", str(arguments.n), "--seed", str(arguments.seed), "--out", out.name])


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
