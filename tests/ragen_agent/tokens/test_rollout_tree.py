"""Episodes that branch: what they share, what they do not, and the tokens that count once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.rollout_tree import grow, own_tokens, replay_seeds
from ragen_agent.tokens.trajectory import Trajectory

GROUPS, BRANCHES = 6, [3, 1, 2]
FAILURE = "engine_error: out of memory"
SIZE = 6


@pytest.fixture(scope="module", params=[-1, 0], ids=["history", "present turn"])
def policy(request: pytest.FixtureRequest) -> Policy:
    """A policy of random weights on ice, so that replies and slips differ."""
    settings: dict[str, Any] = {
        "env_options": {"success_rate": 0.5},
        "turns": {"max_turns": 4, "history": request.param, "max_tokens_per_turn": 4, "think": False},
        "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    }
    return Policy.build(with_settings(Config(), settings))


def grown(policy: Policy, played: list[list[Instance]] | None = None, failing_after: int = -1) -> list[Trajectory]:
    """Trees on several levels; the second of the first episodes may fail after so many turns."""
    processes = policy.processes("train", 5)

    def play(instances: list[Instance], turn: int) -> list[Trajectory]:
        if played is not None:
            played.append(instances)
        found = policy.play(processes, instances, 1.0, turn)
        if turn == 0 and failing_after >= 0:
            first, end = found[1], failing_after
            found[1] = replace(
                first,
                failure=FAILURE,
                turn_ends=first.turn_ends[:end],
                turn_rewards=first.turn_rewards[:end],
                turn_infos=first.turn_infos[:end],
            )
        return found

    return grow([Instance(level, SIZE * level + i) for level in range(GROUPS) for i in range(SIZE)], BRANCHES, play)


def parts(episode: Trajectory) -> list[tuple[list[int], float]]:
    """Of each turn the ids up to the end of its reply and its reward."""
    begun = (0, *(end + 1 for end in episode.turn_ends))
    ids = [episode.ids[first:end].tolist() for first, end in pairwise(begun)]
    return list(zip(ids, episode.turn_rewards, strict=True))


def test_branches_share_the_past_and_not_the_future(policy: Policy) -> None:
    """Replayed turns meet their own noise again: boards and rewards are equal up to the branch, and the board
    that the branch begins with. Replies and noise after it are new."""
    played: list[list[Instance]] = []
    found = grown(policy, played)
    assert len(found) == GROUPS * SIZE
    at_first, at_third = played  # nothing branches at the second turn
    assert len(at_first) == GROUPS * 3
    assert len(at_third) <= GROUPS * 3
    ends = []
    for first in range(0, len(found), 2):
        one, other = found[first : first + 2]
        if len(one.turn_rewards) <= 2:
            assert one is other, "it ended before it branches"
            continue
        assert parts(one)[:2] == parts(other)[:2]
        first_token = int(one.sampled[one.turn_ends[1] + 1 :].argmax()) + one.turn_ends[1] + 1
        assert one.ids[:first_token].tolist() == other.ids[:first_token].tolist(), "the board before the branch"
        ends.append(parts(one)[2:] == parts(other)[2:])
        assert one.log_probs[:first_token].tolist() == other.log_probs[:first_token].tolist()
    assert ends
    assert not all(ends)
    firsts = [[parts(found[group + reply])[0] for reply in (0, 2, 4)] for group in range(0, len(found), SIZE)]
    assert any(group[0] != group[1] for group in firsts), "siblings of the first turn are drawn apart"


def test_shared_tokens_are_counted_once(policy: Policy) -> None:
    found = grown(policy)
    own = own_tokens(found, BRANCHES)
    for first in range(0, len(found), 2):
        one, other = found[first : first + 2]
        assert np.array_equal(own[first], one.sampled)
        expected = other.sampled.copy()
        expected[: len(other.ids) if one is other else one.turn_ends[1] + 1] = False
        assert np.array_equal(own[first + 1], expected)
    assert [each.tolist() for each in own_tokens(found, [])] == [each.sampled.tolist() for each in found]
    # Of (2, 2, 2): each episode by its first turn that no earlier one holds.
    turns = [each.tolist().index(True) for each in own_tokens([_four_turns()] * 8, [2, 2, 2])]
    assert turns == [0, 2, 1, 2, 0, 2, 1, 2]


def _four_turns() -> Trajectory:
    return Trajectory(
        ids=np.arange(4),
        sampled=np.ones(4, bool),
        log_probs=np.zeros(4, np.float32),
        turn_ends=(0, 1, 2, 3),
        turn_rewards=(0.0,) * 4,
        terminated=True,
    )


def test_replies_are_kept_only_for_a_turn_that_branches() -> None:
    """Else an ordinary rollout would hold all its tokens again, as lists."""
    episodes: list[Any] = [object(), object(), object()]
    for branches in ([3], [3, 1]):
        assert grow([Instance(0, i) for i in range(3)], branches, lambda begun, turn: episodes) == episodes


def test_a_failure_takes_along_only_the_branches_that_begin_after_it(policy: Policy) -> None:
    found = grown(policy, failing_after=1)
    assert [each.failure for each in found[:SIZE]] == [None, None, FAILURE, FAILURE, None, None]
    assert found[2] is found[3]
    found = grown(policy, failing_after=2)
    assert [each.failure for each in found[:SIZE]] == [None, None, FAILURE, None, None, None]
    assert parts(found[2]) == parts(found[3])[:2]


def of_one_reply(policy: Policy) -> Callable[[list[Instance], int], list[Trajectory]]:
    """A policy that always moves down, so that episodes on a level differ by their noise alone."""
    longer = with_settings(policy.config, {"turns": {"max_tokens_per_turn": 40}})
    [process] = replace(policy, config=longer).processes("train", 1)
    reply = [*process.chat.tokenizer.encode("<answer>Down</answer>", add_special_tokens=False), process.chat.end_id]

    def episode(instance: Instance) -> Trajectory:
        instance.begin(process)
        while not process.done:
            process.append_reply(reply, [-0.5] * len(reply))
        return process.trajectory()

    return lambda instances, turn: list(map(episode, instances))


def test_noise_after_a_branch_is_new_and_an_episode_of_one_seed_is_replayed_by_it(policy: Policy) -> None:
    play = of_one_reply(policy)
    instances = [Instance(level, 4 * level + i) for level in range(12) for i in range(4)]
    found = grow(instances, [2, 2], play)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert all(parts(one)[0] == parts(other)[0] for one, other in pairs)
    assert any(one.messages != other.messages for one, other in pairs), "equal replies slip apart"
    seeds = replay_seeds(found, instances, [2, 2])
    assert [seed is None for seed in seeds[1::2]] == [one is not other for one, other in pairs]
    assert None not in seeds[::2]
    for instance, seed, episode in zip(instances, seeds, found, strict=True):
        if seed is not None:
            assert play([Instance(instance.seed, seed)], 0)[0].messages == episode.messages
    one_noise = [replace(each, noise_seed=each.seed) for each in instances]
    assert replay_seeds(grow(one_noise, [2, 2], play), one_noise, [2, 2]) == [each.seed for each in instances]
    assert replay_seeds(play(instances, 0), instances, []) == [each.noise_seed for each in instances]
