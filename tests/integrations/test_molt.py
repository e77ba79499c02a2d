"""The exported agent in the real Molt: its data set, its runner, its client of the engine, its settings.

Molt's engine and its update need a GPU: a script stands in for the engine, behind its HTTP route.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_gym.integrations import METRICS
from tests.integrations.library import (
    REPLIES,
    byte_tokenizer,
    conforms,
    export,
    needs,
    options,
    played,
    save_byte_model,
    serving_replies,
)

needs("molt", "molt", "transformers", "torch", "ray")

OPTIONS: dict[str, Any] = {"max_turns": 3, "success_rate": 0.8}
END = "<|im_end|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = export(tmp_path_factory.mktemp("molt") / "package", "molt", *options(OPTIONS))
    (folder / "data").mkdir()
    for split in ("train", "test"):
        with (folder / "data" / f"{split}.jsonl").open("w") as file:
            subprocess.run([sys.executable, "rows.py", "4", "--split", split], cwd=folder, stdout=file, check=True)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from molt.utils import get_tokenizer

    return get_tokenizer(str(save_byte_model(tmp_path_factory.mktemp("model"), byte_tokenizer())), None)


@pytest.fixture(scope="module")
def url(tokenizer: Any) -> Iterator[str]:
    """The engine: the script's reply of the turn, whose ids it cuts at ``max_tokens`` as vLLM does."""

    class Engine(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/inference/v1/generate"
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            turn = tokenizer.decode(asked["token_ids"]).count("<|im_start|>assistant\n") - 1
            ids = tokenizer(REPLIES[turn] + END)["input_ids"]
            kept = ids[: asked["sampling_params"]["max_tokens"]]
            content = [{"token": f"token_id:{each}", "logprob": -0.5} for each in kept]
            reason = "stop" if kept == ids else "length"
            answer = {"choices": [{"token_ids": kept, "logprobs": {"content": content}, "finish_reason": reason}]}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with serving_replies(Engine) as url:
        yield url.removesuffix("/v1")


@pytest.fixture(scope="module")
def rows(folder: Path, tokenizer: Any) -> Any:
    """Prompts and labels as Molt's data set gives them with the settings of ``train.sh``."""
    from molt.datasets.prompts_dataset import PromptDataset
    from molt.datasets.utils import blending_datasets

    data = SimpleNamespace(input_key="input", label_key="label", apply_chat_template=True)
    strategy = SimpleNamespace(args=SimpleNamespace(data=data), print=print, is_rank_0=lambda: False)
    found = PromptDataset(blending_datasets(str(folder / "data" / "test.jsonl"), None, strategy), tokenizer, strategy)
    return [(prompt, label) for _, prompt, label, _, _ in (found[i] for i in range(len(found)))]


def rollouts(folder: Path, url: str, tokenizer: Any, rows: list[tuple[str, str]], max_length: int = 8192) -> Any:
    """Trajectories of the agent that ``--train.agent_path`` names, all at once, through Molt's client."""
    import aiohttp
    from molt.agents.base import load_agent_runner
    from molt.trainer.rollout.router import RouterGenerateClient

    runner = load_agent_runner(str(folder / "agent.py"))
    sampling = SimpleNamespace(max_tokens=64, temperature=1.0, top_p=1.0, top_k=-1, logprobs=1)

    async def play() -> Any:
        async with aiohttp.ClientSession(base_url=url) as http:
            execute = partial(
                runner.execute,
                sampling_params=sampling,
                max_length=max_length,
                hf_tokenizer=tokenizer,
                llm_engine=RouterGenerateClient(http),
            )
            return await asyncio.gather(*(execute(prompt=prompt, label=label) for prompt, label in rows))

    return asyncio.run(play())


def with_noise(label: str, noise_seed: int) -> str:
    return json.dumps({**json.loads(label), "noise_seed": noise_seed})


def test_an_episode_is_the_games_and_its_sampled_ids_are_kept(
    folder: Path, url: str, tokenizer: Any, rows: Any
) -> None:
    for prompt, label in rows:
        (found,) = rollouts(folder, url, tokenizer, [(prompt, with_noise(label, 7))])
        rollout = played(json.loads(label)["seed"], 7, split="test", **OPTIONS)
        told = tokenizer.apply_chat_template(rollout.messages, tokenize=False)
        if rollout.over:  # the game's last word is no observation of another turn
            told = told.removesuffix(tokenizer.apply_chat_template(rollout.messages[-1:], tokenize=False))
        assert tokenizer.decode(found.observation_tokens) == told.removesuffix("\n")
        assert found.observation_text == told.removesuffix("\n")
        sampled = [found.observation_tokens[start:end] for start, end in found.action_ranges]
        assert [tokenizer.decode(ids) for ids in sampled] == [reply + END for reply in REPLIES[: len(sampled)]]
        inside = {i for start, end in found.action_ranges for i in range(start, end)}
        assert [i for i, each in enumerate(found.rollout_log_probs) if each] == sorted(inside)
        assert (found.reward, found.scores) == (pytest.approx(rollout.total), rollout.info["success"])
        assert found.extra_logs == rollout.metrics()
        assert list(found.extra_logs) == list(METRICS)
        assert found.truncated == rollout.metrics()["truncated"]


def test_a_group_meets_one_level_with_other_noise(folder: Path, url: str, tokenizer: Any, rows: Any) -> None:
    found = rollouts(folder, url, tokenizer, [rows[0]] * 32)
    assert len({each.prompt for each in found}) == 1
    assert len({each.observation_text for each in found}) > 1


def test_an_episode_that_the_context_ends_is_unfinished(folder: Path, url: str, tokenizer: Any, rows: Any) -> None:
    prompt, label = rows[0]
    room = 100  # for one reply of up to 64 tokens, and not for a second one
    fixed = with_noise(label, 7)  # with which the first reply does not end the episode in a hole
    (found,) = rollouts(folder, url, tokenizer, [(prompt, fixed)], len(tokenizer(prompt)["input_ids"]) + room)
    assert len(found.observation_tokens) <= len(tokenizer(prompt)["input_ids"]) + room
    assert (found.truncated, found.extra_logs["unfinished"]) == (True, 1.0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"seed": 9999}, "the prompt is not that of seed 9999"),
        ({"seed": None, "split": "dev"}, "split"),
        (None, "label"),
    ],
)
def test_a_row_of_another_game_is_refused(
    folder: Path, url: str, tokenizer: Any, rows: Any, changes: Any, problem: str
) -> None:
    prompt, label = rows[0]
    label = "" if changes is None else json.dumps({**json.loads(label), **changes})
    with pytest.raises(ValueError, match=problem):
        rollouts(folder, url, tokenizer, [(prompt, label)])


def test_molts_own_command_accepts_the_scripts_settings(folder: Path) -> None:
    """It reads and checks them all, and fails where it would start vLLM, which is not installed here."""
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "train.sh"], cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode
    assert ", in train\n" in done.stderr, done.stderr
    assert "No module named 'vllm'" in done.stderr, done.stderr


def test_it_computes_what_the_page_on_trainers_says() -> None:
    conforms("molt")
