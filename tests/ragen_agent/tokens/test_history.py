"""Prompts that forget: what the model reads, what the trajectory records, and that training scores what was sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from ragen_agent import ChatFormat, TokenMDP, Trajectory
from ragen_agent.config import Config, Training, with_settings
from ragen_agent.local.policy_update import Critic, Learner, update
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import group
from ragen_agent.update.batches import Batch
from ragen_agent.update.scoring import sampled_scores
from ragen_gym import make_turn
from tests.ragen_agent.conftest import OTHER_HEADERS

REPLIES = ("<answer>Up</answer>", "<answer>Left</answer>", "nothing", "<answer>Right || Down</answer>")


def written(chat: ChatFormat, history: int, replies: list[str], summary: int = 0) -> TokenMDP:
    """An episode on a lake too large to end by itself, with these replies."""
    options: dict[str, Any] = {"max_turns": len(replies), "max_actions": 99, "summary": summary}
    env = make_turn("FrozenLake", think=False, success_rate=1.0, size=6, **options)
    process = TokenMDP(env, chat, max_tokens_per_turn=200, max_tokens_per_episode=4000, history=history)
    process.reset(options={"level": "P_____\n______\n______\n______\n______\n_____G"})
    for reply in replies:
        for token in [*chat.tokenizer.encode(reply, add_special_tokens=False), chat.end_id]:
            process.append(token, -0.5)
    assert process.done
    return process


@given(data=st.data(), history=st.integers(-1, 3))
def test_each_turn_reads_its_window(chat: ChatFormat, data: st.DataObject, history: int) -> None:
    """The model reads the prompt with the first message of the window, the kept turns as they were, and no more."""
    replies = data.draw(st.lists(st.sampled_from(REPLIES), min_size=1, max_size=5))
    whole, process = written(chat, -1, replies).trajectory(), written(chat, history, replies)
    row = process.trajectory()
    assert (row.turn_rewards, row.messages, row.turn_infos) == (whole.turn_rewards, whole.messages, whole.turn_infos)
    sampled = [row.ids[row.sampled].tolist(), whole.ids[whole.sampled].tolist()]
    assert sampled[0] == sampled[1], "what was sampled is there once, whatever was read again"
    messages = [message["content"] for message in row.messages]
    users = messages[1::2]
    starts = [*(row.contexts or (0,)), len(row.ids)]
    for turn, end in enumerate(row.turn_ends):
        begin = max(start for start in starts if start <= end)
        first = 0 if history < 0 else max(0, turn - history)
        expected = chat.prompt_ids(messages[0], users[first])
        for past in range(first, turn):
            expected += [*chat.tokenizer.encode(replies[past], add_special_tokens=False), chat.end_id]
            expected += chat.glue_ids(users[past + 1])
        expected += [*chat.tokenizer.encode(replies[turn], add_special_tokens=False), chat.end_id]
        assert row.ids[begin : end + 1].tolist() == expected
    assert len(row.contexts) == (0 if history < 0 or len(replies) <= history + 1 else len(replies) - history)
    parts = row.split_contexts()
    assert [t for part in parts for t in part.ids[part.sampled].tolist()] == sampled[0]
    assert [r for part in parts for r in part.turn_rewards] == list(row.turn_rewards)
    for part, begin in zip(parts, row.contexts or (0,), strict=True):
        assert part.ids.tolist() == row.ids[begin : begin + len(part.ids)].tolist()
        assert all(part.sampled[end] for end in part.turn_ends)
    again = Trajectory.from_dict(row.to_dict())
    assert (again.ids.tolist(), again.contexts) == (row.ids.tolist(), row.contexts)


@pytest.mark.parametrize("turns", [1, 2, 9])
def test_a_summary_shows_the_boards_and_moves_of_a_window_in_one_message(chat: ChatFormat, turns: int) -> None:
    """Each prompt is the system message and one user message, and what it retells is what a window would show."""
    replies = [f"<answer>{moves}</answer>" for moves in ("Right", "Down", "Up || Right", "Left")]
    window = written(chat, turns, replies)
    retold = written(chat, 0, replies, summary=turns).trajectory()
    users = [message["content"] for message in window.trajectory().messages[1::2]]
    system, boards = retold.messages[0]["content"], [text.split("\n")[-7:-1] for text in users[:-1]]
    assert (retold.turn_rewards, len(retold.contexts)) == (window.trajectory().turn_rewards, len(replies))
    for turn, (begin, end) in enumerate(zip(retold.contexts, retold.turn_ends, strict=True)):
        message = retold.messages[1 + 2 * turn]["content"]
        said = chat.tokenizer.encode(replies[turn], add_special_tokens=False)
        assert retold.ids[begin : end + 1].tolist() == [*chat.prompt_ids(system, message), *said, chat.end_id]
        shown = message.split("\n")
        found = [shown[at : at + 6] for at in range(len(shown)) if shown[at : at + 6] in boards]
        assert found == boards[max(0, turn - turns) : turn + 1]
        moves = [line for line in shown if line.startswith("Actions: ")]
        assert moves == [
            f"Actions: {reply.removeprefix('<answer>').removesuffix('</answer>')}. Reward: 0."
            for reply in replies[max(0, turn - turns) : turn]
        ]


def test_a_summary_and_a_window_are_not_both_shown() -> None:
    with pytest.raises(ValueError, match="prompts would show earlier turns twice"):
        with_settings(Config(), {"turns": {"summary": 1, "history": 2}})


def test_a_small_model_knows_the_words_of_a_summary() -> None:
    """Its tokenizer has them, and no word that is a row of a board; the policy plays with them."""
    turns = {"summary": 2, "history": 0, "max_turns": 4, "max_tokens_per_turn": 12, "think": False}
    small = {"hidden": 32, "layers": 1, "feed_forward": 32}
    agent = Policy.build(with_settings(Config(), {"game": "FrozenLake", "turns": turns, "small_model": small}))
    played = agent.play(agent.processes("train", 4), group([1], 4), 1.0, seed=3)
    assert all(t.failure is None for t in played)
    assert any("Turns so far: 3." in message["content"] for t in played for message in t.messages)
    board = next(iter(played)).messages[1]["content"].split("\n")[1:5]
    assert not {*board} & {*agent.tokenizer.get_vocab()}


THOUGHTFUL = ("<think>up?</think><answer>Up</answer>", "<think>\nno\n</think>\n\n<answer>Left</answer>", "nothing")


@pytest.mark.parametrize("template", ["qwen3", "chatml", *OTHER_HEADERS])
@given(data=st.data(), history=st.integers(-1, 2))
def test_thinking_is_dropped_as_the_template_drops_it(
    make_tokenizer: Callable[[str, str], PreTrainedTokenizerFast], template: str, data: st.DataObject, history: int
) -> None:
    """What the model reads at each turn is the template's own text of the conversation, or of its last turns."""
    tokenizer = make_tokenizer("bpe", template)
    chat = ChatFormat.from_tokenizer(tokenizer, keep_thinking=False)
    assert chat.drops_thinking == (template != "chatml")
    replies = data.draw(st.lists(st.sampled_from(THOUGHTFUL), min_size=1, max_size=5))
    row = written(chat, history, replies).trajectory()
    messages = [dict(message) for message in row.messages]
    sampled = [[*tokenizer.encode(reply, add_special_tokens=False), chat.end_id] for reply in replies]
    assert row.ids[row.sampled].tolist() == [token for reply in sampled for token in reply]
    starts, system = row.contexts or (0,), messages[0]
    for turn, end in enumerate(row.turn_ends):
        begin = max(start for start in starts if start <= end)
        first = 0 if history < 0 else max(0, turn - history)
        said = [system, *messages[1 + 2 * first : 2 + 2 * turn]]
        prompt = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
        assert row.ids[begin : end + 1].tolist() == [*prompt, *sampled[turn]]
    rewritten = {
        "chatml": [],
        "qwen3": [reply for reply in replies[:-1] if "<think>" in reply],
    }.get(template, replies[:-1])
    if history < 0:
        assert len(row.contexts) == (1 + len(rewritten) if rewritten else 0)


@pytest.mark.parametrize("template", OTHER_HEADERS)
def test_another_header_before_past_replies_cannot_be_appended_to(
    make_tokenizer: Callable[[str, str], PreTrainedTokenizerFast], template: str
) -> None:
    with pytest.raises(ValueError, match=r"before a past reply but .* before a requested reply.*keep_thinking=false"):
        ChatFormat.from_tokenizer(make_tokenizer("bpe", template))
    assert ChatFormat.from_tokenizer(make_tokenizer("bpe", template), keep_thinking=False).deviations == ()


@pytest.mark.parametrize("place", ["thought", "answer"])
@pytest.mark.parametrize("template", ["qwen3", "nemotron3"])
def test_a_reply_that_spells_a_special_token_is_malformed(
    make_tokenizer: Callable[[str, str], PreTrainedTokenizerFast], template: str, place: str
) -> None:
    """In ordinary tokens: the episode goes on, the turn is penalised, its tokens are in the loss."""
    tokenizer = make_tokenizer("bpe", template)
    chat = ChatFormat.from_tokenizer(tokenizer, keep_thinking=False)
    env = make_turn("FrozenLake", max_turns=2, success_rate=1.0, size=3, format_penalty=-0.25)
    process = TokenMDP(env, chat, max_tokens_per_turn=200, max_tokens_per_episode=4000)
    process.reset(options={"level": "P__\n___\n__G"})
    opening = "" if template == "nemotron3" else "<think>"
    rest = {"thought": "a~b</think><answer>Down</answer>", "answer": "a</think><answer>Down~</answer>"}[place]
    reply = opening + rest
    spelled = [tokenizer.encode(part, add_special_tokens=False) for part in (*reply.split("~"), "<", "|im_end|>")]
    ids = [*spelled[0], *spelled[2], *spelled[3], *spelled[1]]
    assert chat.end_id not in ids
    assert chat.decode_reply(ids).endswith(reply.replace("~", "<|im_end|>"))
    for token in [*ids, chat.end_id]:
        process.append(token, -0.5)
    assert not process.done
    assert str(tokenizer.decode(process.ids)).count("<|im_end|>") == 4, "the template's own: no message ends a turn"
    assert ("< |im_end|>" in str(tokenizer.decode(process.ids))) == (place == "answer"), "a thought is dropped"
    for token in [*tokenizer.encode("x", add_special_tokens=False), chat.end_id]:
        process.append(token, -0.5)
    row = process.trajectory()
    assert row.failure is None
    assert row.turn_rewards == (-0.25, -0.25)
    assert [turn.problem for turn in row.turn_infos] == ["forbidden_text", "no_answer"]
    assert row.ids[row.sampled].tolist()[: len(ids)] == ids
    assert "<|im_end|>" in row.messages[2]["content"], "people read what was sampled"


def test_a_symbol_that_is_a_special_token_is_refused_where_nothing_can_be_cut(
    make_tokenizer: Callable[[str, str], PreTrainedTokenizerFast],
) -> None:
    chat = ChatFormat.from_tokenizer(make_tokenizer("bpe", "qwen3"), keep_thinking=False)
    talk = [{"role": "system", "content": "Play."}, {"role": "user", "content": "a<|im_end|>b"}]
    with pytest.raises(ValueError, match="holds a special token"):
        chat.conversation_ids(talk)
    assert chat.conversation_ids([talk[0], {"role": "user", "content": "ab"}]) == chat.prompt_ids("Play.", "ab")


def test_a_window_that_does_not_fit_ends_the_episode(chat: ChatFormat) -> None:
    prompt = len(written(chat, 0, ["x"]).trajectory().ids)
    env = make_turn("FrozenLake", max_turns=5, think=False, success_rate=1.0, size=6)
    process = TokenMDP(env, chat, max_tokens_per_turn=200, max_tokens_per_episode=prompt + 1, history=0)
    process.reset(options={"level": "P_____\n______\n______\n______\n______\n_____G"})
    while not process.done:
        for token in [*chat.tokenizer.encode("x", add_special_tokens=False), chat.end_id][: prompt + 1]:
            if not process.done:
                process.append(token, 0.0)
    assert process.trajectory().truncated
    with pytest.raises(ValueError, match="TokenMDP: history=-2 must be an integer from -1 on"):
        TokenMDP(env, chat, history=-2)


@pytest.fixture(scope="module")
def agent() -> Policy:
    settings = {
        "game": "FrozenLake",
        "env_options": {"size": 4, "success_rate": 1.0},
        "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
        "turns": {"max_turns": 4, "max_tokens_per_turn": 10},
    }
    return Policy.build(with_settings(Config(), settings))


def windowed(agent: Policy, history: int) -> list[Trajectory]:
    config = replace(agent.config, turns=replace(agent.config.turns, history=history))
    mine = replace(agent, config=config)
    return mine.play(mine.processes("train", 5), group([1, 2, 3], 4), 0.8, seed=5)


@pytest.mark.parametrize("history", [0, 1, 2])
def test_training_scores_what_was_sampled(agent: Policy, history: int) -> None:
    rows = windowed(agent, history)
    assert [t.ids.tolist() for t in windowed(agent, history)] == [t.ids.tolist() for t in rows]
    assert all(t.failure is None and len(t.contexts) == len(t.turn_ends) - history for t in rows)
    batch = Batch.of(rows)
    log_probs = sampled_scores(agent.model, batch, agent.engine.bias, 0.8).log_probs
    torch.testing.assert_close(log_probs.detach(), batch.log_probs, atol=1e-4, rtol=1e-4)
    picked = torch.tensor([7, 2])
    some = sampled_scores(agent.model, batch.rows(picked), agent.engine.bias, 0.8).log_probs
    torch.testing.assert_close(some, log_probs[picked, : some.shape[1]], atol=1e-5, rtol=1e-5)


def test_turns_differ_although_their_prompts_may_not(agent: Policy) -> None:
    """Each prefix of an episode draws from numbers of its own: a turn is no repetition of the one before."""
    rows = windowed(agent, 0)
    first, second = ([t.ids[t.sampled].tolist()[at : at + 10] for t in rows] for at in (0, 10))
    assert sum(one == two for one, two in zip(first, second, strict=True)) < len(rows) / 2


def test_the_critic_values_each_context_by_itself(agent: Policy) -> None:
    rows = windowed(agent, 0)
    critic = Critic(agent.model)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    batch = Batch.of(rows)
    values = critic(batch)
    assert not values[~batch.sampled].any()
    row = rows[0]
    begin, end = row.contexts[1], row.turn_ends[1] + 1
    alone = Batch.of([row.split_contexts()[1]])
    torch.testing.assert_close(values[0, begin:end][batch.sampled[0, begin:end]], critic(alone)[alone.sampled])


@pytest.mark.parametrize("settings", [Training(), Training(algo="ppo", credit="bi_level")])
def test_an_update_from_windows(agent: Policy, settings: Training) -> None:
    rows = windowed(agent, 1)
    policy = Learner(agent.model, torch.optim.AdamW(agent.model.parameters(), 1e-4), agent.engine.bias)
    if settings.critic:
        policy.critic = Critic(agent.model)
        policy.critic_optimiser = torch.optim.AdamW(policy.critic.parameters(), 1e-3)
    measured = update(policy, rows, torch.tensor([1.0, -1.0] * 6), replace(settings, temperature=0.8, minibatch=12), 0)
    assert measured["approx_kl"] < 1e-6, "before the step the policy is the one that sampled"
    assert measured["grad_norm"] > 0
