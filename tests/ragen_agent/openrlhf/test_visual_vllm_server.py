"""``openai:`` with pictures against a real server: vLLM on the CPU with the small model that sees.

The server takes a minute to start, so all tests share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig, AutoTokenizer

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.inference.vision import Vision
from ragen_agent.run.policy import Policy
from ragen_agent.sft.trainer import warm_start
from ragen_agent.tokens.chat import ChatFormat
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.results import ResultsFolder
from ragen_gym.cli import main
from ragen_gym.core.failures import Failure
from ragen_gym.envs.messages import parts_of
from tests.ragen_agent.displays import quiet
from tests.ragen_agent.openrlhf.vllm_server import serving

if find_spec("vllm") is None or find_spec("torchvision") is None:
    pytest.skip("vllm or torchvision is not installed here: make test-openrlhf has both", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

CONTEXT = 640
LAKES = ("P__O\n____\n_O__\n___G", "PO__\n____\n__O_\nG___", "__P_\nO___\n____\n_G_O", "G___\n___O\n_O__\n___P")
WIDE = "P_______\n" + "________\n" * 6 + "_______G"
SUITE = """
name = "lakes"
[budgets]
observation = "image"
max_tokens_per_turn = 24
[[splits]]
name = "lakes"
env = "FrozenLake"
levels = "lakes.txt"
env_options = { success_rate = 1.0 }
budgets = { max_turns = 2 }
[[splits]]
name = "large"
env = "FrozenLake"
levels = "wide.txt"
env_options = { size = 8, success_rate = 1.0 }
budgets = { image_tile_size = 128 }
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    (folder / "suite.toml").write_text(SUITE, encoding="utf-8")
    (folder / "lakes.txt").write_text("\n\n".join(LAKES) + "\n", encoding="utf-8")
    (folder / "wide.txt").write_text(WIDE + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model that sees, after a short warm start on lakes with the budgets of the first split."""
    short: dict[str, Any] = {"turns": {"observation": "image"}, "small_model": {"kind": "vision"}}
    short |= {"demonstrations": {"episodes": 1500}, "warm_start": {"epochs": 1}}
    config = with_settings(Config(), merged(default_settings("FrozenLake"), short))
    folder = tmp_path_factory.mktemp("seeing") / "model"
    warm_start(config, Policy.build(config), folder, quiet())
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of vLLM, which serves the model as ``lake``."""
    limit = ["--limit-mm-per-prompt", '{"image": 3}']
    with serving(model, tmp_path_factory.mktemp("vllm") / "log", CONTEXT, *limit) as url:
        yield url


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def bench(url: str, suite: Path, split: str, out: Path, *options: str) -> tuple[int, list[EpisodeRecord]]:
    """``ragen-gym bench run`` of a split with the model behind ``url``; its exit code and records."""
    arguments = ["bench", "run", "--suite", str(suite), "--split", split, "--agent", "openai:lake", "--base-url", url]
    code = main([*arguments, "--max-tokens", "24", "--out", str(out), *options])
    return code, ResultsFolder(out).records()


def test_a_run_with_pictures(server: str, suite: Path, model: Path, tmp_path: Path) -> None:
    code, records = bench(server, suite, "lakes", tmp_path / "run", "--rollouts", "8", "--concurrency", "16")
    assert code == 0
    assert len(records) == 8 * len(LAKES)
    assert all(record.failure is None for record in records), records[0].detail
    turns = [turn for record in records for turn in record.turns]
    assert sum(turn.problem is None for turn in turns) > 0.8 * len(turns)  # it was taught how to reply
    vision = Vision.from_folder(AutoConfig.from_pretrained(model), model)
    assert vision is not None
    chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(model), vision=vision)
    picture = np.zeros((4 * 28, 4 * 28, 3), np.uint8)
    for record in records:
        ids = chat.prompt_ids(record.system, parts_of(record.turns[0].message, picture=True), [picture])
        assert record.turns[0].prompt_tokens == len(ids), "a tile is a visual token there too"
    assert main(["bench", "verify", str(tmp_path / "run"), "--suite", str(suite)]) == 0


def test_a_picture_that_is_larger_than_the_context_is_an_overflow(server: str, suite: Path, tmp_path: Path) -> None:
    code, records = bench(server, suite, "large", tmp_path / "run")
    assert code == 0
    assert {record.failure for record in records} == {Failure.CONTEXT_OVERFLOW}, records[0].detail
    assert all(record.counted and not record.success for record in records)
