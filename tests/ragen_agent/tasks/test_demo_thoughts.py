"""Thoughts are true of the board, and the small tokenizer has a word for every part of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ragen_agent import Trajectory
from ragen_agent.config import Config, Demonstrations, with_settings
from ragen_agent.models.small_model import reading_only
from ragen_agent.run.policy import Policy
from ragen_agent.sft.demonstrations import demonstrate, scripted_reply
from ragen_agent.tasks.demo_thoughts import thinking
from ragen_agent.tasks.tasks import make_game_env
from ragen_agent.tokens.rollout import Instance
from ragen_agent.update.metrics import reply_figures
from ragen_gym.envs.policies import plan_moves
from ragen_gym.envs.turn import TurnEnv, make_turn


def env_of(level: str) -> TurnEnv:
    env = make_turn("Sokoban" if "#" in level else "FrozenLake")
    env.reset(options={"level": level})
    return env


@pytest.mark.parametrize(
    ("level", "moves", "thought"),
    [
        ("P_O_\n____\n____\n___G", "Right Right", "row 0, column 0. Right: to row 0, column 1. Right: to a hole."),
        ("PG__\n____\n____\nO___", "Up Right", "row 0, column 0. Up: nowhere. Right: to the goal."),
        ("######\n#PXO_#\n#____#\n#____#\n#____#\n######", "Right", "Right: push the last box onto a target."),
        ("######\n#PX_O#\n#____#\n#____#\n#____#\n######", "Right Left", "push a box. Left: to row 1, column 1."),
    ],
)
def test_a_plan_says_what_its_moves_do(level: str, moves: str, thought: str) -> None:
    env = env_of(level)
    actions = [env.action_names.index(move) for move in moves.split()]
    assert thought in thinking(env, "plan", actions)


@pytest.mark.parametrize("thought", ["plan", "relative"])
@pytest.mark.parametrize("game", ["FrozenLake", "Sokoban", "LargeSokoban", "Bandit"])
def test_the_small_tokenizer_has_every_word_of_a_thought(game: str, thought: str) -> None:
    turns = {"max_actions": 20, "max_tokens_per_turn": 200}
    settings = {"game": game, "demonstrations": {"thought": thought, "mistakes": 0.5}, "turns": turns}
    config = with_settings(Config(), settings)
    agent = Policy.build(config)
    never_written = set(reading_only(agent.tokenizer))
    env, rng = make_game_env(config, "train"), np.random.default_rng(0)
    for seed in range(40):
        env.reset(seed=seed)
        while not env.over:
            reply = scripted_reply(env, config.demonstrations, rng)
            assert not never_written & set(agent.chat.reply_ids(reply)), reply
            env.step(reply)


def test_quality_is_the_share_of_replies_that_follow_the_oracle() -> None:
    env, rng = make_turn("FrozenLake", success_rate=1.0), np.random.default_rng(0)
    env.reset(seed=0)
    how = Demonstrations(moves=[1.0], quality=0.25)
    follows = [f"<answer>{env.action_names[env.oracle_action()]}</answer>" in scripted_reply(env, how, rng)
               for _ in range(800)]  # fmt: skip
    best = plan_moves(env, 1)
    assert env.action_names[best[0]] == env.action_names[env.oracle_action()]
    assert np.mean(follows) == pytest.approx(0.25 + 0.75 / 4, abs=0.06)


@pytest.mark.parametrize("game", ["FrozenLake", "Sokoban"])
def test_demonstrated_boards_are_true_and_paid_for(game: str) -> None:
    """Where the moves go where they are meant to, the demonstrator sees and foresees every board."""
    style = {"grounding": True, "world_modelling": True, "state_reward": 0.5}
    turns = {**style, "max_tokens_per_turn": 400, "max_tokens_per_episode": 4000}
    kwargs = {"success_rate": 1.0} if game == "FrozenLake" else {}
    config = with_settings(Config(), {"game": game, "env_options": kwargs, "turns": turns})
    agent = Policy.build(config)
    instances = [Instance(seed, seed) for seed in range(12)]
    shown = demonstrate(agent.processes("train", 1)[0], instances, config.demonstrations, 0)
    figures = reply_figures(shown)
    assert (figures["observation_rate"], figures["prediction_rate"], figures["invalid_rate"]) == (1, 1, 0)
    assert not set(reading_only(agent.tokenizer)) & {token for t in shown for token in t.ids[t.sampled].tolist()}
    again = Trajectory.from_dict(shown[0].to_dict())
    assert again.turn_infos == shown[0].turn_infos


def test_a_demonstration_that_runs_out_of_tokens_is_named() -> None:
    config = with_settings(Config(), {"game": "FrozenLake"})
    agent = Policy.build(config)
    process = agent.processes("train", 1)[0]
    process.begin(seed=0)
    process.max_tokens_per_episode = len(process.ids) + 5
    with pytest.raises(ValueError, match=r"turns.max_tokens_per_episode=\d+ leaves 5 for it; raise it"):
        demonstrate(process, [Instance(0, 0)], config.demonstrations, 0)


WAYS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
Place = tuple[int, int]


def places(env: TurnEnv, *kinds: str) -> set[Place]:
    """The cells of these kinds, read from the text that the model sees."""
    game = env.game
    board = game.parse(env.board, env.env.vocabulary, env.env.text_format)
    codes = {tile for tile in game.Tile if any(kind in tile.name for kind in kinds)}
    return {divmod(cell, game.width + 1) for cell, code in enumerate(board) if code in codes}


def seen(env: TurnEnv, name: str, *, beside: Place) -> Place:
    """The place that the thought gives to something, whose offset from another place must fit."""
    said = re.search(rf"{name} is at \((\d+),(\d+)\): ([^.:]*?)( of it)?\.", thinking(env, "relative"))
    assert said, thinking(env, "relative")
    place = int(said[1]), int(said[2])
    steps = [part.split() for part in said[3].split(" and ")]
    rows, columns = (sum(int(n) * WAYS[way][axis] for n, way in steps) for axis in (0, 1))
    assert (beside[0] + rows, beside[1] + columns) == place
    return place


def me(env: TurnEnv) -> Place:
    said = re.search(r"I am at \((\d+),(\d+)\)\.", thinking(env, "relative"))
    assert said
    return int(said[1]), int(said[2])


@pytest.mark.parametrize("text_format", ["grid", "spaced", "coord", "grid_coord"])
@pytest.mark.parametrize("shape", [{"size": 4}, {"height": 3, "width": 7, "frozen_prob": 0.6}])
def test_goal_and_holes_are_where_the_thought_says(shape: dict[str, Any], text_format: str) -> None:
    env, rng, counts = make_turn("FrozenLake", text_format=text_format, **shape), np.random.default_rng(0), set()
    for seed in range(150):
        env.reset(seed=seed)
        while not env.over:
            here = me(env)
            assert {here} == places(env, "PLAYER")
            assert {seen(env, "The goal", beside=here)} == places(env, "GOAL")
            said = re.search(r"(A hole is|Holes are) ([^.]*)\.<", thinking(env, "relative"))
            ways = said[2].split(" and ") if said else []
            holes = {way for way, (r, c) in WAYS.items() if (here[0] + r, here[1] + c) in places(env, "HOLE")}
            assert sorted(ways) == sorted(holes)
            counts.add(len(holes))
            env.step(scripted_reply(env, Demonstrations(moves=[1.0], mistakes=0.3), rng))
    assert {0, 1, 2} <= counts


@pytest.mark.parametrize(
    ("game", "text_format"),
    [("Sokoban", "grid"), ("NewVocab", "coord"), ("LargeSokoban", "spaced"), ("LargeSokoban", "grid_coord")],
)
def test_box_target_and_push_are_those_of_the_oracle(game: str, text_format: str) -> None:
    env, rng = make_turn(game, text_format=text_format), np.random.default_rng(0)
    box_name, target_name = ("The next box", "Its target") if game == "LargeSokoban" else ("The box", "The target")
    pushes = dead = 0
    for seed in range(60):
        env.reset(seed=seed)
        while not env.over:
            here = me(env)
            assert {here} == places(env, "PLAYER")
            box = seen(env, box_name, beside=here)
            assert box in places(env, "BOX")
            words = thinking(env, "relative")
            on_target = "It is on a target." in words
            target = box if on_target else seen(env, target_name, beside=box)
            assert target in places(env, "TARGET")
            push = re.search(r"Push it (\w+) from (here|\((\d+),(\d+)\): ([^.]+))\.", words)
            solvable = env.solution().success(*env.env.state, 1000)
            assert bool(push) == bool(solvable)
            if push:
                stand = here if push[2] == "here" else (int(push[3]), int(push[4]))
                way = WAYS[push[1]]
                assert (stand[0] + way[0], stand[1] + way[1]) == box
                check_push(env, box, target)
                pushes += 1
            dead += not push
            env.step(scripted_reply(env, Demonstrations(moves=[1.0], mistakes=0.5), rng))
    assert pushes > 150
    assert dead


def check_push(env: TurnEnv, box: Place, target: Place) -> None:
    """The oracle's moves, played on a copy, push this box first and leave it on this target."""
    copy = make_turn(env.env.game_spec.name)
    copy.reset(options={"level": env.game.own_text(env.env.state[0])})
    first, where = None, box
    while copy.env.state[1][1]:
        before = places(copy, "BOX")
        _, _, terminated, _, _ = copy.env.step(copy.solution().action(*copy.env.state, 1000))
        gone, come = before - places(copy, "BOX"), places(copy, "BOX") - before
        first = first or next(iter(gone), None)
        where = next(iter(come)) if where in gone else where
        if terminated:
            break
    assert (first, where) == (box, target)


@pytest.mark.parametrize("game", ["Bandit", "BanditRev"])
def test_the_arm_that_pays_more_is_named(game: str) -> None:
    for kwargs in ({}, {"high_prob": 0.1}, {"pulls": 3}):
        env = make_turn(game, **kwargs)
        for seed in range(30):
            env.reset(seed=seed)
            best = env.oracle_action()
            names = env.action_names
            said = f"{names[best]} pays more on average than {names[1 - best]}."
            assert thinking(env, "relative") == f"<think>{said}</think>"
    env = make_turn(game, high_prob=0.15)
    env.reset(seed=0)
    assert "pay the same on average" in thinking(env, "relative")


@pytest.mark.parametrize("thought", ["direction", "relative"])
def test_the_way_to_the_goal_is_the_same_in_every_text_format(thought: str) -> None:
    said = set()
    for text_format in ("grid", "spaced", "coord", "grid_coord"):
        env = make_game_env(with_settings(Config(), {"env_options": {"text_format": text_format}}), "train")
        env.reset(seed=3)
        said.add(thinking(env, thought))
    assert len(said) == 1
    bandit = make_game_env(with_settings(Config(), {"game": "Bandit"}), "train")
    bandit.reset(seed=0)
    with pytest.raises(ValueError, match="has no player and goal"):
        thinking(bandit, "direction")
