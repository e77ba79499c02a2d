"""The checks catch what they promise to catch: every fault here is one change to a game that passes."""

from __future__ import annotations

import subprocess
import sys
import zlib
from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from ragen_gym.cli import main
from ragen_gym.core.levels import split_of_hash
from ragen_gym.core.seeding import Stream
from ragen_gym.core.text import Vocabulary
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.frozen_lake import rules as lake_rules
from ragen_gym.games.game import Board, Solution
from ragen_gym.games.grid import GridGame
from ragen_gym.games.registry import TABLE, GameSpec
from ragen_gym.testing import check_env, check_game, replay
from tests.ragen_gym.testing.tightrope import Tightrope, rules
from tests.ragen_gym.testing.tightrope.solve import TightropeSolution

#: One change to the text of `rules.step`.
BENT_RULES = [
    ("u >= params[0]", "u >= 0.35", "a rule may compare u only with numbers in params"),
    ("(1.0, 2) if taken", "(1, 2) if taken", "it must return a float and 0, 1 or 2"),
    ("return 0.0, 0", "return -0.25, 0", "pays -0.25, which no rewards of the table add up to"),
    ("board[cell + 1] = 2", "board[cell + 1] = 0", r"changes what the game conserves from \(1,\) to \(0,\)"),
    ("(1.0, 2) if taken", "(1.0, 0) if taken", "goes on, though `over` says of the new board that the game is over"),
    ("state[0] = cell + 1", "state[0] = cell + 1 + 2**32", "as Python and .* compiled"),
    ("board[cell] = 3", "board[cell : cell + 1] = bytes([3])", "numba cannot compile the rule"),
    (
        "def step(",
        "def step(board, state, action, u, params):\n    return plain(board, state, action, u, params)\n\n\ndef plain(",
        r"(?s)numba cannot compile the rule.*Decorate each function that the rule calls with .*register_jitable",
    ),
]

ONE_MASK = np.ones(2, np.int8)


def changed(fault: dict[str, Any]) -> Tightrope:
    """The tightrope with some of its members replaced."""
    broken: type[Tightrope] = dataclass(frozen=True)(type("Broken", (Tightrope,), {"__annotations__": {}, **fault}))
    return broken(width=9)


def bent(right: str, wrong: str, folder: Path) -> Any:
    """The rule of the tightrope with one change to its text."""
    path = folder / f"bent_{zlib.crc32(wrong.encode())}.py"
    source = Path(rules.__file__).read_text()
    assert right in source
    path.write_text(source.replace(right, wrong))
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return staticmethod(module.step)


def always(board: Any, state: Any, params: Any) -> int:
    return 3


def solver(**wrong: Any) -> Callable[[Tightrope, Board], Solution]:
    """The tightrope's, with some methods replaced."""
    solution: type[TightropeSolution] = type("Wrong", (TightropeSolution,), wrong)
    return lambda game, board: solution(game.grip, board.index(rules.Tile.FLAG))


def forgetful(solution: TightropeSolution, board: Board, state: Sequence[int], actions_left: int) -> float:
    return TightropeSolution.success(solution, board, state, actions_left) / (1 + actions_left)


def dawdling(solution: TightropeSolution, board: Board, state: Sequence[int], actions_left: int) -> int:
    """Steps back at the start of the rope for as long as there is time for that: its chance of success is the best."""
    need = board.index(rules.Tile.FLAG) if rules.Tile.FLAG in board else 0
    return int(state[0] > 0 or need >= actions_left) and TightropeSolution.action(solution, board, state, actions_left)


def first_board_for_all(game: Tightrope, keys: Any, split: str | None) -> Any:
    boards = Tightrope.generate(game, keys, split)
    boards[:] = boards[:1]
    return boards


def flat_text(game: Tightrope, vocabulary: Any, text_format: Any) -> Callable[[Board], str]:
    write = Tightrope.formatter(game, vocabulary, text_format)
    return lambda board: write(board).replace("X", "A")


def one_family(game: Tightrope, board: Board) -> int:
    return 7


def split_by_level(game: Tightrope, board: Board) -> str:
    return split_of_hash(Tightrope.family(game, board))


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"noise": Stream.LEVEL}, "it must be Stream.DYNAMICS or Stream.REWARD, or the noise would depend"),
    ({"stochastic": False}, "a rule may compare u only with numbers in params"),
    ({"rewards": lambda game: (("taking the flag", 1.0),)}, "pays -0.5, which no rewards of the table add up to"),
    (
        {"conserved": lambda game, board: (bytes(board).index(2) if 2 in board else -1,)},
        "changes what the game conserves",
    ),
    ({"longest": 1}, "is move 1 and goes on; longest=1"),
    ({"action_mask": lambda game, board, state: np.ones(2, np.int8)}, "the actions that can change the state are"),
    ({"action_mask": lambda game, board, state: np.array([state[0] > 0, 1])}, "it must be int8"),
    (
        {"action_mask": lambda game, board, state: ONE_MASK, "noise_in_params": False},
        "gives one array twice: give a fresh one",
    ),
    ({"legal": staticmethod(always)}, "legal says 0b11, action_mask"),
    ({"solve": solver(success=lambda *_: 1.0)}, "with no action left there is neither success nor reward"),
    ({"solve": solver(action=lambda *_: 0)}, "its own actions reach"),
    (
        {"solve": solver(success=lambda *_: 0.0, expected_return=lambda *_: 0.0, action=lambda *_: 0)},
        "and trying everything gives",
    ),
    ({"solve": solver(success=forgetful)}, "chance of success must grow with the actions left"),
    (
        {"solve": solver(action=dawdling)},
        r"moves that change nothing where it can still win.*actions left, BACK on",
    ),
    ({"solve": solver(action=lambda *_: 5)}, "the oracle's action 5 is not one of the game's"),
    ({"blind": staticmethod(lambda board, state, params: 2)}, "blind returns 2, then 2; it must return an action"),
    ({"blind": staticmethod(lambda board, state, params: state.append(0) or 1)}, "blind changes its arguments"),
    ({"blind": lambda board, state, params: 1}, r"write `blind = staticmethod\(…\)`"),
    ({"generate": first_board_for_all}, "a key's board depends on other keys or earlier calls"),
    ({"generate": lambda game, keys, split: Tightrope.generate(game, keys, None)}, "that split_of calls"),
    ({"generate": lambda game, keys, split: Tightrope.generate(game, keys, None).astype(int)}, "must be uint8"),
    ({"starts": lambda game, boards: Tightrope.starts(game, boards).astype(np.int64)}, "it must be int32"),
    ({"split_of": lambda game, board, version=2: "dev"}, "split_of gives 'dev', not one of"),
    ({"family": lambda game, board, version=2: -1}, "family gives -1; it must be an int from 0 to"),
    ({"family": one_family, "split_of": split_by_level}, "the family of this level is in 'train' and in"),
    ({"ids": lambda game, boards: ["0" * 16 for _ in boards]}, "disagrees with Level.id"),
    ({"formatter": flat_text}, "the text does not read back as its board"),
    ({"charset": lambda game, vocabulary, text_format: (frozenset("-FA\n"), 1, 999)}, r"charset lacks"),
    (
        {"charset": lambda game, v, f: (Tightrope.charset(game, v, f)[0], 1, 3)},
        "charset says 1 to 3 characters, this text",
    ),
]


@pytest.mark.parametrize(
    ("fault", "message"), FAULTS, ids=lambda value: "-".join(value) if isinstance(value, dict) else None
)
def test_check_game_sees_the_fault(fault: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_game(changed(fault))


@pytest.mark.parametrize(("right", "wrong", "message"), BENT_RULES)
def test_check_game_sees_a_bent_rule(right: str, wrong: str, message: str, tmp_path: Path) -> None:
    game = changed({"rule": bent(right, wrong, tmp_path)})
    with pytest.raises(AssertionError, match=message):
        check_game(game, examples=300)  # what is drawn changes with Hypothesis


def hidden(folder: Path, **fault: Any) -> Tightrope:
    """A tightrope of grip 0.35 whose rule keeps that number to itself, with some members replaced."""
    oracle = {"solve": lambda game, board: TightropeSolution(0.35, board.index(rules.Tile.FLAG))}
    return changed({"rule": bent("u >= params[0]", "u >= 0.35", folder), "noise_in_params": False, **oracle, **fault})


def hidden_solver(**wrong: Any) -> Callable[[Tightrope, Board], Solution]:
    solution: type[TightropeSolution] = type("Wrong", (TightropeSolution,), wrong)
    return lambda game, board: solution(0.35, board.index(rules.Tile.FLAG))


def any_time(solution: TightropeSolution, board: Board, state: Sequence[int], actions_left: int) -> float:
    """Success as if there were always time enough."""
    return TightropeSolution.success(solution, board, state, 99 if actions_left else 0)


def hopeless(*asked: Any) -> float:
    return 0.0


def back(*asked: Any) -> int:
    return 0


def certain(*asked: Any) -> float:
    return float(asked[-1] > 0)


def test_check_game_takes_a_game_that_keeps_its_chances_to_itself_and_says_what_it_left_out(tmp_path: Path) -> None:
    (said,) = check_game(hidden(tmp_path))
    assert said.startswith("the action mask, and the oracle against a search through everything")
    assert any(
        "the oracle against a search through everything, from" in said for said in check_game(Tightrope(), max_nodes=0)
    )
    assert check_game(Tightrope()) == []
    (said,) = check_game(changed({"blind": None}), examples=1)
    assert said.startswith("the blind script: the game has none")


@pytest.mark.parametrize(
    "wrong",
    [{"success": certain}, {"action": back}, {"success": any_time}],
    ids="-".join,
)
def test_check_game_sees_a_wrong_oracle_of_a_game_that_keeps_its_chances_to_itself(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="the oracle promises"):
        check_game(hidden(tmp_path, solve=hidden_solver(**wrong)))


def test_check_game_sees_wrong_oracles_by_play_alone() -> None:
    wrong = {"expected_return": hopeless}
    with pytest.raises(AssertionError, match=r"a return of at most 0, and (the oracle's own|random) moves earn 0\.\d+"):
        check_game(changed({"solve": solver(**wrong), "grip": 0.95}), max_nodes=0)
    wrong = {"success": hopeless, "expected_return": certain, "action": back}
    with pytest.raises(
        AssertionError, match=r"success of 0, and random moves succeed at a rate of 0\.\d+ in 250 episodes"
    ):
        check_game(changed({"solve": solver(**wrong)}), max_nodes=0)


def test_check_game_sees_a_mask_that_forbids_the_winning_move() -> None:
    """Of levels on which random moves seldom come next to the goal."""

    def losing(game: FrozenLake, board: Board, state: Sequence[int]) -> Any:
        bits, ways = lake_rules.legal(board, state, game.params), game.params[0]
        goals = [board[ways[12 * state[0] + 3 * action]] == lake_rules.Tile.GOAL for action in range(4)]
        return np.array([bits >> action & 1 and not goal for action, goal in enumerate(goals)], np.int8)

    members = {"__annotations__": {}, "action_mask": losing, "legal": None, "masker": lambda game: game.action_mask}
    broken: type[FrozenLake] = dataclass(frozen=True)(type("Broken", (FrozenLake,), members))
    with pytest.raises(AssertionError, match="the actions that can change the state are"):
        check_game(broken(size=6, success_rate=0.8))


def test_check_game_sees_a_rule_that_depends_on_more_than_its_arguments(tmp_path: Path) -> None:
    fickle = bent("    cell = state[0]\n", "    cell = state[0]\n    u = np.random.random()\n", tmp_path)
    fickle.__func__.__globals__["np"] = np
    with pytest.raises(AssertionError, match=r"depends? on (more than )?its arguments|as Python and"):
        check_game(hidden(tmp_path, rule=fickle))


def test_check_game_names_splits_formats_and_levels_that_it_left_out() -> None:
    def fixed(game: Tightrope, keys: Any, split: str | None) -> Any:
        if split == "test":
            raise ValueError("no such rope")
        return Tightrope.generate(game, keys, split)

    class Unsolved(RuntimeError):
        """As of an oracle that searches, and met its limit."""

    def unsolved(*asked: Any) -> float:
        raise Unsolved("more than 9 nodes")

    unchecked = check_game(changed({"generate": fixed, "solve": solver(success=unsolved)}))
    assert "levels of split='test': the game has none (no such rope)" in unchecked
    assert "the oracle where it gives no answer: more than 9 nodes" in unchecked


class FromOne(IntEnum):
    BACK, ON = 1, 2


def bare_class(**members: Any) -> type[Tightrope]:
    """The class of a game that declares these members, and misses those that are `...`."""
    kept = {name: member for name, member in vars(Tightrope).items() if not name.startswith("__")}
    kept |= {name: vars(Tightrope)[name] for name in ("__annotations__", "__module__")}
    kept = {name: member for name, member in (kept | members).items() if member is not ...}
    created: Any = ABCMeta("Bare", (GridGame,), kept)
    made: type[Tightrope] = dataclass(frozen=True)(created)
    return made


def bare(**members: Any) -> Tightrope:
    return bare_class(**members)(width=9)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"name": ...}, "Bare has no `name`: give it the name of its id"),
        ({"rule": ...}, r"Bare has no `rule`: give it staticmethod\(your_rule\)"),
        ({"rule": rules.step}, r"Bare.rule is a plain function.*write `rule = staticmethod\(…\)`"),
        ({"Action": FromOne}, r"Bare.Action must be an IntEnum that counts from 0"),
        ({"vocabularies": {}}, "Bare.vocabularies is empty"),
        ({"vocabularies": {"few": Vocabulary("few", "-A")}}, "vocabulary 'few' has 2 symbols for .* in that order"),
        ({"params": property(lambda game: {"grip": game.grip})}, "Bare.params is a dict; it must be a tuple"),
        (
            {"generate": lambda game, keys, split: Tightrope.generate(game, keys, split)[:, :5]},
            r"generate gives uint8 \(16, 5\); it must be uint8 \(16, 9\)",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_check_game_says_what_a_class_lacks(members: dict[str, Any], message: str) -> None:
    check_game(bare(), examples=2)
    with pytest.raises(AssertionError, match=message):
        check_game(bare(**members))


@pytest.mark.parametrize(
    ("members", "code", "message"),
    [
        ({"Action": ...}, 1, "Bare has no `Action`: give it an IntEnum"),
        ({"rewards": ..., "over": ...}, 2, "Bare lacks rewards: its class"),
        (None, 2, "Bare: its entry says game="),
    ],
)
def test_the_command_says_what_a_class_lacks(
    members: dict[str, Any] | None,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if members is not None:
        monkeypatch.setattr(sys.modules[__name__], "Bare", bare_class(**members), raising=False)
    monkeypatch.setitem(TABLE, "Bare", GameSpec("Bare", f"{__name__}:Bare", 10, "one that lacks something"))
    assert main(["check", "Bare"]) == code
    out, errors = capsys.readouterr()
    assert message in out + errors


def test_check_game_says_that_an_option_is_none() -> None:
    class Wobbly(Tightrope):
        wind: float = 0.5

    with pytest.raises(AssertionError, match=r"Wobbly declares wind and is not a dataclass of its own.*frozen=True"):
        check_game(Wobbly())


class TakesAnother(StepEnv):
    def step(self, action: int) -> Any:
        if not self._allowed:
            self.reset()
        return super().step(action)


class Remembers(StepEnv):
    played = 0

    def step(self, action: int) -> Any:
        self.played += 1
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        for _ in range(self.played % 3):
            super().reset(seed=seed)
        return super().reset(seed=seed if seed is not None or not self.played else None, options=options)


class NoiseMovesTheLevel(StepEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        seed = seed + 1 if options and seed is not None else seed
        return super().reset(seed=seed, options=options)


class Unseeded(StepEnv):
    count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        type(self).count += seed == 2**70
        return super().reset(seed=(seed or 0) + self.count, options=options)


class CheersEarly(StepEnv):
    def step(self, action: int) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "success": True}


class ShowsThePast(StepEnv):
    def step(self, action: int) -> Any:
        before = self.text if self._episodes else ""
        return before, *super().step(action)[1:]


ENV_FAULTS = [
    (TakesAnother, "takes a step before the first reset|takes a step after the end"),
    (Remembers, "depends on what was played before|gives two different|in threads|other noise"),
    (NoiseMovesTheLevel, "noise_seed=0 changes the level"),
    (Unseeded, "in threads"),
    (CheersEarly, "success without the end of the game"),
    (ShowsThePast, "the text reads back as another board"),
]


@pytest.fixture
def broken(request: pytest.FixtureRequest) -> Iterator[str]:
    gymnasium.register("tests/Broken-v0", request.param, kwargs={"name": "FrozenLake"}, max_episode_steps=10)
    yield "tests/Broken-v0"
    del gymnasium.registry["tests/Broken-v0"]


@pytest.mark.parametrize(
    ("broken", "message"), ENV_FAULTS, indirect=["broken"], ids=lambda value: getattr(value, "__name__", "")
)
def test_check_env_sees_the_fault(broken: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_env(gymnasium.make(broken), processes=False)


def test_check_env_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="'Chess' is not a game of this suite"):
        check_env("Chess")
    with pytest.raises(ValueError, match="check_env needs an id, or an environment with a spec"):
        check_env(StepEnv("FrozenLake"))
    with pytest.raises(ValueError, match="arguments size go with an id; an environment that is made has its own"):
        check_env(gymnasium.make("ragen/FrozenLake-v0"), size=3)


def test_check_game_and_check_env_refuse_what_they_cannot_check() -> None:
    wrong: Any = FrozenLake
    with pytest.raises(AssertionError, match=r"FrozenLake is a class: give a game, such as FrozenLake\(\)"):
        check_game(wrong)
    with pytest.raises(ValueError, match="check_env: steps=0 must be an integer from 1 on"):
        check_env("FrozenLake", steps=0)


def test_check_env_opens_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pygame has one window, which the threads of the check would open together; they ended the process."""
    monkeypatch.setattr("ragen_gym.render.renderer.Window.show", lambda window, picture: pytest.fail("a window"))
    check_env("FrozenLake", render_mode="human", steps=5, processes=False)


def test_replay_repeats_an_episode_from_what_names_it() -> None:
    arguments: tuple[Any, ...] = (
        "FrozenLake",
        {"size": 3, "success_rate": 0.8},
        2**70,
        [0, 1, 2, 3] * 5,
        {"noise_seed": 4},
    )
    records = replay(*arguments)
    assert records == replay(*arguments)
    assert records[0].keys() == {"observation", "level_id", "success", "action_mask"}
    assert sum("reward" in record for record in records) == 20
    other = (*arguments[:4], {"noise_seed": 5})
    assert records != replay(*other)


def test_without_hypothesis_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['hypothesis'] = None\nimport ragen_gym.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        "ragen_gym.testing needs Hypothesis: pip install hypothesis, or pip install 'ragen-gym[test]' for all tests."
        in done.stderr
    )
