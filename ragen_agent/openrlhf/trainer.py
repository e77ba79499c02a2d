"""The backend of OpenRLHF: its trainer, whose loop is ``ragen_agent.run.loop``.

vLLM plays, DeepSpeed's actors train, and the weights are sent to vLLM after each update. ``state.json`` names the last
iteration of which every part was saved, and is written last, so a run that is killed at any moment goes on from there.

A line of ``metrics.jsonl`` also holds here: ``vllm_kl``, ``vllm_gap`` and ``mismatch_kl`` (see
``experience.LogProbDifference``), ``critic_grad_norm``, ``eval_success``, ``eval_random``, ``eval_blind`` and
``eval_optimal`` where the fixed levels were played, and the seconds of each part.

With ``openrlhf.staleness`` the engines play ahead (``ragen_agent.run.loop``). A line then holds ``staleness``,
the updates since the weights with which its oldest episode was played, as vLLM's processes counted those that arrived,
and ``seconds_wait``, in which training waited for the engines; ``seconds_rollout`` went by while it trained.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ragen_agent.config import Config
from ragen_agent.inference.vision import ImageTable, Vision
from ragen_agent.openrlhf.episode import check_failures
from ragen_agent.openrlhf.experience import (
    EpisodeGenerator,
    EpisodeSample,
    StarPOExperience,
    WeightsLostError,
    advantage_inputs,
    pad_rows,
)
from ragen_agent.openrlhf.pictures import packed, tokenizer_of
from ragen_agent.openrlhf.processes import RunContext, read_state, tag_of, write_state
from ragen_agent.openrlhf.prompt_dataset import PromptRow, evaluation_rows, families_of_rows, rows_of_iteration
from ragen_agent.preflight.plan import rows_of_step
from ragen_agent.run.evaluation import baselines, evaluated_levels, rate_of_played, validation_settings
from ragen_agent.run.loop import Loop, LoopState, Rollouts
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tasks.tasks import SeedStream, derive_seed, measured_settings
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.metrics import piece_decoder
from ragen_gym.core.failures import Failure
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import append_json_lines

#: Figures of the steps by their names in OpenRLHF's status, and ours.
STATUS_KEYS = {
    **{name: name for name in ("entropy", "clip_fraction", "approx_kl", "entropy_deviation", "corrected", "kl")},
    "actor_grad_norm": "grad_norm",
    "critic_loss": "value_loss",
    "critic_grad_norm": "critic_grad_norm",
}

LINES = (
    "random",
    "blind",
    "optimal",
)  # what a rate is read against; the launcher has measured those of the run's own game


Arguments = tuple[Tensor, Tensor, Tensor, Sequence[Mapping[str, Tensor] | None]]
"""A batch: ids, mask of actions, mask of ids, and the pictures of each row."""


class ActorDiagnostics:
    """See ``ragen_agent.run.information.MeasuredPolicy``."""

    def __init__(self, maker: StarPOExperience, vision: Vision | None) -> None:
        self.maker, self.vision = maker, vision

    def log_probs(self, rows: Sequence[tuple[list[int], list[int]]], images: ImageTable | None = None) -> Tensor:
        """As the protocol says."""
        scores = torch.zeros(len(rows), dtype=torch.float64)
        wanted = torch.tensor([index for index, (_, said) in enumerate(rows) if said])
        parts = wanted.split(self.maker.args.rollout.micro_batch_size)
        batches = [self._batch([rows[index] for index in part.tolist()], images) for part in parts]
        for part, log_probs in zip(parts, self._forward(batches), strict=True):
            scores[part] = log_probs.sum(dim=1, dtype=torch.float64)
        return scores

    def _batch(self, rows: Sequence[tuple[list[int], list[int]]], images: ImageTable | None) -> Arguments:
        """The second part of each row is its actions; padded on the right."""
        ids = pad_sequence([torch.tensor([*before, *said]) for before, said in rows], batch_first=True)
        first = torch.tensor([len(before) for before, _ in rows])[:, None]
        end = first + torch.tensor([len(said) for _, said in rows])[:, None]
        places = torch.arange(ids.shape[1])
        pictures: list[Mapping[str, Tensor] | None] = [None] * len(rows)
        if images is not None:
            vision = self.vision
            assert vision is not None, "a model that reads pictures"
            pictures = [packed(images.pictures_of(row), vision.processor) for row in ids.tolist()]
            ids = torch.where(ids < 0, vision.image_id, ids)
        return ids, ((places >= first) & (places < end)).long()[:, 1:], (places < end).long(), pictures

    def _forward(self, batches: Sequence[Arguments]) -> list[Tensor]:
        """The log-probs of each batch. Each process computes as many, since those of a divided model work together."""
        arguments = self.maker.args
        copies = arguments.ds.ring_attn_size * arguments.ds.tensor_parallel_size
        processes = arguments.actor.num_nodes * arguments.actor.num_gpus_per_node // copies
        filled = [*batches, *[batches[-1]] * (-len(batches) % processes)]
        names = ("sequences", "action_mask", "attention_mask", "mm_train_inputs_list")
        columns = dict(zip(names, map(list, zip(*filled, strict=True)), strict=True))
        refs = self.maker.actor_model_group.async_run_method_batch(method_name="forward", **columns)
        results: list[Tensor] = self.maker._flatten_results(refs, copies)
        return results[: len(batches)]


@ray.remote
class StarPO(PPOTrainer.__ray_metadata__.modified_class):  # type: ignore[misc]
    """See the module; the constructor's arguments are OpenRLHF's."""

    sent = 0  # updates to vLLM
    _round: Sequence[EpisodeSample] = ()  # the episodes of the iteration that is being played
    waited = 0.0  # seconds of the last one, until vLLM had finished what it plays ahead

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = RunContext.from_environment()
        self.folder = RunFolder(Path(self.run.folder))
        stock: SamplesGenerator = self.samples_generator
        tokenizer = tokenizer_of(self.tokenizer)
        shared = ray.put(tokenizer)  # one copy for all requests instead of one for each
        self.rollouts = EpisodeGenerator(self.strategy, None, None, shared, stock.vllm_engines)
        self.rollouts.vision = self.run.vision
        self.experience_maker.__class__ = StarPOExperience
        self.experience_maker.run = self.run
        dataset = self.prompts_dataloader.dataset
        self.rows = [PromptRow.from_label(label) for label in dataset.labels]
        self.piece = piece_decoder(tokenizer)
        self.measured_policy = ActorDiagnostics(self.experience_maker, self.run.vision)
        say, staleness = partial(print, flush=True), self.run.settings.staleness
        self.loop = Loop(self.run.config, self.folder, self, self.piece, say, self._validate, staleness)

    def fit(self, global_step: int = 0) -> None:
        """Measures the policy, runs the iterations that are left, and measures it again."""
        self.loop.restore()
        self._evaluate("before")
        self.loop.run(self._evaluate_between)
        if reason := self.loop.stop_reason:
            self.folder.write_summary({**self.folder.read_summary(), "stopped": reason})
        self._check_last_weights()
        self._evaluate("after")

    def rollout(self, number: int, groups: int, refill: int) -> Rollouts:
        """See ``Backend.rollout``: rows of the prompt dataset at first, others in further rounds.

        Raises:
            WeightsLostError: vLLM's log-probs are no numbers.
            TooManyFailuresError: above the failure budget, of the iteration so far.
        """
        config, training = self.run.config, self.run.config.training
        if refill:
            rows = list(rows_of_iteration(config, number, groups, refill))
        else:
            rows, self._round = self.rows[number * groups : (number + 1) * groups], ()
        assert all(row.iteration == number for row in rows), "the prompt dataset is in the order of the iterations"
        played = self._play(rows, training.group_size, training.temperature)
        self._round = self._checked([*self._round, *played])
        return Rollouts(
            [p.trajectory for p in played],
            [row.game for row in rows],
            [self._noise_seed(p) for p in played],
            families_of_rows(rows, config),
            [p.updates for p in played],
        )

    def update(self, iteration: Iteration) -> tuple[dict[str, Any], list[list[float]]]:
        """See ``Backend.update``."""
        training, maker = self.run.config.training, self.experience_maker
        maker.observe(iteration)
        episodes, advantages = iteration.update_on
        samples = self._training_rows(episodes, advantages.tolist())
        step = rows_of_step(self.run.config, self.run.settings)
        seed = derive_seed(self.run.config.seed, SeedStream.MINIBATCHES, iteration.number) % 2**32
        self._all_models("begin_iteration", seed=seed, rate_factor=training.rate_factor(iteration.number))
        status, _ = self.train_step(samples, iteration.number)
        passes = training.updates * (2 if training.critic else 1)
        figures = {ours: float(status[theirs]) for theirs, ours in STATUS_KEYS.items() if theirs in status}
        if training.kl_place == "reward":  # OpenRLHF's is a mean over rows, padding included
            figures["kl"] = maker.reference_kl
        measured = {
            **figures,
            **maker.difference._asdict(),
            "updates": training.updates * len(samples) // step,
            "train_tokens": passes * sum(len(part.ids) for t in episodes for part in t.split_contexts()),
            "seconds_score": status["timing/make_experience"],
            "seconds_train": status["timing/ppo_train"],
            "seconds_synchronise": status["timing/broadcast"] - self.waited,
        }
        return measured, maker.sampled_advantages[: len(iteration.rows)]

    def figures(self, rollouts: Rollouts, record: Mapping[str, Any], waited: float) -> dict[str, Any]:
        """See ``Backend.figures``, and for their meanings the module."""
        waited_here, self.waited = self.waited, 0.0
        if not self.run.settings.staleness:
            return {}
        sent_before = self.sent - bool(record["updates"])
        return {"staleness": sent_before - min(rollouts.updates), "seconds_wait": waited + waited_here}

    def save(self, state: LoopState) -> None:
        """See ``Backend.save``."""
        self._all_models("save_checkpoint", tag=tag_of(state.iteration))
        write_state(self.folder.path, state)

    def restore(self) -> LoopState:
        """See ``Backend.restore``."""
        state = read_state(self.folder.path)
        if state.iteration:
            self.broadcast_to_vllm()  # vLLM has read the weights from before the first iteration
        return state

    def _training_rows(self, episodes: Sequence[Trajectory], advantages: Sequence[float]) -> list[Any]:
        training, rows = self.run.config.training, []
        for trajectory, advantage in zip(episodes, advantages, strict=True):
            parts = zip(trajectory.split_contexts(), self.rollouts.rows(trajectory), strict=True)
            for turn, (part, row) in enumerate(parts):
                note = advantage_inputs(part, advantage, training, self.piece)
                row.labels = [replace(note, continues=turn > 0).to_json()]
                rows.append(row)
        return pad_rows(rows, rows_of_step(self.run.config, self.run.settings))

    def broadcast_to_vllm(self) -> None:
        """As OpenRLHF; but not before the engines have finished what they play ahead."""
        began = time.monotonic()
        self.loop.ahead.wait()
        self.waited = time.monotonic() - began
        super().broadcast_to_vllm()
        self.sent += 1

    def _check_last_weights(self) -> None:
        """Each iteration checks the weights of the one before it; here a group is played for those of the last.

        It is too small for the failure budget, which the evaluation after it keeps to.
        """
        training = self.run.config.training
        played = self._play(self.rows[:1], training.group_size, training.temperature)
        rows = [row for p in played if p.trajectory.failure is None for row in self.rollouts.rows(p.trajectory)]
        if rows:
            maker = self.experience_maker
            maker.make_experience(
                maker.split_rollout_samples(pad_rows(rows, rows_of_step(self.run.config, self.run.settings)))
            )

    def _evaluate_between(self, done: int) -> dict[str, Any]:
        every, over = self.run.settings.evaluate_every, done == self.run.config.training.iterations
        return {} if not every or done % every or over or self.loop.stop_reason else self._evaluate("")

    def _evaluate(self, name: str) -> dict[str, Any]:
        """Plays the fixed levels of every game; a named result goes into the summary, where a resumed run finds it."""
        config, summary = self.run.config, self.folder.read_summary()
        if name in summary:
            return {}
        played, rate = self._measure(config)
        known = [line for line in LINES if line in summary]  # a text task may lack one
        result = {"eval_success": rate.rate, **{f"eval_{line}": summary[line]["rate"] for line in known}}
        for other in measured_settings(config)[1:]:
            game = other.game
            rates = summary.setdefault("games", {}).setdefault(game, {})
            if "optimal" not in rates:
                rates |= {line: rate.to_dict() for line, rate in baselines(*evaluated_levels(other)).items()}
            latest = self._measure(other)[1].to_dict()
            rates |= {name: latest} if name else {}
            result |= {f"eval_success/{game}": latest["rate"]}
            result |= {f"eval_{line}/{game}": rates[line]["rate"] for line in LINES if line in rates}
        if name:
            append_json_lines(
                self.folder.episodes,
                [{"phase": name, **p.trajectory.to_dict(), "noise_seed": self._noise_seed(p)} for p in played],
            )
            self.folder.write_summary({**summary, name: rate.to_dict()})
        return result

    def _measure(self, config: Config) -> tuple[list[EpisodeSample], Rate]:
        self.loop.ahead.wait()
        played = self._checked(self._play(evaluation_rows(config), 1, config.evaluation.temperature))
        return played, rate_of_played([p.trajectory for p in played])

    def _validate(self) -> Rate:
        return self._measure(validation_settings(self.run.config))[1]

    def _noise_seed(self, played: EpisodeSample) -> int:
        config = self.run.config
        return played.row.noise(config.seed, played.member, config.training.shared_noise)

    def _all_models(self, method: str, **arguments: Any) -> None:
        groups = [group for group in (self.actor_model_group, self.critic_model_group) if group is not None]
        ray.get([ref for group in groups for ref in group.async_run_method(method_name=method, **arguments)])

    def _play(self, rows: Sequence[PromptRow], members: int, temperature: float) -> list[EpisodeSample]:
        settings = {name: value for name, value in self.generate_kwargs.items() if name != "temperature"}
        return self.rollouts.play(rows, members, temperature, **settings)

    def _checked(self, played: list[EpisodeSample]) -> list[EpisodeSample]:
        """The episodes of an iteration so far, or of an evaluation, as they are.

        Raises:
            WeightsLostError: vLLM's log-probs are no numbers.
            TooManyFailuresError: above the failure budget.
        """
        budget = self.run.settings.failure_budget
        broken = [p for p in played if str(p.trajectory.failure).startswith(Failure.ENGINE_NAN)]
        if len(broken) > budget * len(played):
            raise WeightsLostError(f"vllm_kl is nan in {len(broken)} of {len(played)} episodes")
        check_failures([p.trajectory for p in played], budget)
        return played
