"""The rule of Sokoban against a slow one, hand-drawn episodes, and the three ids."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ragen_gym.envs.step import StepEnv
from ragen_gym.games.sokoban import Sokoban
from ragen_gym.testing import check_game
from tests.ragen_gym.games.slow_warehouse import SlowWarehouse

Action = Sokoban.Action
IDS = ["Sokoban", "LargeSokoban", "NewVocab"]

KWARGS: list[dict[str, Any]] = [
    {},
    {"height": 8, "width": 8, "boxes": 2, "search_depth": 10},
    {"height": 5, "width": 8, "boxes": 2, "generator": "reverse_walk"},
    {"height": 7, "width": 5, "min_moves": 3, "max_moves": 12},
    {"height": 3, "width": 9},
]


def drawn(text: str) -> list[str]:
    """Boards drawn side by side, columns apart."""
    rows = [row.split() for row in text.strip().split("\n")]
    return ["\n".join(column) for column in zip(*rows, strict=True)]


class WarehouseMachine(RuleBasedStateMachine):
    """Drives the environment and the slow warehouse with the same actions."""

    @initialize(seed=st.integers(0, 2**70), kwargs=st.sampled_from(KWARGS))
    def start(self, seed: int, kwargs: dict[str, Any]) -> None:
        self.env = StepEnv("Sokoban", **kwargs)
        text, self.info = self.env.reset(seed=seed)
        self.slow = SlowWarehouse(text)
        self.over = False

    @precondition(lambda self: not self.over)
    @rule(action=st.sampled_from(list(Action)))
    def move(self, action: Any) -> None:
        names = self.slow.moves()
        assert [bool(bit) for bit in self.info["action_mask"]] == [a.name.capitalize() in names for a in Action]
        reward, self.over = self.slow.step(action.name.capitalize())
        text, got, terminated, truncated, self.info = self.env.step(int(action))
        assert got == pytest.approx(reward)
        assert (text, terminated, self.info["success"]) == (self.slow.text(), self.over, self.over)
        assert not truncated
        board, (player, off) = self.env.state
        assert board[player] in (Sokoban.Tile.PLAYER, Sokoban.Tile.PLAYER_ON_TARGET)
        assert off == len(self.slow.boxes - self.slow.targets)

    @precondition(lambda self: self.over)
    @rule(action=st.sampled_from(list(Action)))
    def end(self, action: Any) -> None:
        with pytest.raises(ResetNeeded):
            self.env.step(int(action))
        assert self.env.text == self.slow.text()


TestWarehouseMachine = WarehouseMachine.TestCase
TestWarehouseMachine.settings = settings(settings(), max_examples=80, stateful_step_count=30)


@pytest.mark.parametrize("kwargs", KWARGS, ids=str)
def test_the_game_keeps_the_suites_promises(kwargs: dict[str, Any]) -> None:
    check_game(Sokoban(**kwargs), examples=20, actions=6)


EPISODES = {
    "a box onto its target": (
        """
        ######  ######
        #____#  #____#
        #PXO_#  #_P√_#
        #____#  #____#
        ######  ######
        """,
        [("RIGHT", 10.9)],
    ),
    "off a target, round the box, and back onto it": (
        """
        #######  #######  #######  #######  #######  #######  #######
        #_____#  #_____#  #_P___#  #__P__#  #___P_#  #_____#  #_____#
        #P√___#  #_SX__#  #_OX__#  #_OX__#  #_OX__#  #_OXP_#  #_√P__#
        #X___O#  #X___O#  #X___O#  #X___O#  #X___O#  #X___O#  #X___O#
        #######  #######  #######  #######  #######  #######  #######
        """,
        [("RIGHT", -1.1), ("UP", -0.1), ("RIGHT", -0.1), ("RIGHT", -0.1), ("DOWN", -0.1), ("LEFT", 0.9)],
    ),
}


@pytest.mark.parametrize("name", EPISODES)
def test_hand_drawn_episodes(name: str) -> None:
    boards, moves = drawn(EPISODES[name][0]), EPISODES[name][1]
    rows = boards[0].split("\n")
    env = StepEnv("Sokoban", height=len(rows), width=len(rows[0]))
    text, _ = env.reset(seed=0, options={"level": boards[0]})
    assert text == boards[0]
    for (action, expected), board in zip(moves, boards[1:], strict=True):
        text, reward, terminated, _, info = env.step(Action[action])
        assert text == board
        assert reward == pytest.approx(expected)
        assert terminated == info["success"] == ("X" not in board)


@given(st.integers(0, 2**64))
@settings(max_examples=30)
def test_new_vocab_is_the_same_levels_in_other_symbols(seed: int) -> None:
    one, other = StepEnv("Sokoban"), StepEnv("NewVocab")
    table = str.maketrans("#_O√XPS", "W.GCBA@")
    text, info = one.reset(seed=seed)
    other_text, other_info = other.reset(seed=seed)
    assert other_text == text.translate(table)
    assert other_info["level_id"] == info["level_id"]
    assert other.level == one.level
    for split in ("train", "validation", "test"):
        one, other = StepEnv("Sokoban", split=split), StepEnv("NewVocab", split=split)
        assert one.reset(seed=seed)[1]["level_id"] == other.reset(seed=seed)[1]["level_id"]
