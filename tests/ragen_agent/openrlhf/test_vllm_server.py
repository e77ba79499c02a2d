"""``openai:`` against a real server: vLLM on the CPU with a small model, alone and behind a server that misbehaves.

The server takes half a minute to start, so all tests share one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from openai._base_client import BaseClient
from transformers import AutoTokenizer

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.run.policy import Policy
from ragen_agent.sft.trainer import warm_start
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.results import ResultsFolder
from ragen_gym.bench.suites import load_suite
from ragen_gym.cli import main
from ragen_gym.core.failures import Failure
from tests.ragen_agent.displays import quiet
from tests.ragen_agent.openrlhf.vllm_server import serving
from tests.ragen_gym.bench.bad_server import BadServer

if find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: make test-openrlhf has it", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

CONTEXT = 640
EPISODES = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model after a short warm start on the very game and budgets of the suite."""
    split = next(split for split in load_suite("smoke").splits if split.name == "frozen_lake")
    settings = merged(default_settings("FrozenLake"), {"game": "FrozenLake", "env_options": dict(split.env_options)})
    settings["turns"] = {**settings["turns"], "max_turns": split.turn_config.max_turns}
    short = {"demonstrations": {"episodes": 2000}, "warm_start": {"epochs": 1}}
    config = with_settings(Config(), merged(settings, short))
    folder = tmp_path_factory.mktemp("warm") / "model"
    warm_start(config, Policy.build(config), folder, quiet())
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of vLLM, which serves the model as ``lake``."""
    with serving(model, tmp_path_factory.mktemp("vllm") / "log", CONTEXT) as url:
        yield url


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(BaseClient, "_calculate_retry_timeout", lambda *_: 0.01)


def bench(url: str, out: Path, *options: str, most: int = 24) -> int:
    """``ragen-gym bench run`` of the lakes with the model behind ``url``; its exit code."""
    arguments = ["bench", "run", "--suite", "smoke", "--split", "frozen_lake", "--agent", "openai:lake"]
    arguments += ["--base-url", url, "--rollouts", str(EPISODES // 8), "--concurrency", "32"]
    return main([*arguments, "--max-tokens", str(most), "--out", str(out), *options])


def records_in(out: Path) -> list[EpisodeRecord]:
    return ResultsFolder(out).records()


def test_a_run_from_end_to_end(server: str, model: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "run", tmp_path / "page.html"
    with BadServer("good", upstream=server, model="lake") as between:
        assert bench(between.url, out) == 0
    assert 24 <= between.most <= 32
    records = records_in(out)
    assert len(records) == EPISODES
    assert all(record.failure is None for record in records)
    turns = [turn for record in records for turn in record.turns]
    assert sum(turn.problem is None for turn in turns) > 0.8 * len(turns)  # it was taught how to reply
    assert {turn.finish_reason for turn in turns} <= {"stop", "length"}
    tokenizer: Any = AutoTokenizer.from_pretrained(str(model))
    for record in records:
        first = [{"role": "system", "content": record.system}, {"role": "user", "content": record.turns[0].message}]
        ids = tokenizer.apply_chat_template(first, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert record.turns[0].prompt_tokens == len(ids)
    assert len({tuple(turn.reply for turn in record.turns) for record in records}) > EPISODES / 4
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    lakes = summary["splits"]["frozen_lake"]
    assert lakes["success"]["n"] == EPISODES
    assert lakes["tokens"]["completion"] == sum(turn.completion_tokens or 0 for turn in turns)
    assert main(["bench", "verify", str(out)]) == 0
    assert main(["bench", "report", str(out), "--out", str(page)]) == 0
    assert "openai:lake" in page.read_text()


def test_the_servers_own_refusals_have_their_types(server: str, tmp_path: Path) -> None:
    """A conversation that cannot fit the context, and a model that is not there."""
    assert bench(server, tmp_path / "long", "--limit", "1", most=CONTEXT) == 0
    overflown = records_in(tmp_path / "long")
    assert {record.failure for record in overflown} == {Failure.CONTEXT_OVERFLOW}, overflown[0].detail
    assert all(record.counted and not record.success for record in overflown)
    arguments = ["--suite", "smoke", "--split", "frozen_lake", "--limit", "1", "--base-url", server]
    assert main(["bench", "run", *arguments, "--agent", "openai:sea", "--out", str(tmp_path / "sea")]) == 1
    (record,) = records_in(tmp_path / "sea")
    assert record.failure is Failure.MODEL_ERROR
    assert "sea" in record.detail
