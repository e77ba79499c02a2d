"""Agents of Stable-Baselines3: each policy plays as it was trained."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import ARS, QRDQN, TRPO, MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize

from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.episode_plan import RunOptions, make_env
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.results import ResultsFolder
from ragen_gym.bench.runner import RunOutcome, run_suite
from ragen_gym.bench.suites import load_suite
from ragen_gym.core.failures import Failure
from ragen_gym.integrations.sb3 import BatchVecEnv
from ragen_gym.wrappers import BatchFlatSymbols, FlatSymbols

SMOKE = load_suite("smoke")
SPLITS = {split.name: split for split in SMOKE.splits}
SEEN = ("grid", "planes", "planes first", "flat", "flat codes")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def play(agent: Any, out: Path, *splits: str, **request: Any) -> tuple[RunOutcome, list[EpisodeRecord]]:
    outcome = run_suite(SMOKE, agent, out, RunOptions(splits=splits, **request))
    return outcome, ResultsFolder(out).records()


def planes(env: gymnasium.Env[Any, Any], first: bool = False) -> gymnasium.Env[Any, Any]:
    tiles = int(env.observation_space.high.max()) + 1  # type: ignore[attr-defined]
    height, width = env.observation_space.shape or ()
    shape = (tiles, height, width) if first else (height, width, tiles)
    space = gymnasium.spaces.Box(0, 1, shape, np.float32)

    def encode(grid: Any) -> Any:
        one = np.eye(tiles, dtype=np.float32)[grid]
        return one.transpose(2, 0, 1) if first else one

    return gymnasium.wrappers.TransformObservation(env, encode, space)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Policies after some hundred steps of PPO on the lake, by what they see."""
    paths = {}
    for seen in SEEN:
        env = gymnasium.make("ragen/FrozenLake-v0", observation="grid", split="train")
        if seen == "flat":
            env = FlatSymbols(env)
        elif seen == "flat codes":
            env = gymnasium.wrappers.FlattenObservation(env)
        elif seen != "grid":
            env = planes(env, seen == "planes first")
        model = PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu")
        model.learn(256)
        paths[seen] = tmp_path_factory.mktemp("policy") / "lake"
        model.save(paths[seen])
    return paths


@pytest.fixture(params=SEEN)
def policy(request: pytest.FixtureRequest, policies: dict[str, Path]) -> Path:
    return policies[request.param]


def test_a_policy_plays(policy: Path, tmp_path: Path) -> None:
    agent: Any = make_agent(f"sb3:{policy}")
    outcome, records = play(agent, tmp_path / "run", "frozen_lake")
    assert (outcome.played, outcome.failures) == (8, {})
    for record in records:  # each move is the policy's own
        env = make_env(SPLITS["frozen_lake"], "grid").env
        seen, _ = env.reset(
            options={"level": SPLITS["frozen_lake"].levels[record.index], "noise_seed": record.noise_seed}
        )
        for turn in record.turns:
            task = SimpleNamespace(env=env, split="frozen_lake")
            expected = agent._policy.predict(agent._fitted(seen, task), deterministic=True)[0].item()
            assert turn.actions == (expected,)
            seen, *_ = env.step(expected)


def test_a_policy_may_draw_its_moves_and_draws_them_again(policy: Path, tmp_path: Path) -> None:
    moves = []
    for concurrency in (1, 8):
        agent = make_agent(f"sb3:{policy}.zip", deterministic=False)
        _, records = play(agent, tmp_path / str(concurrency), "frozen_lake", rollouts=3, concurrency=concurrency)
        moves.append({record.key: [turn.actions for turn in record.turns] for record in records})
    assert moves[0] == moves[1]
    assert len({str(row) for row in moves[0].values()}) > 12


def test_a_policy_of_another_shape_says_so(policy: Path, tmp_path: Path) -> None:
    outcome, records = play(make_agent(f"sb3:{policy}"), tmp_path / "run", "sokoban", limit=1)
    assert outcome.failures == {Failure.AGENT_ERROR: 1}
    assert "and sokoban gives (6, 6): choose the splits that fit" in records[0].detail
    with pytest.raises(ValueError, match="algorithm='Guess' is not one of stable_baselines3's"):
        make_agent(f"sb3:{policy}", algorithm="Guess")
    with pytest.raises(ValueError, match="cannot be loaded as DQN"):
        make_agent(f"sb3:{policy}", algorithm="DQN")


# As trained

SOKOBAN = load_suite("ragen-v1").splits[0]
LEVELS = SOKOBAN.boards[:24]
_BRIEF: dict[str, Any] = {"n_steps": 16, "batch_size": 128}
_LSTM = {**_BRIEF, "policy_kwargs": {"lstm_hidden_size": 16, "net_arch": [16]}}
#: By name: the class, its policy, its settings, and what it is shown.
KINDS: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "masks": (MaskablePPO, "MlpPolicy", _BRIEF, "flat"),
    "recurrent": (RecurrentPPO, "MlpLstmPolicy", _LSTM, "flat"),
    "normalised": (PPO, "MlpPolicy", _BRIEF, "normalised"),
    "trpo": (TRPO, "MlpPolicy", {"n_steps": 64, "batch_size": 64}, "grid"),
    "dqn": (DQN, "MlpPolicy", {"learning_starts": 64, "train_freq": 8}, "flat"),
    "qrdqn, normalised": (QRDQN, "MlpPolicy", {"learning_starts": 64, "train_freq": 8}, "normalised"),
    "ars": (ARS, "LinearPolicy", {"n_delta": 2, "n_top": 1, "n_eval_episodes": 1}, "flat"),
    "pictures": (A2C, "CnnPolicy", {"policy_kwargs": {"features_extractor_kwargs": {"features_dim": 8}}}, "rgb"),
}


class InOrder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The levels one after another."""

    level = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.level += 1
        return super().reset(seed=seed, options={"level": self.level % len(LEVELS)})


def single(shown: str) -> gymnasium.Env[Any, Any]:
    """The levels in order, within the moves that the suite allows."""
    observation = "rgb" if shown == "rgb" else "grid"
    env = gymnasium.make("ragen/Sokoban-v0", levels=list(LEVELS), observation=observation, max_episode_steps=10)
    return Monitor(InOrder(FlatSymbols(env) if shown in ("flat", "normalised") else env))


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Path]:
    """A name of ``KINDS``, the model after a short training, and its folder."""
    algorithm, policy, settings, shown = KINDS[request.param]
    folder = tmp_path_factory.mktemp("trained")
    venv: VecEnv
    if shown in ("grid", "rgb"):
        venv = DummyVecEnv([lambda: single(shown)])
    else:
        batch = gymnasium.make_vec("ragen/Sokoban-v0", 8, autoreset_mode="SameStep", observation="grid", split="train")
        venv = BatchVecEnv(BatchFlatSymbols(batch))
    if shown == "normalised":
        venv = VecNormalize(venv)
    model = algorithm(policy, venv, seed=0, device="cpu", learning_rate=3e-3, **settings)
    model.learn(5 if shown == "rgb" else 768)
    if algorithm is RecurrentPPO:  # so short a training leaves a state that decides nothing
        model.policy.lstm_actor.weight_hh_l0.data.normal_(0, 8)
        model.policy.action_net.bias.data.zero_()
    model.save(folder / "policy")
    if isinstance(venv, VecNormalize):
        venv.save(str(folder / "statistics.pkl"))
    return request.param, model, folder


def evaluated(model: Any, shown: str, folder: Path, **options: Any) -> list[tuple[float, int]]:
    """Return and moves of each level, by the library's own evaluation."""
    venv: VecEnv = DummyVecEnv([lambda: single(shown)])
    if shown == "normalised":
        venv = VecNormalize.load(str(folder / "statistics.pkl"), venv)
        venv.training = venv.norm_reward = False
    evaluate: Callable[..., Any] = evaluate_masked if isinstance(model, MaskablePPO) else evaluate_policy
    rewards, lengths = evaluate(model, venv, len(LEVELS), return_episode_rewards=True, **options)
    return list(zip(np.round(rewards, 4), lengths, strict=True))


def agent_of(name: str, folder: Path, **settings: Any) -> Any:
    algorithm, _, _, shown = KINDS[name]
    statistics = {"vec_normalize": str(folder / "statistics.pkl")} if shown == "normalised" else {}
    full = f"{algorithm.__module__.partition('.')[0]}:{algorithm.__name__}"
    observation = "rgb" if shown == "rgb" else "grid"
    return make_agent(f"sb3:{folder / 'policy'}", algorithm=full, observation=observation, **(statistics | settings))


def test_the_benchmark_plays_what_the_library_evaluates(trained: tuple[str, Any, Path], tmp_path: Path) -> None:
    name, model, folder = trained
    options = RunOptions(splits=("sokoban",), limit=len(LEVELS))
    outcome = run_suite(load_suite("ragen-v1"), agent_of(name, folder), tmp_path, options)
    assert outcome.failures == {}
    records = sorted(ResultsFolder(tmp_path).records(), key=lambda record: record.index)
    played = [(round(record.total_reward, 4), len(record.turns)) for record in records]
    assert played == evaluated(model, KINDS[name][3], folder)
    if name == "masks":  # what the masks are for shows in these levels
        assert played != evaluated(model, "flat", folder, use_masking=False)


def test_statistics_of_another_policy_are_refused(policies: dict[str, Path], tmp_path: Path) -> None:
    def make_with(path: Path | str) -> None:
        make_agent(f"sb3:{policies['flat']}", vec_normalize=str(path))

    with pytest.raises(ValueError, match=r"there is no such file nowhere; .* VecNormalize"):
        make_with("nowhere")
    with pytest.raises(ValueError, match=r"vec_normalize='.*zip' holds no statistics \(UnpicklingError: "):
        make_with(policies["flat"].with_suffix(".zip"))
    (tmp_path / "table.pkl").write_bytes(pickle.dumps({"mean": 0}))
    with pytest.raises(ValueError, match=r"holds no statistics \(a dict\)"):
        make_with(tmp_path / "table.pkl")
    statistics = VecNormalize(DummyVecEnv([lambda: single("flat")]))
    statistics.save(str(tmp_path / "sokoban.pkl"))
    with pytest.raises(ValueError, match="give those that were saved with the policy"):
        make_with(tmp_path / "sokoban.pkl")


# What does not fit


def test_an_observation_with_parts_is_refused(tmp_path: Path) -> None:
    env = gymnasium.make("ragen/FrozenLake-v0", observation="grid", split="train")
    space = gymnasium.spaces.Dict(board=env.observation_space)
    parts = gymnasium.wrappers.TransformObservation(env, lambda grid: {"board": grid}, space)
    PPO("MultiInputPolicy", parts, device="cpu").save(tmp_path / "lake")
    with pytest.raises(ValueError, match=r"was trained on Dict\(.*write a python: agent"):
        make_agent(f"sb3:{tmp_path / 'lake'}")


def test_actions_of_another_kind_are_refused(policies: dict[str, Path], tmp_path: Path) -> None:
    env = gymnasium.make("ragen/FrozenLake-v0", observation="grid")
    continuous = gymnasium.wrappers.TransformAction(env, lambda value: 0, gymnasium.spaces.Box(0, 1, (1,)))
    PPO("MlpPolicy", continuous, device="cpu").save(tmp_path / "continuous")
    with pytest.raises(ValueError, match=r"chooses among Box.*Discrete"):
        make_agent(f"sb3:{tmp_path / 'continuous'}")
    outcome, records = play(make_agent(f"sb3:{policies['flat']}"), tmp_path / "run", "bandit", limit=1)
    assert outcome.failures == {Failure.AGENT_ERROR: 1}
    assert "the policy has 4 actions, and bandit 2" in records[0].detail


def test_stacked_frames_are_refused(tmp_path: Path) -> None:
    lake = gymnasium.make("ragen/FrozenLake-v0", observation="grid")
    PPO("MlpPolicy", VecFrameStack(DummyVecEnv([lambda: lake]), 3), device="cpu").save(tmp_path / "frames")
    outcome, records = play(make_agent(f"sb3:{tmp_path / 'frames'}"), tmp_path / "run", "frozen_lake", limit=1)
    assert outcome.failures == {Failure.AGENT_ERROR: 1}
    assert "write a python: agent for stacked frames" in records[0].detail


def test_something_else_than_a_policy_is_refused(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "weights.zip")
    (tmp_path / "text.zip").write_text("no zip")
    for name in ("weights", "text"):
        with pytest.raises(ValueError, match=f"sb3:.*{name} cannot be loaded as PPO"):
            make_agent(f"sb3:{tmp_path / name}")
