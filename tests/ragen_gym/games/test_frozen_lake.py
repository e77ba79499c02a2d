"""The rule of FrozenLake against a slow one and Gymnasium's table, and its slip law."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.error import ResetNeeded
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ragen_gym.core.seeding import Stream, episode_keys, stream_key, uniforms
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.testing import check_game
from tests.ragen_gym.games.slow_lake import SlowLake

Action = FrozenLake.Action
OPEN = "_____\n_____\n__P__\n_____\n____G"


class LakeMachine(RuleBasedStateMachine):
    """Drives the environment and the slow lake with the same draws, which the documented stream gives."""

    @initialize(
        seed=st.integers(0, 2**70),
        noise_seed=st.integers(0, 2**70),
        success_rate=st.sampled_from([0.0, 1 / 3, 0.5, 0.8, 1.0]),
        shape=st.tuples(st.integers(2, 5), st.integers(2, 5)),
    )
    def start(self, seed: int, noise_seed: int, success_rate: float, shape: tuple[int, int]) -> None:
        height, width = shape
        self.env = StepEnv("FrozenLake", height=height, width=width, success_rate=success_rate)
        text, info = self.env.reset(seed=seed, options={"noise_seed": noise_seed})
        self.slow = SlowLake(text, success_rate)
        self.key = episode_keys(stream_key(noise_seed, Stream.DYNAMICS), 0, 1)
        self.level_id = info["level_id"]
        self.over = False

    @precondition(lambda self: not self.over)
    @rule(action=st.sampled_from(list(Action)))
    def move(self, action: Any) -> None:
        u = float(uniforms(self.key, self.slow.moves, 1)[0, 0])
        reward, self.over, success = self.slow.step(action.name.capitalize(), u)
        text, got, terminated, truncated, info = self.env.step(int(action))
        assert (text, got, terminated, info["success"]) == (self.slow.text(), reward, self.over, success)
        assert not truncated
        assert info["level_id"] == self.level_id

    @precondition(lambda self: self.over)
    @rule(action=st.sampled_from(list(Action)))
    def end(self, action: Any) -> None:
        with pytest.raises(ResetNeeded):
            self.env.step(int(action))
        assert self.env.text == self.slow.text()


TestLakeMachine = LakeMachine.TestCase
TestLakeMachine.settings = settings(settings(), max_examples=60, stateful_step_count=25)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"success_rate": 1.0},
        {"success_rate": 0.0, "frozen_prob": 0.5},
        {"size": 2},
        {"height": 2, "width": 6, "success_rate": 0.98},
        {"height": 5, "width": 3, "random_start": False, "min_path": 7},
        {"size": 12, "success_rate": 0.8},
    ],
    ids=str,
)
def test_the_game_keeps_the_suites_promises(kwargs: dict[str, Any]) -> None:
    check_game(FrozenLake(**kwargs), examples=25, actions=8)


@pytest.mark.parametrize("success_rate", [0.0, 0.1, 1 / 3, 0.5, 0.8, 0.98, 1.0])
@pytest.mark.parametrize("text", [OPEN, "P_O__\n_O___\nO____\n_____\n____G"])
def test_chances_are_gymnasiums(text: str, success_rate: float) -> None:
    """The law of every move from every place, against Gymnasium's own table of it."""
    letters = str.maketrans("_OGP", "FHGS")
    desc = text.translate(letters).split("\n")
    reference = FrozenLakeEnv(desc=desc, is_slippery=True, success_rate=success_rate)
    game = FrozenLake(size=5, success_rate=success_rate)
    for place in range(25):
        cells = text.replace("P", "_").replace("\n", "")
        if cells[place] != "_":
            continue
        cells = cells[:place] + "P" + cells[place + 1 :]
        board = game.parse("\n".join(cells[i : i + 5] for i in range(0, 25, 5)))
        state = game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist()
        for action in Action:
            expected: Counter[tuple[int, float, bool]] = Counter()
            for chance, target, reward, over in reference.P[place][int(action)]:
                expected[int(target), float(reward), bool(over)] += chance
            got: Counter[tuple[int, float, bool]] = Counter()
            for chance, u in game.noise_intervals():
                after = list(state)
                reward, outcome = game.rule(bytearray(board), after, action, u, game.params)
                (cell,) = after
                got[cell // 6 * 5 + cell % 6, reward, outcome > 0] += chance  # type: ignore[assignment]
            assert {k: v for k, v in got.items() if v} == pytest.approx({k: v for k, v in expected.items() if v})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": 1}, r"FrozenLake: size=1 must be None or an integer from 2 to 64\."),
        ({"height": 65}, r"height=65 must be an integer from 2 to 64\."),
        ({"width": 4.0}, r"width=4.0 must be an integer from 2 to 64\."),
        ({"size": "4"}, r"size='4' must be None or an integer"),
        ({"size": 4, "height": 5}, r"size=4 and height=5 disagree; leave one out\."),
        ({"frozen_prob": 1.5}, r"frozen_prob=1.5 must be a number from 0 to 1\."),
        ({"frozen_prob": "much"}, r"frozen_prob='much' must be a number from 0 to 1\."),
        ({"success_rate": -0.1}, r"success_rate=-0.1 must be a number from 0 to 1\."),
        ({"success_rate": float("nan")}, r"success_rate=nan must be a number from 0 to 1\."),
        ({"success_rate": None}, r"success_rate=None must be a number from 0 to 1\."),
        ({"min_path": 0}, r"min_path=0 must be an integer from 1 to 15\."),
        ({"min_path": 16}, r"min_path=16 must be an integer from 1 to 15\."),
        ({"min_path": 2.5}, r"min_path=2.5 must be an integer from 1 to 15\."),
        ({"random_start": "no"}, r"random_start='no' must be True or False\."),
    ],
)
def test_bad_options(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrozenLake(**kwargs)
