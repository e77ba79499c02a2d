"""The data sets of reasoning-gym as text tasks, by the real library where it is installed."""

from __future__ import annotations

import sys

import pytest

from ragen_gym.envs.task import TaskEnv
from ragen_gym.tasks import ReasoningGym

NAME = "ragen_gym.tasks:ReasoningGym"


@pytest.fixture
def library() -> None:
    pytest.importorskip("reasoning_gym", reason="pip install -c constraints.txt '.[tasks]' brings reasoning-gym")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dataset", ["chain_sum", "leg_counting", "countdown", "gsm_symbolic", "futoshiki"])
def test_an_answer_is_scored_as_the_library_scores_it(dataset: str) -> None:
    env = TaskEnv(NAME, split="test", dataset=dataset)
    for seed in range(5):
        question, info = env.reset(seed=seed)
        assert TaskEnv(NAME, split="test", dataset=dataset).reset(seed=seed) == (question, info)
        said, reward, terminated, _, info = env.step(env.optimal_reply())
        assert (said, reward, terminated, info["success"]) == ("Score: 1.", 1.0, True, True)
        env.reset(seed=seed)
        assert not env.step("no idea")[4]["success"]
    assert not env.has_random_replies


@pytest.mark.usefixtures("library")
def test_settings_reach_the_data_set_and_wrong_ones_are_refused() -> None:
    env = ReasoningGym("chain_sum", {"min_terms": 5, "max_terms": 5})
    assert env.reset(seed=0)[0].count(" + ") + env.reset(seed=0)[0].count(" - ") == 4
    assert TaskEnv(NAME, dataset="chain_sum", config=env.config).reset(seed=0)[0] == env.reset(seed=0)[0]
    for dataset, config, error in (
        ("chain_summ", {}, "dataset='chain_summ' is none .* Did you mean chain_sum"),
        ("chain_sum", {"terms": 3}, "does not fit chain_sum"),
        ("chain_sum", {"min_terms": 9, "max_terms": 2}, "does not fit chain_sum"),
        ("chain_sum", {"seed": 3}, "leave seed out of config"),
    ):
        with pytest.raises(ValueError, match=error):
            ReasoningGym(dataset, config)


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ImportError, match=r"pip install 'ragen-gym\[tasks\]'"):
        ReasoningGym()
