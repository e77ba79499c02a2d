"""The environment of whole replies: messages, budgets, rewards, ends."""

from __future__ import annotations

import json
import warnings
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym import TurnEnv, make_turn
from ragen_gym.core.text import replace_surrogates
from ragen_gym.envs.reply import Problem
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.registry import TABLE
from ragen_gym.testing import replies

NAMES = ("Left", "Down", "Right", "Up")
LAKE = "P__O\n____\n_O__\n___G"


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize(
    "arguments",
    [
        {"think": False, "max_turns": 2},
        {"observation": "image"},
        {"observation": "both"},
    ],
    ids=str,
)
def test_gymnasiums_checks_without_a_warning(name: str, arguments: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check(make_turn(name, render_mode="ansi", **arguments))


def test_a_forbidden_text_makes_a_reply_malformed() -> None:
    env = lake()
    env.set_wrapper_attr("forbidden_texts", ("<|end|>",))
    _, reward, *_, info = env.step("<think>I stop.<|END|></think><answer>Down</answer>")
    assert (reward, info["actions"], info["reply"].problem) == (-0.1, (), Problem.FORBIDDEN_TEXT)
    assert env.step(say("Down"))[-1]["actions"] == (1,)


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


@given(
    st.integers(0, 2**70),
    st.lists(replies(NAMES), min_size=1, max_size=6),
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 10)),
    st.sampled_from([0.0, -0.1, -2.5]),
)
def test_the_turn_is_its_moves(seed: int, texts: list[str], budgets: tuple[int, int, int], penalty: float) -> None:
    """The same moves one by one give the same boards and rewards, in every budget."""
    turns, a_turn, most = budgets
    limits: dict[str, Any] = {
        "max_turns": turns,
        "max_actions_per_turn": a_turn,
        "max_actions": most,
        "format_penalty": penalty,
    }
    env, single = make_turn("FrozenLake", **limits), gymnasium.make("ragen/FrozenLake-v0", max_episode_steps=10**6)
    message, info = env.reset(seed=seed)
    observation, one = single.reset(seed=seed)
    assert info["level_id"] == one["level_id"]
    played = 0
    for turn, text in enumerate(texts, 1):
        assert env.actions_left == min(most - played, a_turn * (turns - turn + 1))
        message, reward, terminated, truncated, info = env.step(text)
        moves = info["reply"].actions[: min(a_turn, most - played)]
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
        assert reward == pytest.approx(sum(rewards) + penalty * (info["reply"].problem is not None))
        assert (terminated, info["success"]) == (over, one["success"])
        assert len(info["actions"]) == len(moves) or over
        assert truncated == (not over and (turn == turns or played == most))
        if terminated or truncated:
            break


def test_replies_are_strings_and_options_those_there_are() -> None:
    env = lake()
    for reply in (3, None, b"Up", ["Up"]):
        with pytest.raises(ValueError, match=f"a turn's action is the reply's text, not {type(reply).__name__}"):
            env.step(reply)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"FrozenLake has no option 'max_turn': .* Did you mean max_turns\?"):
        make_turn("FrozenLake", max_turn=3)
    with pytest.raises(ResetNeeded):
        make_turn("FrozenLake").step(say("Up"))


def test_a_limit_of_tokens_is_stated() -> None:
    env = make_turn("FrozenLake", max_tokens_per_turn=80, think=False)
    assert env.reset(seed=0)[0].endswith("Reply with <answer>first || second</answer>, in at most 80 tokens.")


def describe(seen: str, expected: str, *names: str) -> str:
    parts = f"<observation>\n{seen}\n</observation>So.<prediction>{expected}</prediction>"
    return f"<think>{parts}</think><answer>{' || '.join(names)}</answer>"


@pytest.mark.parametrize("name", TABLE)
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_what_a_reply_says_of_the_board_is_judged_exactly(name: str, seed: int, data: st.DataObject) -> None:
    form = "grid" if name.startswith("Bandit") else data.draw(st.sampled_from(("grid", "coord")))
    kwargs: dict[str, Any] = {"text_format": form}
    env = make_turn(name, grounding=True, world_modelling=True, state_reward=0.5, max_turns=9, **kwargs)
    plain = make_turn(name, max_turns=9, **kwargs)
    env.reset(seed=seed)
    plain.reset(seed=seed)
    before, moves = env.board, data.draw(st.lists(st.sampled_from(env.action_names), min_size=1, max_size=5))
    _, reward, *_ = plain.step(say(*moves))
    after = plain.board
    seen, hoped = data.draw(st.sampled_from((before, after))), data.draw(st.sampled_from((before, after)))
    _, earned, _, _, info = env.step(describe(seen, hoped, *moves))
    assert env.board == after, "what is said of the boards changes nothing on them"
    assert (info["observation_right"], info["prediction_right"]) == (seen == before, hoped == after)
    assert earned == pytest.approx(reward + 0.25 * (seen == before) + 0.25 * (hoped == after))


def test_a_board_whose_floor_is_a_space_is_read_as_it_stands() -> None:
    env = make_turn("Sokoban", vocabulary="xsb", grounding=True, state_reward=2)
    env.reset(seed=1)
    _, _, _, _, info = env.step(f"<think><observation>\n{env.board}\n</observation></think><answer>Up</answer>")
    assert info["observation_right"] is True


@pytest.mark.parametrize("reply", ["\ud800", "<think>\udc00</think><answer>Right\ud83d</answer>", "\ud83d\ude00"])
def test_half_a_surrogate_pair_in_a_reply_is_replaced(reply: str) -> None:
    env = make_turn("FrozenLake")
    env.reset(seed=0)
    for _ in range(2):  # what a conversation holds goes to the model again
        info = env.step(reply)[4]
        clean = replace_surrogates(reply)
        assert info["messages"][-2] == {"role": "assistant", "content": clean}
        assert info["reply"].text == clean
        assert json.dumps(info["messages"], ensure_ascii=False).encode()


def test_a_message_retells_the_last_turns() -> None:
    """With a summary of two turns: their boards, moves and rewards, then the message that stands there without one."""
    options: dict[str, Any] = {"think": False, "success_rate": 1.0, "max_turns": 5}
    plain, env = make_turn("FrozenLake", **options), make_turn("FrozenLake", summary=2, **options)
    lake = {"level": plain.game.level(plain.game.parse("P___\n____\n____\n___G"))}
    assert env.reset(options=lake)[0] == plain.reset(options=lake)[0]
    boards, found = [env.board], []
    for reply in ("<answer>Right || Down</answer>", "nothing", "<answer>Down</answer>"):
        message, told = plain.step(reply)[0], env.step(reply)[0]
        assert told in env.observation_space
        assert told.endswith(message)
        found.append(told.removesuffix(message).splitlines())
        boards.append(env.board)
    first = ["Turn 1:", *boards[0].splitlines(), "Actions: Right || Down. Reward: 0."]
    second = ["Turn 2:", *boards[1].splitlines(), "Actions: none. Reward: -0.1."]
    third = ["Turn 3:", *boards[2].splitlines(), "Actions: Down. Reward: 0."]
    assert found == [
        ["Turns so far: 1.", *first],
        ["Turns so far: 2.", *first, *second],
        ["Turns so far: 3.", *second, *third],
    ]
    other = env.twin()
    other.follow(env, 0)
    assert other.step("nothing")[0] == env.step("nothing")[0]
    assert env.reset(options=lake)[0] == plain.reset(options=lake)[0], "an episode forgets the one before"
    with pytest.raises(ValueError, match="it needs observation='text'"):
        make_turn("FrozenLake", summary=1, observation="image")
