"""Exact values: equal to the list of all replies, to sampled episodes, and to chains worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ragen_agent.exact import reply_tree
from ragen_agent.exact.level import QUANTITIES, ExactLevel
from ragen_agent.exact.policy_value import LevelValue, solve
from ragen_agent.exact.reply_tree import Outcome
from ragen_agent.inference.torch_engine import TorchEngine
from ragen_agent.tokens.rollout import Instance, play
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_gym import make_turn
from ragen_gym.envs.policies import random_reply
from tests.ragen_agent.exact.conftest import Tiny

Make = Callable[..., Tiny]


def replies(policy: Tiny, prompt: list[int]) -> Iterator[tuple[list[int], float]]:
    """Every reply to a prompt with its probability, by one plain forward pass for each prefix."""
    room, stops, bias = policy.turns.max_tokens_per_turn, policy.chat.stop_ids, policy.reader().bias
    words = torch.nonzero(bias == 0).flatten().tolist()
    waiting: list[tuple[list[int], float]] = [([], 1.0)]
    while waiting:
        with torch.no_grad():
            logits = policy.model(torch.tensor([prompt + ids for ids, _ in waiting])).logits[:, -1].double()
        following = ((logits + bias) / policy.temperature).softmax(-1).tolist()
        longer = []
        for (ids, chance), row in zip(waiting, following, strict=True):
            for word in words:
                now = [*ids, word], chance * row[word]
                if word in stops or len(ids) + 1 == room:
                    yield now
                else:
                    longer.append(now)
        waiting = longer


def listed(policy: Tiny, seed: int, **options: object) -> NDArray[np.float64]:
    """Success, return and moves of a policy on a level, by playing every reply to every prompt in ``TokenMDP``."""
    known: dict[tuple[int, ...], NDArray[np.float64]] = {}

    def value(before: list[list[int]]) -> NDArray[np.float64]:
        process = stand(before)
        prompt = tuple(process.ids)
        if prompt not in known:
            known[prompt] = np.zeros(3)
            for ids, chance in replies(policy, list(prompt)):
                after = stand([*before, ids])
                played = after.trajectory() if after.done else None
                rewards = after._rewards[len(before) :]
                moves = len(after._info["actions"])
                known[prompt] += chance * np.array([float(played.success) if played else 0.0, sum(rewards), moves])
                if played is None:
                    known[prompt] += chance * value([*before, ids])
        return known[prompt]

    env = policy.env(**options)

    def stand(before: list[list[int]]) -> TokenMDP:
        process = TokenMDP.from_settings(env, policy.chat, policy.turns)
        process.begin(seed=seed)
        for ids in before:
            process.append_reply(ids, [0.0] * len(ids))
        return process

    return value([])


def close(found: LevelValue, expected: NDArray[np.float64], width: float = 1e-5) -> None:
    for row, quantity in enumerate(QUANTITIES):
        low, high = found.of(quantity)
        assert low - 1e-6 <= expected[row] <= high + 1e-6, quantity
        assert high - low < width, quantity


@pytest.mark.parametrize("seed", [1, 2])
def test_equal_to_the_list_of_all_replies(tiny: Make, seed: int) -> None:
    policy = tiny(room=4)
    (found,) = solve(policy.reader(), policy.levels(seed), mass=1e-7)
    expected = listed(policy, seed)
    assert 0.001 < expected[0] < 0.999, "a level that shows nothing"
    close(found, expected)


def test_prompts_are_those_of_the_token_process(tiny: Make) -> None:
    policy = tiny()
    level = policy.levels(1)[0]
    assert level.prompt(level.start) == level.process.ids


@pytest.mark.parametrize("game", ["FrozenLake", "Sokoban"])
def test_transitions_are_those_of_the_turn_environment(tiny: Make, game: str) -> None:
    policy = tiny()
    rng = np.random.default_rng(0)
    options: dict[str, Any] = {"success_rate": 1.0} if game == "FrozenLake" else {}
    played = make_turn(game, think=False, **options)
    level = ExactLevel(played, policy.chat, policy.turns, Instance(5, 0))
    for _ in range(20):
        played.reset(seed=5)
        state, process = level.start, TokenMDP.from_settings(played, policy.chat, policy.turns)
        process.begin(seed=5)
        while not process.done:
            text = (
                random_reply(played, rng) if rng.random() < 0.7 else "<answer>Up || Nowhere</answer>" * rng.integers(3)
            )
            ids = policy.chat.reply_ids(text)[: policy.turns.max_tokens_per_turn]
            reply = played.parse(policy.chat.decode_reply(ids))
            outcome = Outcome(reply.actions[: level.most_actions(state)], reply.problem is not None)
            (result,) = level.transitions(state, outcome)
            process.append_reply(ids, [0.0] * len(ids))
            assert (result.after is None) == process.done
            assert result.success == process._info["success"]
            assert result.reward == process._rewards[-1]
            assert result.moves == len(process._info["actions"])
            if result.after is not None:
                state = result.after
                assert level.prompt(state) == process.ids
                assert (state.board, state.integers) == played.env.state


def test_slip_by_hand(tiny: Make) -> None:
    """On P_G in the upper row, with a lower row of ice, a move goes straight with 1/2 and to each side with 1/4."""
    policy = tiny()
    env = policy.env(size=3, success_rate=0.5, levels=["P_G\n___\n___"], max_turns=2)
    level = ExactLevel(env, policy.chat, policy.turns, Instance(0, 0))
    right = 2
    results = level.transitions(level.start, Outcome((right, right), malformed=False))
    assert sum(each.chance for each in results) == pytest.approx(1.0)
    # First move: 1/2 to the middle, 1/4 stays (up is off the board), 1/4 to the row below. Then right again.
    won = sum(each.chance for each in results if each.success)
    assert won == pytest.approx(1 / 4)
    at: dict[int, float] = {}
    for each in results:
        if each.after is not None:
            at[each.after.integers[0]] = at.get(each.after.integers[0], 0.0) + each.chance
    stride = 4
    expected = {
        0: 1 / 4 * 1 / 4 + 1 / 4 * 1 / 4,  # stayed twice; went down, then up
        1: 1 / 2 * 1 / 4 + 1 / 4 * 1 / 2,  # middle and up; stayed, then right
        stride: 1 / 4 * 1 / 4,  # stayed, then down
        stride + 1: 1 / 2 * 1 / 4 + 1 / 4 * 1 / 2,  # middle, then down; down, then right
        2 * stride: 1 / 4 * 1 / 4,  # down twice
    }
    assert at == pytest.approx(expected)


def test_one_level_and_many_are_equal(tiny: Make) -> None:
    policy = tiny()
    seeds = range(5)
    together = solve(policy.reader(), policy.levels(*seeds), mass=1e-5)
    for seed, found in zip(seeds, together, strict=True):
        (alone,) = solve(policy.reader(), policy.levels(seed), mass=1e-5)
        assert found.start.value == pytest.approx(alone.start.value, abs=1e-6)


def test_bounds_hold_the_value_of_the_whole_tree(tiny: Make) -> None:
    policy = tiny()
    levels = policy.levels(*range(4))
    whole = solve(policy.reader(), levels, mass=1e-8)
    before = 0
    for mass in (0.5, 0.1, 1e-2, 1e-3):
        reader = policy.reader()
        for found, exact in zip(solve(reader, levels, mass=mass), whole, strict=True):
            low, high = found.start.value.T
            truth = exact.start.value.mean(1)
            assert (low <= truth + 1e-7).all()
            assert (truth <= high + 1e-7).all()
            assert high[0] - low[0] <= mass + 1e-9
            for (low, high), true in zip(found.success_by_turn, exact.success_by_turn.mean(1), strict=True):
                assert low - 1e-7 <= true <= high + 1e-7
        assert reader.tokens > before, "less mass left out, more tokens read"
        before = reader.tokens


def test_too_few_tokens_widen_the_interval(tiny: Make) -> None:
    policy = tiny()
    levels = policy.levels(1)
    (exact,) = solve(policy.reader(), levels, mass=1e-6)
    (found,) = solve(policy.reader(), levels, mass=1e-6, most_nodes=20)
    low, high = found.of("success")
    assert low <= sum(exact.of("success")) / 2 <= high
    assert high - low > 1e-3


def test_a_level_with_too_many_states_is_refused(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragen_gym.games.values.MAX_STATES", 3)
    with pytest.raises(ValueError, match=r"more states than can be looked at, .* smaller levels or fewer moves"):
        tiny().levels(1, size=3, max_actions=3)


def test_memory_bounds_the_pass_and_not_the_result(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny()
    levels = policy.levels(1, 2)
    whole = solve(policy.reader(), levels, mass=1e-4)
    monkeypatch.setattr(reply_tree, "LOGITS_AT_ONCE", 20 * policy.chat.vocabulary_size)
    for found, expected in zip(solve(policy.reader(), levels, mass=1e-4), whole, strict=True):
        (low, high), truth = found.of("success"), sum(expected.of("success")) / 2
        assert high - low <= 1e-4
        assert low - 1e-4 <= truth <= high + 1e-4


@pytest.mark.parametrize(
    ("success_rate", "episodes"), [(1.0, 5_000), (0.6, 5_000), pytest.param(0.6, 40_000, marks=pytest.mark.slow)]
)
def test_sampled_episodes_agree(tiny: Make, success_rate: float, episodes: int) -> None:
    """Success, return, moves and malformed replies of sampled episodes lie within five standard errors."""
    policy = tiny(room=6)
    (found,) = solve(policy.reader(), policy.levels(2, success_rate=success_rate), mass=1e-4)
    engine = TorchEngine(policy.model, policy.chat.stop_ids, policy.chat.vocabulary_size)
    env = policy.env(success_rate=success_rate)
    processes = [TokenMDP.from_settings(env.twin(), policy.chat, policy.turns) for _ in range(1000)]
    instances = [Instance(2, noise) for noise in range(episodes)]
    played = play(engine, processes, instances, temperature=policy.temperature, seed=0)
    figures = {
        "success": [float(t.success) for t in played],
        "return": [t.total_reward for t in played],
        "moves": [float(sum(info.played for info in t.turn_infos)) for t in played],
    }
    malformed = [float(sum(bool(info.problem) for info in t.turn_infos)) for t in played]
    for quantity, values in {**figures, "malformed": malformed}.items():
        low, high = found.malformed if quantity == "malformed" else found.of(quantity)
        error = 5 * np.std(values) / len(values) ** 0.5
        assert low - error <= np.mean(values) <= high + error, quantity
    assert 0.01 < np.mean(figures["success"]) < 0.99
