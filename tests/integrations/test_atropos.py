"""The exported environment in the real Atropos, by its command line, with stand-ins for the servers of a model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.integrations import METRICS
from tests.integrations.library import REPLIES, byte_tokenizer, export, needs, options, played, serving_replies

needs("atropos", "atroposlib")

OPTIONS: dict[str, Any] = {"max_turns": 3, "success_rate": 0.8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = export(tmp_path_factory.mktemp("atropos") / "package", "atropos", *options(OPTIONS))
    byte_tokenizer().save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")
    return folder


@pytest.fixture
def generating() -> Iterator[str]:
    """A server of Atropos' vLLM API that samples ``REPLIES``, each token with the log-prob -0.5."""
    tokenizer = byte_tokenizer()

    class Sampler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = tokenizer.decode(request["prompt"]["prompt_token_ids"])
            turn = prompt.count("<|im_start|>assistant") - 1
            sampled = tokenizer.encode(REPLIES[turn] + "<|im_end|>")
            self.answer({"logprobs": [[[{str(id): -0.5}] for id in sampled]], "finish_reasons": ["stop"]})

        def answer(self, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with serving_replies(Sampler) as url:
        yield url


def run(folder: Path, command: str, *arguments: str) -> str:
    model = ["--env.tokenizer_name", "model", "--openai.model_name", "model", "--env.use_wandb", "false"]
    call = [sys.executable, "environment.py", command, *model, "--openai.api_key", "none", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_group_keeps_the_sampled_ids_and_scores_the_episodes(folder: Path, generating: str) -> None:
    arguments = ["--env.group_size", "4", "--env.total_steps", "2", "--env.ensure_scores_are_not_same", "false"]
    arguments += ["--env.include_messages", "true", "--env.data_path_to_save_groups", "groups.jsonl"]
    run(folder, "process", *arguments, "--openai.base_url", generating, "--openai.server_type", "vllm")
    groups = [json.loads(line) for line in (folder / "groups.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(groups) == 2
    tokenizer = byte_tokenizer()
    for group in groups:
        assert len(group["tokens"]) == len(group["masks"]) == len(group["scores"]) == 4
        starts = {tokenizer.decode(tokens).partition("<|im_start|>assistant")[0] for tokens in group["tokens"]}
        assert len(starts) == 1
        rows = zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True)
        for tokens, mask, log_probs in rows:
            said = tokenizer.decode([id for id in mask if id != -100]).split("<|im_end|>")[:-1]
            assert said == list(REPLIES[: len(said)])
            assert [id for id, own in zip(tokens, mask, strict=True) if own != -100] == [i for i in mask if i != -100]
            assert {log_prob for log_prob, own in zip(log_probs, mask, strict=True) if own != -100} == {-0.5}
    scores = {round(score, 6) for group in groups for score in group["scores"]}
    assert scores <= {-0.1, 0.0, 0.9, 1.0}


def test_evaluation_is_on_levels_of_the_test_split(folder: Path) -> None:
    with serving_replies() as url:
        arguments = ["--env.eval_levels", "6", "--env.data_dir_to_save_evals", "evals"]
        run(folder, "evaluate", *arguments, "--openai.base_url", url, "--openai.server_type", "openai")
    (found,) = (folder / "evals").rglob("metrics.json")
    text = found.read_text(encoding="utf-8")
    expected = []
    for seed in range(6):
        rollout = played(seed, seed, split="test", **OPTIONS)
        expected.append(rollout.metrics() | {"return": rollout.total})
    results = json.loads(text)["results"]["all"]
    for name in (*METRICS, "return"):
        assert results[f"eval/{name}"] == pytest.approx(sum(each[name] for each in expected) / 6)
