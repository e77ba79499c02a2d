"""Parts of the distributed trainer that a real run seldom meets."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf import experience
from ragen_agent.openrlhf.episode import TooManyFailuresError
from ragen_agent.openrlhf.experience import (
    EpisodeGenerator,
    EpisodeSample,
    WeightsLostError,
)
from ragen_agent.openrlhf.processes import RunContext
from ragen_agent.openrlhf.prompt_dataset import PromptRow
from ragen_agent.openrlhf.trainer import StarPO
from ragen_agent.tokens.trajectory import failed

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
