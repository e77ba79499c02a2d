"""The token-level process: what is sampled, what is appended, when turns and episodes end."""

from __future__ import annotations

import itertools
import json
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from ragen_agent import ChatFormat, TokenMDP, Trajectory
from ragen_gym import TurnEnv, make_turn

MakeTokenizer = Callable[[str, str], PreTrainedTokenizerFast]

MOVES = ("Up", "Left", "Down || Down", "Right || Down || Left", "", "nowhere")


@st.composite
def reply_texts(draw: st.DrawFn) -> str:
    """Replies that move, and replies that are malformed."""
    answer = f"<answer>{draw(st.sampled_from(MOVES))}</answer>"
    return draw(st.sampled_from([f"<think>go</think>{answer}", answer, "<think>", "Up"]))


@pytest.fixture(scope="module")
def bpe_chat(make_tokenizer: MakeTokenizer) -> ChatFormat:
    return ChatFormat.from_tokenizer(make_tokenizer("bpe", "chatml"))


def lake(chat: ChatFormat, **budgets: Any) -> TokenMDP:
    return TokenMDP(make_turn("FrozenLake"), chat, **{"max_tokens_per_episode": 6000, **budgets})


def reply_ids(chat: ChatFormat, text: str) -> list[int]:
    lead = " " if chat.text.opening.endswith(":") else ""
    return list(chat.tokenizer.encode(lead + text, add_special_tokens=False))


def play(mdp: TokenMDP, replies: list[list[int]], seed: int = 0) -> tuple[list[int], list[bool], list[float]]:
    """Play the replies, over and over, and keep the row by hand: ids, which were sampled, log-probs."""
    mdp.reset(seed=seed)
    ids = list(mdp.ids)
    sampled, log_probs, step, turn = [False] * len(ids), [0.0] * len(ids), 0, 0
    while not mdp.done:
        reply = [*replies[turn % len(replies)], mdp.chat.end_id]
        turn += 1
        for token in reply:
            step += 1
            follow = mdp.append(token, -step / 64)
            ids += [token, *follow]
            sampled += [True] + [False] * len(follow)
            log_probs += [-step / 64] + [0.0] * len(follow)
            if follow or mdp.done:
                break
    return ids, sampled, log_probs


@given(texts=st.lists(reply_texts(), min_size=1, max_size=5), seed=st.integers(0, 1000), per_turn=st.integers(1, 40))
def test_sampled_is_exactly_what_was_sampled(chat: ChatFormat, texts: list[str], seed: int, per_turn: int) -> None:
    mdp = lake(chat, max_tokens_per_turn=per_turn)
    ids, sampled, log_probs = play(mdp, [reply_ids(chat, text) for text in texts], seed)
    trajectory = mdp.trajectory()
    assert trajectory.ids.tolist() == ids == mdp.ids
    assert trajectory.sampled.tolist() == sampled
    assert trajectory.log_probs.tolist() == log_probs
    assert sampled[-1]
    after = [end + 1 for end in trajectory.turn_ends]
    assert all(sampled[end] for end in trajectory.turn_ends)
    assert not any(sampled[index] for index in after if index < len(ids))
    assert sum(sampled[:-1][i] and not sampled[1:][i] for i in range(len(ids) - 1)) == len(after) - 1


@given(texts=st.lists(reply_texts(), min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_prefix_is_the_whole_rendered_conversation(chat: ChatFormat, texts: list[str], seed: int) -> None:
    """At every turn, where the template keeps replies as they are and their ids are canonical."""
    mdp = lake(chat)
    _, info = mdp.reset(seed=seed)
    for turn in range(5):
        text = chat.tokenizer.apply_chat_template(info["messages"], tokenize=False, add_generation_prompt=True)
        if chat.text.keeps_thinking or turn == 0:
            assert mdp.ids == chat.tokenizer.encode(str(text), add_special_tokens=False)
        for token in [*reply_ids(chat, texts[turn % len(texts)]), chat.end_id]:
            *_, info = mdp.step(token)
        if mdp.done:
            break


@given(
    texts=st.lists(reply_texts(), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    per_turn=st.integers(1, 40),
    per_episode=st.integers(500, 2000),
)
def test_stepping_and_appending_give_the_same_trajectory(
    bpe_chat: ChatFormat, texts: list[str], seed: int, per_turn: int, per_episode: int
) -> None:
    one = lake(bpe_chat, max_tokens_per_turn=per_turn, max_tokens_per_episode=per_episode)
    other = lake(bpe_chat, max_tokens_per_turn=per_turn, max_tokens_per_episode=per_episode)
    play(one, [reply_ids(bpe_chat, text) for text in texts], seed)
    expected = one.trajectory()
    observation, _ = other.reset(seed=seed)
    terminated = truncated = False
    rewards: dict[int, float] = {}
    for index in np.flatnonzero(expected.sampled):
        assert observation.tolist() == expected.ids[: len(observation)].tolist()
        assert len(observation) == index
        observation, reward, terminated, truncated, _ = other.step(int(expected.ids[index]))
        rewards[int(index)] = reward
        assert (terminated or truncated) == other.done == (index == len(expected.ids) - 1)
    assert (terminated, truncated) == (expected.terminated, expected.truncated)
    assert other.trajectory().to_dict() == {**expected.to_dict(), "log_probs": [0.0] * len(expected.ids)}
    at_ends = dict(zip(expected.turn_ends, expected.turn_rewards, strict=True))
    assert rewards == {index: at_ends.get(index, 0.0) for index in rewards}


@given(
    texts=st.lists(reply_texts(), min_size=1, max_size=5),
    per_turn=st.integers(1, 60),
    per_episode=st.integers(500, 1500),
)
def test_budgets_hold(bpe_chat: ChatFormat, texts: list[str], per_turn: int, per_episode: int) -> None:
    mdp = lake(bpe_chat, max_tokens_per_turn=per_turn, max_tokens_per_episode=per_episode)
    play(mdp, [reply_ids(bpe_chat, text) for text in texts])
    trajectory = mdp.trajectory()
    assert len(trajectory.ids) <= per_episode
    starts = np.flatnonzero(np.diff(trajectory.sampled.astype(int)) == 1) + 1
    assert all(end - start < per_turn for start, end in zip(starts, trajectory.turn_ends, strict=True))
    assert trajectory.failure is None
    assert trajectory.terminated != trajectory.truncated


def test_reply_cut_by_its_budget(bpe_chat: ChatFormat) -> None:
    """The end token follows unsampled, and the environment reads the reply as it stands."""
    mdp = lake(bpe_chat, max_tokens_per_turn=3)
    mdp.reset(seed=0)
    ids = reply_ids(bpe_chat, "<think>go</think><answer>Up</answer>")[:3]
    assert [mdp.append(token, -1.0) for token in ids[:2]] == [[], []]
    follow = mdp.append(ids[2], -1.0)
    assert follow[0] == bpe_chat.end_id
    assert mdp.ids[-len(follow) :] == follow
    *_, info = mdp.step(ids[0])
    assert info == {"sampled": 1}
    mdp.step(ids[1])
    _, reward, terminated, truncated, info = mdp.step(ids[2])
    assert reward == pytest.approx(-0.1)
    assert (terminated, truncated) == (False, False)
    assert info["cut"] == "turn"
    assert info["reply_text"] == bpe_chat.tokenizer.decode(ids)
    assert info["reply"].problem is not None


def test_stop_token_as_the_last_one_allowed_is_no_cut(bpe_chat: ChatFormat) -> None:
    mdp = lake(bpe_chat, max_tokens_per_turn=3)
    mdp.reset(seed=0)
    up = reply_ids(bpe_chat, "a")[0]
    mdp.step(up)
    mdp.step(up)
    *_, info = mdp.step(bpe_chat.end_id)
    assert info["cut"] is None
    assert mdp.ids.count(bpe_chat.end_id) == bpe_chat.prompt_ids("S", "U").count(bpe_chat.end_id) + 2


def test_end_of_sequence_is_followed_by_the_end_token(make_tokenizer: MakeTokenizer) -> None:
    """Sampled, it ends the turn and stays; the template's own end token comes after it, unsampled."""
    tokenizer = make_tokenizer("bpe", "chatml")
    tokenizer.eos_token = "<|endoftext|>"
    mdp = lake(ChatFormat.from_tokenizer(tokenizer))
    mdp.reset(seed=0)
    follow = mdp.append(tokenizer.eos_token_id, -1.0)
    assert follow[0] == mdp.chat.end_id
    assert mdp.ids[-len(follow) - 1] == tokenizer.eos_token_id


def test_episode_is_truncated_when_the_next_turn_does_not_fit(bpe_chat: ChatFormat) -> None:
    wide = lake(bpe_chat)
    wide.reset(seed=0)
    prompt = len(wide.ids)
    wide.append(bpe_chat.end_id, -1.0)
    needed = len(wide.ids) + 1
    for limit, fits in ((needed, True), (needed - 1, False)):
        mdp = lake(bpe_chat, max_tokens_per_episode=limit)
        mdp.reset(seed=0)
        follow = mdp.append(bpe_chat.end_id, -1.0)
        assert bool(follow) == fits
        assert mdp.done != fits
        if not fits:
            trajectory = mdp.trajectory()
            assert trajectory.truncated
            assert not trajectory.terminated
            assert len(trajectory.ids) == prompt + 1
            assert trajectory.overflowed
            assert Trajectory.from_dict(trajectory.to_dict()).overflowed


def test_reply_cut_by_the_episodes_budget(bpe_chat: ChatFormat) -> None:
    wide = lake(bpe_chat)
    wide.reset(seed=0)
    mdp = lake(bpe_chat, max_tokens_per_episode=len(wide.ids) + 2)
    mdp.reset(seed=0)
    token = reply_ids(bpe_chat, "a")[0]
    mdp.step(token)
    _, reward, terminated, truncated, info = mdp.step(token)
    assert reward == mdp.trajectory().total_reward == pytest.approx(-0.1)
    assert (terminated, truncated, info["cut"]) == (False, True, "episode")
    assert mdp.trajectory().overflowed


def test_game_that_ends_is_terminated_and_its_success_recorded(bpe_chat: ChatFormat) -> None:
    env = make_turn("FrozenLake", success_rate=1.0)
    mdp = TokenMDP(env, bpe_chat, max_tokens_per_episode=6000)
    _, info = mdp.reset(seed=3)
    while not mdp.done:
        move = env.action_names[env.oracle_action()]
        for token in [*reply_ids(bpe_chat, f"<think>go</think><answer>{move}</answer>"), bpe_chat.end_id]:
            mdp.append(token, -0.5)
        if env.turn == env.max_turns:
            break
    trajectory = mdp.trajectory()
    assert trajectory.level_id == info["level_id"]
    assert trajectory.seed == 3
    assert trajectory.total_reward == trajectory.success == trajectory.terminated
    assert trajectory.success
    assert not trajectory.overflowed
    assert "overflowed" not in trajectory.to_dict()
    assert (mdp.context, trajectory.contexts) == (0, ())
    assert trajectory.messages[0]["role"] == "system"


class Breaking(TurnEnv):
    """A lake whose second turn raises, or pays a reward that is not a number."""

    reward: float | None = None

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        message, reward, terminated, truncated, info = super().step(action)
        if self.turn < 2:
            return message, reward, terminated, truncated, info
        if self.reward is None:
            raise RuntimeError("the ice broke")
        return message, self.reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("reward", "failure"),
    [
        (None, "environment_error: RuntimeError: the ice broke"),
        (float("nan"), "environment_error: ValueError: the turn's reward is nan"),
    ],
)
def test_environment_that_breaks_costs_only_its_episode(
    bpe_chat: ChatFormat, reward: float | None, failure: str
) -> None:
    env = Breaking(make_turn("FrozenLake").env)
    env.reward = reward
    mdp = TokenMDP(env, bpe_chat)
    mdp.reset(seed=0)
    mdp.step(bpe_chat.end_id)
    observation, earned, terminated, truncated, info = mdp.step(bpe_chat.end_id)
    assert (earned, terminated, truncated, info["failure"]) == (0.0, False, True, failure)
    assert mdp.done
    trajectory = mdp.trajectory()
    assert trajectory.failure == failure
    assert not trajectory.truncated
    assert trajectory.sampled.sum() == 2
    assert [message["role"] for message in trajectory.messages][-2:] == ["user", "assistant"]
    assert len(trajectory.turn_ends) == len(trajectory.turn_rewards) == 1
    assert trajectory.ids.tolist() == observation.tolist()
    assert mdp.reset(seed=0)[0].tolist() == trajectory.ids[: len(mdp.ids)].tolist()


def test_failure_from_outside_keeps_what_was_sampled(bpe_chat: ChatFormat) -> None:
    mdp = lake(bpe_chat)
    mdp.reset(seed=0)
    mdp.append(reply_ids(bpe_chat, "a")[0], -2.0)
    mdp.fail("engine_error: out of memory")
    trajectory = mdp.trajectory()
    assert trajectory.failure == "engine_error: out of memory"
    assert trajectory.log_probs.sum() == -2.0
    assert trajectory.turn_ends == ()
    mdp.fail("engine_error: again")
    assert mdp.trajectory().failure == "engine_error: out of memory"


def test_noise_and_level_reach_the_game(bpe_chat: ChatFormat) -> None:
    mdp = lake(bpe_chat)
    first, info = mdp.reset(seed=1, options={"noise_seed": 5})
    second, again = mdp.reset(seed=1, options={"noise_seed": 6})
    assert first.tolist() == second.tolist()
    assert info["level_id"] == again["level_id"]
    third, _ = mdp.reset(seed=2)
    assert first.tolist() != third.tolist()
    replies = [
        [*reply_ids(bpe_chat, f"<think>go</think><answer>{move}</answer>"), bpe_chat.end_id] for move in MOVES[:4]
    ]
    played = []
    for noise in (5, 5, 6):
        mdp.reset(seed=1, options={"noise_seed": noise})
        for reply in itertools.cycle(replies):
            if mdp.done:
                break
            mdp.append_reply(reply, [0.0] * len(reply))
        played.append(mdp.ids)
    assert played[0] == played[1] != played[2]


@pytest.mark.parametrize("options", [{}, {"reply_opening": "<think>"}])
def test_a_pickled_episode_goes_on_as_the_original_does(make_tokenizer: MakeTokenizer, options: dict[str, Any]) -> None:
    mdp = lake(ChatFormat.from_tokenizer(make_tokenizer("bpe", "chatml"), **options))
    mdp.reset(seed=3, options={"noise_seed": 5})
    reply = [*reply_ids(mdp.chat, "<think>go</think><answer>Up || Left</answer>"), mdp.chat.end_id]
    for token in reply[:4]:
        mdp.step(token)
    again = pickle.loads(pickle.dumps(mdp))
    for each in (mdp, again):
        for token in reply[4:]:
            each.step(token)
        while not each.done:
            each.append_reply(reply, [0.0] * len(reply))
    assert again.trajectory().to_dict() == mdp.trajectory().to_dict()


def test_a_reply_may_come_as_arrays_or_tensors(bpe_chat: ChatFormat) -> None:
    reply = bpe_chat.reply_ids("<think>up</think><answer>Up</answer>")
    log_probs = np.linspace(-1, -0.5, len(reply)).tolist()
    forms: list[Callable[[list[Any]], Any]] = [list, tuple, np.array, torch.tensor]
    played = []
    for form in forms:
        mdp = lake(bpe_chat, max_tokens_per_turn=60)
        mdp.begin(seed=11)
        while not mdp.done:
            mdp.append_reply(form(reply), form(log_probs))
        played.append(mdp.trajectory().to_dict())
    assert len(played[0]["turn_rewards"]) > 1
    assert all(each["ids"] == played[0]["ids"] for each in played)
    assert all(each["log_probs"] == pytest.approx(played[0]["log_probs"]) for each in played)


def test_passes_gymnasiums_checks(bpe_chat: ChatFormat) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(lake(bpe_chat, max_tokens_per_turn=4), skip_render_check=True)


def test_misuse_is_told(bpe_chat: ChatFormat) -> None:
    for env in ("Bandit", gymnasium.make("ragen/Bandit-v0")):
        with pytest.raises(ValueError, match="give an environment of whole replies"):
            TokenMDP(env, bpe_chat)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"chat is a str; give ChatFormat.from_tokenizer\(tokenizer\)"):
        TokenMDP(make_turn("Bandit"), "tokenizer")  # type: ignore[arg-type]
    for name in ("max_tokens_per_turn", "max_tokens_per_episode", "history"):
        for value in (2.5, float("nan"), "x", None, -2):
            with pytest.raises(ValueError, match=f"TokenMDP: {name}=.* must be an integer from"):
                lake(bpe_chat, **{name: value})
    mdp = lake(bpe_chat, max_tokens_per_episode=10)
    with pytest.raises(ValueError, match="leaves none for a reply"):
        mdp.reset(seed=0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        mdp.append(0, -1.0)
    mdp = lake(bpe_chat)
    calls: list[Callable[[], Any]] = [
        lambda: mdp.step(0),
        lambda: mdp.append(0, -1.0),
        lambda: mdp.append_reply([0], [-1.0]),
        mdp.trajectory,
    ]
    for call in calls:
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"no episode has begun: call reset\(\)"):
            call()
    mdp.reset(seed=0)
    wrong: list[tuple[Any, Any]] = [(None, None), (["a"], [0.0]), ([1.5], [0.0]), ([1], None), ([1], ["x"])]
    for ids, log_probs in wrong:
        with pytest.raises(ValueError, match="a reply is token ids and as many log-probabilities"):
            mdp.append_reply(ids, log_probs)
    with pytest.raises(ValueError, match="outside the tokenizer's vocabulary"):
        mdp.append(bpe_chat.vocabulary_size, -1.0)
    for action in (1.5, "1", None):
        with pytest.raises(ValueError, match=f"action={action!r} is not a token id: give an integer"):
            mdp.step(action)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="logits are broken"):
        mdp.append(0, float("nan"))
    with pytest.raises(ValueError, match="logits are broken"):
        mdp.append_reply([0, bpe_chat.end_id], [-1.0, float("nan")])
    with pytest.raises(ValueError, match="the episode is still running"):
        mdp.trajectory()
    mdp.fail("test: ended")
    for call in calls[:3]:
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"the episode is over: call reset\(\)"):
            call()


@given(texts=st.lists(reply_texts(), min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_trajectory_survives_json(bpe_chat: ChatFormat, texts: list[str], seed: int) -> None:
    mdp = lake(bpe_chat)
    play(mdp, [reply_ids(bpe_chat, text) for text in texts], seed)
    trajectory = mdp.trajectory()
    again = Trajectory.from_dict(json.loads(json.dumps(trajectory.to_dict())))
    assert again.to_dict() == trajectory.to_dict()
    for name in ("ids", "sampled", "log_probs"):
        np.testing.assert_array_equal(getattr(again, name), getattr(trajectory, name), strict=True)
    assert again.total_reward == sum(trajectory.turn_rewards)
