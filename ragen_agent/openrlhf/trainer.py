"""The trainer of a run: OpenRLHF's, with the iteration of StarPO-S (RAGEN, arXiv 2504.20073, section 3).

One iteration plays all groups, drops those with little spread, trains on the rest and sends the weights to vLLM. The
state is saved at whole iterations: `state.json` names the last iteration of which every part was saved, and is written
last, so a run that is killed at any moment goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import ray
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from ragen_agent.algo import NO_SPREAD
from ragen_agent.config import Config, Training
from ragen_agent.config.rules import ADVANTAGE_RULES
from ragen_agent.local.trainer import FILTER, MINIBATCHES, PATIENCE, SHOWN
from ragen_agent.openrlhf import metrics
from ragen_agent.openrlhf.batch_plan import planned_updates
from ragen_agent.openrlhf.episode import check_failures
from ragen_agent.openrlhf.experience import StarPOExperience, WeightsLostError, advantage_inputs, pad_rows
from ragen_agent.openrlhf.generation import EpisodeGenerator, EpisodeSample
from ragen_agent.openrlhf.prompt_dataset import PromptRow, evaluation_rows
from ragen_agent.openrlhf.state import RunContext, RunState
from ragen_agent.token_mdp import Trajectory
from ragen_agent.training.alarm import signs_at
from ragen_agent.training.evaluation import baselines, fixed_instances, rate_of_played
from ragen_agent.training.iteration import ScoredGroups, rewarded, score
from ragen_agent.training.replies import piece_decoder, reply_figures
from ragen_agent.training.run_folder import RunFolder
from ragen_agent.training.tasks import derive_seed, games_at, make_env
from ragen_gym.core.storage import read_json_lines

__all__ = ["StarPO"]

LINES = ("random", "optimal")  # what a rate is read against; the launcher has measured those of the run's own game


@ray.remote
class StarPO(PPOTrainer.__ray_metadata__.modified_class):  # type: ignore[misc]
    """See the module; the constructor's arguments are OpenRLHF's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = RunContext.from_environment()
        self.folder = RunFolder(Path(self.run.folder))
        stock: SamplesGenerator = self.samples_generator
        tokenizer = ray.put(self.tokenizer)  # one copy for all requests instead of one for each
        self.rollouts = EpisodeGenerator(self.strategy, None, None, tokenizer, stock.vllm_engines)
        self.experience_maker.__class__ = StarPOExperience
        self.experience_maker.run = self.run
        dataset = self.prompts_dataloader.dataset
        self.rows = [PromptRow.from_label(label) for label in dataset.labels]
        self.piece = piece_decoder(self.tokenizer)
        self.records = read_json_lines(self.folder.metrics)
        self.still = 0

    def get_max_steps(self) -> int:
        """The updates that the learning-rate schedule is stretched over: those after the filter."""
        return planned_updates(self.run.config)

    def fit(self, global_step: int = 0) -> None:
        """Runs the iterations that are left."""
        training = self.run.config.training
        state = RunState.read(self.folder.path)
        self.still = state.still
        if state.iteration:
            self.broadcast_to_vllm()  # vLLM has read the weights from before the first iteration
        self._evaluate("before", 0)
        for iteration in range(state.iteration, training.iterations):
            if self.still >= PATIENCE:  # when the run was interrupted, it was over
                break
            record = self._iterate(iteration)
            done = iteration + 1
            over = done == training.iterations or self.still >= PATIENCE
            every = self.run.settings.evaluate_every
            if every and done % every == 0 and not over:
                record |= self._evaluate("", done)
            self._log(done, record)
            if done % training.save_every == 0 or over:
                self._save(done)
        self._check_last_weights()
        self._evaluate("after", training.iterations)
        for logger in (self.tensorboard_logger, self.wandb_logger):
            if logger is not None:
                logger.close()

    def _iterate(self, iteration: int) -> dict[str, Any]:
        """Plays, filters, trains, and sends the weights out."""
        training = self.run.config.training
        started = time.monotonic()
        first = iteration * training.groups
        rows = self.rows[first : first + training.groups]
        assert all(row.iteration == iteration for row in rows), "the seed list is in the order of the iterations"
        played = self._play(rows, training.group_size, training.temperature)
        decoded = time.monotonic()
        learned = rewarded([p.trajectory for p in played], training.format_reward)
        scored = score(learned, training, derive_seed(self.run.config.seed, FILTER, iteration))
        flat = _teaches_nothing(scored, training)
        self.still = self.still + 1 if flat else 0
        record = {"iteration": iteration, **metrics.of_episodes(played, scored), **reply_figures(learned, self.piece)}
        if bool(scored.kept.any()) and not flat:
            record |= self._train(played, learned, scored, iteration)
        else:
            record |= {"train_tokens": 0, "updates": 0, "empty_updates": 1}
        sampled = sum(int(p.trajectory.sampled.sum()) for p in played)
        kept = scored.kept.flatten().tolist()
        notes = [{**self._note(p, "train"), "iteration": iteration, "kept": kept[i]} for i, p in enumerate(played)]
        self.folder.append(self.folder.episodes, notes[:SHOWN])
        record |= self._alarm(record)
        return record | {
            "tokens_per_s": sampled / (decoded - started),
            "seconds_rollout": decoded - started,
            "seconds": time.monotonic() - started,
        }

    def _train(
        self, played: Sequence[EpisodeSample], learned: Sequence[Trajectory], scored: ScoredGroups, iteration: int
    ) -> dict[str, Any]:
        """Trains on the kept episodes; `learned` are the played ones with the rewards that are learned from."""
        training = self.run.config.training
        advantages, members = scored.advantages.flatten(), training.group_size
        chosen: list[int] = scored.kept.flatten().nonzero().flatten().tolist()
        rows = []
        for i in chosen:
            weight = float(scored.weights[i // members])
            for part, experience in zip(learned[i].as_read(), played[i].experiences, strict=True):
                row = copy(experience)
                row.labels = [advantage_inputs(part, float(advantages[i]), weight, training, self.piece).to_json()]
                rows.append(row)
        samples = pad_rows(rows, training.minibatch)
        seed = derive_seed(self.run.config.seed, MINIBATCHES, iteration) % 2**32
        self._all_models("seed_minibatches", seed=seed)
        status, _ = self.train_step(samples, iteration)
        passes = training.updates * (2 if training.critic else 1)
        return {
            **metrics.of_training(status),
            "vllm_kl": self.experience_maker.vllm_kl,
            "vllm_gap": self.experience_maker.vllm_gap,
            "updates": training.updates * len(samples) // training.minibatch,
            "train_tokens": passes * sum(len(played[i].trajectory.ids) for i in chosen),
            "seconds_score": status["timing/make_experience"],
            "seconds_train": status["timing/ppo_train"],
            "seconds_synchronise": status["timing/broadcast"],
        }

    def _check_last_weights(self) -> None:
        """Each iteration checks the weights of the one before it; here a group is played for those of the last."""
        training = self.run.config.training
        played = self._play(self.rows[:1], training.group_size, training.temperature)
        rows = [copy(row) for p in played if p.trajectory.failure is None for row in p.experiences]
        if rows:
            maker = self.experience_maker
            maker.make_experience(maker.split_rollout_samples(pad_rows(rows, training.minibatch)))

    def _evaluate(self, name: str, iteration: int) -> dict[str, Any]:
        """Plays the fixed levels of every game; a named result goes into the summary, where a resumed run finds it."""
        config, summary = self.run.config, self.folder.read_summary()
        if name in summary:
            return {}
        played, rate = self._measure(config)
        result = {"eval_success": rate["rate"], **{f"eval_{line}": summary[line]["rate"] for line in LINES}}
        for share in games_at(config, 0):
            game = share.config.game
            if game == config.game:
                continue
            rates = summary.setdefault("games", {}).setdefault(game, {})
            if "optimal" not in rates:
                env = make_env(share.config, share.config.evaluation.split)
                lines = baselines(env, fixed_instances(env, share.config.evaluation.levels))
                rates |= {line: lines[line].to_dict() for line in LINES}
            latest = self._measure(share.config)[1]
            rates |= {name: latest} if name else {}
            result |= {f"eval_success/{game}": latest["rate"]}
            result |= {f"eval_{line}/{game}": rates[line]["rate"] for line in LINES}
        if name:
            self.folder.append(self.folder.episodes, [self._note(p, name) for p in played])
            self.folder.write_summary({**summary, name: rate})
        self._show("log_eval", iteration, result)
        return result

    def _measure(self, config: Config) -> tuple[list[EpisodeSample], dict[str, Any]]:
        """The episodes of one game's fixed levels, and their rate."""
        played = self._play(evaluation_rows(config), 1, config.evaluation.temperature)
        return played, rate_of_played([p.trajectory for p in played]).to_dict()

    def _note(self, played: EpisodeSample, phase: str) -> dict[str, Any]:
        """An episode as it is written down; level and noise seed say how to play it again."""
        config = self.run.config
        noise = played.row.noise(config.seed, played.member, config.training.shared_noise)
        return {"phase": phase, **played.trajectory.to_dict(), "noise_seed": noise}

    def _alarm(self, record: dict[str, Any]) -> dict[str, Any]:
        """The signs of the Echo Trap that show for the first time, by name."""
        if not self.run.config.diagnostics.alarm:
            return {}
        known = {name for past in self.records for name in past.get("alarm", ())}
        signs = [sign for sign in signs_at([*self.records, record]) if sign.name not in known]
        for sign in signs:
            print(sign, flush=True)
        return {"alarm": [sign.name for sign in signs]} if signs else {}

    def _log(self, iteration: int, record: Mapping[str, Any]) -> None:
        self.folder.append(self.folder.metrics, [record])
        self.records.append(dict(record))
        scalars = {name: value for name, value in record.items() if isinstance(value, int | float)}
        scalars |= {f"failures/{kind}": number for kind, number in record["failures"].items()}
        self._show("log_train", iteration, scalars)

    def _show(self, method: str, iteration: int, scalars: Mapping[str, float]) -> None:
        for logger in (self.tensorboard_logger, self.wandb_logger):
            if logger is not None:
                getattr(logger, method)(iteration, dict(scalars))

    def _all_models(self, method: str, **told: Any) -> None:
        """Calls a method of the actor's and, if there is one, the critic's processes, and waits."""
        groups = [group for group in (self.actor_model_group, self.critic_model_group) if group is not None]
        ray.get([ref for group in groups for ref in group.async_run_method(method_name=method, **told)])

    def _save(self, iteration: int) -> None:
        tag = f"iteration{iteration}"
        self._all_models("save_checkpoint", tag=tag)
        RunState(iteration, tag, self.still).write(self.folder.path)

    def _play(self, rows: Sequence[PromptRow], members: int, temperature: float) -> list[EpisodeSample]:
        """See `EpisodeGenerator.play`.

        Raises:
            WeightsLostError: vLLM's log-probs are no numbers.
            TooManyFailuresError: above the failure budget.
        """
        settings = {name: value for name, value in self.generate_kwargs.items() if name != "temperature"}
        played = self.rollouts.play(rows, members, temperature, **settings)
        budget = self.run.settings.failure_budget
        broken = [p for p in played if str(p.trajectory.failure).startswith("engine_nan")]
        if len(broken) > budget * len(played):
            raise WeightsLostError(f"vllm_kl is nan in {len(broken)} of {len(played)} episodes")
        check_failures([p.trajectory for p in played], budget)
        return played


def _teaches_nothing(scored: ScoredGroups, settings: Training) -> bool:
    """Whether no kept episode did better or worse than what it is compared with."""
    if settings.critic:  # whose advantages need no spread within groups
        return False
    if ADVANTAGE_RULES[settings.algo].compares_groups:
        return float(scored.spread.max()) <= NO_SPREAD
    return not bool(scored.advantages[scored.kept].any())
