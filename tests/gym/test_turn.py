"""Turns: the reply grammar and the environment of whole replies."""

from __future__ import annotations

import re
import time
import warnings
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym import TurnEnv, make_turn
from ragen_gym.envs.reply import Problem, parse_reply
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.registry import TABLE
from ragen_gym.testing import replies

NAMES = ("Left", "Down", "Right", "Up")
LAKE = "P__O\n____\n_O__\n___G"

# reply, thinks, (thinking, names, actions, problem)
WORKED: list[tuple[str, bool, tuple[Any, ...]]] = [
    ("<think>Go.</think><answer>Up</answer>", True, ("Go.", ("Up",), (3,), None)),
    (
        " <think>\nIt is\nright.\n</think>\n<answer> Up || Left </answer>\n",
        True,
        ("It is\nright.", ("Up", "Left"), (3, 0), None),
    ),
    ("<think></think><answer>uP||LEFT||dOWN</answer>", True, ("", ("uP", "LEFT", "dOWN"), (3, 0, 1), None)),
    ("<answer>Up || Up</answer>", False, (None, ("Up", "Up"), (3, 3), None)),
    ("<think>a | b || c</think><answer>Up</answer>", True, ("a | b || c", ("Up",), (3,), None)),
    ("<think>x</think><answer>Up || Jump</answer>", True, ("x", ("Up", "Jump"), (3,), Problem.UNKNOWN_ACTION)),
    ("<think>x</think><answer>Up,Left</answer>", True, ("x", ("Up,Left",), (), Problem.UNKNOWN_ACTION)),
    ("<think>x</think><answer>Up ||</answer>", True, ("x", ("Up", ""), (3,), Problem.UNKNOWN_ACTION)),
    ("<think>x</think><answer>Up|Left</answer>", True, ("x", ("Up|Left",), (), Problem.UNKNOWN_ACTION)),
    ("<think>x</think><answer>3</answer>", True, ("x", ("3",), (), Problem.UNKNOWN_ACTION)),
    ("<think>x</think><answer> </answer>", True, ("x", (), (), Problem.NO_ACTION)),
    ("<think>x</think><answer>||</answer>", True, ("x", (), (), Problem.NO_ACTION)),
    ("<answer>Up</answer>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think><answer>Up</answer>", False, (None, (), (), Problem.NO_ANSWER)),
    ("", True, (None, (), (), Problem.NO_ANSWER)),
    ("Up", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think>Up", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think><answer>Up", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think><answer>Up</answer> Done.", True, (None, (), (), Problem.NO_ANSWER)),
    ("Well. <think>x</think><answer>Up</answer>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think> so <answer>Up</answer>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<answer>Up</answer><think>x</think>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<THINK>x</THINK><ANSWER>Up</ANSWER>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think><answer>Up</answer></think>", True, (None, (), (), Problem.NO_ANSWER)),
    ("<think>x</think><answer>Up</answer><answer>Down</answer>", True, (None, (), (), Problem.SEVERAL_ANSWERS)),
    ("<think><answer>Up</answer></think><answer>Down</answer>", True, (None, (), (), Problem.SEVERAL_ANSWERS)),
    ("<think>x</think><think>y</think><answer>Up</answer>", True, (None, (), (), Problem.SEVERAL_ANSWERS)),
    ("<answer><answer>Up</answer></answer>", False, (None, (), (), Problem.SEVERAL_ANSWERS)),
]


@pytest.mark.parametrize(("text", "think", "expected"), WORKED)
def test_replies_by_hand(text: str, think: bool, expected: tuple[Any, ...]) -> None:
    reply = parse_reply(text, NAMES, think=think)
    assert (reply.thinking, reply.names, reply.actions, reply.problem) == expected
    assert reply.text == text


@given(replies(NAMES) | replies(NAMES, think=False) | st.text(), st.booleans())
def test_a_reply_never_raises_and_never_chooses(text: str, think: bool) -> None:
    """Whatever comes: moves are played only where a single answer, in the form asked for, names them in this order."""
    reply = parse_reply(text, NAMES, think=think)
    assert reply.text == text
    tags = re.findall(r"</?(?:think|answer)>", text)
    form = ["<think>", "</think>", "<answer>", "</answer>"] if think else ["<answer>", "</answer>"]
    if not reply.actions:
        assert reply.problem is not None
        return
    assert tags == form
    before, _, rest = text.partition("<answer>")
    answer, _, after = rest.partition("</answer>")
    assert after.strip() == ""
    assert re.fullmatch(r"\s*<think>.*</think>\s*" if think else r"\s*", before, re.DOTALL)
    named = [name.strip() for name in answer.split("||")]
    assert list(reply.names) == named
    lower = [name.lower() for name in NAMES]
    assert list(reply.actions) == [lower.index(name.lower()) for name in named if name.lower() in lower]
    assert (reply.problem is None) == all(name.lower() in lower for name in named)


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6), st.booleans(), st.data())
def test_what_is_well_formed_is_understood(moves: list[str], think: bool, data: st.DataObject) -> None:
    space = st.sampled_from(["", " ", "\n", " \t"])
    words = [data.draw(st.sampled_from([str.lower, str.upper, str.title]))(move) for move in moves]
    answer = "||".join(data.draw(space) + word + data.draw(space) for word in words)
    thought = data.draw(st.text(alphabet="ab |<>/\n", max_size=9))
    text = data.draw(space) + f"<think>{thought}</think>" * think + data.draw(space) + f"<answer>{answer}</answer>"
    reply = parse_reply(text, NAMES, think=think)
    assert reply.problem is None
    assert reply.actions == tuple(NAMES.index(move) for move in moves)
    assert reply.thinking == (thought.strip() if think else None)


def test_a_reply_of_nothing_but_tags_takes_no_time() -> None:
    for text in ("<think></think><answer>" * 20_000, "</think><answer></answer> " * 20_000, " " * 200_000 + "<answer>"):
        start = time.process_time()
        assert parse_reply(text, NAMES).problem is not None
        assert time.process_time() - start < 2


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("arguments", [{}, {"think": False, "max_turns": 2}, {"split": "test", "max_actions": 3}])
def test_gymnasiums_checks_without_a_warning(name: str, arguments: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check(make_turn(name, render_mode="ansi", **arguments))


def say(*names: str) -> str:
    return f"<think>Well.</think><answer>{' || '.join(names)}</answer>"


def lake(**arguments: Any) -> TurnEnv:
    env = make_turn("FrozenLake", success_rate=1, **arguments)
    env.reset(seed=0, options={"level": LAKE})
    return env


def test_a_conversation_by_hand() -> None:
    env = make_turn("FrozenLake", success_rate=1, max_turns=3)
    message, info = env.reset(seed=0, options={"level": LAKE})
    assert env.instructions == (
        f"{FrozenLake.description}\n"
        "Symbols: _ ice, O hole, G goal, P player, X player in hole, √ player on goal.\n"
        "Actions: Left, Down, Right, Up.\n"
        "Rewards: 1 for reaching the goal; 0 for anything else.\n"
        "You have 3 turns and 10 actions, at most 5 a turn."
    )
    assert message == (
        f"Turn 1 of 3, actions left: 10.\n{LAKE}\n"
        "Reply with <think>your thoughts</think><answer>first || second</answer>."
    )
    assert (info["reply"], info["actions"], info["turn"], info["actions_left"]) == (None, (), 0, 10)
    message, reward, terminated, truncated, info = env.step(say("Down", "right", "Fly"))
    assert message == (
        "Reward: -0.1.\nTurn 2 of 3, actions left: 8.\n___O\n_P__\n_O__\n___G\n"
        "Reply with <think>your thoughts</think><answer>first || second</answer>."
    )
    assert (reward, terminated, truncated, info["actions"], info["rewards"]) == (-0.1, False, False, (1, 2), (0.0, 0.0))
    assert info["reply"].problem is Problem.UNKNOWN_ACTION
    message, reward, terminated, truncated, info = env.step(say("Right", "Down", "Right", "Down", "Left"))
    assert message == "Reward: 1.\nThe episode is over.\n___O\n____\n_O__\n___√"
    assert (reward, terminated, truncated, info["success"], info["turn"]) == (1.0, True, False, True, 2)
    assert (info["actions"], info["actions_left"]) == ((2, 1, 2, 1), 0)
    roles = [entry["role"] for entry in info["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert info["messages"][0]["content"] == env.instructions
    assert info["messages"][-1]["content"] == message
    with pytest.raises(ResetNeeded):
        env.step(say("Up"))


def test_malformed_replies_cost_and_play_nothing() -> None:
    env = lake()
    ends = []
    for reply in ("", "Up", say() + say("Down"), "<answer>Down</answer>", say()):
        _, reward, terminated, truncated, info = env.step(reply)
        assert (reward, info["actions"], env.board) == (-0.1, (), LAKE)
        ends.append((terminated, truncated))
    assert ends == [(False, False)] * 4 + [(False, True)]


def test_the_penalty_is_an_option() -> None:
    assert lake(format_penalty=0).step("what?")[1] == 0
    assert lake(format_penalty=-2.5).step("what?")[1] == -2.5
    assert lake(think=False).step("<answer>Down</answer>")[1] == 0


def test_moves_beyond_a_turns_limit_are_not_played() -> None:
    env = lake(max_actions_per_turn=2)
    _, reward, _, _, info = env.step(say("Down", "Down", "Down", "Right"))
    assert (info["actions"], reward, env.board) == ((1, 1), 0, "___O\n____\nPO__\n___G")
    assert info["reply"].actions == (1, 1, 1, 2)


def test_the_budget_of_moves_truncates() -> None:
    env = lake(max_actions=7)
    assert env.step(say(*["Left"] * 5))[2:4] == (False, False)
    assert env.actions_left == 2
    _, _, terminated, truncated, info = env.step(say(*["Left"] * 5))
    assert (terminated, truncated, info["actions"], info["actions_left"]) == (False, True, (0, 0), 0)


def test_the_budget_of_turns_truncates_and_bounds_the_actions_left() -> None:
    env = lake(max_turns=2, max_actions_per_turn=3)
    assert env.actions_left == 6
    assert env.step(say("Left"))[2:4] == (False, False)
    assert env.actions_left == 3
    assert env.step(say("Left"))[2:4] == (False, True)


def test_reaching_the_goal_with_the_last_move_terminates() -> None:
    env = lake(max_turns=2, max_actions=6)
    env.step(say("Right", "Down", "Right"))
    _, reward, terminated, truncated, _ = env.step(say("Right", "Down", "Down"))
    assert (reward, terminated, truncated) == (1, True, False)


def test_a_hole_stops_the_reply() -> None:
    env = lake()
    _, reward, terminated, truncated, info = env.step(say("Down", "Right", "Down", "Down", "Right"))
    assert (reward, terminated, truncated, info["actions"], info["success"]) == (0, True, False, (1, 2, 1), False)


def test_a_bandit_has_one_turn() -> None:
    env = make_turn("Bandit")
    assert (env.max_turns, env.max_actions_per_turn, env.max_actions) == (1, 1, 1)
    message, _ = env.reset(seed=0, options={"level": "Teacher\nTrader", "noise_seed": 3})
    assert message == (
        "Turn 1 of 1, actions left: 1.\nTeacher\nTrader\n"
        "Reply with <think>your thoughts</think><answer>action</answer>."
    )
    assert env.action_names == ("Teacher", "Trader")
    _, reward, terminated, truncated, info = env.step(say("teacher"))
    assert (reward, terminated, truncated, info["success"]) == (0.15, True, False, False)
    env.reset(options={"level": "Trader\nTeacher"})
    assert env.step(say("TRADER"))[4]["success"]
    env.reset()
    _, reward, terminated, truncated, info = env.step("no")
    assert (reward, terminated, truncated, info["success"]) == (-0.1, True, False, False)


def test_a_long_bandit_is_truncated_by_our_budgets_and_ended_by_its_own() -> None:
    cut = make_turn("Bandit", pulls=20)
    cut.reset(seed=0)
    name = cut.action_names[0]
    ends = [cut.step(say(*[name] * 5))[2:4] for _ in range(2)]
    assert ends == [(False, False), (False, True)]
    whole = make_turn("Bandit", pulls=3)
    whole.reset(seed=0)
    name = whole.action_names[0]
    assert whole.step(say(name))[2:4] == (False, False)
    assert whole.step(say(*[name] * 5))[2:4] == (True, False)


@given(st.integers(0, 2**70), st.lists(replies(NAMES), min_size=1, max_size=6))
def test_the_turn_is_its_moves(seed: int, texts: list[str]) -> None:
    """The same moves one by one give the same boards and rewards, in every budget."""
    env, single = make_turn("FrozenLake"), gymnasium.make("ragen/FrozenLake-v0", max_episode_steps=10**6)
    message, info = env.reset(seed=seed)
    observation, one = single.reset(seed=seed)
    assert info["level_id"] == one["level_id"]
    played = 0
    for turn, text in enumerate(texts, 1):
        message, reward, terminated, truncated, info = env.step(text)
        moves = info["reply"].actions[: min(5, 10 - played)]
        assert info["actions"] == moves[: len(info["actions"])]
        rewards, over = [], False
        for move in info["actions"]:
            assert not over
            observation, paid, over, _, one = single.step(move)
            rewards.append(float(paid))
        played += len(rewards)
        assert (env.board, list(info["rewards"])) == (observation, rewards)
        assert observation in message
        assert message in env.observation_space
        assert reward == pytest.approx(sum(rewards) - 0.1 * (info["reply"].problem is not None))
        assert (terminated, info["success"]) == (over, one["success"])
        assert len(info["actions"]) == len(moves) or over
        assert truncated == (not over and (turn == 5 or played == 10))
        if terminated or truncated:
            break
        assert env.actions_left == min(10 - played, 5 * (5 - turn))


@given(st.integers(0, 2**32))
def test_the_oracle_reaches_what_it_promises_within_the_budgets(seed: int) -> None:
    """On firm ice, a move a turn: the promise for the actions left is kept to the letter."""
    env = make_turn("FrozenLake", success_rate=1, max_turns=4, max_actions_per_turn=1)
    _, info = env.reset(seed=seed)
    promised = env.solution().success(*env.env.state, env.actions_left)
    while not env.over:
        info = env.step(say(env.action_names[env.oracle_action()]))[4]
    assert info["success"] == (promised == 1)


def test_replies_are_strings_and_budgets_whole_numbers() -> None:
    env = lake()
    for reply in (3, None, b"Up", ["Up"]):
        with pytest.raises(ValueError, match=f"a turn's action is the reply's text, not {type(reply).__name__}"):
            env.step(reply)  # type: ignore[arg-type]
    bad: list[tuple[dict[str, Any], str]] = [
        ({"max_turns": 0}, "max_turns=0 must be an integer from 1 on"),
        ({"max_actions_per_turn": 1.5}, "max_actions_per_turn=1.5 must be an integer from 1 on"),
        ({"max_actions": True}, "max_actions=True must be an integer from 1 on"),
        ({"format_penalty": "none"}, "format_penalty='none' must be a number"),
        ({"max_turn": 3}, "FrozenLake has no knob 'max_turn'"),
    ]
    for arguments, message in bad:
        with pytest.raises(ValueError, match=message):
            make_turn("FrozenLake", **arguments)
    with pytest.raises(ResetNeeded):
        make_turn("FrozenLake").step(say("Up"))


def test_a_limit_of_tokens_is_stated() -> None:
    env = make_turn("FrozenLake", max_tokens_per_turn=80, think=False)
    assert env.reset(seed=0)[0].endswith("Reply with <answer>first || second</answer>, in at most 80 tokens.")
