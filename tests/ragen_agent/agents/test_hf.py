"""``hf:`` on a slow machine: the clock of a request, what is said of settings that cannot work, and how it all ends.

The models are real and tiny; a slow machine is a real model whose forward passes sleep before they compute.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.agents import hf
from ragen_gym.bench.agent import AgentFailure, Answer, Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.episode_plan import RunOptions, make_env
from ragen_gym.bench.results import ResultsFolder
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import load_suite
from ragen_gym.cli import main
from ragen_gym.core.failures import Failure
from ragen_gym.core.seen import write_seen

SMOKE = load_suite("smoke")
LAKE = next(split for split in SMOKE.splits if split.name == "frozen_lake")

#: A program that plays with a model whose every forward pass multiplies large matrices, and says when one begins.
SLOW = """
import sys, torch, transformers
work = torch.ones(1200, 1200)
load = transformers.AutoModelForCausalLM.from_pretrained
def slow(*arguments, **settings):
    model = load(*arguments, **settings)
    def wait(*_):
        print("generating", flush=True)
        torch.mm(work, work)
    model.register_forward_pre_hook(wait)
    return model
transformers.AutoModelForCausalLM.from_pretrained = slow
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights over bytes that never ends a reply by itself."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    torch.manual_seed(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: place for place, symbol in enumerate([*alphabet, "<|end|>"])}
    raw = Tokenizer(models.BPE(vocabulary, []))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=2**20, eos_token_id=256, bos_token_id=None, pad_token_id=256,
    )  # fmt: skip
    net = LlamaForCausalLM(config)
    net.generation_config = GenerationConfig(suppress_tokens=[256], eos_token_id=256, pad_token_id=256)
    folder = tmp_path_factory.mktemp("model")
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def agent_of(model: Path, seconds: float = 0.0, **settings: Any) -> Any:
    """The agent, every forward pass of whose model takes so many seconds more."""
    agent: Any = make_agent(f"hf:{model}", **settings)
    agent._model.register_forward_pre_hook(lambda *_: time.sleep(seconds))
    return agent


async def ask(agent: Any, seed: int = 1, content: str = "Go.", temperature: float = 0.5) -> Answer:
    task = Task("smoke", "frozen_lake", 0, 0, seed, temperature, make_env(LAKE))
    answer: Answer = await agent.reply([{"role": "user", "content": content}], task)
    return answer


async def ask_once(agent: Any) -> Answer:
    """One answer of an agent that is closed after it."""
    try:
        return await ask(agent)
    finally:
        await agent.close()


def all_of(agent: Any, *replies: Coroutine[Any, Any, Any]) -> list[Any]:
    """What comes of replies that are made at the same time, of an agent that is closed after them."""

    async def play() -> list[Any]:
        try:
            return await asyncio.gather(*replies, return_exceptions=True)
        finally:
            await agent.close()

    return asyncio.run(play())


def test_the_record_of_the_run_that_made_the_model_is_found(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert agent_of(model).seen is None
    assert "knows only the words of its training levels" not in caplog.text
    shutil.copytree(model, tmp_path / "run" / "checkpoint")
    write_seen(tmp_path / "run" / "seen.npy", [7])
    assert agent_of(tmp_path / "run" / "checkpoint").seen == tmp_path / "run" / "seen.npy"
    assert "a small model from scratch, which knows only the words of its training levels" in caplog.text


def test_the_clock_starts_with_the_requests_own_generation(model: Path) -> None:
    """Each of ten requests takes half a second and the last begins after more than the limit of three."""
    agent = agent_of(model, 0.05, max_tokens=10, batch=1, timeout=3)
    began = time.monotonic()
    answers = all_of(agent, *(ask(agent, seed) for seed in range(10)))
    assert time.monotonic() - began > 3  # by the model's sleep alone
    assert [answer.completion_tokens for answer in answers] == [10] * 10


def test_a_batch_for_which_nobody_waits_is_stopped(model: Path) -> None:
    agent = agent_of(model, 0.05, max_tokens=100_000, timeout=3600)

    async def play() -> Answer:
        waiting = [asyncio.create_task(ask(agent, seed)) for seed in range(3)]
        await asyncio.sleep(0.5)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        agent._max_tokens = 3
        return await ask_once(agent)

    assert asyncio.run(play()).completion_tokens == 3


def test_a_request_of_another_temperature_is_not_passed_by_later_ones(model: Path) -> None:
    """Two conversations ask on and on, each beginning in the middle of the other's reply: the batch never ends."""
    agent = agent_of(model, 0.01, max_tokens=30, batch=2)

    async def play() -> int:
        greedy, replies = asyncio.Event(), 0

        async def talk(delay: float) -> None:
            nonlocal replies
            await asyncio.sleep(delay)
            while not greedy.is_set() and replies < 20:
                await ask(agent, replies)
                replies += 1

        async def once() -> None:
            await asyncio.sleep(0.3)
            await ask(agent, temperature=0.0)
            greedy.set()

        await asyncio.gather(talk(0), talk(0.15), once())
        await agent.close()
        return replies

    assert asyncio.run(play()) < 20


def test_a_run_plays_again_in_batches_of_any_size(model: Path, tmp_path: Path) -> None:
    """Alone or in a batch, the same request draws the same reply."""
    runs = []
    for batch in (1, 8, 3):
        agent, folder = agent_of(model, max_tokens=12, batch=batch), tmp_path / str(batch)
        run_suite(SMOKE, agent, folder, RunOptions(splits=("frozen_lake",), concurrency=batch))
        records = ResultsFolder(folder).records()
        assert [record.failure for record in records] == [None] * 8
        runs.append({record.key: tuple(turn.reply for turn in record.turns) for record in records})
    assert len({*runs[0].values()}) == 8
    same = [runs[0][key] == run[key] for run in runs[1:] for key in runs[0]]
    assert sum(same) > 0.9 * len(same)  # a draw on the edge between two tokens may fall to either side


def test_tokens_are_counted_and_the_context_ends(model: Path) -> None:
    agent = agent_of(model, max_tokens=5)
    message = {"role": "user", "content": "Go."}
    prompt = agent._tokenizer.apply_chat_template([message], add_generation_prompt=True, return_dict=True)["input_ids"]

    async def play() -> None:
        try:
            answer = await ask(agent)
            assert (answer.prompt_tokens, answer.completion_tokens) == (len(prompt), 5)
            assert answer.finish_reason == "length"
            agent._context = len(prompt) + 2
            assert (await ask(agent)).completion_tokens == 2
            agent._context = len(prompt)
            with pytest.raises(AgentFailure, match="leave no room in a context of"):
                await ask(agent)
        finally:
            await agent.close()

    asyncio.run(play())


def test_other_weights_are_another_agent(model: Path, tmp_path: Path) -> None:
    same, other = (shutil.copytree(model, tmp_path / name) for name in ("same", "other"))
    weights = next(other.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    hashes = [agent_of(path).settings["weights"] for path in (model, same, other)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_turns_of_many_conversations_are_those_of_generate(model: Path) -> None:
    """Ten conversations of three turns, in four places, each with what generate says to the same text."""
    agent = agent_of(model, max_tokens=9, batch=4)
    env = make_env(LAKE)

    async def talk(number: int) -> list[dict[str, str]]:
        task, messages = Task("smoke", "frozen_lake", number, 0, number, 0.0, env), list[dict[str, str]]()
        for turn in range(3):
            messages.append(
                {"role": "user", "content": f"A board {number * 37 % 11} and turn {turn}." * (number % 3 + 1)}
            )
            answer = await agent.reply(messages, task)
            messages.append({"role": "assistant", "content": answer.text})
        return messages

    for messages in all_of(agent, *(talk(number) for number in range(10))):
        for turn in (1, 3, 5):
            ids = agent._tokenizer.apply_chat_template(messages[:turn], add_generation_prompt=True, return_tensors="pt")
            whole = agent._model.generate(**ids, max_new_tokens=9, do_sample=False)
            expected = agent._tokenizer.decode(whole[0, ids["input_ids"].shape[1] :], skip_special_tokens=False)
            assert messages[turn]["content"] == expected


def test_an_error_of_the_model_fails_the_replies_that_are_being_made(model: Path) -> None:
    agent = agent_of(model, 0.01, max_tokens=30, batch=3)
    passes = 0

    def broken(*_: Any) -> None:
        nonlocal passes
        passes += 1
        if passes == 5:
            raise RuntimeError("no memory left")

    agent._model.register_forward_pre_hook(broken)
    ends = all_of(agent, *(ask(agent, seed) for seed in range(7)))
    failed = [end for end in ends if isinstance(end, AgentFailure)]
    assert 1 <= len(failed) <= 3
    assert all(end.failure is Failure.MODEL_ERROR and "RuntimeError: no memory left" in end.detail for end in failed)
    assert [end.completion_tokens for end in ends if isinstance(end, Answer)] == [30] * (7 - len(failed))


def test_a_thinking_that_the_template_opens_belongs_to_the_reply(model: Path) -> None:
    agent = agent_of(model, max_tokens=3)
    plain = asyncio.run(ask_once(agent)).text
    agent._tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    opened = asyncio.run(ask_once(agent))
    assert not plain.startswith("<think>")
    assert opened.text.startswith("<think>\n")
    assert opened.completion_tokens == 3


def test_closing_ends_what_is_being_made(model: Path) -> None:
    agent = agent_of(model, 0.05, max_tokens=100_000, timeout=3600, batch=2)

    async def play() -> list[Any]:
        waiting = [asyncio.create_task(ask(agent, seed)) for seed in range(4)]
        while not agent._replies.running:
            await asyncio.sleep(0.01)
        await agent.close()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        agent._max_tokens = 2
        return [*ends, await ask_once(agent)]

    *ends, after = asyncio.run(play())
    assert all(isinstance(end, AgentFailure) and "the agent was closed" in end.detail for end in ends)
    assert after.completion_tokens == 2, "a closed agent can be used again"


def test_what_takes_too_long_is_a_timeout_with_a_remedy(model: Path) -> None:
    agent = agent_of(model, 0.05, max_tokens=1000, timeout=2)
    failures = all_of(agent, *(ask(agent, seed) for seed in range(2)))
    assert all(isinstance(failure, AgentFailure) and failure.failure is Failure.TIMEOUT for failure in failures)
    assert "no whole reply within 2 s: " in failures[0].detail
    assert "of 1,000 tokens; lower --max-tokens" in failures[0].detail


def test_a_large_model_takes_the_cpu_s_bfloat16_for_its_weights_alone(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(hf, "bfloat16_units", lambda: "AVX-512")
    monkeypatch.setattr(hf, "LARGE", 1)
    net = agent_of(model, device="cpu")._model
    assert {weight.dtype for weight in net.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in net.buffers()} == {torch.float32}


@pytest.mark.parametrize("settings", [{"device": "foo"}, {"device": "cuda:99"}, {"dtype": "foo"}])
def test_what_cannot_be_loaded_is_refused(model: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be loaded"):
        make_agent(f"hf:{model}", **settings)


def test_the_folder_of_a_run_is_answered_with_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(ValueError, match=rf"{tmp_path}/checkpoint is the run's"):
        make_agent(f"hf:{tmp_path}")


def test_no_thread_is_left_after_close(model: Path, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    agent = agent_of(model, max_tokens=4)
    outcome = run_suite(SMOKE, agent, tmp_path / "run", RunOptions(("frozen_lake",), limit=2))
    assert (outcome.played, outcome.failures) == (2, {})
    assert set(threading.enumerate()) == before


def program(source: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW + source, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )


def test_ctrl_c_ends_a_run_in_the_middle_of_a_reply(model: Path, tmp_path: Path) -> None:
    source = "from ragen_gym.cli import main\nsys.exit(main(sys.argv[1:]))"
    words = ["bench", "run", "--suite", "smoke", "--agent", f"hf:{model}", "--out", str(tmp_path / "run")]
    process = program(source, *words, "--max-tokens", "100000", "--timeout", "36000")
    assert process.stdout is not None
    assert "generating" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "the same command resumes the run" in said
    assert "terminate called" not in said
    assert "Traceback" not in said


def test_a_program_that_forgets_to_close_its_agent_ends(model: Path) -> None:
    source = """
import asyncio
from ragen_gym.bench.agent import Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.episode_plan import make_env
from ragen_gym.bench.suites import load_suite
agent = make_agent(sys.argv[1], max_tokens=100_000, timeout=36000)
task = Task("smoke", "bandit", 0, 0, 1, 0.5, make_env(load_suite("smoke").splits[0]))
async def ask():
    try:
        async with asyncio.timeout(0.5):
            await agent.reply([{"role": "user", "content": "Go."}], task)
    except TimeoutError:
        print("timed out")
asyncio.run(ask())
"""
    process = program(source, f"hf:{model}")
    out, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "timed out" in out
    assert "Traceback" not in said


def test_a_model_that_is_nowhere_ends_the_command_before_it_plays(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = ["-m", "ragen_gym.cli", "bench", "run", "--suite", "smoke", "--agent", "hf:nope/nope", "--out", str(out)]
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *run],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **nowhere},
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, "no traceback"
    assert "model nope/nope: there is no such folder, and the Hugging Face Hub did not give" in done.stderr
    assert not out.exists()


@pytest.mark.slow
def test_the_code_of_a_models_folder_is_never_run(model: Path, tmp_path: Path) -> None:
    """transformers would ask whether to run it, and a y on standard input would do."""
    folder, ran = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(model, folder)
    (folder / "theirs.py").write_text(f"open({str(ran)!r}, 'w').close()\n", encoding="utf-8")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings |= {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.C", "AutoModelForCausalLM": "theirs.M"}}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    for words in (
        ["ragen_gym.cli", *f"bench run --suite smoke --agent hf:{folder} --out {tmp_path / 'out'}".split()],
        ["ragen_agent.cli", "train", "--model", str(folder), "--out", str(tmp_path / "run")],
        ["ragen_agent.cli", "doctor", "--backend", "local", "--model", str(folder)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *words], input="y\n" * 9, capture_output=True, check=False, text=True, timeout=300
        )
        assert not ran.exists(), words
        assert done.returncode in (1, 2)
        said = done.stdout + done.stderr
        assert "auto_map" in said
        assert "trust_remote_code" not in said, "advice to run it"


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_code_of_the_hub_that_a_models_folder_names_is_never_run(
    name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers would fetch it where the package ``kernels`` is installed, as vLLM brings it."""
    from ragen_agent.models.checkpoint import load_shape

    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**settings, name: "theirs/kernel"}), encoding="utf-8")
    words = ["bench", "run", "--suite", "smoke", "--agent", f"hf:{folder}", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "names code of the Hub" in capsys.readouterr().err
    with pytest.raises(ValueError, match="names code of the Hub"):
        load_shape(folder)
