"""Boards in the thinking: every format is written and read back, and scores are exact on small examples."""

from __future__ import annotations

import time
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym import make_turn
from ragen_gym.core.text import TextFormat
from ragen_gym.core.turn_config import STATE_FORMATS, STATE_SCORES
from ragen_gym.envs.policies import plan_moves, reply_for
from ragen_gym.envs.state import StateText
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.registry import TABLE
from ragen_gym.games.sokoban import Sokoban

ROOM = "######\n#_P__#\n#_XO_#\n#____#\n######\n######"
LAKE = "P__O\n____\n_O__\n___G"


def reader(
    state_format: str = "text", state_score: str = "f1", game: Any = None, form: TextFormat = "grid"
) -> StateText:
    game = game or Sokoban()
    return StateText(game, game.own_vocabulary, form, state_format, state_score)


def test_how_boards_are_written() -> None:
    board = Sokoban().board(ROOM)
    assert reader("text").write(board) == reader("symbols").write(board) == ROOM
    assert reader("coordinates").write(board) == "player: (1,2)\nbox: (2,2)\ntarget: (2,3)"
    assert reader("sentences").write(board) == (
        "The player is in row 1, column 2. A box is 1 below the player. A target is 1 below and 1 right of the player."
    )
    nobody = board.replace(bytes([Sokoban.Tile.PLAYER]), bytes([Sokoban.Tile.FLOOR]))
    assert reader("sentences").write(nobody) == "The box is in row 2, column 2. The target is in row 2, column 3."
    lake = FrozenLake().board(LAKE)
    assert reader("sentences", game=FrozenLake()).write(lake) == (
        "The player is in row 0, column 0. A hole is 3 right of the player. A hole is 2 below and 1 right of the "
        "player. A goal is 3 below and 3 right of the player."
    )
    assert reader("symbols", game=FrozenLake(), form="coord").write(lake) == LAKE


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("state_format", STATE_FORMATS)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_reply_without_fault_is_right_in_every_format(name: str, state_format: str, seed: int) -> None:
    """A prediction may fail where the ice slips; its score is then paid in part."""
    if name.startswith("Bandit") and state_format != "text":
        with pytest.raises(ValueError, match=f"state_format='{state_format}' needs a board with rows and columns"):
            make_turn(name, grounding=True, state_format=state_format)
        return
    forms = ("grid",) if name.startswith("Bandit") else get_args(TextFormat)
    options: dict[str, Any] = {"text_format": forms[seed % len(forms)], "state_format": state_format}
    env = make_turn(name, grounding=True, world_modelling=True, state_reward=1, state_score="f1", **options)
    env.reset(seed=seed)
    _, reward, _, _, info = env.step(reply_for(env, plan_moves(env, 2)))
    assert info["reply"].problem is None
    assert (info["observation_right"], info["observation_score"]) == (True, 1.0)
    assert info["prediction_right"] == (info["prediction_score"] == 1.0)
    assert info["prediction_right"] or env.game.stochastic
    assert reward == pytest.approx(sum(info["rewards"]) + 0.5 + 0.5 * info["prediction_score"])


@pytest.mark.parametrize(
    ("state_format", "text", "objects", "f1"),
    [
        ("symbols", ROOM, 1, 1),
        # the player one to the left: the player's F1 is 0, the floor's 8 of 9 places, the others' 1
        ("symbols", ROOM.replace("_P__", "P___"), 2 / 3, (0 + 8 / 9 + 1 + 1 + 1) / 5),
        ("symbols", "", 0, 0),
        ("symbols", "so what?", 0, 0),
        ("coordinates", "player: (1,2)\nbox: (2,2)\ntarget: (2,3)", 1, 1),
        ("coordinates", "target: (2,3)\nwall: (0,0)\nbox:(2, 2)\nplayer: (1,3)", 2 / 3, 2 / 3),
        ("coordinates", "player: (1,2)\nbox: (2,2) (2,4)\ntarget: (2,3)", 3 / 4, (1 + 2 / 3 + 1) / 3),
        ("coordinates", "player: (1,2)\nbox at (2,2)", 1 / 3, 1 / 4),
        ("sentences", "the player is in row 1, column 2; a box is 1 below the player", 2 / 3, 2 / 3),
        ("sentences", "The player is in row 1, column 2. A box is 1 above the player.", 1 / 3, 1 / 3),
        ("sentences", "The player is the player. I see a box.", 0, 0),
        ("sentences", "The player is in row 1, column 2. A wall is 1 above the player.", 1 / 3, 1 / 3),
    ],
)
def test_scores_by_hand(state_format: str, text: str, objects: float, f1: float) -> None:
    board = Sokoban().board(ROOM)
    for score, expected in (("objects", objects), ("f1", f1), ("exact", float(f1 == 1))):
        found = reader(state_format, score).compare(text, board)
        assert found.score == pytest.approx(expected), score
        assert found.right is (f1 == 1)


def test_the_arms_of_a_bandit_are_scored_by_line() -> None:
    env = make_turn("Bandit", grounding=True, state_score="objects", state_reward=1)
    for seen, score in (("Teacher\nTrader", 1.0), ("Trader\nTeacher", 0.0), ("Teacher\nPilot", 0.5), ("Teacher", 0.5)):
        env.reset(seed=0, options={"level": "Teacher\nTrader"})
        info = env.step(f"<think><observation>{seen}</observation></think><answer>Trader</answer>")[-1]
        assert (info["observation_score"], info["observation_right"]) == (score, score == 1), seen


@given(
    st.text(),
    st.sampled_from([*STATE_FORMATS]),
    st.sampled_from([*STATE_SCORES]),
    st.sampled_from(get_args(TextFormat)),
)
def test_any_text_has_a_score(text: str, state_format: str, score: str, form: TextFormat) -> None:
    found = reader(state_format, score, form=form).compare(text, Sokoban().board(ROOM))
    assert 0 <= found.score <= 1
    assert found.right is False


@pytest.mark.slow
@pytest.mark.parametrize("form", get_args(TextFormat))
@pytest.mark.parametrize("state_format", STATE_FORMATS)
def test_a_long_line_of_blanks_takes_no_time(state_format: str, form: TextFormat) -> None:
    """As a model writes that has lost its way."""
    for blanks in (" " * 20_000, "\t" * 20_000, "box" + " " * 20_000, "box: (1,2)" + " " * 20_000):
        start = time.process_time()
        assert not reader(state_format, form=form).compare(f"board 6x6\n{blanks}!", Sokoban().board(ROOM)).right
        assert time.process_time() - start < 2


def test_the_form_of_a_reply_says_how_boards_are_written() -> None:
    def asked(**options: Any) -> tuple[str, str]:
        env = make_turn("Sokoban", grounding=True, world_modelling=True, **options)
        return env.instructions, env.reset(seed=0)[0]

    instructions, message = asked()
    assert "Things on a board" not in instructions
    assert message.endswith(
        "Reply with <think><observation>the board as it is</observation>your thoughts<prediction>the board after your "
        "moves</prediction></think><answer>first || second</answer>."
    )
    instructions, message = asked(state_format="coordinates")
    assert "Things on a board: target, box on target, box, player, player on target." in instructions
    assert "<observation>the board as it is, a line for each kind of thing, such as player: (0,1)" in message
    env = make_turn("Sokoban", grounding=True, world_modelling=True, state_format="sentences", text_format="grid_coord")
    assert env.reset(seed=0)[0] in env.observation_space
