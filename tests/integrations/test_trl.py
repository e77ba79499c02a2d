"""The exported training script in the real TRL: three steps of GRPO with a tiny model, by both ways of playing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.integrations import METRICS, Rollout, rows
from tests.integrations.library import byte_tokenizer, conforms, export, needs, options

needs("trl", "trl", "transformers", "datasets", "torch")

OPTIONS: dict[str, Any] = {"max_turns": 3, "success_rate": 0.8}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    import trl

    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    return byte_tokenizer(template.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
    }
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    folder = tmp_path_factory.mktemp("model")
    Qwen3ForCausalLM(Qwen3Config(**shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("play", ["tool", "conversation"])
def test_three_steps_of_grpo(play: str, model: Path, tmp_path: Path) -> None:
    folder = export(tmp_path / "package", "trl", *options(OPTIONS))
    command = [sys.executable, "train.py", "--cpu", "--model", str(model), "--play", play, "--steps", "3"]
    command += ["--levels", "8", "--group", "2", "--batch", "4", "--max-completion-length", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    state = json.loads((folder / "run" / "checkpoint-3" / "trainer_state.json").read_text(encoding="utf-8"))
    steps = [entry for entry in state["log_history"] if "reward" in entry]
    assert len(steps) == 3
    reward = "rewards/FrozenLake/mean" if play == "tool" else "rewards/game_return/mean"
    for step in steps:
        assert {reward, *(f"game/{name}" for name in METRICS)} <= set(step)
    if play == "conversation":  # bytes at random: every reply is malformed, and three of them end the episode
        for step in steps:
            assert step["game/malformed_replies"] == step["game/turns"] == 3.0
            assert (step["game/truncated"], step["game/unfinished"]) == (1.0, 0.0)
            assert step[reward] == pytest.approx(-0.3)
    else:  # a model that calls no tool
        for step in steps:
            assert (step["game/unfinished"], step[reward]) == (1.0, 0.0)


def test_the_example_trains(model: Path, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "trl_grpo.py"
    command = [sys.executable, str(example), "--cpu", "--model", str(model), "--steps", "1", "--out", "run"]
    command += ["--levels", "4", "--group", "2", "--batch", "4", "--max-tokens", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    state = json.loads((tmp_path / "run" / "checkpoint-1" / "trainer_state.json").read_text(encoding="utf-8"))
    assert state["log_history"][0]["game/turns"] == 3.0


def test_the_tool_has_a_schema_and_unknown_moves_are_the_games_to_judge() -> None:
    from transformers.utils.chat_template_utils import get_json_schema

    from ragen_gym.integrations.trl import environment_factory

    lake = environment_factory("FrozenLake", **OPTIONS)()
    assert get_json_schema(lake.play)["function"]["parameters"]["required"] == ["moves"]
    lake.reset(seed=1)
    lake.play("Jump")
    assert lake.get_reward() == pytest.approx(-0.1)


class Scripted:
    """The part of a trainer that a rollout function uses, with replies of the oracle and noise in between."""

    def __init__(self, tokenizer: Any, replies: Iterator[str]) -> None:
        self.processing_class, self.replies = tokenizer, replies
        self.calls: list[list[list[int]]] = []

    def _generate_single_turn(self, ids: list[list[int]], *_: Any) -> tuple[list[list[int]], None]:
        self.calls.append([list(row) for row in ids])
        return [self.processing_class(next(self.replies) + "<|im_end|>")["input_ids"] for _ in ids], None


def test_conversations_keep_the_sampled_ids_and_nothing_else_is_trained_on() -> None:
    from ragen_gym.integrations.trl_rollout import rollout_func

    tokenizer = byte_tokenizer()
    data = list(rows("FrozenLake", 2, split="test", success_rate=1, max_turns=3))
    demonstration = Rollout("FrozenLake", split="test", success_rate=1, max_turns=3)
    won = [demonstration.demonstration(row["seed"]) for row in data]
    assert [each["seed"] for each in won] == [row["seed"] for row in data]
    most = max(len(each["replies"]) for each in won)
    script = ["not a reply"] * 2 + [each["replies"][turn] for turn in range(most) for each in won]
    trainer = Scripted(tokenizer, iter(script))
    played = rollout_func(data, success_rate=1, max_turns=3)([row["prompt"] for row in data], trainer)
    assert played["logprobs"] is None
    for i, row in enumerate(data):
        sampled = [id for id, own in zip(played["completion_ids"][i], played["env_mask"][i], strict=True) if own]
        said = tokenizer.decode(sampled).split("<|im_end|>")[:-1]
        assert said[0] == "not a reply"
        rollout = Rollout("FrozenLake", split="test", success_rate=1, max_turns=3)
        rollout.begin(row["seed"])
        for reply in said:
            rollout.reply(reply)
        text = tokenizer.apply_chat_template(rollout.messages[:-1], tokenize=False)
        whole = tokenizer.decode(played["prompt_ids"][i] + played["completion_ids"][i])
        assert f"{whole}\n" == text
        assert played["game_return"][i] == pytest.approx(rollout.total)
        assert played["malformed_replies"][i] == 1.0


def test_an_episode_that_runs_out_of_tokens_is_unfinished(tokenizer: Any) -> None:
    from ragen_gym.integrations.trl_rollout import rollout_func

    data = list(rows("Sokoban", 2))
    trainer = Scripted(tokenizer, iter(["?" * 20] * 10))
    played = rollout_func(data, max_tokens=30)([row["prompt"] for row in data], trainer)
    assert played["unfinished"] == [1.0, 1.0]
    assert played["turns"] == [1.0, 1.0]


def test_it_computes_what_the_page_on_trainers_says() -> None:
    conforms("trl")
