"""Exact values of trials: brute force over histories, known bandits, and the order of the lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import comb
from typing import Any

import numpy as np
import pytest

from ragen_gym.envs.step import StepEnv
from ragen_gym.games import beliefs
from ragen_gym.games.beliefs import Belief, TrialValues, World
from ragen_gym.games.game import PLAYING, listed


def lake(size: int = 3, seed: int = 0, **options: Any) -> StepEnv:
    env = StepEnv("FrozenLake", size=size, **options)
    env.reset(seed=seed)
    return env


def shuffled(env: StepEnv) -> list[World]:
    return [World(env.game, order) for order in permutations(range(len(env.game.Action)))]


def bandits(low: float, *chances: float, orders: Sequence[tuple[int, int]] = ((0, 1),)) -> tuple[list[World], StepEnv]:
    envs = [StepEnv("Bandit", low=low, high_prob=chance) for chance in chances]
    envs[0].reset(seed=0)
    return [World(env.game, order) for env in envs for order in orders], envs[0]


def brute_force(worlds: Sequence[World], start: tuple[bytes, tuple[int, ...]], moves: int, attempts: int) -> float:
    """The highest expected return, by trying every action after every history; the worlds keep their joint weights."""

    def value(weights: list[float], state: tuple[bytes, tuple[int, ...]], left: int, later: int) -> float:
        best = -np.inf
        for action in range(len(worlds[0].meanings)):
            histories: dict[tuple[float, bool, bytes, tuple[int, ...]], list[float]] = {}
            for place, (world, weight) in enumerate(zip(worlds, weights, strict=True)):
                for chance, u in world.game.noise_intervals() if weight else ():
                    board, numbers = bytearray(state[0]), list(state[1])
                    params = listed(world.game.params)
                    reward, outcome = world.game.rule(board, numbers, world.meanings[action], u, params)
                    seen = reward, outcome != PLAYING, bytes(board), tuple(numbers)
                    histories.setdefault(seen, [0.0] * len(worlds))[place] += weight * chance
            total = 0.0
            for (reward, over, cells, integers), joint in histories.items():
                total += sum(joint) * reward
                if not over and left > 1:
                    total += value(joint, (cells, integers), left - 1, later)
                elif later:
                    total += value(joint, start, moves, later - 1)
            best = max(best, total)
        return best

    return value([1 / len(worlds)] * len(worlds), start, moves, attempts - 1)


@pytest.mark.parametrize(("moves", "attempts"), [(1, 1), (3, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_shuffled_lakes_equal_brute_force(moves: int, attempts: int, seed: int) -> None:
    env = lake(2, seed, success_rate=1.0)
    worlds = shuffled(env)
    values = TrialValues(worlds, env.state, moves, attempts)
    assert values.value == pytest.approx(brute_force(worlds, env.state, moves, attempts), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_lakes_of_unknown_slip_equal_brute_force(seed: int) -> None:
    env = lake(2, seed, success_rate=0.1)
    games = [lake(2, seed, success_rate=chance).game for chance in (0.1, 0.6)]
    worlds = [World(game, order) for game in games for order in ((0, 1, 2, 3), (3, 2, 1, 0))]
    values = TrialValues(worlds, env.state, 2, 2)
    assert values.value == pytest.approx(brute_force(worlds, env.state, 2, 2), abs=1e-9)


@pytest.mark.parametrize("pulls", [1, 2, 3, 4])
def test_bandits_of_unknown_arms_and_chances_equal_brute_force(pulls: int) -> None:
    worlds, env = bandits(0.25, 0.05, 0.45, orders=((0, 1), (1, 0)))
    values = TrialValues(worlds, env.state, 1, pulls)
    assert values.value == pytest.approx(brute_force(worlds, env.state, 1, pulls), abs=1e-9)


def test_one_and_two_pulls_of_two_unknown_arms_in_closed_form() -> None:
    low, chance = 0.15, 0.25
    worlds, env = bandits(low, chance, orders=((0, 1), (1, 0)))
    one, two = (TrialValues(worlds, env.state, 1, pulls) for pulls in (1, 2))
    assert one.value == pytest.approx((low + chance) / 2)
    assert two.value == pytest.approx((low + chance) / 2 + chance), "one pull tells which arm is which"
    assert one.bayes.success == pytest.approx([0.5])
    assert two.bayes.success == pytest.approx([0.5, 1.0])


def test_the_one_armed_bandit_equals_its_recursion_over_counts() -> None:
    """A safe arm that is known beside one of unknown chance: the belief is (wins, losses), as in every textbook."""
    low, chances, pulls = 0.3, (0.1, 0.35, 0.6), 12

    def posterior_mean(wins: int, losses: int) -> float:
        weights = [chance**wins * (1 - chance) ** losses for chance in chances]
        return sum(w * chance for w, chance in zip(weights, chances, strict=True)) / sum(weights)

    table = np.zeros((pulls + 1, pulls + 1, pulls + 1))  # by pulls left, wins, losses
    for left in range(1, pulls + 1):
        for wins in range(pulls - left + 1):
            for losses in range(pulls - left - wins + 1):
                mean = posterior_mean(wins, losses)
                risky = mean * (1 + table[left - 1, wins + 1, losses]) + (1 - mean) * table[left - 1, wins, losses + 1]
                table[left, wins, losses] = max(risky, low + table[left - 1, wins, losses])
    worlds, env = bandits(low, *chances)
    values = TrialValues(worlds, env.state, 1, pulls)
    assert values.value == pytest.approx(table[pulls, 0, 0], abs=1e-9)
    # Once the safe arm is best it stays best (Bradt, Johnson and Karlin, 1956), so nothing is learned after it.
    safe = list(env.state[0]).index(min(env.state[0]))
    belief = values.prior
    for after in range(pulls - 1, -1, -1):
        if values.best(env.state, belief, 1, after) == safe:
            assert all(values.best(env.state, belief, 1, fewer) == safe for fewer in range(after + 1))
            break
        belief = values.after(env.state, belief, 1 - safe, 0.0, True, (env.state[0], (1,)))
    else:
        pytest.fail("losses alone never made the safe arm best")


def test_counts_are_a_sufficient_statistic() -> None:
    worlds, env = bandits(0.3, 0.1, 0.35, 0.6)
    values = TrialValues(worlds, env.state, 1, 20)
    assert len(values._nodes) == comb(22, 2), "a node for each (wins, losses) of at most 20 pulls"
    once = Belief((0, 1, 2)).given(((0, 0.2), (1, 0.4))).given(((0, 0.2), (1, 0.4)))
    assert once.possible == (0, 1)
    assert [p for _, p in once.posterior()] == pytest.approx([0.2, 0.8])
    assert once.given(((1, 0.5),)) == Belief((1,)), "what no longer differs is forgotten"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("attempts", [1, 3])
def test_the_lines_are_in_their_order(seed: int, attempts: int) -> None:
    env = lake(4, seed, success_rate=1.0, min_path=3)
    values = TrialValues(shuffled(env), env.state, 5, attempts)
    lines = [values.random, values.forgetful, values.greedy, values.bayes, values.informed]
    totals = [line.rewards.sum() for line in lines]
    assert totals == pytest.approx(sorted(totals), abs=1e-9)
    assert values.value == pytest.approx(totals[3], abs=1e-9)
    assert values.mixed(0.0).rewards == pytest.approx(values.greedy.rewards)
    assert values.mixed(1.0).rewards == pytest.approx(values.random.rewards)
    assert values.thompson.rewards.sum() <= totals[3] + 1e-9
    if attempts == 1:
        assert totals[1] == pytest.approx(totals[3])


def test_exploring_for_later_attempts_pays_somewhere() -> None:
    env = lake(3, 2, success_rate=1.0, min_path=2)
    values = TrialValues(shuffled(env), env.state, 6, 3)
    assert values.bayes.rewards.sum() > values.greedy.rewards.sum() + 0.1
    assert values.bayes.rewards[0] == pytest.approx(values.greedy.rewards[0]), "here it costs nothing at first"


def test_hidden_symbols_by_hand() -> None:
    """A player beside the goal, each in the other's symbol or not: the first move tells, if it goes the right way.

    The ground may be ice or holes, which decides nothing here but has a weight in the prior.
    """
    env = lake(2, success_rate=1.0, frozen_prob=0.8)
    looks = [(*order, 4, 5) for order in permutations(range(4))]
    worlds = [World(env.game, (0, 1, 2, 3), look) for look in looks]
    board = env.game.board("PG\n__")
    shown = World(env.game, (0, 1, 2, 3), looks[0]).shown((board, [0]))
    chances = [env.game.likelihood(world.true(shown)[0], None) for world in worlds]
    values = TrialValues(worlds, shown, 1, 2, likelihood=chances)
    posterior = [share for _, share in values.prior.posterior()]
    assert sorted(posterior) == pytest.approx([0.02 / 0.68, 0.02 / 0.68, 0.32 / 0.68, 0.32 / 0.68])
    assert values.bayes.success == pytest.approx([0.5, 1.0])
    assert values.forgetful.success == pytest.approx([0.5, 0.5])
    assert values.informed.success == pytest.approx([1.0, 1.0])
    assert values.thompson.success == pytest.approx([0.5, 1.0])
    assert values.blind is not None
    assert values.blind.success == pytest.approx([0.5, 0.5]), "right where the symbols mean what they say"


@pytest.mark.parametrize("seed", range(3))
def test_who_knows_the_symbols_earns_no_less(seed: int) -> None:
    """The optimum of hidden names and symbols, against the mean optimum of hidden names on each lake that it may be."""
    env = lake(2, seed, success_rate=1.0, frozen_prob=0.5)
    worlds = [world._replace(symbols=(*look, 4, 5)) for world in shuffled(env) for look in permutations(range(4))]
    shown = worlds[0].shown(env.state)
    both = TrialValues(worlds, shown, 2, 2, likelihood=[env.game.likelihood(w.true(shown)[0], None) for w in worlds])
    names = {
        look: TrialValues(shuffled(env), worlds[0]._replace(symbols=look).true(shown), 2, 2).value
        for look in {worlds[world].symbols for world, _ in both.prior.posterior()}
    }
    knowing = sum(share * names[worlds[world].symbols] for world, share in both.prior.posterior())
    assert both.random.rewards.sum() < both.value <= knowing + 1e-9
    assert both.value < both.informed.rewards.sum()


def test_nothing_hidden_is_informed_play() -> None:
    env = lake(3, 0, success_rate=0.8)
    values = TrialValues([World(env.game, (0, 1, 2, 3))], env.state, 4, 2)
    assert values.bayes.success == pytest.approx(values.informed.success)
    assert values.bayes.success[0] == pytest.approx(env.solution().success(*env.state, 4))
    assert values.blind is not None


def test_a_discount_weighs_later_attempts() -> None:
    worlds, env = bandits(0.25, 0.05, 0.45, orders=((0, 1), (1, 0)))
    plain, weighed = TrialValues(worlds, env.state, 1, 3), TrialValues(worlds, env.state, 1, 3, discount=0.5)
    assert weighed.value == pytest.approx(weighed.bayes.rewards @ [1, 0.5, 0.25])
    assert weighed.value < plain.value
    assert TrialValues(worlds, env.state, 1, 3, discount=0).value == pytest.approx(plain.forgetful.rewards[0])


def test_too_many_beliefs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beliefs, "MAX_NODES", 50)
    env = lake(4, 0, success_rate=1.0)
    with pytest.raises(ValueError, match=r"2 attempts of 5 moves in 24 worlds reach more than 50 pairs.*use fewer"):
        TrialValues(shuffled(env), env.state, 5, 2)


def test_what_no_world_can_do_is_refused() -> None:
    worlds, env = bandits(0.25, 0.45)
    values = TrialValues(worlds, env.state, 1, 2)
    with pytest.raises(ValueError, match="no world that is left can do"):
        values.after(env.state, values.prior, 0, 7.0, True, env.state)
