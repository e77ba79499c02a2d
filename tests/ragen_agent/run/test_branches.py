"""Groups that are trees: where they branch, and that each of their tokens is exact, sampled and trained on once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from ragen_agent.config import Config, Training, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.local.backend import RolloutWorker
from ragen_agent.local.policy_update import Learner, targets_of
from ragen_agent.openrlhf.supported import check_supported
from ragen_agent.preflight.plan import describe
from ragen_agent.run.branches import branch_turn, play_trees
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.tasks import make_game_env
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import BranchPoint, Trajectory
from ragen_agent.update.batches import Batch
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.metrics import turn_spans
from ragen_agent.update.scoring import sampled_scores
from ragen_agent.update.step_groups import turn_advantages
from tests.ragen_agent.update.test_step_groups import episode

SETTINGS: dict[str, Any] = {
    "game": "FrozenLake",
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "turns": {"max_turns": 5, "max_tokens_per_turn": 6, "think": False},
    "training": {"groups_by": "branch", "groups": 4, "group_size": 8, "branches": 3, "filter": "none"},
}

#: Who played, what, and the episodes.
Plain = tuple[RolloutWorker, list[Instance], list[Trajectory]]


def worker(**settings: Any) -> RolloutWorker:
    config = with_settings(with_settings(Config(), SETTINGS), settings)
    return RolloutWorker(config, Policy.build(config))


@pytest.fixture(scope="module")
def plain() -> Plain:
    """A policy that was drawn and never trained, and an iteration of it, branched where it is least certain."""
    made = worker(training={"branch_at": "entropy"})
    instances = made.instances(0)
    return made, instances, made.play(0, instances).trajectories


def trees(played: Sequence[Trajectory]) -> list[tuple[Trajectory, list[Trajectory]]]:
    return [(played[row], list(played[row + 1 : row + 4])) for row in range(0, len(played), 4)]


def test_a_branch_begins_where_the_level_was_lost_or_where_the_reply_was_uncertain() -> None:
    base = episode("abc", (0, 0, 1))
    unsure = replace(base, log_probs=np.array([0, -1, -1, 0, -1, -2, 0, -1, -1.5], dtype=np.float32))
    assert branch_turn(unsure, "entropy") == 1
    assert branch_turn(base, "entropy") == 0, "the first of equals"

    def with_pivots(*pivots: bool | None) -> Trajectory:
        infos = zip(unsure.turn_infos, pivots, strict=True)
        return replace(unsure, turn_infos=tuple(replace(info, pivot=pivot) for info, pivot in infos))

    assert branch_turn(with_pivots(False, False, True), "pivot") == 2
    assert branch_turn(with_pivots(True, True, True), "pivot") == 0
    assert branch_turn(with_pivots(False, False, False), "pivot") == 1, "nothing was lost: by the entropy"
    assert branch_turn(with_pivots(None, None, None), "pivot") == 1, "unknown: by the entropy"
    assert branch_turn(with_pivots(False, False, True), "entropy") == 1


def test_the_tokens_of_a_branch_are_those_of_its_base(plain: Plain) -> None:
    made, instances, played = plain
    found = [(base, branch) for base, branches in trees(played) for branch in branches if branch.branch]
    assert len(found) >= 3
    for base, branch in found:
        assert branch.branch is not None
        turns = branch.branch.turns
        assert turns == branch_turn(base, "entropy")
        shared = base.turn_ends[turns - 1] + 1
        for name in ("ids", "sampled", "log_probs"):
            assert np.array_equal(getattr(base, name)[:shared], getattr(branch, name)[:shared])
        assert base.turn_rewards[:turns] == branch.turn_rewards[:turns]
        assert base.turn_infos[:turns] == branch.turn_infos[:turns]
        assert base.turn_infos[turns].state == branch.turn_infos[turns].state, "the same state, by its hash"
        assert base.level_id == branch.level_id
        assert Trajectory.from_dict(branch.to_dict()).branch == branch.branch
    assert any(not np.array_equal(base.ids, branch.ids) for base, branch in found)
    again = made.play(0, instances).trajectories
    assert [t.ids.tolist() for t in again] == [t.ids.tolist() for t in played], "the same seeds, the same trees"


def check_log_probs(policy: Policy, played: list[Trajectory]) -> None:
    batch = Batch.of(played)
    with torch.no_grad():
        scores = sampled_scores(policy.model, batch, policy.engine.bias)
    torch.testing.assert_close(scores.log_probs, batch.log_probs, atol=2e-4, rtol=1e-3)


def test_log_probs_after_the_branch_are_those_of_the_model(plain: Plain) -> None:
    made, _, played = plain
    check_log_probs(made.policy, played)


def test_each_token_is_sampled_and_trained_on_once(plain: Plain) -> None:
    made, _, played = plain
    settings, policy = made.config.training, made.policy
    iteration = Iteration.score_and_filter(0, played, ["FrozenLake"] * 4, settings, 0)
    seen = set[tuple[int, ...]]()
    for number, (base, branches) in enumerate(trees(played)):
        for t in (base, *branches):
            spans = turn_spans(t)
            own = spans[t.branch.turns if t.branch else 0 :]
            assert int(t.own.sampled.sum()) == sum(end - first for first, end in own)
            assert t.own.turn_rewards == t.turn_rewards[len(spans) - len(own) :]
        seen |= {(number, *base.ids[: at + 1]) for at in np.flatnonzero(base.sampled)}
    assert len(seen) == sum(int(base.sampled.sum()) for base, _ in trees(played))
    plainly = sum(int(t.sampled.sum()) for t in played)
    assert iteration.sampled_tokens == sum(int(t.own.sampled.sum()) for t in played) < plainly
    learner = Learner(policy.model, torch.optim.SGD(policy.model.parameters()), policy.engine.bias)
    targets = targets_of(learner, Batch.of(iteration.learned), iteration.learned, torch.zeros(32), settings)
    assert int(targets["mask"].sum()) == iteration.sampled_tokens
    assert not targets["advantages"][~targets["mask"]].any()


def test_a_branch_with_its_base_s_noise_and_replies_is_its_base(plain: Plain) -> None:
    made, instances, played = plain
    process = made.policy.processes("train", 1)[0]
    for row in range(0, len(played), 4):
        base = played[row]
        for turns in range(1, len(base.turn_ends)):
            noise = instances[row].noise_seed
            process.begin_branch(base, turns, base_noise_seed=noise, noise_seed=noise)
            for first, end in turn_spans(base)[turns:]:
                process.append_reply(base.ids[first:end].tolist(), base.log_probs[first:end].tolist())
            again = process.trajectory()
            assert again.branch == BranchPoint(turns, noise)
            assert replace(again, branch=None).to_dict() == base.to_dict()
    turns = len(played[0].turn_ends)
    with pytest.raises(ValueError, match=f"a branch of this episode has 1 to {turns - 1} of them"):
        process.begin_branch(played[0], turns, base_noise_seed=0, noise_seed=1)


@pytest.mark.parametrize("turns", [{"history": 0}, {"history": 1}])
def test_branches_of_conversations_that_leave_turns_out(turns: dict[str, Any]) -> None:
    made = worker(turns=turns, training={"branch_at": "entropy", "groups": 2})
    played = made.play(0, made.instances(0)).trajectories
    assert any(t.branch for t in played)
    for base, branches in trees(played):
        for branch in branches:
            if branch.branch:
                turn = branch.branch.turns
                shared = base.turn_ends[turn - 1] + 1
                assert base.ids[:shared].tolist() == branch.ids[:shared].tolist()
                assert [at for at in branch.contexts if at < shared] == [at for at in base.contexts if at < shared]
    check_log_probs(made.policy, played)
    learned = Iteration.score_and_filter(0, played, ["FrozenLake"] * 2, made.config.training, 0).learned
    assert all(part.sampled.any() for t in learned for part in t.split_contexts())


def test_noise_after_the_branch_is_its_own() -> None:
    """On ice that always slips, branches that reply alike end up elsewhere; shared noise keeps them together."""
    env = make_game_env(with_settings(Config(), {"env_options": {"success_rate": 0.05}}), "train")

    def walk(reseed: int | None) -> list[str]:
        env.reset(seed=3, options={"noise_seed": 5})
        boards = []
        for turn in range(4):
            if turn == 1 and reseed is not None:
                env.reseed_noise(reseed)
            _, _, terminated, truncated, _ = env.step("<think></think><answer>Down</answer>")
            boards.append(env.board)
            if terminated or truncated:
                break
        return boards

    walks = {tuple(walk(seed)) for seed in range(8)}
    assert len(walks) > 1
    assert len({boards[0] for boards in walks}) == 1, "what came before stays"
    assert walk(None) == walk(None)
    assert walk(4) == walk(4)
    process = worker(env_options={"success_rate": 0.05}).policy.processes("train", 1)[0]
    reply = process.chat.reply_ids("<answer>Down</answer>")

    def replied() -> Trajectory:
        while not process.done:
            process.append_reply(reply, [0.0] * len(reply))
        return process.trajectory()

    process.begin(seed=3, options={"noise_seed": 5})
    base, rows = replied(), set()
    for noise in range(8):
        process.begin_branch(base, 1, base_noise_seed=5, noise_seed=noise)
        rows.add(tuple(replied().ids.tolist()))
    assert len(rows) > 1
    with pytest.raises(ValueError, match="seed"):
        env.reseed_noise(-1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        make_game_env(Config(), "train").reseed_noise(1)


def test_pivots_of_real_episodes_are_the_turns_that_lost_them() -> None:
    made = worker(env_options={"success_rate": 1.0})
    played = made.play(0, made.instances(0)).trajectories
    for base, branches in trees(played):
        values = [info.pivot for info in base.turn_infos]
        assert None not in values
        if True in values:
            turn = values.index(True)
            assert all((t.branch.turns if t.branch else 0) == turn for t in branches)
            assert not base.success
    assert any(t.branch for t in played)
    validation = made.policy.processes("validation", 1)[0].env
    assert not validation.unwrapped._regret, "what is measured is not valued"  # type: ignore[attr-defined]


def test_shared_turns_have_the_mean_of_those_that_hold_them() -> None:
    """A tree of three: discounted by a half, the base earns 0 and 0, its branches 1/2 and 1, 0 and 0.

    The first turn is one, in a, with the mean return 1/6 and alone in its state; the second is three, in b: 0, 1, 0.
    """
    settings = Training(
        algo="dr_grpo", filter="none", groups=1, group_size=3, groups_by="branch", branches=2, gamma_turn=0.5
    )
    base = episode("ab", (0, 0))
    branches = [replace(episode("ab", (0, reward)), branch=BranchPoint(1, 0)) for reward in (1, 0)]
    made = Iteration.score_and_filter(0, [base, *branches], ["A"], settings, 0)
    third = 1 / 3
    first, second = turn_advantages(made.learned[0])
    assert first == pytest.approx(0.0, abs=1e-6), "A^E is -1/3, 2/3 and -1/3, in the mean 0"
    assert second == pytest.approx(-third - third)
    assert turn_advantages(made.learned[1]) == pytest.approx((2 * third + 2 * third,))
    assert turn_advantages(made.learned[2]) == pytest.approx((-third - third,))
    assert [t.sampled.tolist() for t in made.learned] == [
        [False, True, True, False, True, True],
        *[[False, False, False, False, True, True]] * 2,
    ]
    assert [t.total_reward for t in made.played] == [0, 1, 0]
    assert made.figures(None)["return"] == pytest.approx(third)
    assert made.sampled_tokens == 8


def test_a_base_that_failed_has_no_branches() -> None:
    asked: list[list[Instance]] = []

    def play(instances: list[Instance], branches: bool) -> list[Trajectory]:
        asked.append(instances)
        return [episode("ab", (0, 1), failure=None if branches else "engine_error: x") for _ in instances]

    instances = [Instance(1, 10 + i) for i in range(8)]
    settings = Training(groups_by="branch", group_size=8, branches=3)
    found = play_trees(play, instances, settings)
    assert [t.failure is None for t in found] == [False, True, True, True] * 2
    assert [i.noise_seed for i in asked[1]] == [11, 12, 13, 15, 16, 17]
    assert all(i.prefix is None for i in asked[1])


class Unrestorable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Hides ``reseed_noise``."""

    def has_wrapper_attr(self, name: str) -> bool:
        return name != "reseed_noise" and super().has_wrapper_attr(name)


class Forgetful(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Its messages count the episodes, so no episode comes again."""

    episodes = 0

    def reset(self, **arguments: Any) -> Any:
        self.episodes += 1
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        said, *rest = super().step(action)
        return (said + " left" * self.episodes, *rest)


def test_what_cannot_be_branched_is_refused(plain: Plain) -> None:
    made, instances, played = plain
    base, chat = next(t for t in played[::4] if len(t.turn_ends) > 1), made.policy.chat
    bare = TokenMDP(Unrestorable(make_game_env(made.config, "train")), chat)
    with pytest.raises(ValueError, match=r"no reseed_noise\(noise_seed\).* Use training.groups_by=state, or level"):
        bare.begin_branch(base, 1, base_noise_seed=instances[0].noise_seed, noise_seed=1)
    changing = TokenMDP(Forgetful(make_game_env(made.config, "train")), chat, max_tokens_per_turn=6)
    with pytest.raises(ValueError, match="is not deterministic"):
        changing.begin_branch(base, 1, base_noise_seed=instances[0].noise_seed, noise_seed=1)
    with pytest.raises(ValueError, match="must be a multiple of 4: a base episode and its 3 branches"):
        Training(groups_by="branch", group_size=6)
    with pytest.raises(ValueError, match=r"groups_by=branch is for the local trainer alone: .* or --backend local"):
        check_supported(made.config, OpenRLHF())
    assert "2 are played from the start, and 3 branch off each" in " ".join(describe(made.config, None))


def test_pivots_of_a_game_without_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_settings(Config(), SETTINGS)
    monkeypatch.setattr("ragen_gym.games.game.Game.has_values", False)
    with pytest.raises(
        ValueError, match=r"branch_at is 'pivot', which needs exact values .* training.branch_at=entropy"
    ):
        make_game_env(config, "train")
    make_game_env(with_settings(config, {"training": {"branch_at": "entropy"}}), "train")
    make_game_env(config, "validation")


@pytest.mark.parametrize("one_turn", [{"game": "Bandit"}, {"turns": {"max_turns": 1}}])
def test_episodes_of_one_turn_have_no_branches(one_turn: dict[str, Any]) -> None:
    config = with_settings(with_settings(Config(), SETTINGS), one_turn)
    with pytest.raises(ValueError, match=r"have one turn here.* allow more .*, or use training.groups_by=level"):
        make_game_env(config, "train")
    make_game_env(config, "validation")
