from __future__ import annotations

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given
from hypothesis import strategies as st

import ragen_gym
from ragen_gym.core.levels import Level
from ragen_gym.games.sokoban.solve import find_plan
from ragen_gym.multiagent import parallel_env
from ragen_gym.multiagent.sokoban import Action, SharedSokoban, alone
from tests.ragen_gym.games.slow_warehouse import WAYS, Cell, SlowWarehouse

UP, DOWN, LEFT, RIGHT, STAY = Action
SEEDS = st.sampled_from([0, 2**32 - 1]) | st.integers(0, 2**32)


class SlowTeam(SlowWarehouse):
    """The same with several workers, each of them a wall to the others."""

    def __init__(self, views: list[str]) -> None:
        super().__init__(views[0])
        self.ground, self.workers = self.floor, [SlowWarehouse(view).player for view in views]

    def turn_to(self, worker: int) -> None:
        self.player = self.workers[worker]
        self.floor = self.ground - set(self.workers) | {self.player}

    def mask(self, worker: int) -> list[bool]:
        self.turn_to(worker)
        return [name in self.moves() for name in WAYS]

    def play(self, worker: int, action: int) -> float:
        if action == STAY:
            return -0.1
        self.turn_to(worker)
        reward, _ = self.step(Action(action).name.capitalize())
        self.workers[worker] = self.player
        return reward

    def view(self, worker: int) -> str:
        self.turn_to(worker)
        return self.text()

    def symbol(self, cell: Cell) -> str:
        if cell in self.workers and cell != self.player:
            return "R" if cell in self.targets else "Q"
        return super().symbol(cell)


@pytest.mark.parametrize("name", ["Sokoban", "LargeSokoban"])
@given(seed=SEEDS, players=st.integers(1, 4), data=st.data())
def test_a_team_does_what_the_rule_says(name: str, seed: int, players: int, data: st.DataObject) -> None:
    env = parallel_env(name, players=players, max_cycles=30)
    views, infos = env.reset(seed=seed)
    slow = SlowTeam(list(views.values()))
    boxes = len(slow.boxes)
    assert Level("Sokoban", env.level.text).id == infos["player_0"]["level_id"]
    for cycle in range(30):
        for i, agent in enumerate(env.agents):
            mask = infos[agent]["action_mask"]
            assert mask[:4].tolist() == slow.mask(i)
            assert mask[4:].tolist() == [1] * (players > 1)
        # Mostly moves that do something, so that workers meet and boxes move.
        actions = {
            agent: data.draw(st.sampled_from([*np.flatnonzero(infos[agent]["action_mask"]).tolist(), 0, 1, 2, 3]))
            for agent in env.agents
        }
        views, rewards, terminated, truncated, infos = env.step(actions)
        total = 0.0
        for i, action in enumerate(actions.values()):
            total += slow.play(i, action)
            if slow.boxes == slow.targets:
                break
        won = slow.boxes == slow.targets
        assert views == {agent: slow.view(i) for i, agent in enumerate(env.possible_agents)}
        assert len(set(slow.workers) & slow.ground - slow.boxes) == players
        assert len(slow.boxes) == boxes
        assert all(env.observation_space(agent).contains(view) for agent, view in views.items())
        assert len(set(rewards.values())) == 1
        assert rewards["player_0"] == pytest.approx(total)
        assert set(terminated.values()) == {won} == {info["success"] for info in infos.values()}
        assert set(truncated.values()) == {cycle == 29}
        if not env.agents:
            break


@pytest.mark.parametrize("name", ["Sokoban", "LargeSokoban", "NewVocab"])
@given(seed=SEEDS, players=st.integers(2, 4), split=st.sampled_from([None, "train", "validation", "test"]))
def test_player_0_alone_solves_the_level_as_fast_as_without_the_others(
    name: str, seed: int, players: int, split: str | None
) -> None:
    env = parallel_env(name, players=players, split=split, max_cycles=300)
    _, infos = env.reset(seed=seed)
    level = env.level
    assert {info["level_id"] for info in infos.values()} == {level.id}
    single = ragen_gym.StepEnv(env.game_spec.name)
    single.reset(options={"level": level})
    assert split in (None, single.game.split_of(single.game.board(level)))
    plan = find_plan(single.game.board(level), single.game.width)
    assert plan is not None
    total = 0.0
    for action in plan.actions:
        assert env.agents
        waiting = dict.fromkeys(env.possible_agents[1:], int(STAY))
        _, rewards, _, truncated, infos = env.step({"player_0": action, **waiting})
        total += rewards["player_0"]
        assert not any(truncated.values())
    assert env.agents == []
    assert all(info["success"] for info in infos.values())
    boxes = level.text.count("X")
    assert total == pytest.approx(10 + boxes - 0.1 * (players * plan.moves - players + 1))


@given(seed=SEEDS, players=st.integers(2, 4))
def test_the_text_of_player_0_is_a_level_with_everybody_in_place(seed: int, players: int) -> None:
    env = parallel_env("Sokoban", players=players)
    views, infos = env.reset(seed=seed)
    board = env.game.parse(views["player_0"])
    assert env.game.formatter(env.vocabulary, "grid")(board) == views["player_0"]
    again, infos_again = env.reset(options={"level": views["player_0"]})
    assert again["player_0"] == views["player_0"]
    assert set(again.values()) == set(views.values())
    assert infos_again["player_0"]["level_id"] == infos["player_0"]["level_id"]
    assert isinstance(env.game, SharedSokoban)
    assert env.game.split_of(board) == env.game.split_of(alone(board))


def test_bad_teams_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="players=5 must be an integer from 1 to 4"):
        parallel_env("Sokoban", players=5)
    with pytest.raises(ValueError, match=r"needs 9, in this order: WALL, .*OTHER_ON_TARGET"):
        parallel_env("Sokoban", vocabulary=ragen_gym.Vocabulary("short", "abcdefg"))
    with pytest.raises(ValueError, match="'a' stands for two tiles"):
        parallel_env("Sokoban", vocabulary=ragen_gym.Vocabulary("double", "abcdefgha"))
    with pytest.raises(ValueError, match="one player; this one has 0"):
        parallel_env("Sokoban", height=3, levels=["######\n#QXO_#\n######"])
    narrow = parallel_env("Sokoban", height=3)
    with pytest.raises(ValueError, match=r"no room for players=2 .*place the others in its text, or ask for fewer"):
        narrow.reset(options={"level": "######\n#PX_O#\n######"})
    for call in (narrow.render, narrow.state, lambda: narrow.step(dict.fromkeys(narrow.possible_agents, UP))):
        with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
            call()
    with pytest.raises(ValueError, match="places 2 other workers, with players=2 there are 1"):
        parallel_env("Sokoban", height=4).reset(options={"level": "######\n#PXO_#\n#Q_Q_#\n######"})
    full = parallel_env("Sokoban", height=3, width=5, generator="reverse_walk")
    with pytest.raises(
        ValueError, match=r"none of 200 levels has room for players=2 .*height=3, width=5; ask for fewer"
    ):
        full.reset(seed=0)
