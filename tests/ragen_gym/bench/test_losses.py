"""Where games were lost: pivots and kinds of mistakes by hand, and what chance explains."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ragen_gym.bench.losses import KINDS, Loss, Losses, find_loss, kind_name, losses_by_split, losses_of, oracle_line
from ragen_gym.bench.records import EpisodeRecord, TurnRecord
from ragen_gym.bench.replay import Replayer
from ragen_gym.bench.report import benchmark_page
from ragen_gym.bench.report.viewer_data import details
from ragen_gym.bench.suites import Split, load_suite, noise_seed
from ragen_gym.core.levels import Level
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.policies import plan_moves, reply_for
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.registry import TABLE
from ragen_gym.games.values import _Kept

CORRIDOR = Level("Sokoban", "######\n#____#\n#PX_O#\n#____#\n######\n######")
LAKE = Level("FrozenLake", "P__G\nO___\n____\n____")
Replies = list[str | list[int]]


def played(level: Level, replies: Replies, turns: dict[str, Any] | None = None, **options: Any) -> Any:
    """(the replayer, the record) of an episode of these replies, or lists of moves."""
    config = TurnConfig(**(turns or {"max_turns": 3, "max_actions_per_turn": 2, "max_actions": 6}))
    split = Split("split", level.game, dict(options), (level,), config)
    env = split.make_game()
    env.reset(options={"level": level, "noise_seed": 1})
    return Replayer(split, valued=True), record_of(env, level, replies)


def record_of(env: TurnEnv, level: Level, replies: Replies) -> EpisodeRecord:
    records: list[TurnRecord] = []
    total, info = 0.0, dict[str, Any]()
    for reply in replies:
        text = reply if isinstance(reply, str) else reply_for(env, reply)
        _, reward, terminated, truncated, info = env.step(text)
        problem = info["reply"].problem
        records.append(TurnRecord("", text, info["actions"], reward, problem and problem.value))
        total += reward
        if terminated or truncated:
            return EpisodeRecord(
                "k", "split", 0, 0, level.id, 1, tuple(records), info["success"], total, terminated, truncated, ""
            )
    raise AssertionError("the episode goes on")


UP, DOWN, LEFT, RIGHT = range(4)


@pytest.mark.parametrize(
    ("replies", "kind", "turn", "move", "moves"),
    [
        ([[UP, RIGHT], [RIGHT, DOWN], [LEFT, LEFT]], "waste", 1, 0, 2),
        ([[UP, DOWN], [UP, DOWN], [UP, DOWN]], "waste", 2, 0, 4),
        ([[UP, RIGHT], [DOWN, LEFT], [LEFT, LEFT]], "unsolvable", 1, 0, 2),
        ([["?"], ["?"], ["?"]], "malformed", 2, None, 0),
        ([[UP], [DOWN], [UP, DOWN]], "waste", 2, 0, 2),
    ],
)
def test_the_pivot_of_a_warehouse(replies: Any, kind: str, turn: int, move: int | None, moves: int) -> None:
    texts = [reply[0] if isinstance(reply[0], str) else reply for reply in replies]
    replayer, record = played(CORRIDOR, texts)
    loss = find_loss(replayer, replayer.replay(record))
    assert loss is not None
    assert (loss.kind, loss.optimum) == (kind, 1)
    assert loss.regret == pytest.approx(1)
    assert (loss.turn, loss.move, loss.played) == (turn, move, moves)


def test_too_few_moves_forfeit_the_rest() -> None:
    replayer, record = played(CORRIDOR, [[RIGHT], [UP, DOWN]], {"max_turns": 2, "max_actions_per_turn": 1})
    loss = find_loss(replayer, replayer.replay(record))
    assert loss == Loss("waste", 1, 0, 1, 1.0, 1.0)
    replayer, record = played(CORRIDOR, [["?"][0], [RIGHT, RIGHT]], {"max_turns": 2, "max_actions_per_turn": 2})
    assert find_loss(replayer, replayer.replay(record)) is None, "it was won all the same"
    far = Level("Sokoban", "########\n#______#\n#PX___O#\n#______#\n########\n" + "\n".join(["########"] * 3))
    replayer, record = played(
        far, [[RIGHT], [RIGHT, RIGHT]], {"max_turns": 2, "max_actions_per_turn": 2}, size=8, boxes=1
    )
    loss = find_loss(replayer, replayer.replay(record))
    assert loss == Loss("short", 0, None, 1, 1.0, 1.0)
    first, second = details(replayer, record, "")["turns"]
    assert first["forfeited"][1] == 1
    assert "forfeited" not in second


def test_holes_and_slips() -> None:
    replayer, record = played(LAKE, [[1]], success_rate=1.0)
    assert find_loss(replayer, replayer.replay(record)) == Loss("fatal", 0, 0, 0, 1.0, 1.0)
    assert kind_name(replayer.env.game, "fatal") == "walks into a hole"
    one: dict[str, Any] = {"max_turns": 1, "max_actions_per_turn": 1}
    replayer, record = played(Level("FrozenLake", "PG\nO_"), [[2]], one, size=2, success_rate=0.0)
    loss = find_loss(replayer, replayer.replay(record))
    best = {2: 0.0, 1: 0.5}  # with a success rate of 0 only the sides are left: down may slip right
    assert loss is None or (loss.optimum, loss.regret) == (best[1], best[1] - best[2])
    replayer, record = played(Level("FrozenLake", "P__G\n____\n____\n____"), [[2]], one)
    assert find_loss(replayer, replayer.replay(record)) == Loss("hopeless", 0, None, 0, 0.0, 0.0)


def test_without_values_nothing_is_said() -> None:
    replayer, record = played(LAKE, [[1]], success_rate=1.0)
    plain = Replayer(replayer.split)
    assert find_loss(plain, plain.replay(record)) is None
    assert losses_of(plain, [record]).placed == 0


def test_levels_with_too_many_states_are_shown_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragen_gym.games.values.MAX_STATES", 3)
    monkeypatch.setattr("ragen_gym.games.values._kept", _Kept())
    replayer, record = played(LAKE, [[1]], success_rate=1.0)
    run: Any = SimpleNamespace(records=[record])
    [(name, place, found)] = losses_by_split([run], {"split": replayer})
    assert (name, place) == ("split", 0)
    assert found == Losses(1, 0, {}, None, None)
    assert benchmark_page._loss_cells(replayer, found)[:3] == ["0 of 1", "\N{EN DASH}", "\N{EN DASH}"]


def test_of_the_oracles_losses_on_ice_chance_explains_all() -> None:
    suite = load_suite("smoke")
    split = next(split for split in suite.splits if split.env == "FrozenLake")
    env, records = split.make_game(), []
    for index, level in enumerate(split.boards):
        for rollout in range(3):
            seed = noise_seed(suite, split, index, rollout)
            env.reset(options={"level": level, "noise_seed": seed})
            turns, info = list[TurnRecord](), dict[str, Any]()
            while not env.over:
                # One move a turn would forfeit moves of a budget by turns: play as a policy of moves does.
                _, reward, _, _, info = env.step(reply_for(env, plan_moves(env, 1)))
                turns.append(TurnRecord("", "", info["actions"], reward))
            records.append(
                EpisodeRecord(
                    "k", split.name, index, rollout, level.id, seed, tuple(turns), info["success"], 0.0, False, True, ""
                )
            )
    replayer = Replayer(split, valued=True)
    found = losses_of(replayer, records)
    assert found.lost == found.placed > 0
    assert set(found.kinds) <= set(KINDS)
    moves = sum(
        move.regret.success
        for record in records
        for turn in replayer.replay(record).turns
        for move in (turn.value.moves if turn.value else ())
    )
    assert moves == pytest.approx(0, abs=1e-6), "no move of the oracle has regret; what is lost, turns forfeit"
    assert found.chance is not None
    assert 0 < found.chance <= 1


@pytest.mark.parametrize("name", list(TABLE))
def test_every_game_has_words_for_every_kind_it_renames(name: str) -> None:
    assert set(TABLE[name].game_class.mistakes) <= set(KINDS)


def test_the_oracles_line_wins() -> None:
    replayer, _ = played(CORRIDOR, [[UP, DOWN]] * 3)
    game, board = replayer.env.game, replayer.env.game.board(CORRIDOR)
    assert oracle_line(game, game.solve(board), board, 6) == [RIGHT, RIGHT]
    assert np.frombuffer(board, np.uint8).any()


def test_the_viewer_marks_the_pivot_and_shows_the_oracles_line() -> None:
    replayer, record = played(CORRIDOR, [[UP, RIGHT], [DOWN, LEFT], [LEFT, LEFT]])
    shown = details(replayer, record, "")
    assert [frame.get("pivot") for frame in shown["frames"]][3] is True
    assert [frame["regret"][0] > 0 for frame in shown["frames"][1:4]] == [True, True, True]
    assert "pivot" not in shown["turns"][0]
    assert shown["turns"][1]["pivot"]["what"] == "makes a box unmovable, or the level unsolvable"
    assert shown["turns"][1]["pivot"]["oracle"] == "Left → Down → Right → Right"
    plain = details(Replayer(replayer.split), record, "")
    assert not any("regret" in frame or "pivot" in frame for frame in plain["frames"])
