"""The exported agent loop in the real verl: its configuration, data set, worker, reward and validation figures.

verl's engine and its update need a GPU: a script stands in for the engine.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_gym.integrations import METRICS, Rollout
from tests.integrations.library import REPLIES, byte_tokenizer, conforms, export, needs, options, save_byte_model

needs("verl", "verl", "transformers", "datasets", "torch", "hydra")

OPTIONS: dict[str, Any] = {"max_turns": 3, "success_rate": 0.8}
END = "<|im_end|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("verl") / "package", "verl", *options(OPTIONS))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_model(tmp_path_factory.mktemp("model"), tokenizer)


@pytest.fixture(scope="module")
def configured(folder: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """verl's configuration with the arguments that ``train.sh`` gives, and further ones."""
    import verl
    from hydra import compose, initialize_config_dir

    bin = tmp_path_factory.mktemp("bin")
    (bin / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$ARGUMENTS"\n')
    (bin / "python").chmod(0o755)
    given = bin / "arguments"
    variables = {"PATH": f"{bin}:{os.environ['PATH']}", "MODEL": str(model), "ARGUMENTS": str(given)}
    done = subprocess.run(["bash", folder / "train.sh", "trainer.save_freq=5"], env=variables, check=False)
    assert done.returncode == 0
    python, module, *arguments = given.read_text().splitlines()
    assert (python, module, arguments[-1]) == ("-m", "verl.trainer.main_ppo", "trainer.save_freq=5")

    def config(*further: str) -> Any:
        with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
            return compose("ppo_trainer", [*arguments, "data.max_prompt_length=2048", *further])

    return config


class Engine:
    """What a loop asks of verl's client of its engine; every request is answered by the script, turn by turn."""

    def __init__(self, tokenizer: Any, replies: tuple[str, ...] = REPLIES, log_prob: float | None = None) -> None:
        self._tokenizer, self._replies, self._log_prob = tokenizer, replies, log_prob
        self.asked: dict[str, list[tuple[list[int], dict[str, Any]]]] = {}

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        before = self.asked.setdefault(request_id, [])
        ids = self._tokenizer(self._replies[len(before)] + END)["input_ids"][: sampling_params["max_tokens"]]
        before.append((list(prompt_ids), dict(sampling_params)))
        await asyncio.sleep(0)  # others play on
        step = {"min_global_steps": len(before), "max_global_steps": len(before)}
        log_probs = None if self._log_prob is None else [self._log_prob] * len(ids)
        return TokenOutput(token_ids=ids, log_probs=log_probs, extra_fields=step)


def generate(config: Any, tokenizer: Any, engine: Engine, rows: int, repeat: int = 1, **extra: Any) -> Any:
    """What verl's worker makes of the first rows of its validation data."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.protocol import DataProto
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    data = RLHFDataset(config.data.val_files, tokenizer, config.data)
    found = [data[i] for i in range(rows)]
    for row in found:
        row["extra_info"] = {**row["extra_info"], **extra}
    batch = DataProto.from_single_dict(collate_fn(found)).repeat(repeat)

    async def play() -> Any:
        return await AgentLoopWorker(config, engine).generate_sequences(batch)

    return asyncio.run(play())


def played(output: Any, i: int, tokenizer: Any) -> SimpleNamespace:
    """One episode of the batch: its text, what was sampled of it, its reward."""
    tensors = output.batch
    kept = tensors["attention_mask"][i].bool()
    sampled = tensors["responses"][i][tensors["response_mask"][i].bool()]
    return SimpleNamespace(
        text=tokenizer.decode(tensors["input_ids"][i][kept]),
        replies=tokenizer.decode(sampled).split(END)[:-1],
        reward=tensors["rm_scores"][i].sum().item(),
    )


def test_every_episode_is_the_games_and_its_replies_alone_are_trained_on(
    configured: Callable[..., Any], tokenizer: Any
) -> None:
    engine = Engine(tokenizer)
    output = generate(configured(), tokenizer, engine, 8, noise_seed=3)
    turns = set()
    for i in range(8):
        episode, rollout = played(output, i, tokenizer), Rollout("FrozenLake", split="test", **OPTIONS)
        rollout.begin(i, noise_seed=3)
        for reply in REPLIES:
            if not rollout.over:
                rollout.reply(reply)
        said = [message["content"] for message in rollout.messages if message["role"] == "assistant"]
        assert episode.replies == said
        assert episode.reward == pytest.approx(rollout.total)
        last = -1 if rollout.messages[-1]["role"] == "user" else None
        assert episode.text == tokenizer.apply_chat_template(rollout.messages[:last], tokenize=False).rstrip("\n")
        for name, value in rollout.metrics().items():
            assert output.non_tensor_batch[name][i] == value
        turns.add(len(said))
    assert max(turns) == 3
    for asked in engine.asked.values():
        assert all(later[: len(ids)] == ids for (ids, _), (later, _) in pairwise(asked))
        assert asked[0][1]["max_tokens"] == 3072


def test_a_group_meets_one_level_with_other_noise(configured: Callable[..., Any], tokenizer: Any) -> None:
    walk = ("<think>Far.</think><answer>Down || Right || Down || Right || Up</answer>",) * 3
    output = generate(configured(), tokenizer, Engine(tokenizer, walk), 1, repeat=32)
    texts = [played(output, i, tokenizer).text for i in range(32)]
    assert len(set(texts)) > 1
    assert len({text.partition("Far.")[0] for text in texts}) == 1


def test_verl_reads_reward_and_success_as_its_trainers_do(configured: Callable[..., Any], tokenizer: Any) -> None:
    from verl.trainer.ppo.metric_utils import process_validation_metrics
    from verl.trainer.ppo.reward import extract_reward

    output = generate(configured(), tokenizer, Engine(tokenizer), 8)
    reward, further = extract_reward(output)
    assert set(further) == {"acc", *METRICS}
    infos = {name: values.tolist() for name, values in further.items()} | {"reward": reward.sum(-1).tolist()}
    logged = process_validation_metrics(["FrozenLake/test"] * 8, [str(i) for i in range(8)], infos)
    assert logged["FrozenLake/test"]["acc"]["mean@1"] == pytest.approx(sum(infos["success"]) / 8)
    ends = output.batch["responses"].size(1) - 1 - output.batch["response_mask"].flip(1).argmax(1)
    assert (reward.abs().sum(-1) == reward.gather(1, ends[:, None])[:, 0].abs()).all()  # at the last sampled id
    for low, high in zip(*(output.non_tensor_batch[f"{each}_global_steps"] for each in ("min", "max")), strict=True):
        assert 1 == low <= high


def test_log_probs_are_those_of_sampling(configured: Callable[..., Any], tokenizer: Any) -> None:
    config = configured("actor_rollout_ref.rollout.calculate_log_probs=True")
    output = generate(config, tokenizer, Engine(tokenizer, log_prob=-0.25), 2)
    assert output.batch["rollout_log_probs"].tolist() == (-0.25 * output.batch["response_mask"]).tolist()


def test_an_episode_longer_than_the_response_is_unfinished(configured: Callable[..., Any], tokenizer: Any) -> None:
    engine = Engine(tokenizer, ("Up? " * 20,))
    output = generate(configured("data.max_response_length=120"), tokenizer, engine, 2)
    assert output.non_tensor_batch["unfinished"].tolist() == [1.0, 1.0]
    assert output.batch["response_mask"].sum(1).tolist() == [81, 81]
    assert output.batch["responses"].shape == (2, 120)


def test_rows_are_written_as_the_export_wrote_them(folder: Path) -> None:
    for split in ("train", "test"):
        command = [sys.executable, "rows.py", "16", "--split", split]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
        assert done.stdout == (folder / "data" / f"{split}.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("extra", "further", "said"),
    [
        ({"seed": 99}, [], "were the rows written with other options of the game"),
        ({"split": "train"}, [], "were the rows written with other options of the game"),
        ({"game": "Sokoban"}, [], "has no option 'success_rate'"),
        ({}, ["data.max_prompt_length=300"], "data.max_prompt_length=300: raise it"),
    ],
)
def test_what_cannot_be_played_is_refused(
    extra: dict[str, Any], further: list[str], said: str, configured: Callable[..., Any], tokenizer: Any
) -> None:
    with pytest.raises(ValueError, match=said):
        generate(configured(*further), tokenizer, Engine(tokenizer), 1, **extra)


def test_it_computes_what_the_page_on_trainers_says() -> None:
    conforms("verl")
