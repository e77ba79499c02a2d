"""RAGEN's prompts and parser: what is stated, how replies are read, and that well-formed play is the same."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym import make_turn
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs import ragen_v1
from ragen_gym.envs.policies import plan_moves, random_reply, reply_for
from ragen_gym.envs.reply import Problem, Reply, parse_reply
from ragen_gym.games.registry import TABLE
from ragen_gym.testing import replies

NAMES = ("Left", "Down", "Right", "Up")
LAKE = "P__O\n____\n_O__\n___G"
TWO = TurnConfig(prompt="ragen-v1", max_actions_per_turn=2)


def test_a_conversation_by_hand() -> None:
    env = make_turn("FrozenLake", prompt="ragen-v1", max_tokens_per_turn=100)
    message, _ = env.reset(seed=0, options={"level": LAKE})
    assert env.instructions == (
        "You play FrozenLake. Keep out of the holes and get to the goal. The ice is slippery: a move may take you in a "
        "direction that you did not mean.\n"
        "What the symbols of a state mean:\n"
        "_: ice, O: hole, G: goal, P: player, X: player in hole, √: player on goal\n"
        "Actions to choose from:\n"
        "Left, Down, Right, Up\n"
        "In all you may take 10 actions. Put || between them, for example <answer>Up || Left</answer>"
    )
    form = "<think> [your thoughts] </think> <answer> [your answer] </answer>"
    assert message == (
        f"Turn 1:\nState:\n{LAKE}\nActions left: 10. Keep strictly to the form {form} and write nothing else. "
        "Use 100 tokens at most."
    )
    message, reward, *_ = env.step("nothing")
    assert reward == -0.1
    assert message.startswith(f"Reward:\n0\n\nTurn 2:\nState:\n{LAKE}\n"), "the penalty is not shown"
    silent = make_turn("FrozenLake", prompt="ragen-v1", think=False, success_rate=1)
    assert "slippery" not in silent.instructions
    assert make_turn("FrozenLake", prompt="ragen-v1", example=True).instructions == env.instructions, "there is none"
    assert "the form <answer> [your answer] </answer> and" in silent.reset(seed=0)[0]


def test_a_bandit_tells_neither_what_it_pays_nor_whether_its_names_mislead() -> None:
    plain, reverse = (make_turn(name, prompt="ragen-v1", low=0.375) for name in ("Bandit", "BanditRev"))
    assert plain.instructions == reverse.instructions
    assert not re.search(r"mislead|0\.375|pays a|Rewards", plain.instructions)
    assert make_turn("Bandit").instructions != make_turn("BanditRev").instructions
    level = {"level": "Teacher\nTrader"}
    assert plain.reset(options=level)[0] == reverse.reset(options=level)[0]
    assert "State:\nTeacher\nTrader\n" in plain.reset(options=level)[0]


# reply, thinks, (names, actions, problem), problem of the default grammar
WORKED: list[tuple[str, bool, tuple[Any, ...], Problem | None]] = [
    ("<think>x</think><answer>Up</answer>", True, (("Up",), (3,), None), None),
    ("x</think><answer>Up</answer>", True, (("Up",), (3,), None), Problem.NO_ANSWER),
    ("Well. <think>x</think>\n<answer>Up</answer> Done.", True, (("Up",), (3,), None), Problem.NO_ANSWER),
    ("<think>x</think><answer>Up ||</answer>", True, (("Up",), (3,), None), Problem.UNKNOWN_ACTION),
    (
        "<think>x</think><answer>up || LEFT || Fly</answer>",
        True,
        (("up", "LEFT"), (3, 0), None),
        Problem.UNKNOWN_ACTION,
    ),
    (
        "<think>x</think><answer>Up || Fly</answer>",
        True,
        (("Up", "Fly"), (3,), Problem.UNKNOWN_ACTION),
        Problem.UNKNOWN_ACTION,
    ),
    ("<think><answer>Up</answer></think><answer>Down</answer>", True, (("Down",), (1,), None), Problem.SEVERAL_ANSWERS),
    ("<think>x</think><answer>Up</answer><answer>Down</answer>", True, (("Up",), (3,), None), Problem.SEVERAL_ANSWERS),
    ("<think>x</think><answer><answer>Up<|im_end|></answer>", True, (("Up",), (3,), None), Problem.SEVERAL_ANSWERS),
    ("<think>x</think> so <answer>Up</answer>", True, ((), (), Problem.NO_ANSWER), Problem.NO_ANSWER),
    ("<answer>Up</answer>", True, ((), (), Problem.NO_ANSWER), Problem.NO_ANSWER),
    ("<think>x</think><answer>Up", True, ((), (), Problem.NO_ANSWER), Problem.NO_ANSWER),
    ("<think>x</think><answer> || </answer>", True, ((), (), Problem.NO_ACTION), Problem.NO_ACTION),
    ("Up</answer>", False, (("Up",), (3,), None), Problem.NO_ANSWER),
    ("<answer>Up || Left</answer> yes", False, (("Up", "Left"), (3, 0), None), Problem.NO_ANSWER),
    ("<think>x</think><answer>Up</answer>", False, (("xUp",), (), Problem.UNKNOWN_ACTION), Problem.NO_ANSWER),
]


def read(text: str, think: bool) -> Reply:
    return ragen_v1.parse(text, NAMES, TurnConfig(prompt="ragen-v1", max_actions_per_turn=2, think=think))


@pytest.mark.parametrize(("text", "think", "expected", "default"), WORKED)
def test_replies_by_hand(text: str, think: bool, expected: tuple[Any, ...], default: Problem | None) -> None:
    reply = read(text, think)
    assert (reply.names, reply.actions, reply.problem) == expected
    assert reply.text == text
    assert parse_reply(text, NAMES, think=think).problem == default


@given(replies(NAMES) | replies(NAMES, think=False) | st.text(), st.booleans())
def test_a_reply_is_read_as_the_released_code_reads_it(text: str, think: bool) -> None:
    """A search, in the reply behind the opening that is written for the model, of both parts."""
    form = r"<answer>(.*?)</answer>"
    found = re.search(
        rf"<think>(.*?)</think>\s*{form}" if think else form, ("<think>" if think else "<answer>") + text, re.S
    )
    reply = read(text, think)
    assert (found is None) == (reply.problem is Problem.NO_ANSWER)
    if found is None:
        return
    answer = re.sub(r"</?think>|</?answer>|<\|im_(start|end)\|>", "", found[2 if think else 1])
    names = [name.strip() for name in answer.split("||") if name.strip()][:2]
    assert list(reply.names) == names
    assert list(reply.actions) == [NAMES.index(name.title()) for name in names if name.title() in NAMES]
    assert (reply.problem is None) == (0 < len(reply.actions) == len(names))


def played(name: str, optimal: bool, **options: Any) -> list[Any]:
    """Moves, rewards and success of a few episodes, turn by turn."""
    env, rng, seen = make_turn(name, **options), np.random.default_rng(0), []
    for seed in range(3):
        env.reset(seed=seed)
        while not env.over:
            moves = plan_moves(env, env.max_actions_per_turn)
            info = env.step(reply_for(env, moves) if optimal else random_reply(env, rng))[-1]
            seen.append((info["actions"], info["rewards"], info["success"]))
    return seen


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize("name", TABLE)
def test_random_and_optimal_play_are_the_same_under_both_prompts(name: str, think: bool) -> None:
    """Move by move: their rates, which stand next to every score, are the same."""
    for optimal in (True, False):
        assert played(name, optimal, think=think, prompt="ragen-v1") == played(name, optimal, think=think)


def test_a_reply_of_nothing_but_tags_takes_no_time() -> None:
    for text in ("<think></think><answer>" * 20_000, "</think> <answe" * 20_000, "</think>" + " " * 200_000):
        start = time.process_time()
        assert ragen_v1.parse(text, NAMES, TWO).problem is not None
        assert time.process_time() - start < 2


def test_the_papers_two_pairs() -> None:
    train, test = (make_turn("Bandit", names="ragen-v1", split=split) for split in ("train", "test"))
    assert {train.reset(seed=seed)[0].split("\n")[1] for seed in range(8)} == {"Teacher", "Engineer"}
    assert {test.reset(seed=seed)[0].split("\n")[1] for seed in range(8)} == {"Librarian", "Trader"}
    train.reset(seed=0, options={"level": "Engineer\nTeacher"})
    assert train.oracle_action() == 0, "the second of a pair is the risky arm, which pays more on average"
    with pytest.raises(ValueError, match=r"names='ragen-v1' has no pair in split='validation'"):
        make_turn("Bandit", names="ragen-v1", split="validation").reset(seed=0)
    with pytest.raises(ValueError, match=r"names='ragen' is no list of names: choose 'ragen-v1', or give pairs"):
        make_turn("Bandit", names="ragen")
