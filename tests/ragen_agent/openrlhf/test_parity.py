"""Equal settings and equal episodes: the first update of both trainers has the same gradients, to rounding.

OpenRLHF's own actors, experience maker and DeepSpeed run in this process, in float32 and without Ray and vLLM.
"""

from __future__ import annotations

import copy
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import openrlhf
import pytest
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils import utils
from torch import Tensor

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.algorithms import AGGREGATIONS
from ragen_agent.config.presets import default_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.local.backend import LearnerDiagnostics
from ragen_agent.local.policy_update import Critic, Learner, update
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.openrlhf import ray_actors
from ragen_agent.openrlhf.cli_flags import MODULE, command_flags
from ragen_agent.openrlhf.experience import EpisodeGenerator, StarPOExperience
from ragen_agent.openrlhf.launch import CPU_ENVIRONMENT, suppressed_ids
from ragen_agent.openrlhf.processes import VARIABLE, RunContext
from ragen_agent.openrlhf.trainer import ActorDiagnostics, StarPO
from ragen_agent.run.information import information_figures
from ragen_agent.run.loop import Loop
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.rollout import group
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.batches import distinct_prefixes
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.loss import Targets
from ragen_agent.update.metrics import piece_decoder, reply_parts

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

BASE: dict[str, Any] = {
    "game": "FrozenLake",
    "small_model": {"hidden": 64, "layers": 2, "feed_forward": 64},
    "turns": {"max_turns": 3, "max_tokens_per_turn": 12, "max_tokens_per_episode": 400},
    "demonstrations": {"thought": "direction"},
    # One step of 12 rows and 4 of padding in micro-batches of 8, which moves next to nothing and is not clipped.
    "training": {"groups": 4, "group_size": 4, "keep": 0.75, "minibatch": 16, "max_grad_norm": 1e6}
    | {"learning_rate": 1e-12, "critic_learning_rate": 1e-12, "entropy_bonus": 0.01},
}

CASES: dict[str, dict[str, Any]] = {
    "GRPO, KL in the reward": {"starpo_s": False, "kl": 0.1},
    "GRPO, KL in the loss": {"kl_kind": "k3", "kl_place": "loss", "kl": 0.1, "aggregation": "sequence_mean"},
    "Dr. GRPO": {"algo": "dr_grpo", "aggregation": "constant"},
    "GSPO": {"policy_loss": "gspo", "aggregation": "sequence_mean"},
    "CISPO, EPO": {"policy_loss": "cispo", "entropy_smoothing": 2.0, "correction": "clip"},
    "PPO, bi-level": {"algo": "ppo", "credit": "bi_level", "starpo_s": False, "gae_lambda": 0.9},
}
#: What ``ragen_agent.openrlhf.loss.install`` replaces in OpenRLHF's module.
INSTALLED = "iter_grad_accum_global_norm"
FORGETFUL = {"turns": {"history": 0}, "training": {"minibatch": 64}}


@pytest.fixture(scope="module", autouse=True)
def one_process_group() -> Iterator[None]:
    """DeepSpeed can join a group of processes only once in a process; this one is left in the end."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class StoppedError(Exception):
    """Carries OpenRLHF's strategy out of its command line."""


class Group:
    """The processes of a model, which are this one; what is sent to it is a copy, as Ray's is."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def async_run_method(self, method_name: str, **arguments: Any) -> list[Any]:
        return [getattr(self.actor, method_name)(**copy.deepcopy(arguments))]

    def async_run_method_batch(self, method_name: str, **arguments: Any) -> list[Any]:
        count = len(next(iter(arguments.values())))
        return [self.actor.execute_batch(method_name, copy.deepcopy(arguments), 0, count)]


@dataclass
class Both:
    """The two trainers before their first update, on the same weights."""

    config: Config
    learner: Learner
    trainer: Any  # StarPO
    played: list[Trajectory]
    gradients: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # of the distributed one: actor, critic
    rates: dict[str, list[float]] = field(default_factory=dict)  # of its steps

    @property
    def iteration(self) -> Iteration:
        games = ["FrozenLake"] * self.config.training.groups
        return Iteration.score_and_filter(0, self.played, games, self.config.training, 0)

    def local_gradients(self) -> dict[str, dict[str, Tensor]]:
        modules = {"actor": self.learner.model} | ({"critic": self.learner.critic} if self.learner.critic else {})
        return {
            name: {
                parameter.replace("backbone.", "model.").replace("head.", "score."): value.grad
                for parameter, value in module.named_parameters()
                if value.grad is not None
            }
            for name, module in modules.items()
        }


def agent_of(config: Config, folder: Path) -> Policy:
    agent = Policy.build(config)
    save_checkpoint(agent.model, agent.tokenizer, folder)
    return agent


def episodes_of(config: Config, agent: Policy) -> list[Trajectory]:
    """Episodes of an untrained policy with rewards at random, so that every group disagrees."""
    settings, rng = config.training, np.random.default_rng(3)
    count = settings.groups * settings.group_size
    played = agent.play(agent.processes("train", count), group(range(settings.groups), settings.group_size), 1.0, 1)
    return [replace(t, turn_rewards=tuple(rng.normal(size=len(t.turn_ends)).tolist())) for t in played]


def strategy_of(flags: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """OpenRLHF's strategy for these flags, as its command line makes it, in float32."""
    import runpy

    make = utils.get_strategy

    def stop(arguments: Any) -> None:
        arguments.ds.param_dtype = "fp32"
        raise StoppedError(make(arguments))

    monkeypatch.setattr(openrlhf.utils, "get_strategy", stop)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr(sys, "argv", [MODULE, *flags])
    with pytest.raises(StoppedError) as stopped:
        runpy.run_module(MODULE, run_name="__main__")
    return stopped.value.args[0]


@contextmanager
def both(case: Mapping[str, Any], folder: Path) -> Iterator[Both]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        config = with_settings(Config(), merged(merged(default_settings("FrozenLake"), BASE), case))
        agent = agent_of(config, folder / "model")
        settings, training = with_settings(OpenRLHF(), {"accelerator": "cpu"}), config.training
        run = RunContext(config, settings, str(folder), *suppressed_ids(folder / "model"))
        for name, value in {VARIABLE: run.to_json(), **CPU_ENVIRONMENT}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, "")  # which the actors overwrite
        monkeypatch.setattr("ray.get", lambda refs: refs)
        monkeypatch.setattr("ray.put", lambda value: value)
        monkeypatch.setattr(utils, "convert_to_torch_dtype", lambda name: torch.float32)
        monkeypatch.setattr(ppo_actor, INSTALLED, getattr(ppo_actor, INSTALLED))  # put back afterwards
        flags = command_flags(config, settings, folder, folder / "model", cpu=True)
        found: dict[str, dict[str, Tensor]] = {}
        rates: dict[str, list[float]] = {}

        def actor_of(kind: Any, **arguments: Any) -> Any:
            strategy = strategy_of(flags, monkeypatch)
            step = strategy.optimizer_step

            def optimizer_step(optimiser: Any, model: Any, scheduler: Any, name: str = "model", **others: Any) -> None:
                engine = model.model if isinstance(model, Actor) else model
                if engine.is_gradient_accumulation_boundary():
                    read = deepspeed.utils.safe_get_full_grad
                    found[name] = {n: read(p).clone() for n, p in engine.module.named_parameters()}
                    rates.setdefault(name, []).append(optimiser.param_groups[0]["lr"])
                step(optimiser, model, scheduler, name=name, **others)

            strategy.optimizer_step = optimizer_step
            actor = kind.__ray_metadata__.modified_class(1, 0, "127.0.0.1", free_port())
            actor.init_model_from_pretrained(strategy, str(folder / "model"), **arguments)
            return actor

        actor = actor_of(ray_actors.PolicyActor, max_steps=1)
        critic = actor_of(ray_actors.CriticActor, max_steps=1) if training.critic else None
        reference = actor_of(ray_actors.ReferenceActor) if training.kl_estimate != "none" else None
        strategy = actor.strategy
        groups = [None if model is None else Group(model) for model in (actor, critic, reference)]
        kind = StarPO.__ray_metadata__.modified_class
        trainer: Any = kind.__new__(kind)
        trainer.run, trainer.strategy, trainer.args, trainer.tokenizer = run, strategy, strategy.args, agent.tokenizer
        trainer.actor_model_group, trainer.critic_model_group, trainer.vllm_engines = groups[0], groups[1], None
        trainer.kl_ctl = FixedKLController(strategy.args.algo.kl.init_coef)
        trainer.experience_maker = StarPOExperience(
            groups[0], groups[1], None, groups[2], trainer.kl_ctl, strategy, agent.tokenizer
        )
        trainer.experience_maker.run = run
        trainer.rollouts = EpisodeGenerator.__new__(EpisodeGenerator)
        trainer.piece = piece_decoder(agent.tokenizer)
        trainer.loop = Loop(config, RunFolder(folder), trainer, trainer.piece, print)
        yield Both(config, learner_of(config, agent), trainer, episodes_of(config, agent), found, rates)


def learner_of(config: Config, agent: Policy) -> Learner:
    model, training = agent.model, config.training
    learner = Learner(
        copy.deepcopy(model),
        torch.optim.AdamW([torch.zeros(1)]),
        agent.engine.bias,
        piece=piece_decoder(agent.tokenizer),
        longest=config.turns.max_tokens_per_episode,
    )
    learner.optimiser = torch.optim.AdamW(learner.model.parameters(), training.learning_rate, weight_decay=0.0)
    if training.critic:
        learner.critic = Critic(model)
        learner.critic_optimiser = torch.optim.AdamW(learner.critic.parameters(), 1e-12, weight_decay=0.0)
    if training.kl_estimate != "none":
        learner.reference_model = copy.deepcopy(model)
    return learner


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def check_equal(distributed: Mapping[str, Tensor], local: Mapping[str, Tensor]) -> None:
    """Each parameter's gradients differ by rounding: by 1e-4 of their norm, and of that of all of them."""
    whole = float(torch.stack([g.norm() for g in local.values()]).norm())
    assert whole > 1e-3, "there is something to compare"
    assert set(distributed) <= set(local)
    for name, gradient in distributed.items():
        gap, size = float((gradient - local[name]).norm()), float(local[name].norm())
        assert gap <= 1e-4 * max(size, 1e-3 * whole), f"{name}: {gap} of {size}, of {whole} in all"


@pytest.mark.parametrize("case", CASES)
def test_the_first_update_has_the_same_gradients(case: str, tmp_path: Path) -> None:
    with both({"training": CASES[case]}, tmp_path) as trainers:
        check_first_update(trainers)


MASKS: dict[str, dict[str, Any]] = {
    "M_loss": {"algo": "ppo", "loss_tokens": "answer", "aggregation": "sequence_mean"},
    "M_adv": {"algo": "ppo", "credit": "turn", "advantage_tokens": "answer", "starpo_s": False, "kl": 0.1},
    "both": {"algo": "ppo", "credit": "bi_level", "loss_tokens": "reasoning", "advantage_tokens": "reasoning"},
}


@pytest.mark.parametrize("turns", [{}, {"history": 0}], ids=["whole", "history"])
@pytest.mark.parametrize("case", MASKS)
def test_selective_masks(case: str, turns: dict[str, Any], tmp_path: Path) -> None:
    """Each seventh token id stands for the end of a thought, since an untrained policy hardly samples one."""
    with both({"training": {**MASKS[case], "minibatch": 64}, "turns": turns}, tmp_path) as trainers:
        trainers.learner.piece = trainers.trainer.piece = piece_of_seven
        thoughts = [span for t in trainers.played for span in reply_parts(t, piece_of_seven, "reasoning")]
        lengths = {end - first for first, end in thoughts}
        assert 0 in lengths
        assert max(lengths) > 1
        check_first_update(trainers)


def piece_of_seven(token: int) -> str:
    return "x" if token % 7 else "</think>"


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_prompts_that_leave_out_turns(how: str, tmp_path: Path) -> None:
    """An episode is several rows of the distributed trainer, which are joined in its values and its loss."""
    training = {"aggregation": how, **({"algo": "ppo", "credit": "turn"} if how == "sequence_mean" else {})}
    with both(merged(FORGETFUL, {"training": training}), tmp_path) as trainers:
        assert any(len(t.split_contexts()) > 1 for t in trainers.played)
        check_first_update(trainers)


def check_first_update(trainers: Both) -> None:
    settings, iteration = trainers.config.training, trainers.iteration
    if trainers.learner.critic is not None:
        same_critic(trainers)
    iteration = replace(iteration, past_entropies=[1.0, 2.5])
    episodes, flat = iteration.update_on
    trainers.learner.observe(iteration)
    seen: list[Targets] = []
    local = update(trainers.learner, episodes, flat, settings, 0, seen.append)
    distributed, advantages = trainers.trainer.update(iteration)
    for played, expected, found in zip(episodes, seen[0]["advantages"], advantages, strict=True):
        assert found == pytest.approx(expected[: len(played.ids)][played.sampled].tolist(), rel=1e-3, abs=1e-5)
    assert local["updates"] == distributed["updates"] == 1
    parts = [part for t in episodes for part in t.split_contexts()]
    models = 2 if settings.critic else 1
    assert local["train_tokens"] == models * distinct_prefixes([part.ids.tolist() for part in parts])
    assert distributed["train_tokens"] == models * sum(len(part.ids) for part in parts), "which shares no prefixes"
    names = ["entropy", "grad_norm", "clip_fraction"] + ["value_loss"] * settings.critic
    names += ["kl"] * (settings.kl_estimate != "none") + ["entropy_deviation"] * (settings.entropy_smoothing > 0)
    names += ["corrected"] * (settings.correction not in ("", "none"))
    for name in names:
        assert distributed[name] == pytest.approx(local[name], rel=1e-3, abs=1e-5), name
    expected_gradients = trainers.local_gradients()
    for name, gradients in trainers.gradients.items():
        check_equal(gradients, expected_gradients[name])


def test_the_rates_of_each_iteration_are_those_of_the_local_trainer(tmp_path: Path) -> None:
    rates = {"learning_rate": 3e-9, "critic_learning_rate": 6e-9, "schedule": "linear", "warm_up": 0.5}
    with both({"training": {"algo": "ppo", "iterations": 4, "updates": 2, **rates}}, tmp_path) as trainers:
        for number in (0, 1, 3):  # an iteration in between taught nothing
            trainers.trainer.update(replace(trainers.iteration, number=number))
        assert trainers.rates["actor"] == pytest.approx([1e-9, 1e-9, 2e-9, 2e-9, 1.5e-9, 1.5e-9], rel=1e-9)
        assert trainers.rates["critic"] == pytest.approx([2e-9, 2e-9, 4e-9, 4e-9, 3e-9, 3e-9], rel=1e-9)


def same_critic(trainers: Both) -> None:
    """Both critics start at 0; then with heads that are not, so that their backbones have gradients too."""
    critic, actor = trainers.learner.critic, trainers.trainer.critic_model_group.actor
    assert critic is not None
    theirs = actor.critic.module.score.weight
    assert not bool(theirs.any())
    assert not bool(critic.head.weight.any())
    weight = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(5)) / 8
    critic.head.weight.data.copy_(weight)
    theirs.data.copy_(weight)


@pytest.mark.parametrize("training", [{"kl_kind": "k2", "kl_place": "loss", "kl": 0.1}, {"algo": "ppo"}])
def test_the_diagnostics_are_the_same(training: dict[str, Any], tmp_path: Path) -> None:
    with both({"training": training}, tmp_path) as trainers:
        trainer, settings = trainers.trainer, trainers.config.training
        before = {n: p.clone() for n, p in trainer.actor_model_group.actor.actor.model.module.named_parameters()}
        measured = ActorDiagnostics(trainer.experience_maker, None)
        local = LearnerDiagnostics(trainers.learner, settings)
        played = trainers.played
        rows = [(t.ids[:20].tolist(), t.ids[20 : 20 + n].tolist()) for n, t in enumerate(played)]
        torch.testing.assert_close(measured.log_probs(rows), local.log_probs(rows), rtol=1e-5, atol=1e-5)
        known = information_figures(local, played, trainer.piece)
        assert information_figures(measured, played, trainer.piece) == pytest.approx(known, rel=1e-3)
        module = trainer.actor_model_group.actor.actor.model.module
        assert all(torch.equal(before[name], value) for name, value in module.named_parameters())
        assert all(value.grad is None for value in module.parameters())
