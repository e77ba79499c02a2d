"""What every adapter is made of: rows, rollouts, metrics, best replies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from ragen_gym import TurnEnv, make_turn
from ragen_gym.games.registry import TABLE
from ragen_gym.integrations import METRICS, Rollout, noise_seed_of, rows


def test_a_text_task_is_played_as_a_game_is() -> None:
    (row,) = rows("ragen_gym.tasks:Countdown", 1, split="test", first_seed=2)
    rollout = Rollout("ragen_gym.tasks:Countdown", split="test")
    assert row["prompt"][-1]["content"] == rollout.begin(2)
    assert rollout.optimal_success() == 1.0
    assert rollout.metrics()["success"] == 1.0
    assert rollout.demonstration()["total"] == pytest.approx(rollout.total)
    rollout.begin(2)
    rollout.reply("nothing of use")
    assert (rollout.metrics()["success"], rollout.metrics()["malformed_replies"]) == (0.0, 0.0)


def test_what_only_an_episode_has_is_refused_before_one() -> None:
    rollout = Rollout("FrozenLake")
    for read in (rollout.metrics, lambda: rollout.messages, lambda: rollout.level_id):
        with pytest.raises(ResetNeeded, match=r"no episode was started: call begin\(seed\) first"):
            read()


def test_optimal_success_is_the_oracles() -> None:
    rollout = Rollout("FrozenLake", success_rate=0.8)
    rollout.begin(3)
    chance, env = rollout.optimal_success(), rollout.env
    assert isinstance(env, TurnEnv)
    assert chance == env.solution().success(*env.env.state, 10)
    assert chance is not None
    assert 0 < chance < 1


@pytest.mark.parametrize("game", TABLE)
def test_rows_are_what_rollouts_begin_with(game: str) -> None:
    drawn = list(rows(game, 3, split="test", first_seed=4, max_turns=2))
    assert [row["seed"] for row in drawn] == [4, 5, 6]
    rollout = Rollout(game, split="test", max_turns=2)
    for row in drawn:
        message = rollout.begin(row["seed"])
        assert row["prompt"] == [
            {"role": "system", "content": rollout.instructions},
            {"role": "user", "content": message},
        ]
        assert (row["level_id"], row["split"], row["game"]) == (rollout.level_id, "test", game)
        assert isinstance(rollout.env, TurnEnv)
        assert rollout.env.game.owns("test", rollout.env.env.state[0])


@pytest.mark.parametrize("game", TABLE)
def test_a_demonstration_wins_and_can_be_replayed(game: str) -> None:
    rollout = Rollout(game)
    won = rollout.demonstration(first_seed=3)
    rollout.begin(won["seed"], won["noise_seed"])
    for reply in won["replies"]:
        rollout.reply(reply)
    assert rollout.over
    assert rollout.total == pytest.approx(won["total"])
    metrics = rollout.metrics()
    assert (metrics["success"], metrics["turns"]) == (1.0, len(won["replies"]))
    assert (metrics["malformed_replies"], metrics["truncated"], metrics["unfinished"]) == (0.0, 0.0, 0.0)


def test_metrics_count_malformed_replies_truncation_and_what_was_left() -> None:
    rollout = Rollout("Sokoban", max_turns=2)
    rollout.begin(0)
    assert rollout.metrics() == dict.fromkeys(METRICS, 0.0) | {"unfinished": 1.0}
    rollout.reply("no tags at all")
    assert rollout.metrics()["malformed_replies"] == 1.0
    rollout.reply("<think>?</think><answer>Jump</answer>")
    metrics = rollout.metrics()
    assert metrics == {
        "success": 0.0,
        "turns": 2.0,
        "actions": 0.0,
        "malformed_replies": 2.0,
        "truncated": 1.0,
        "unfinished": 0.0,
    }
    assert rollout.total == pytest.approx(-0.2)
    with pytest.raises(ResetNeeded):
        rollout.reply("once more")
    rollout.begin(0)
    assert rollout.metrics()["malformed_replies"] == 0.0


@pytest.mark.parametrize(
    "message",
    [
        {"content": "go up</think><answer>Up</answer>"},
        {"content": "<answer>Up</answer>", "reasoning_content": "go up"},
        {"content": "<answer>Up</answer>", "reasoning": "go up"},
        {"content": "<answer>Up</answer>", "reasoning_details": [{"type": "reasoning.text", "text": "go up"}]},
        {"content": [{"type": "thinking", "thinking": "go up"}, {"type": "text", "text": "<answer>Up</answer>"}]},
    ],
)
@pytest.mark.parametrize("as_object", [True, False])
def test_a_servers_message_is_a_whole_reply(message: dict[str, Any], as_object: bool) -> None:
    from openai.types.chat import ChatCompletionMessage

    rollout = Rollout("FrozenLake")
    rollout.begin(0)
    given: Any = ChatCompletionMessage.construct(role="assistant", **message) if as_object else message
    rollout.reply_message(given)
    assert rollout.messages[2]["content"] == "<think>go up</think><answer>Up</answer>"
    assert rollout.metrics()["malformed_replies"] == 0.0
    if isinstance(message["content"], str) and len(message) == 1:
        rollout.begin(0)
        rollout.reply(message["content"])
        assert rollout.metrics()["actions"] == 1.0


def test_items_of_a_response_are_a_whole_reply() -> None:
    """OpenAI's other API: a list of items, the reasoning one of them."""
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "<answer>Up</answer>"}]}
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "go up"}]}, said]
    rollout = Rollout("FrozenLake")
    rollout.begin(0)
    rollout.reply_message(items)
    assert rollout.messages[2]["content"] == "<think>go up</think><answer>Up</answer>"


def test_a_task_without_thinking_leaves_replies_as_they_are() -> None:
    rollout = Rollout("FrozenLake", think=False)
    rollout.begin(0)
    rollout.reply("<answer>Up</answer>", reasoning="go up")
    assert rollout.metrics()["actions"] == 1.0


def test_the_return_is_that_of_the_turn_environment() -> None:
    rollout, env = Rollout("FrozenLake", split="test"), make_turn("FrozenLake", split="test")
    rollout.begin(5, noise_seed=9)
    env.reset(seed=5, options={"noise_seed": 9})
    total = 0.0
    while not env.over:
        message, reward, *_ = env.step("<think>Go.</think><answer>Down || Right</answer>")
        total += reward
        assert rollout.reply("<think>Go.</think><answer>Down || Right</answer>") == message
    assert rollout.total == total


def test_noise_seeds_follow_from_names() -> None:
    seeds = [noise_seed_of(name) for name in ("a", "b", "a")]
    assert seeds[0] == seeds[2] != seeds[1]
    assert all(0 <= seed < 2**63 for seed in seeds)
    Rollout("FrozenLake").begin(0, seeds[0])


@pytest.mark.parametrize(
    ("game", "options", "said"),
    [
        ("Chess", {}, "choose one of"),
        ("Sokoban", {"split": "exam"}, "train, validation, test"),
        ("Sokoban", {"observation": "image"}, "only text is passed on"),
        ("Sokoban", {"success_rate": 1}, "success_rate"),
    ],
)
def test_errors_say_what_is_allowed(game: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Rollout(game, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [-1, 1.5, True, None, "3"])
def test_what_is_no_count_or_seed_is_refused(bad: Any) -> None:
    rollout = Rollout("Bandit")
    for call, name in (
        (lambda: list(rows("Bandit", bad)), "count"),
        (lambda: list(rows("Bandit", 1, first_seed=bad)), "first_seed"),
        (lambda: rollout.demonstration(bad), "first_seed"),
    ):
        with pytest.raises(ValueError, match=f"{name}={bad!r} must be an integer from 0 on"):
            call()
    assert list(rows("Bandit", np.int64(1), first_seed=2)) == list(rows("Bandit", 1, first_seed=np.int64(2)))  # type: ignore[arg-type]
    assert not list(rows("Bandit", 0))
