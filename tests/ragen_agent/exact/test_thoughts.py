"""Replaced thoughts: their facts against boards, their answers against sampled episodes, and the command."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.exact.stated_facts import opposite, reworded, spoken_for, statements
from ragen_agent.exact.thoughts import MEASURES, ROWS, check_thoughts, measure, played_turns, summary
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.run.console import Display
from ragen_agent.run.evaluation import evaluated_levels
from ragen_agent.run.policy import Policy
from ragen_agent.sft.demonstrations import generate_demonstrations
from ragen_agent.sft.trainer import imitate
from ragen_agent.tasks.demo_thoughts import THOUGHTS
from ragen_agent.tasks.tasks import make_env
from ragen_agent.tokens.rollout import Instance
from ragen_gym import make_turn
from ragen_gym.envs.reply import parse_reply

SETTINGS: dict[str, Any] = {
    "env_options": {"size": 3, "success_rate": 1.0},
    "turns": {"max_turns": 2, "max_actions_per_turn": 2, "max_tokens_per_turn": 12},
    "demonstrations": {"thought": "direction", "episodes": 1000},
    "evaluation": {"levels": 4, "temperature": 1.0},
    "small_model": {"hidden": 64, "layers": 2, "feed_forward": 128},
}
CONFIG = with_settings(Config(), SETTINGS)


@pytest.fixture(scope="module")
def policy() -> Policy:
    """A small model that has learned to write thoughts, and little else."""
    return _taught(CONFIG)


def _taught(config: Config) -> Policy:
    found = Policy.build(config)
    display = Display()
    rows = generate_demonstrations(config, found, config.demonstrations, display)
    imitate(config, found, rows, "warm start", display, epochs=4)
    return found


@pytest.fixture(scope="module")
def records(policy: Policy) -> list[dict[str, Any]]:
    return _measured(policy)


def _measured(policy: Policy) -> list[dict[str, Any]]:
    found, instances = evaluated_levels(policy.config)
    env = check_thoughts(found, policy.config)
    turns, _ = played_turns(policy, env, instances, seed=0)
    reader = TreeReader(policy.model, len(policy.tokenizer), 1.0)
    return [record for some in measure(reader, policy, env, turns, mass=3e-2) for record in some]


def test_a_budget_may_stand_between_the_thought_and_the_answer() -> None:
    turns = SETTINGS["turns"] | {"budget": True, "max_turns": 1, "max_tokens_per_turn": 24}
    records = _measured(_taught(with_settings(Config(), SETTINGS | {"turns": turns})))
    assert sum(record["rows"]["true"]["board"][0] for record in records) > 0


@pytest.mark.parametrize(("game", "template"), [("FrozenLake", "direction"), ("FrozenLake", "relative")])
@pytest.mark.parametrize("size", [3, 4])
def test_the_opposite_thought_is_true_of_the_turned_board(game: str, template: str, size: int) -> None:
    _check_turned(game, template, size=size)


def test_the_opposite_thought_is_true_of_the_turned_room() -> None:
    _check_turned("Sokoban", "relative")


def _check_turned(game: str, template: str, **options: Any) -> None:
    env = make_turn(game, split=None, **options)
    for seed in range(20):
        env.reset(seed=seed)
        true, names = THOUGHTS[template](env, ()), env.action_names
        false = opposite(true, env.game, names)
        assert opposite(false, env.game, names) == true
        assert spoken_for(template, true, names).isdisjoint(spoken_for(template, false, names))
        env.reset(seed=seed, options={"level": env.level.text[::-1]})
        assert THOUGHTS[template](env, ()) == false


def test_the_opposite_of_a_comparison_of_arms_names_the_other_arm() -> None:
    env = make_turn("Bandit", split=None)
    env.reset(seed=0)
    true, names = THOUGHTS["relative"](env, ()), env.action_names
    best = env.oracle_action()
    assert spoken_for("relative", true, names) == {best}
    assert spoken_for("relative", opposite(true, env.game, names), names) == {1 - best}


@pytest.mark.parametrize(
    ("template", "thought", "facts", "moves", "other"),
    [
        ("direction", "up left", ["up", "left"], {"Up", "Left"}, "left up"),
        ("direction", "down", ["down"], {"Down"}, None),
        ("direction", "Up or Down?", ["Up", "or", "Down?"], {"Up"}, "Down? or Up"),
        (
            "relative",
            "I am at (0,1). The goal is at (2,2): 2 down and 1 right. Holes are down and left.",
            ["I am at (0,1).", "The goal is at (2,2): 2 down and 1 right.", "A hole is down.", "A hole is left."],
            {"Right"},
            "I am at (0,1). The goal is at (2,2): 1 right and 2 down. Holes are down and left.",
        ),
        ("relative", "Push it up from (2,1): 1 left.", ["Push it up from (2,1): 1 left."], {"Left"}, None),
        ("relative", "Push it up from here.", ["Push it up from here."], {"Up"}, None),
        ("relative", "Who knows", ["Who knows"], set(), None),
    ],
)
def test_facts_of_a_thought(template: str, thought: str, facts: list[str], moves: set[str], other: str | None) -> None:
    names = ("Left", "Down", "Right", "Up")
    assert statements(template, thought) == facts
    assert {names[move] for move in spoken_for(template, thought, names)} == moves
    assert reworded(template, thought) == other


def test_answers_after_a_thought_are_those_of_sampled_replies(policy: Policy, records: list[dict[str, Any]]) -> None:
    """The same for a thought that the model wrote, and for one that was put in its place and it writes seldom."""
    instances = {level: number for number, level in enumerate(dict.fromkeys(r["level_id"] for r in records))}
    env, levels = evaluated_levels(CONFIG)
    compared = 0
    for record in records:
        if record["turn"] != 1 or compared >= 3:
            continue
        level = levels[instances[record["level_id"]]]
        env.reset(seed=level.seed)
        assert record["true_thought"] == THOUGHTS["direction"](env, ())  # type: ignore[arg-type]
        good = spoken_for("direction", record["true_thought"], env.action_names)  # type: ignore[attr-defined]
        played = policy.play(policy.processes("test", 64), [Instance(level.seed, n) for n in range(800)], 1.0, 7)
        counts, hits = Counter[str](), Counter[str]()
        for episode in played:
            said = str(episode.messages[2]["content"])
            thought = said.partition("</think>")[0].removeprefix("<think>").strip()
            actions = parse_reply(said, env.action_names).actions  # type: ignore[attr-defined]
            counts[thought] += 1
            hits[thought] += bool(actions) and actions[0] in good
        for row, figures in record["rows"].items():
            if row != "turned" and (n := counts[figures["text"]]) >= 60:
                low, high = figures["board"]
                error = 5 * (low * (1 - low) / n) ** 0.5 + 2 / n
                assert low - error < hits[figures["text"]] / n < high + error
                compared += row != "own"
    assert compared >= 3


def test_records(records: list[dict[str, Any]]) -> None:
    found = {row for record in records for row in record["rows"]}
    assert set(ROWS) - {"reworded"} <= found <= set(ROWS), "a thought of one word has no parts to swap"
    for record in records:
        rows = record["rows"]
        assert rows["own"]["first"] is None
        for row, figures in rows.items():
            for name in MEASURES:
                if figures[name]:
                    low, high = figures[name]
                    assert 0 <= low <= high <= min(1, low + 0.061), name
            if row not in ("turned", "own") and figures["text"] == rows["own"]["text"]:
                assert figures["first"][0] == figures["answers"][0] == 0
            elif row != "own":
                assert figures["first"][0] <= figures["answers"][1]
        assert rows["false"]["thought"][0] > 0


def test_summary_is_the_mean_over_turns_with_its_bounds(records: list[dict[str, Any]]) -> None:
    found = summary(records)
    of_false = [each["rows"]["false"]["board"] for each in records]
    figure = found["rows"]["false"]["board"]
    assert figure["bounds"] == pytest.approx([sum(end) / len(records) for end in zip(*of_false, strict=True)])
    assert figure["interval"][0] <= figure["bounds"][0] <= figure["bounds"][1] <= figure["interval"][1]
    facts = [true for each in records for true in each["statements"].values()]
    assert sum(found["true_statements"]["bounds"]) / 2 == pytest.approx(sum(facts) / len(facts))
    assert found["references"]["random"]["success"] <= found["references"]["optimal"]["success"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"turns": {"think": False}}, "turns.think is false"),
        ({"demonstrations": {"thought": "plan"}}, "'plan'.*state no fact.*direction, relative"),
        ({"turns": {"grounding": True}}, "turns.grounding=false"),
        ({"turns": {"observation": "image"}}, "turns.observation=text"),
        ({"game": "ragen_gym.tasks:Countdown", "env_options": {}}, "choose a game"),
    ],
)
def test_refusals(settings: dict[str, Any], reason: str) -> None:
    config = with_settings(CONFIG, settings)
    with pytest.raises(ValueError, match=reason):
        check_thoughts(make_env(config, "train"), config)


def test_the_command(policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(policy.model, policy.tokenizer, tmp_path / "model")
    flags = [
        f"{table}.{name}={json.dumps(v)}" for table in ("env_options", "turns") for name, v in SETTINGS[table].items()
    ]
    words = ["thoughts", str(tmp_path / "model"), "--levels", "2", "--game", "FrozenLake"]
    words += [part for flag in flags for part in ("--set", flag)]
    assert main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads((tmp_path / "out" / "summary.json").read_text())
    turns = tmp_path / "out" / "turns.jsonl"
    lines = turns.read_text().splitlines()
    assert said["turns"] == len(lines) > 1
    turns.write_text(f"{lines[0]}\n{lines[1][:50]}")  # it was killed
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    assert "statements are true" in capsys.readouterr().out
    assert [json.loads(line)["rows"].keys() for line in turns.read_text().splitlines()] == [
        json.loads(line)["rows"].keys() for line in lines
    ]
    assert main([*words, "--seed", "1", "--out", str(tmp_path / "out")]) == 2
    assert "other: seed" in capsys.readouterr().err
    assert main([*words, "--seed", "-1"]) == 2
    assert "--seed is -1" in capsys.readouterr().err


def test_a_model_without_readable_thoughts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fresh = Policy.build(CONFIG)
    save_checkpoint(fresh.model, fresh.tokenizer, tmp_path / "model")
    words = ["thoughts", str(tmp_path / "model"), "--game", "FrozenLake", "--levels", "2"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "free thoughts cannot be measured" in capsys.readouterr().err
