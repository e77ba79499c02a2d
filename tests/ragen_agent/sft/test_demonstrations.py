"""Conversations: those of a warm start, the same file however it was made, and exactly the tokens of a rollout."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from rich.console import Console
from transformers import PreTrainedTokenizerFast

from ragen_agent.cli import main
from ragen_agent.config import Config, Demonstrations, merged, to_toml, with_settings
from ragen_agent.config.presets import default_settings, read_recipe
from ragen_agent.run.console import Display
from ragen_agent.run.evaluation import baseline_notices, evaluated_levels
from ragen_agent.run.policy import Policy
from ragen_agent.sft.demonstrations import (
    demonstrate,
    demonstrated_families,
    demonstrator_rate,
    families_of,
    faultless,
    generate_demonstrations,
    measure_baselines,
    read_conversations,
    trajectories_of,
    trajectory_of,
    write_conversations,
)
from ragen_agent.tasks.tasks import all_settings, make_env
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.rollout import Instance, group
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym import make_turn
from ragen_gym.core.turn_config import TurnConfig
from tests.ragen_agent.displays import quiet

LAKE = with_settings(
    Config(),
    merged(
        {**default_settings("FrozenLake"), "game": "FrozenLake"}, {"demonstrations": {"episodes": 40, "mistakes": 0.2}}
    ),
)
_OF_A_GAME = ("env_options", "turns")
MIXED = replace(LAKE, games=[{"game": "FrozenLake"}, {"game": "Bandit", "thought": "choose"}])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("config", [LAKE, MIXED], ids=["one game", "two games"])
def test_the_file_holds_what_the_warm_start_shows(config: Config, tmp_path: Path) -> None:
    write_conversations(config, tmp_path / "demos.jsonl", quiet())
    with pytest.raises(ValueError, match="exists already"):
        write_conversations(config, tmp_path / "demos.jsonl", quiet())
    shown = generate_demonstrations(config, Policy.build(config), config.demonstrations, quiet())
    lines = lines_of(tmp_path / "demos.jsonl")
    assert [line["messages"] for line in lines] == [list(t.messages[:-1]) for t in shown]
    for line, episode in zip(lines, shown, strict=True):
        assert (line["level_id"], line["success"]) == (episode.level_id, episode.success)
        assert line["return"] == pytest.approx(episode.total_reward)
        assert line["messages"][-1]["role"] == "assistant"
    assert {line["env"] for line in lines} == {row.get("game") for row in config.games} or {"FrozenLake"}


def test_a_line_says_how_to_play_it_again(tmp_path: Path) -> None:
    write_conversations(LAKE, tmp_path / "demos.jsonl", quiet())
    for line in lines_of(tmp_path / "demos.jsonl")[:10]:
        known = {field.name for field in fields(TurnConfig)} - {
            "max_tokens_per_turn"
        }  # stated to pretrained models only
        turns = {name: value for name, value in line["turns"].items() if name in known}
        env = make_turn(line["env"], split=line["split"], **turns, **line["env_options"])
        _, info = env.reset(seed=line["seed"], options={"noise_seed": line["noise_seed"]})
        assert info["level_id"] == line["level_id"]
        assert env.env.game.split_of(env.env.state[0]) == "train"
        for message in line["messages"]:
            if message["role"] == "assistant":
                info = env.step(message["content"])[-1]
        assert env.over
        assert list(info["messages"][:-1]) == line["messages"]
        assert info["success"] == line["success"]


def test_lines_without_options_are_written_as_parquet(tmp_path: Path) -> None:
    few = {"game": "Bandit", "demonstrations": {"episodes": 3}}
    config = with_settings(Config(), merged(default_settings("Bandit"), few))
    write_conversations(config, tmp_path / "demos.jsonl", quiet())
    lines = read_conversations(tmp_path / "demos.jsonl")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(lines), tmp_path / "demos.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "demos.parquet").to_pylist() == lines
    assert families_of(lines) is not None


def test_conversations_say_the_families_of_their_levels(tmp_path: Path) -> None:
    write_conversations(LAKE, tmp_path / "demos.jsonl", quiet())
    lines = lines_of(tmp_path / "demos.jsonl")
    warm = replace(LAKE, warm_start=replace(LAKE.warm_start, epochs=1))
    assert families_of(lines) == frozenset(demonstrated_families(warm))
    assert not [*demonstrated_families(replace(LAKE, warm_start=replace(LAKE.warm_start, epochs=0)))]
    assert {line["split"] for line in lines} == {"train"}
    assert families_of([{**line, "split": "test"} for line in lines]) is None, "that split draws other levels"
    for name, value in (("level_id", "0" * 16), ("seed", None), ("env", "Chess"), ("env_options", {"sise": 3})):
        assert families_of([*lines, {**lines[0], name: value}]) is None
    assert families_of([*lines, {"messages": []}]) is None


def test_the_command_has_a_faultless_demonstrator_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["sft", "data", "--game", "FrozenLake", "--episodes", "30", "--json", "--set", "turns.max_turns=3"]
    assert main([*base, "--out", str(tmp_path / "best.jsonl")]) == 0
    best = json.loads(capsys.readouterr().out)
    assert (best["episodes"], best["successes"]) == (30, 30)
    assert lines_of(tmp_path / "best.jsonl")[0]["demonstrator"]["thought"] == "plan"
    assert main([*base, "--set", "demonstrations.quality=0", "--out", str(tmp_path / "worst.jsonl")]) == 0
    assert json.loads(capsys.readouterr().out)["successes"] < 20
    how = '{"moves": [1], "mistakes": 0.1, "thought": "none"}'
    options = ["--set", f"demonstrations={how}", "--model", "elsewhere/model"]
    assert main([*base, *options, "--out", str(tmp_path / "other.jsonl")]) == 0
    first = lines_of(tmp_path / "other.jsonl")[0]
    assert first["demonstrator"] == {"moves": [1.0], "mistakes": 0.1, "quality": 1.0, "thought": "none"}
    assert "in at most 256 tokens" in first["messages"][1]["content"]
    (tmp_path / "run.toml").write_text(to_toml(LAKE))
    assert main(["sft", "data", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run.jsonl")]) == 0
    (tmp_path / "base.toml").write_text('recipe.base = "small-sokoban"')
    base = ["sft", "data", "--config", str(tmp_path / "base.toml"), "--episodes", "1", "--set", "turns.history=-1"]
    assert main([*base, "--out", str(tmp_path / "base.jsonl")]) == 0
    [line] = lines_of(tmp_path / "base.jsonl")
    assert line["demonstrator"]["moves"] == read_recipe("small-sokoban").settings["demonstrations"]["moves"]
    write_conversations(LAKE, tmp_path / "same.jsonl", quiet())
    assert (tmp_path / "run.jsonl").read_bytes() == (tmp_path / "same.jsonl").read_bytes()


def test_a_faultless_demonstrator_is_that_in_every_game_of_a_mixture() -> None:
    """It played as many moves a reply as the run's own game allows, one in a bandit, and solved no lake."""
    games = [{"game": "Bandit"}, {"game": "FrozenLake", **{k: default_settings("FrozenLake")[k] for k in _OF_A_GAME}}]
    mixed = with_settings(Config(), {**default_settings("Bandit"), "game": "Bandit", "games": games})
    lake = all_settings(mixed)[-1]
    instances = [Instance(seed, seed) for seed in range(8)]
    assert demonstrator_rate(faultless(mixed), make_env(lake, "train"), instances).rate == 1.0
    assert faultless(LAKE).moves == [0.0] * 4 + [1.0]


def test_the_demonstrator_of_a_text_task_is_faultless_too(tmp_path: Path) -> None:
    words = ["sft", "data", "--game", "ragen_gym.tasks:Countdown", "--episodes", "20", "--out"]
    assert main([*words, str(tmp_path / "best.jsonl")]) == 0
    lines = lines_of(tmp_path / "best.jsonl")
    assert lines[0]["demonstrator"]["quality"] == 1
    assert all(line["success"] for line in lines)
    assert main([*words, str(tmp_path / "worse.jsonl"), "--set", "demonstrations.quality=0.3"]) == 0
    assert not all(line["success"] for line in lines_of(tmp_path / "worse.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "demonstrations.quality=2"], "demonstrations.quality is 2; it must be from 0 to 1"),
        (["--set", "demonstrations.thought=deep"], "choose one of none, direction, choose, plan"),
        (["--set", "turns.history=0"], "a conversation shows every turn"),
        (["--set", "env_options.sise=4"], "Did you mean size"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demos.jsonl"
    assert main(["sft", "data", "--game", "FrozenLake", "--episodes", "2", *arguments, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not out.exists()


def played(chat: ChatFormat, thought: str = "none", turns: TurnConfig | None = None) -> list[Trajectory]:
    env = make_turn("FrozenLake", turns or TurnConfig(max_turns=3), split="train")
    process = TokenMDP(env, chat, max_tokens_per_turn=400, max_tokens_per_episode=8192)
    how = Demonstrations(moves=[0.5, 0.5], mistakes=0.5, thought=thought)
    return demonstrate(process, group(range(6), 1), how, 0)


def line_of(episode: Trajectory) -> dict[str, Any]:
    return {"messages": list(episode.messages[:-1]), "success": episode.success}


def test_a_conversation_is_the_rollout_that_made_it(chat: ChatFormat) -> None:
    for episode in played(chat):
        row = trajectory_of(chat, line_of(episode))
        length = episode.turn_ends[-1] + 1
        assert row.ids.tolist() == episode.ids[:length].tolist()
        assert row.sampled.tolist() == episode.sampled[:length].tolist()
        assert row.turn_ends == episode.turn_ends
        assert not row.log_probs.any()
        assert row.success == episode.success


@pytest.mark.parametrize("prompt", ["default", "ragen-v1"])
@pytest.mark.parametrize("template", ["qwen3", "nemotron3", "gpt-oss"])
def test_a_conversation_whose_thinking_is_dropped_is_the_rollout_too(
    template: str, prompt: str, make_tokenizer: Callable[[str, str], PreTrainedTokenizerFast]
) -> None:
    turns = TurnConfig(max_turns=3, prompt=prompt)
    tokenizer = make_tokenizer("bpe", template)
    chat = ChatFormat.from_tokenizer(tokenizer, keep_thinking=False, reply_opening=turns.reply_opening)
    episodes = played(chat, "direction", turns)
    assert any(episode.contexts for episode in episodes)
    for episode in episodes:
        row = trajectory_of(chat, line_of(episode))
        length = episode.turn_ends[-1] + 1
        assert row.ids.tolist() == episode.ids[:length].tolist()
        assert row.sampled.tolist() == episode.sampled[:length].tolist()
        assert (row.turn_ends, row.contexts) == (episode.turn_ends, episode.contexts)
    longest = max(len(part.ids) for row in episodes for part in row.split_contexts())
    assert trajectories_of(chat, [line_of(episode) for episode in episodes], longest)[1]["too_long"] == 0


def test_conversations_that_are_left_out_are_counted(chat: ChatFormat) -> None:
    lines = [line_of(episode) for episode in played(chat)]
    wins = sum(line["success"] for line in lines)
    lengths = sorted(len(trajectory_of(chat, line).ids) for line in lines)
    rows, left_out = trajectories_of(chat, lines, lengths[2])
    assert len(rows) + left_out["too_long"] == 6
    assert max(len(row.ids) for row in rows) == lengths[2]
    won, left_out = trajectories_of(chat, [*lines, {**lines[0], "success": True}], 8192, successes_only=True)
    assert (len(won), left_out["failures"]) == (wins + 1, 6 - wins)
    with pytest.raises(ValueError, match="no conversation is left: 6 are longer than 3 tokens"):
        trajectories_of(chat, lines, 3)


@pytest.mark.parametrize("reply", ["Go {} Up", "Up{}"])
def test_a_reply_that_spells_a_special_token_is_refused(reply: str, chat: ChatFormat) -> None:
    first, second, third = (line_of(episode) for episode in played(chat)[:3])
    end = str(chat.tokenizer.convert_ids_to_tokens(chat.end_id))
    row = trajectory_of(chat, {"messages": [{"role": "user", "content": end}, {"role": "assistant", "content": "Up"}]})
    assert row.ids[row.sampled].tolist() == chat.reply_ids("Up"), "a user may spell it"
    wrong = {"messages": [*third["messages"][:-1], {"role": "assistant", "content": reply.format(end)}]}
    said = f"line 3 of the conversations: a reply spells the special token {re.escape(end)}, .* remove it"
    with pytest.raises(ValueError, match=said):
        trajectories_of(chat, [first, second, wrong], 8192)
    rows, left_out = trajectories_of(chat, [{**first, "success": True}, wrong], 8192, successes_only=True)
    assert (len(rows), left_out["failures"]) == (1, 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (None, "is empty"),
        ({"text": "hello"}, "line 1: messages must be"),
        ({"messages": [{"role": "user", "content": "x"}]}, "end with the assistant"),
        ({"messages": [{"role": "user", "content": 3}, {"role": "assistant", "content": "x"}]}, "line 1"),
        ({"messages": [{"role": "system", "content": "x"}]}, "line 1"),
    ],
)
def test_a_file_that_holds_no_conversations_is_refused(line: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    with pytest.raises(ValueError, match="there is no such file"):
        read_conversations(path)
    path.write_text("" if line is None else json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=message):
        read_conversations(path)


@pytest.mark.parametrize("think", [True, False])
def test_what_a_prompt_begins_is_not_sampled(think: bool) -> None:
    """Under RAGEN's prompt every reply is begun for the model; the rest of it is demonstrated, and then sampled."""
    thought = "choose" if think else "none"
    config = with_settings(
        Config(),
        merged(
            default_settings("Bandit"),
            {
                "game": "Bandit",
                "env_options": {"names": "ragen-v1"},
                "turns": {"prompt": "ragen-v1", "think": think},
                "demonstrations": {"thought": thought},
                "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
            },
        ),
    )
    agent, opening = Policy.build(config), "<think>" if think else "<answer>"
    (row,) = demonstrate(agent.processes("train", 1)[0], group([3], 1), config.demonstrations, 0)
    decode = agent.tokenizer.decode
    assert str(decode(row.ids[: int(row.sampled.argmax())])).endswith(f"assistant\n{opening}")
    assert f"{opening}{decode(row.ids[row.sampled])}" == f"{row.messages[2]['content']}<|im_end|>"
    assert [turn.problem for turn in row.turn_infos] == [""]
    assert all(t.failure is None for t in agent.play(agent.processes("test", 2), group([1, 2], 1), 1.0, 0))


def test_baselines_are_measured_once_and_few_levels_are_named() -> None:
    config = with_settings(Config(), {"game": "Bandit", "evaluation": {"levels": 100}, "warm_start": {"epochs": 0}})
    console, summary = Console(file=io.StringIO(), width=400), dict[str, Any]()
    env, instances = evaluated_levels(config)
    measure_baselines(config, env, instances, summary, Display(console))
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    (notice,) = baseline_notices(env, instances)
    assert notice in printed
    assert {"random", "blind", "optimal"} == set(summary)
    measure_baselines(config, env, instances, summary, Display(console))
    assert console.file.getvalue() == printed
