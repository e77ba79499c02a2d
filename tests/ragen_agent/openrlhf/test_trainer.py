"""Parts of the distributed trainer that a real run seldom meets."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ragen_agent.config import Config, with_settings
from ragen_agent.config.algorithms import ADVANTAGE_RULES
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf import experience
from ragen_agent.openrlhf.episode import TooManyFailuresError
from ragen_agent.openrlhf.experience import (
    AdvantageInputs,
    EpisodeGenerator,
    EpisodeSample,
    LogProbDifference,
    WeightsLostError,
)
from ragen_agent.openrlhf.processes import RunContext
from ragen_agent.openrlhf.prompt_dataset import PromptRow
from ragen_agent.openrlhf.trainer import StarPO
from ragen_agent.tokens.trajectory import Trajectory, failed
from ragen_agent.update.iteration import Iteration

pytestmark = pytest.mark.filterwarnings("default")

ROW = PromptRow(0, 0, "FrozenLake", {}, {}, 1, "train")


def trainer(reasons: list[str]) -> Any:
    """A trainer whose episodes fail for these reasons."""
    kind = StarPO.__ray_metadata__.modified_class
    made = kind.__new__(kind)
    made.run = RunContext(Config(), OpenRLHF(), "", (), 1)
    made.generate_kwargs = {"temperature": 1.0, "max_len": 10}
    played = [EpisodeSample(ROW, i, failed([1, 2], reason)) for i, reason in enumerate(reasons)]
    made.rollouts = SimpleNamespace(play=lambda rows, members, temperature, **settings: played)
    return made


def test_log_probs_that_are_no_numbers_are_lost_weights() -> None:
    with pytest.raises(WeightsLostError, match="vllm_kl is nan in 2 of 2 episodes: vLLM does not sample from"):
        measure(trainer(["engine_nan: the log-probability of a sampled token is nan"] * 2))
    with pytest.raises(TooManyFailuresError, match="2 of 2 episodes failed"):
        measure(trainer(["engine_error: out of memory"] * 2))


def measure(made: Any) -> None:
    made.loop = SimpleNamespace(ahead=SimpleNamespace(wait=lambda: None))
    made._measure(with_settings(Config(), {"evaluation": {"levels": 2}}))


def test_an_error_that_ray_carries_says_the_same() -> None:
    for error in (WeightsLostError("vllm_kl is 3"), WeightsLostError("vllm_kl is 3", staleness=2)):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert ("too much changed in 2 updates" in str(error)) == bool(error.staleness)


@pytest.mark.parametrize("sleeps", [True, False])
def test_engines_that_share_their_gpus_wake_to_play_and_sleep_again(
    monkeypatch: pytest.MonkeyPatch, sleeps: bool
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(experience, "batch_vllm_engine_call", lambda engines, method: calls.append(method))
    monkeypatch.setattr("ray.get", lambda refs: [])
    rollouts = EpisodeGenerator.__new__(EpisodeGenerator)
    rollouts.vllm_engines = []
    rollouts.args = SimpleNamespace(vllm=SimpleNamespace(enable_sleep=sleeps))
    monkeypatch.setattr(rollouts, "_dispatch_prompts_to_vllm", lambda *args, **settings: calls.append("play"))
    assert rollouts.play([], 1, 1.0) == []
    assert calls == (["wake_up", "play", "sleep"] if sleeps else ["play"])


def episode(seed: int, reward: float) -> Trajectory:
    return Trajectory(
        ids=np.arange(4),
        sampled=np.array([False, True, True, True]),
        log_probs=np.array([0, -1, -0.5 - reward, -1], dtype=np.float32),
        turn_ends=(3,),
        turn_rewards=(reward,),
        terminated=True,
        success=reward > 0.5,
        seed=seed,
    )


def row() -> SimpleNamespace:
    """A row of OpenRLHF's, of four tokens."""
    four, three = torch.ones(1, 4), torch.ones(1, 3)
    kept = {"sequences": four, "attention_mask": four, "action_mask": three, "rollout_log_probs": three}
    return SimpleNamespace(**kept, mm_train_inputs=[None], info={})


@pytest.mark.parametrize("algo", ADVANTAGE_RULES)
@pytest.mark.parametrize("rule", ["none", "top", "top_p", "min_p", "reverse", "random"])
def test_every_rule_and_filter_of_the_local_trainer_reaches_the_rows(
    monkeypatch: pytest.MonkeyPatch, algo: str, rule: str
) -> None:
    training = {
        "algo": algo,
        "filter": rule,
        "keep": 0.5,
        "groups": 4,
        "group_size": 3,
        "minibatch": 8,
    }
    config = with_settings(Config(), {"training": training})
    rng = np.random.default_rng(7)
    learned = [episode(i // 3, float(reward)) for i, reward in enumerate(rng.random(12))]
    iteration = Iteration.score_and_filter(0, learned, ["FrozenLake"] * 4, config.training, 5)
    scored = iteration.groups
    status = {"timing/make_experience": 0.0, "timing/ppo_train": 0.0, "timing/broadcast": 0.0}
    made = trainer([])
    made.run = RunContext(config, OpenRLHF(), "", (), 1)
    made.piece = str
    unread = {"observe": lambda iteration: None, "sampled_advantages": []}
    made.experience_maker = SimpleNamespace(difference=LogProbDifference(), reference_kl=0.0, **unread)
    made.critic_model_group = None
    made.actor_model_group = SimpleNamespace(async_run_method=lambda **arguments: [])
    batches: list[list[Any]] = []

    def train_step(rows: list[Any], iteration: int) -> tuple[dict[str, float], int]:
        batches.append(rows)
        return status, iteration

    made.train_step = train_step
    monkeypatch.setattr("ray.get", lambda refs: refs)
    made.rollouts = SimpleNamespace(rows=lambda trajectory: [row()])
    record, _ = made.update(iteration)
    kept = scored.kept.flatten().nonzero().flatten().tolist()
    (seen,) = batches
    notes = [AdvantageInputs(**json.loads(row.labels[0])) for row in seen]
    assert len(seen) % 8 == 0
    assert record["updates"] == len(seen) // 8
    assert [note.advantage for note in notes[: len(kept)]] == scored.advantages.flatten()[kept].tolist()
    assert [note.turn_rewards[0] for note in notes[: len(kept)]] == [learned[i].turn_rewards[0] for i in kept]
    assert not any(int(row.action_mask.sum()) for row in seen[len(kept) :]), "the rest is padding"
