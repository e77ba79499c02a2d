"""Advantages of turns that begin in the same state: a worked example, what a state is, and who reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ragen_agent.config import Config, Training, with_settings
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import group
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo
from ragen_agent.update.advantages import token_advantages, turn_advantages
from ragen_agent.update.iteration import Iteration
from ragen_gym import make_turn

#: A discount that is easy to multiply by hand.
BY_HAND = Training(algo="dr_grpo", filter="none", groups=1, group_size=3, groups_by="state", gamma_turn=0.5)


def episode(states: Sequence[str | None], rewards: Sequence[float], failure: str | None = None) -> Trajectory:
    """Turns of two sampled tokens after one that is not."""
    turns = len(states)
    return Trajectory(
        ids=np.arange(3 * turns),
        sampled=np.array([False, True, True] * turns),
        log_probs=np.array([0, -1, -1] * turns, dtype=np.float32),
        turn_ends=tuple(range(2, 3 * turns, 3)),
        turn_rewards=tuple(rewards),
        terminated=True,
        success=sum(rewards) > 0.5,
        failure=failure,
        seed=0,
        turn_infos=tuple(TurnInfo("", 1, 1, True, state=state) for state in states),
    )


#: At once; after a turn that led nowhere; not at all.
DIRECT, DETOUR, LOST = episode("ab", (0, 1)), episode("aab", (0, 0, 1)), episode("a", (0,))


def scored(episodes: Sequence[Trajectory], settings: Training = BY_HAND) -> Iteration:
    return Iteration.score_and_filter(0, episodes, ["A"], settings, 0)


def test_a_worked_example() -> None:
    """Discounted by a half, the turns in a earn 1/2; 1/4 and 1/2; 0, in the mean 5/16; those in b earn the same.

    The episodes earn 1, 1 and 0, in the mean 2/3. A = A^E + A^S (GiGPO, arXiv 2505.10978, equation 8).
    """
    made = scored([DIRECT, DETOUR, LOST])
    found = [turn_advantages(t) for t in made.learned]
    third = 1 / 3
    assert found[0] == pytest.approx((third + 3 / 16, third))
    assert found[1] == pytest.approx((third - 1 / 16, third + 3 / 16, third))
    assert found[2] == pytest.approx((-2 * third - 5 / 16,))
    assert [turn_advantages(t) for t in made.played] == [()] * 3, "the record keeps what was played"


def test_turns_compared_by_their_history_too() -> None:
    """In a after a only the detour's second turn: its group by the state alone counts. The episodes' returns do not."""
    found = [turn_advantages(t) for t in scored([DIRECT, DETOUR, LOST], replace(BY_HAND, groups_by="history")).learned]
    # In b both earn 1; in a after nothing 1/2, 1/4 and 0 have no longer context, so all four turns are compared.
    assert found[0] == pytest.approx((3 / 16, 0))
    assert found[1] == pytest.approx((-1 / 16, 3 / 16, 0))
    assert found[2] == pytest.approx((-5 / 16,))


def test_failed_episodes_are_compared_with_nothing() -> None:
    broken = episode("a", (7,), failure="engine_error: x")
    made = scored([DIRECT, broken, LOST])
    assert turn_advantages(made.learned[1]) == ()
    assert made.learned[0].turn_infos[0].advantage == pytest.approx(0.5 + 0.25)


def test_groups_do_not_mix() -> None:
    """The same states on another level are others."""
    made = Iteration.score_and_filter(0, [DIRECT, LOST, DIRECT, DIRECT], "AB", replace(BY_HAND, group_size=2), 0)
    assert made.learned[0].turn_infos[0].advantage == pytest.approx(0.5 + 0.25)
    assert turn_advantages(made.learned[2]) == (0.0, 0.0)


def test_an_environment_without_states_is_refused() -> None:
    with pytest.raises(ValueError, match=r"groups_by is 'state', but the environment .* use training.groups_by=level"):
        scored([DIRECT, episode((None, None), (0, 1)), LOST])
    with pytest.raises(
        ValueError,
        match=r"no effect with training.algo=ppo; .* use training.algo=grpo \(dr_grpo, asymmetric_clip, rloo\)",
    ):
        Training(algo="ppo", groups_by="state")
    with pytest.raises(ValueError, match=r"no effect with training.algo=reinforce"):
        Training(algo="reinforce", groups_by="state")
    tree = replace(BY_HAND, groups_by="tree", branches=[3])
    with pytest.raises(ValueError, match="groups_by is 'tree', but the environment does not report the reply's"):
        scored([DIRECT, DETOUR, replace(LOST, turn_infos=())], tree)


def test_tokens_have_the_advantage_of_their_turn_or_of_their_episode() -> None:
    rows = [replace(t, messages=()) for t in scored([DIRECT, DETOUR, LOST]).learned]
    sampled = torch.zeros(2, 9, dtype=torch.bool)
    for row, t in enumerate(rows[:2]):
        sampled[row, : len(t.ids)] = torch.as_tensor(t.sampled)
    ends = [t.turn_ends for t in rows[:2]]
    found = token_advantages(torch.tensor([5.0, 7.0]), [turn_advantages(rows[0]), ()], ends, sampled)
    one, two = turn_advantages(rows[0])
    assert found[0].tolist() == pytest.approx([0, one, one, 0, two, two, 0, 0, 0])
    assert found[1].tolist() == [0, 7, 7] * 3


def test_a_state_is_the_board_without_the_moves_that_are_left() -> None:
    env = make_turn("FrozenLake", success_rate=1.0, levels=["P___\n____\n____\n___G"])

    def states(*replies: str) -> list[str]:
        env.reset(seed=0)
        found = [env.state_id]
        for reply in replies:
            env.step(f"<think></think><answer>{reply}</answer>")
            found.append(env.state_id)
        return found

    first, right, corner = states("Right", "Down")
    _, down, same = states("Down", "Right")
    assert len({first, right, down, corner}) == 4
    assert same == corner, "two ways to one state"
    assert states("Right", "Left", "Fly")[1:] == [right, first, first], "and back, or nowhere at all"
    other = make_turn("FrozenLake", success_rate=1.0, levels=["P___\n____\n_O__\n___G"])
    other.reset(seed=0)
    assert other.state_id != first


@pytest.mark.parametrize("game", ["FrozenLake", "Sokoban", "Bandit"])
def test_rollouts_say_where_their_turns_begin(game: str) -> None:
    """Only what is learned from, and only where turns are compared: the other records stay as they were."""

    def of(by: str, split: str) -> list[Any]:
        settings = {"game": game, "turns": {"max_turns": 3}, "training": {"groups_by": by}}
        settings |= {"small_model": {"hidden": 32, "layers": 1, "feed_forward": 32}}
        agent = Policy.build(with_settings(Config(), settings))
        return agent.play(agent.processes(split, 4), group([1], 4), 1.0, 0)

    played, plain = of("state", "train"), of("level", "train")
    assert len({t.turn_infos[0].state for t in played}) == 1, "the members of a group begin in one state"
    assert all(turn.state for t in played for turn in t.turn_infos)
    assert [t.ids.tolist() for t in played] == [t.ids.tolist() for t in plain]
    assert all("state" not in turn for t in plain for turn in t.to_dict()["turn_infos"])
    assert all(turn.state is None for t in of("state", "validation") for turn in t.turn_infos)
    restored = Trajectory.from_dict(played[0].to_dict())
    assert restored.turn_infos == played[0].turn_infos
