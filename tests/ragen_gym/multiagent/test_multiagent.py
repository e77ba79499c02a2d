from __future__ import annotations

import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given
from hypothesis import strategies as st

import ragen_gym
from ragen_gym import multiagent
from ragen_gym.core.seeding import Stream, episode_keys, stream_key, uniforms
from ragen_gym.games.frozen_lake.rules import Action as Move
from ragen_gym.games.registry import TABLE
from ragen_gym.multiagent.parallel import player_keys

with warnings.catch_warnings():
    # PettingZoo's tests import its own environments in the way that PettingZoo itself calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, max_cycles_test, parallel_api_test, parallel_seed_test, render_test, seed_test

#: The box cannot leave its row and needs seven pushes.
HALL = "############\n#P_X______O#\n#__________#\n#__________#\n############"
SEEDS = st.sampled_from([0, 2**32 - 1]) | st.integers(0, 2**64)
#: Each game with options under which no episode of random play ends within four cycles, as `max_cycles_test` demands.
LONG: dict[str, dict[str, Any]] = {
    **{name: {"pulls": 9} for name in ("Bandit", "BanditRev")},
    "FrozenLake": {"size": 8, "frozen_prob": 1.0, "min_path": 5},
    **{name: {"height": 5, "width": 12, "levels": [HALL]} for name in ("LargeSokoban", "NewVocab", "Sokoban")},
}
ONE_PLAYER: dict[str, list[dict[str, Any]]] = {
    "Bandit": [{}, {"pulls": 12}, {"split": "test", "observation": "grid"}],
    "BanditRev": [{}, {"pulls": 3, "names": [("Owl", "Cat")]}],
    "FrozenLake": [
        {},
        {"size": 6, "text_format": "grid_coord", "vocabulary": "letters"},
        {"success_rate": 1.0, "observation": "grid", "split": "validation"},
        {"observation": "rgb", "tile_size": 8},
        {"height": 3, "width": 5, "text_format": "coord"},
    ],
    "Sokoban": [
        {},
        {"text_format": "coord", "split": "test"},
        {"levels": [f"######\n#P___#\n#_X__#\n#__O_#\n{'#' * 6}"], "height": 5},
    ],
    "LargeSokoban": [{"observation": "grid"}],
    "NewVocab": [{}],
}
CASES = [(name, kwargs) for name, several in ONE_PLAYER.items() for kwargs in several]


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("players", [1, 2, 4])
class TestPettingZoo:
    @pytest.mark.parametrize("observation", ["text", "grid"])
    def test_parallel(self, name: str, players: int, observation: str) -> None:
        arguments: dict[str, Any] = {"players": players, "observation": observation}
        parallel_api_test(multiagent.parallel_env(name, **arguments), num_cycles=50)
        parallel_api_test(multiagent.parallel_env(name, **arguments, **LONG[name]), num_cycles=50)
        parallel_seed_test(lambda: multiagent.parallel_env(name, **arguments), num_cycles=50)

    def test_agent_environment_cycle(self, name: str, players: int) -> None:
        # `api_test` reads the dtype of observations, which a text has not.
        api_test(multiagent.env(name, players=players, observation="grid", **LONG[name]), num_cycles=50)
        api_test(multiagent.env(name, players=players, observation="grid"), num_cycles=50)
        seed_test(lambda: multiagent.env(name, players=players, observation="grid"), num_cycles=50)
        seed_test(lambda: multiagent.env(name, players=players), num_cycles=50)

    def test_max_cycles(self, name: str, players: int) -> None:
        def made(make: Any) -> Any:
            return lambda max_cycles: make(name, players=players, max_cycles=max_cycles, **LONG[name])

        max_cycles_test(SimpleNamespace(parallel_env=made(multiagent.parallel_env), env=made(multiagent.env)))


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_render(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    render_test(lambda render_mode: multiagent.env(name, players=3, render_mode=render_mode, **LONG[name]))


@pytest.mark.parametrize(("name", "kwargs"), CASES)
@given(seed=SEEDS, noise_seed=st.none() | SEEDS, data=st.data())
def test_one_player_plays_the_single_environment(
    name: str, kwargs: dict[str, Any], seed: int, noise_seed: int | None, data: st.DataObject
) -> None:
    single = gymnasium.make(f"ragen/{name}-v0", disable_env_checker=True, **kwargs)
    several = multiagent.parallel_env(name, players=1, **kwargs)
    assert several.observation_space("player_0") == single.observation_space
    assert several.action_space("player_0") == single.action_space
    options = None if noise_seed is None else {"noise_seed": noise_seed}
    for episode in range(3):
        arguments: dict[str, Any] = {"seed": seed, "options": options} if episode == 0 else {}
        expected: Any = single.reset(**arguments)
        assert_same(expected, several.reset(**arguments))
        done = False
        while not done:
            action = data.draw(st.integers(0, len(several.game.Action) - 1))
            expected = single.step(action)
            done = expected[2] or expected[3]
            assert_same(expected, several.step({"player_0": action}))
            assert (several.agents == []) is done


def assert_same(single: tuple[Any, ...], several: tuple[dict[str, Any], ...]) -> None:
    for one, by_agent in zip(single, several, strict=True):
        np.testing.assert_equal(by_agent, {"player_0": one})


@given(seed=SEEDS, players=st.integers(2, 8), data=st.data())
def test_everyone_in_a_race_walks_as_if_alone_until_somebody_wins(seed: int, players: int, data: st.DataObject) -> None:
    env = multiagent.parallel_env("FrozenLake", players=players, success_rate=0.6, max_cycles=25)
    _, infos = env.reset(seed=seed)
    level, numbers = env.level, range(players)
    assert all(info["level_id"] == level.id for info in infos.values())
    grids = [[list(spec) for spec in level.text.split("\n")] for _ in numbers]
    places = [next((r, c) for r, row in enumerate(grids[0]) for c, cell in enumerate(row) if cell == "P")] * players
    noise = int(episode_keys(stream_key(seed, Stream.DYNAMICS), 0, 1)[0])
    draws = uniforms(player_keys(noise, players, Stream.DYNAMICS), 0, 25)
    tiles = [{"P": "_"}.get(cell, cell) for row in grids[0] for cell in row]
    for cycle in range(25):
        alive = env.agents
        actions = {agent: data.draw(st.integers(0, 3)) for agent in alive}
        views, rewards, terminated, truncated, infos = env.step(actions)
        for agent, action in actions.items():
            i = int(agent[7:])
            u = draws[i, cycle]
            way = action if u < 0.6 else (action + 1) % 4 if u < 0.8 else (action + 3) % 4
            r, c = places[i]
            down, right = {Move.LEFT: (0, -1), Move.DOWN: (1, 0), Move.RIGHT: (0, 1), Move.UP: (-1, 0)}[Move(way)]
            if 0 <= r + down < 4 and 0 <= c + right < 4:
                places[i] = r + down, c + right
        under = {agent: tiles[places[int(agent[7:])][0] * 4 + places[int(agent[7:])][1]] for agent in alive}
        won = {agent for agent in alive if under[agent] == "G"}
        assert rewards == {agent: float(agent in won) for agent in alive}
        assert terminated == {agent: bool(won) or under[agent] == "O" for agent in alive}
        assert {agent for agent in alive if infos[agent]["success"]} == won
        assert set(truncated.values()) == {cycle == 24}
        for agent in alive:
            assert views[agent] == race_view(tiles, places, int(agent[7:]))
            assert env.observation_space(agent).contains(views[agent])
        if not env.agents:
            break


def race_view(tiles: list[str], places: list[tuple[int, int]], player: int) -> str:
    cells = list(tiles)
    for i in [*(i for i in range(len(places)) if i != player), player]:
        cell = places[i][0] * 4 + places[i][1]
        ground = tiles[cell]
        cells[cell] = {"_": "P", "O": "X", "G": "√"}[ground] if i == player else {"_": "Q", "O": "O", "G": "R"}[ground]
    return "\n".join("".join(cells[i : i + 4]) for i in range(0, 16, 4))


@pytest.mark.parametrize("name", ["Bandit", "BanditRev"])
@given(seed=SEEDS, players=st.integers(1, 8), pulls=st.integers(1, 12), data=st.data())
def test_players_at_one_arm_share_its_pay(name: str, seed: int, players: int, pulls: int, data: st.DataObject) -> None:
    env = multiagent.parallel_env(name, players=players, pulls=pulls)
    env.reset(seed=seed)
    alone = [ragen_gym.StepEnv(name, pulls=pulls) for _ in range(2)]
    for single in alone:
        single.reset(seed=seed)
    means = alone[0].solution()._means  # type: ignore[attr-defined]
    for pull in range(pulls):
        pays = [single.step(arm)[1] for arm, single in enumerate(alone)]
        actions = {agent: data.draw(st.integers(0, 1)) for agent in env.agents}
        crowd = [sum(arm == a for arm in actions.values()) for a in range(2)]
        _, rewards, terminated, _, infos = env.step(actions)
        assert rewards == {agent: pays[arm] / crowd[arm] for agent, arm in actions.items()}
        assert sum(rewards.values()) == pytest.approx(sum(pay for pay, n in zip(pays, crowd, strict=True) if n))
        for agent, arm in actions.items():
            best = means[arm] / crowd[arm] >= means[1 - arm] / (crowd[1 - arm] + 1)
            assert infos[agent]["success"] is (pull == pulls - 1 and best)
            assert terminated[agent] is (pull == pulls - 1)


def test_the_noise_of_players_differs_and_is_their_own() -> None:
    keys = player_keys(12345, 8, Stream.DYNAMICS)
    assert keys[0] == 12345
    assert keys[:3].tolist() == player_keys(12345, 3, Stream.DYNAMICS).tolist()
    draws = uniforms(keys, 0, 4000)
    assert np.abs(np.corrcoef(draws) - np.eye(8)).max() < 0.06


def test_bad_input_is_refused_with_the_remedy() -> None:
    for message, name, arguments in (
        ("not a game of this suite", "Chess", {}),
        ("players=0 must be an integer from 1 to 8", "FrozenLake", {"players": 0}),
        ("max_cycles=0 must be an integer from 1 on", "Bandit", {"max_cycles": 0}),
        ("regret is of single environments", "Bandit", {"regret": True}),
        ("needs 8, in this order: .*OTHER, OTHER_ON_GOAL", "FrozenLake", {"vocabulary": short_vocabulary()}),
        ("a level of a race shows one player", "FrozenLake", {"levels": ["PQ__\n____\n____\n___G"]}),
    ):
        with pytest.raises(ValueError, match=message):
            multiagent.parallel_env(name, **arguments)
    env = multiagent.parallel_env("FrozenLake")
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        env.step({"player_0": 0, "player_1": 0})
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        env.render()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="player_1: action 4 is not one of FrozenLake's: 0 LEFT, "):
        env.step({"player_0": 0, "player_1": 4})
    with pytest.raises(ValueError, match="give one for each agent that is left: player_0, player_1"):
        env.step({"player_0": 0})
    with pytest.raises(ValueError, match=r"no dict: \[0, 0\]; give one for each agent"):
        env.step([0, 0])  # type: ignore[arg-type]


def test_every_game_of_the_suite_is_for_several() -> None:
    rows = {spec.name: spec.game for spec in TABLE.values() if spec.game.startswith("ragen_gym.games.")}
    assert set(rows.values()) == set(multiagent.GAMES)
    assert rows.keys() == LONG.keys()


def short_vocabulary() -> ragen_gym.Vocabulary:
    return ragen_gym.Vocabulary("short", "abcdef")


@pytest.mark.parametrize("name", ["Bandit", "FrozenLake", "Sokoban"])
def test_a_pickled_game_plays_on_the_same(name: str) -> None:
    env = multiagent.parallel_env(name, players=2, max_cycles=6, render_mode="rgb_array", tile_size=8)
    env.reset(seed=4)
    if name != "Bandit":
        env.step(dict.fromkeys(env.agents, 1))
    clone = pickle.loads(pickle.dumps(env))
    for _ in range(8):
        if not env.agents:
            assert repr(clone.reset()) == repr(env.reset())
        moves = {agent: i for i, agent in enumerate(env.agents)}
        assert repr(clone.step(moves)) == repr(env.step(moves))
        assert np.array_equal(clone.render(), env.render())
