"""Thoughts are true of the board, and the small tokenizer has a word for every part of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ragen_agent import Trajectory
from ragen_agent.config import Config, Demonstrations, with_settings
from ragen_agent.rollout import Instance
from ragen_agent.sft.demonstrations import chunks, demonstrate, generate_demonstrations, reply_ids, scripted_reply
from ragen_agent.training.demo_thoughts import thinking
from ragen_agent.training.metrics import reply_figures
from ragen_agent.training.policy import Policy
from ragen_agent.training.small_model import reading_only
from ragen_agent.training.tasks import make_env
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


def test_a_plan_of_a_bandit_says_which_arm_pays() -> None:
    env = make_turn("Bandit")
    env.reset(seed=0)
    best = env.oracle_action()
    assert thinking(env, "plan", [best]) == f"<think>{env.action_names[best]}: more on average.</think>"
    assert "less on average" in thinking(env, "plan", [1 - best])


@pytest.mark.parametrize("game", ["FrozenLake", "Sokoban", "Bandit"])
def test_the_small_tokenizer_has_every_word_of_a_plan(game: str) -> None:
    settings = {"game": game, "demonstrations": {"thought": "plan", "mistakes": 0.5}, "turns": {"max_actions": 20}}
    config = with_settings(Config(), settings)
    agent = Policy.build(config)
    never_written = set(reading_only(agent.tokenizer))
    env, rng = make_env(config, "train"), np.random.default_rng(0)
    for seed in range(40):
        env.reset(seed=seed)
        while not env.over:
            reply = scripted_reply(env, config.demonstrations, rng)
            assert not never_written & set(reply_ids(agent.chat, reply)), reply
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


def test_the_chunks_are_the_demonstrations(monkeypatch: pytest.MonkeyPatch) -> None:
    from ragen_agent.sft import demonstrations
    from tests.ragen_agent.local.test_run import quiet

    monkeypatch.setattr(demonstrations, "CHUNK", 7)
    config = with_settings(Config(), {"demonstrations": {"episodes": 20, "mistakes": 0.3, "thought": "direction"}})
    agent = Policy.build(config)
    found = list(chunks(config, config.demonstrations))
    assert [chunk.indices for chunk in found] == [list(range(7)), list(range(7, 14)), list(range(14, 20))]
    process = agent.processes("train", 1)[0]
    again = [t.to_dict() for chunk in found for t in demonstrate(process, chunk.instances, chunk.how, chunk.seed)]
    assert again == [t.to_dict() for t in generate_demonstrations(config, agent, config.demonstrations, quiet())]
    assert all(re.search("<think>[a-z ]+</think>", m["content"]) for t in again for m in t["messages"][2:3])


@pytest.mark.parametrize("game", ["FrozenLake", "Sokoban"])
def test_demonstrated_boards_are_true_and_paid_for(game: str) -> None:
    """Where the moves go where they are meant to, the demonstrator sees and foresees every board."""
    style = {"grounding": True, "world_modelling": True, "state_reward": 0.5}
    turns = {**style, "max_tokens_per_turn": 400, "max_tokens_per_episode": 4000}
    knobs = {"success_rate": 1.0} if game == "FrozenLake" else {}
    config = with_settings(Config(), {"game": game, "env_options": knobs, "turns": turns})
    agent = Policy.build(config)
    instances = [Instance(seed, seed) for seed in range(12)]
    shown = demonstrate(agent.processes("train", 1)[0], instances, config.demonstrations, 0)
    figures = reply_figures(shown)
    assert (figures["observation_rate"], figures["prediction_rate"], figures["invalid_rate"]) == (1, 1, 0)
    assert not set(reading_only(agent.tokenizer)) & {token for t in shown for token in t.ids[t.sampled].tolist()}
    again = Trajectory.from_dict(shown[0].to_dict())
    assert again.turn_infos == shown[0].turn_infos


def test_on_ice_the_foreseen_board_is_often_another() -> None:
    turns = {"world_modelling": True, "state_reward": 1.0, "max_tokens_per_turn": 400}
    config = with_settings(Config(), {"game": "FrozenLake", "env_options": {"success_rate": 0.4}, "turns": turns})
    process = Policy.build(config).processes("train", 1)[0]
    shown = demonstrate(process, [Instance(seed, seed) for seed in range(40)], config.demonstrations, 0)
    figures = reply_figures(shown)
    assert 0.1 < figures["prediction_rate"] < 0.9
    assert "observation_rate" not in figures


def test_the_way_to_the_goal_is_the_same_in_every_text_format() -> None:
    said = set()
    for text_format in ("grid", "spaced", "coord", "grid_coord"):
        env = make_env(with_settings(Config(), {"env_options": {"text_format": text_format}}), "train")
        env.reset(seed=3)
        said.add(thinking(env, "direction"))
    assert len(said) == 1
    bandit = make_env(with_settings(Config(), {"game": "Bandit"}), "train")
    bandit.reset(seed=0)
    with pytest.raises(ValueError, match="has no player and goal"):
        thinking(bandit, "direction")
