"""The suites in the real Inspect AI: the scores of the benchmark on the same replies; errors are Inspect's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.bench.agent import Message, Task
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.results import load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import load_suite
from tests.integrations.library import needs

needs("inspect", "inspect_ai")

ANSWERS = ("<think>On.</think><answer>Down || Right</answer>", "Up, I think.", "<answer>Right || Down</answer>", "Odin")


def answer(messages: Sequence[str]) -> str:
    """A reply that depends on all that was shown, malformed now and then."""
    return ANSWERS[sum(map(len, messages)) % len(ANSWERS)]


class Scripted:
    """The same replies as an agent of the benchmark."""

    name = "scripted"

    async def reply(self, messages: Sequence[Message], task: Task) -> str:
        return answer([str(message["content"]) for message in messages])


def evaluated(tmp_path: Path, model: Any, name: str = "smoke", **options: Any) -> Any:
    import inspect_ai

    (log,) = inspect_ai.eval(
        "ragen_gym/suite",
        task_args={"name": name, "limit": 5},
        model=model,
        log_dir=str(tmp_path),
        display="none",
        **options,
    )
    return log


def scripted_model() -> Any:
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    def output(messages: Any, *_: Any) -> Any:
        made = ModelOutput.from_content("mockllm", answer([message.text for message in messages]))
        made.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # or it fetches a tokenizer to count
        return made

    return get_model("mockllm/model", custom_outputs=output)


def test_scores_are_those_of_the_benchmark_on_the_same_replies(tmp_path: Path) -> None:
    log = evaluated(tmp_path / "logs", scripted_model(), epochs=3)
    assert log.status == "success", log.error
    suite = load_suite("smoke")
    run_suite(suite, Scripted(), tmp_path / "run", RunOptions(limit=5, rollouts=3))
    results = load_results(tmp_path / "run")
    score = score_results(results)
    played = {(record.split, record.index, record.rollout): record for record in results.records}
    assert len(log.samples) == len(played) == 3 * 5 * len(suite.splits)
    for sample in log.samples:
        record = played[sample.metadata["split"], sample.metadata["index"], sample.epoch - 1]
        mine = sample.store["episode"]
        assert (mine["noise_seed"], mine["level_id"]) == (record.noise_seed, record.level_id)
        assert [turn["reply"] for turn in mine["turns"]] == [turn.reply for turn in record.turns]
        assert sample.scores["episode"].value["success"] == record.success
        assert sample.scores["episode"].value["return"] == record.total_reward
    found = {each.name: {m.name: m.value for m in each.metrics.values()} for each in log.results.scores}
    for split in suite.splits:
        assert found["success"][split.name] == pytest.approx(score["splits"][split.name]["success"]["rate"])
    assert found["success"]["all"] == pytest.approx(score["overall"]["success"])
    assert 0 < found["malformed"]["mean"] < 1
    assert any(record.success for record in played.values())


def test_a_sample_shows_what_the_benchmark_shows(tmp_path: Path) -> None:
    log = evaluated(tmp_path, scripted_model(), limit=1)
    (sample,) = log.samples
    assert [message.role for message in sample.messages[:2]] == ["system", "user"]
    assert sample.messages[1].text == sample.input
    assert sample.messages[-1].role == "assistant"
    assert log.plan.config.temperature == load_suite("smoke").temperature


def test_an_error_of_the_model_is_inspects_and_no_failed_episode(tmp_path: Path) -> None:
    from inspect_ai.model import get_model

    def output(messages: Any, *_: Any) -> Any:
        raise ValueError("the server is gone")

    model = get_model("mockllm/model", custom_outputs=output, memoize=False)
    log = evaluated(tmp_path, model, limit=2, fail_on_error=False)
    assert all("the server is gone" in sample.error.message for sample in log.samples)
    assert not any(sample.scores for sample in log.samples)


def test_a_picture_is_shown_as_one(tmp_path: Path) -> None:
    log = evaluated(tmp_path, scripted_model(), limit=1, name="visual-generalization")
    (sample,) = log.samples
    (image,) = [part for part in sample.messages[1].content if part.type == "image"]
    assert image.image.startswith(("data:image/png;base64,", "attachment://"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"split": "lakes"}, "smoke has no split 'lakes': choose one of sokoban, "),
        ({"split": ""}, "smoke has no split '': choose one of sokoban, "),
        ({"limit": 0}, "limit=0 must be an integer from 1"),
        ({"limit": -1}, "limit=-1 must be"),
    ],
)
def test_an_empty_task_is_an_error(given: dict[str, Any], message: str) -> None:
    from ragen_gym.integrations.inspect import suite

    with pytest.raises(ValueError, match=message):
        suite("smoke", **given)
