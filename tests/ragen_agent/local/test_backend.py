"""Every setting of the reinforcement does what it says, on a model small enough to look at."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ragen_agent import algo
from ragen_agent.config import Config, Training, merged, with_settings
from ragen_agent.config.algorithms import AGGREGATIONS, CREDITS
from ragen_agent.config.presets import default_settings
from ragen_agent.local import run as training
from ragen_agent.local.backend import RolloutWorker
from ragen_agent.local.policy_update import Critic, Learner, policy_terms, targets_of, update
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.run.console import Display
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.sft.demonstrations import generate_demonstrations
from ragen_agent.sft.trainer import imitate
from ragen_agent.tasks.tasks import draw_games, games_at
from ragen_agent.tokens.rollout import group
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.batches import Batch
from ragen_agent.update.metrics import piece_decoder
from ragen_agent.update.scoring import sampled_scores
from ragen_gym.core.storage import read_json_lines
from tests.ragen_agent.displays import quiet

LAKE: dict[str, Any] = {
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "turns": {"max_turns": 3, "max_tokens_per_turn": 20},
    "demonstrations": {"episodes": 96, "thought": "direction"},
    "training": {"iterations": 3, "groups": 4, "group_size": 4, "minibatch": 8},
    "evaluation": {"levels": 8},
}


def configure(settings: Mapping[str, Any]) -> Config:
    recipe = merged(default_settings("FrozenLake"), {"game": "FrozenLake"})
    return with_settings(Config(), merged(merged(recipe, LAKE), settings))


@pytest.fixture(scope="module")
def warm() -> tuple[Config, Policy]:
    """A model that writes well-formed replies most of the time."""
    config = configure({"demonstrations": {"episodes": 1500, "mistakes": 0.3}, "warm_start": {"epochs": 2}})
    agent, display = Policy.build(config), quiet()
    rows = generate_demonstrations(config, agent, config.demonstrations, display)
    imitate(config, agent, rows, "warm start", display, epochs=2)
    return config, agent


def reinforced(config: Config, agent: Policy, path: Path) -> tuple[list[dict[str, Any]], str]:
    """Reinforcement alone, from a copy of this agent; the metrics and what was said."""
    folder, out = RunFolder.create(path, config), io.StringIO()
    save_checkpoint(agent.model, agent.tokenizer, folder.warm)
    training.TrainingRun(config, folder, Display(Console(file=out))).reinforce()
    return read_json_lines(folder.metrics), out.getvalue()


def played(agent: Policy, seeds: int = 4, members: int = 4) -> list[Trajectory]:
    return agent.play(agent.processes("train", 16), group(range(seeds), members), 1.0, 1)


def policy_of(agent: Policy, critic: bool = False) -> Learner:
    policy = Learner(
        agent.model,
        torch.optim.AdamW(agent.model.parameters(), 1e-3),
        agent.engine.bias,
        piece=piece_decoder(agent.tokenizer),
    )
    if critic:
        policy.critic = Critic(agent.model)
        torch.nn.init.normal_(policy.critic.head.weight, generator=torch.Generator().manual_seed(0))
        policy.critic_optimiser = torch.optim.AdamW(policy.critic.parameters(), 1e-3)
    return policy


# --- scores -------------------------------------------------------------------------------------------------------


def test_dynamic_sampling_plays_further_levels_for_decided_ones(warm: tuple[Config, Policy], tmp_path: Path) -> None:
    """In rounds that are bounded, counted and shown; what was played first is what is played without it."""
    config, agent = warm
    settings = replace(config.training, filter="none", group_size=2, refills=2)
    records, said = reinforced(replace(config, training=settings), agent, tmp_path / "refilled")
    assert len(records) == 3
    for record in records:
        assert 0 <= record["refilled"] <= 2 * settings.groups
        assert record["lacking"] == 0 or record["refilled"] >= record["lacking"]
        undecided = settings.groups - record["lacking"]
        assert record["kept_share"] == pytest.approx(undecided / (settings.groups + record["refilled"]))
        assert f"refilled {record['refilled']}" in said
    assert any(record["refilled"] for record in records)
    plain, _ = reinforced(replace(config, training=replace(settings, refills=0)), agent, tmp_path / "plain")
    episodes = [
        [e for e in read_json_lines(tmp_path / run / "episodes.jsonl") if e["iteration"] == 0][:2]
        for run in ("refilled", "plain")
    ]
    assert [e["ids"] for e in episodes[0]] == [e["ids"] for e in episodes[1]]
    assert "refilled" not in plain[0]


# --- targets ------------------------------------------------------------------------------------------------------


def test_the_update_reads_what_the_algorithms_say(warm: tuple[Config, Policy]) -> None:
    """Every kind of credit, on the rows of the batch, against the functions called by hand."""
    rows = played(warm[1])
    policy = policy_of(warm[1], critic=True)
    assert policy.critic is not None
    batch = Batch.of(rows)
    values = torch.where(batch.sampled, policy.critic(batch), 0.0).detach()
    ends = [list(t.turn_ends) for t in rows]
    rewards = algo.rewards_at(ends, [list(t.turn_rewards) for t in rows], values)
    assert any(len(e) > 1 for e in ends)
    expected = {
        "trajectory": algo.gae(rewards, values, batch.sampled, 0.9, 0.8)[0],
        "turn": algo.turn_wise_gae(rewards, values, batch.sampled, ends, 0.7, 0.8)[0],
        "bi_level": algo.bi_level_gae(rewards, values, batch.sampled, ends, 0.7, 0.9, 0.8)[0],
    }
    expected["regret"] = expected["turn"]  # of rewards that were shaped before
    for credit, estimated in expected.items():
        read = {"tokens": ["gamma"], "turns": ["gamma_turn"], "both": ["gamma", "gamma_turn"]}[
            CREDITS[credit].recursion
        ]
        discounts: dict[str, Any] = {name: {"gamma": 0.9, "gamma_turn": 0.7}[name] for name in read}
        settings = Training(algo="ppo", credit=credit, gae_lambda=0.8, **discounts)
        targets = targets_of(policy, batch, rows, torch.zeros(16), settings)
        over = algo.turn_end_mask(ends, batch.sampled) if credit in ("turn", "regret") else None
        torch.testing.assert_close(targets["advantages"], algo.whiten(estimated, batch.sampled, over=over))


@pytest.mark.parametrize("critic", [False, True])
def test_the_parts_of_a_reply_share_its_loss(critic: bool, warm: tuple[Config, Policy]) -> None:
    rows = played(warm[1])
    policy, batch = policy_of(warm[1], critic), Batch.of(rows)
    base = Training(algo="ppo" if critic else "grpo", credit="bi_level" if critic else "trajectory")
    masks = {}
    for part in ("reasoning", "answer"):
        settings = replace(base, loss_tokens=part, advantage_tokens=part if critic else "all")
        targets = targets_of(policy, batch, rows, torch.ones(16), settings)
        masks[part] = targets["mask"]
        if critic:
            assert not targets["advantages"][~masks[part]].any()
            assert targets["critic_mask"].equal(masks[part])
        terms, _ = policy_terms(policy, batch, targets, settings)
        assert terms["policy"].isfinite()
    assert masks["reasoning"].any()
    assert not (masks["reasoning"] & masks["answer"]).any()
    assert (masks["reasoning"] | masks["answer"]).equal(batch.sampled)


def test_a_minibatch_without_a_token_costs_its_step_only(warm: tuple[Config, Policy]) -> None:
    rows = [t for t in played(warm[1]) if t.failure is None][:2]
    policy = policy_of(warm[1])
    policy.piece = lambda token: "x"  # so that no reply holds a thought
    measured = update(policy, rows, torch.ones(2), Training(loss_tokens="reasoning"), seed=0)
    assert measured.pop("skipped_steps") == 1
    assert measured.keys() == {"train_tokens", "updates"}


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_the_entropy_bonus_is_of_the_tokens_in_the_loss_and_aggregated_alike(
    how: str, warm: tuple[Config, Policy]
) -> None:
    rows = played(warm[1])
    policy, batch = policy_of(warm[1]), Batch.of(rows)
    settings = Training(loss_tokens="answer", aggregation=how, entropy_bonus=0.5)
    targets = targets_of(policy, batch, rows, torch.zeros(16), settings)
    terms, figures = policy_terms(policy, batch, targets, settings)
    entropy = sampled_scores(policy.model, batch, policy.bias).entropy
    expected = algo.aggregate(entropy, targets["mask"], how, length=policy.longest)
    torch.testing.assert_close(terms["entropy"], -0.5 * expected)
    torch.testing.assert_close(figures["entropy"], entropy[batch.sampled].mean())
    assert abs(float((expected - figures["entropy"]).detach())) > 1e-3, "an answer is surer than a thought"


def test_the_divergence_pulls_back_from_both_places(warm: tuple[Config, Policy]) -> None:
    """In the loss, k2 at weight 1 has the gradient of the squared distance; at the start it is 0 and pulls nowhere."""
    rows = played(warm[1])
    agent = warm[1]
    policy = policy_of(agent)
    policy.reference_model = Policy.build(warm[0]).model  # another model: some distance away
    batch = Batch.of(rows)
    settings = Training(kl_kind="k2", kl_place="loss", kl=1.0, entropy_bonus=0.0)
    targets = targets_of(policy, batch, rows, torch.zeros(16), settings)
    terms, figures = policy_terms(policy, batch, targets, settings)
    d = (batch.log_probs - targets["reference"])[batch.sampled]
    torch.testing.assert_close(terms["kl"].detach(), (d**2).mean() / 2, rtol=1e-4, atol=1e-5)
    assert figures["kl"].detach() > 0
    settings = replace(settings, kl_place="reward", kl=0.5)
    targets = targets_of(policy, batch, rows, torch.zeros(16), settings)
    torch.testing.assert_close(targets["advantages"][batch.sampled], -(d**2) / 4, rtol=1e-4, atol=1e-5)
    terms, figures = policy_terms(policy, batch, targets, settings)
    assert set(terms) == {"policy", "entropy"}
    torch.testing.assert_close(figures["kl"], (d**2).mean() / 2, rtol=1e-4, atol=1e-5)


# --- games, stages ------------------------------------------------------------------------------------------------


def test_a_mixture_draws_its_games_by_weight() -> None:
    config = configure({"games": [{"game": "FrozenLake"}, {"game": "Bandit", "weight": 3.0, "thought": "choose"}]})
    shares = games_at(config, 0)
    assert [share.config.game for share in shares] == ["FrozenLake", "Bandit"]
    assert shares[0].config.env_options == config.env_options
    assert shares[1].config.env_options == {}, "another game has options of its own"
    chosen = draw_games(shares, 0, 0, 4000)
    assert abs(chosen.mean() - 0.75) < 5 * (0.75 * 0.25 / 4000) ** 0.5
    agent = Policy.build(config)
    worker = RolloutWorker(config, agent)
    played = worker.play(0, worker.instances(0))
    rows, games = played.trajectories, played.games
    again = RolloutWorker(config, agent).play(0, worker.instances(0)).trajectories
    assert set(games) == {"FrozenLake", "Bandit"}
    assert [t.ids.tolist() for t in rows] == [t.ids.tolist() for t in again]
    for place, trajectory in enumerate(rows):
        assert ("arm" in trajectory.messages[0]["content"]) == (games[place // 4] == "Bandit")
    levels = [{t.level_id for t in rows[place : place + 4]} for place in range(0, 16, 4)]
    assert all(len(level) == 1 for level in levels), "a group shares its level"


def test_a_curriculum_changes_the_options_on_the_way() -> None:
    config = configure({"curriculum": [{"iteration": 1, "env_options": {"size": 3, "min_path": 1}}]})
    assert [games_at(config, i)[0].config.env_options["size"] for i in (0, 1, 7)] == [4, 3, 3]
    worker = RolloutWorker(config, Policy.build(config))
    boards = [worker.play(i, worker.instances(i)).trajectories[0].messages[1]["content"] for i in (0, 1)]
    assert [max(len(line) for line in board.split("\n")[1:-1]) for board in boards] == [4, 3]


def test_the_turns_of_a_tree_are_sampled_with_seeds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure({"training": {"algo": "rloo", "groups_by": "tree", "branches": [2, 2]}})
    seeds, play = list[int](), Policy.play

    def recorded(policy: Policy, *args: Any) -> list[Trajectory]:
        seeds.append(args[-1])
        return play(policy, *args)

    monkeypatch.setattr(Policy, "play", recorded)
    worker = RolloutWorker(config, Policy.build(config))
    instances = worker.instances(0)
    found = worker.play(0, instances)
    assert len(seeds) == len(set(seeds)) == 2
    assert found.noise_seeds[::2] == [each.noise_seed for each in instances[::2]]
    assert None in found.noise_seeds, "no one seed replays a branch"


# --- whole runs ---------------------------------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {"training": {"algo": "dr_grpo", "aggregation": "constant"}},
    {"training": {"algo": "rloo", "aggregation": "sequence_sum", "filter": "min_p"}},
    {"training": {"algo": "reinforce", "group_size": 1, "groups": 16, "filter": "none"}},
    {"training": {"algo": "asymmetric_clip", "aggregation": "sequence_mean", "filter": "reverse"}},
    {"training": {"starpo_s": False, "kl_kind": "k3", "kl_place": "loss", "clip": "higher", "updates": 2}},
    {"training": {"algo": "ppo", "credit": "turn", "advantage_tokens": "answer"}},
    {"training": {"algo": "ppo", "credit": "regret", "gae_lambda": 0.0}},
    {"training": {"groups_by": "state"}, "stops": {"sampled_tokens": 10**6}},
    {"training": {"algo": "rloo", "groups_by": "tree", "branches": [2, 2]}, "turns": {"max_turns": 3}},
]


@pytest.mark.parametrize("settings", OPTIONS)
def test_a_run_with_every_option(settings: dict[str, Any], warm: tuple[Config, Policy], tmp_path: Path) -> None:
    before = copy.deepcopy(warm[1].model.state_dict())
    records, _ = reinforced(configure(merged(settings, {"training": {"iterations": 2}})), warm[1], tmp_path / "run")
    assert len(records) == 2
    assert all(record["train_tokens"] > 0 for record in records)
    assert all(0 <= record["invalid_rate"] <= 1 for record in records)
    assert all(torch.equal(before[name], value) for name, value in warm[1].model.state_dict().items()), (
        "the copy was trained"
    )


def test_the_rates_rise_and_fall(warm: tuple[Config, Policy], tmp_path: Path) -> None:
    training = {"algo": "ppo", "iterations": 4, "learning_rate": 0.003, "schedule": "linear", "warm_up": 0.5}
    records, _ = reinforced(configure({"training": training}), warm[1], tmp_path / "run")
    assert [record["learning_rate"] for record in records] == pytest.approx([0.001, 0.002, 0.003, 0.0015])
    for schedule, factors in (("constant", [1 / 3, 2 / 3, 1, 1]), ("cosine", [1 / 3, 2 / 3, 1, 0.5])):
        settings = Training(iterations=4, warm_up=0.5, schedule=schedule)
        assert [settings.rate_factor(iteration) for iteration in range(4)] == pytest.approx(factors)
