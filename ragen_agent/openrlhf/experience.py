"""The rows that are trained on: groups played on the vLLM engines, their advantages by ``ragen_agent.algo``.

OpenRLHF's own estimators run through the tokens of the environment as if the policy had chosen them and know one reward
for an episode. Here turns keep their own rewards, and tokens that were not sampled are passed over.

OpenRLHF's tensors of actions are one shorter than a row: column t is about token t + 1.

OpenRLHF's generator keeps surplus samples of an iteration and trains on them later, when they are off-policy. Here an
iteration plays exactly its rows of the prompt dataset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, NamedTuple

import ray
import torch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ragen_agent import algo
from ragen_agent.config import Training
from ragen_agent.config.algorithms import AGGREGATIONS
from ragen_agent.inference.vision import Vision
from ragen_agent.openrlhf.episode import response_of
from ragen_agent.openrlhf.pictures import packed
from ragen_agent.openrlhf.processes import RunContext
from ragen_agent.openrlhf.prompt_dataset import PromptRow
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.advantages import critic_estimates, token_advantages, turn_advantages
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.metrics import reply_parts

NO_RETURN = float("-inf")
"""Stands in ``returns`` outside M_adv, where a critic has nothing to learn from."""

EPISODE_TOKENS, EPISODE_SHARE = "episode_tokens", "episode_share"
"""In ``info``: the tokens of a row's episode that are in the loss, and the row's share of the episodes that the loss is
divided by, which over the rows of an episode adds up to 1, or to 0 where it does not count."""

AVERAGE_ENTROPY = "average_entropy"
"""In ``info``, with ``Training.entropy_smoothing``: the mean entropy of the rollouts so far, the same in every row."""


@dataclass(frozen=True)
class EpisodeSample:
    """One sample of a prompt."""

    row: PromptRow  # the prompt
    member: int  # its number in the group
    trajectory: Trajectory  # the episode
    updates: int = 0  # that the weights which played it had received since vLLM started


class EpisodeGenerator(SamplesGenerator):  # type: ignore[misc]
    """Plays rows of the prompt dataset on the vLLM engines; ``vision`` is the model's, None of one for text only."""

    vision: Vision | None = None

    def play(
        self, rows: Sequence[PromptRow], group_size: int, temperature: float, **generate: Any
    ) -> list[EpisodeSample]:
        """``group_size`` episodes of each row, in the order of ``rows``.

        Raises:
            ContractError: wrapped by Ray; see ``AgentExecutor.execute``.
        """
        settings = {**generate, "temperature": temperature, "n_samples_per_prompt": group_size}
        names = [f"{row.game}, level seed {row.seed}" for row in rows]
        self._engines("wake_up")
        refs = self._dispatch_prompts_to_vllm(names, [row.label for row in rows], **settings)
        answers = ray.get(refs)
        self._engines("sleep")
        return [_sample(row, response) for row, responses in zip(rows, answers, strict=True) for response in responses]

    def _engines(self, method: str) -> None:
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, method)

    def rows(self, trajectory: Trajectory) -> list[Any]:
        """The rows that OpenRLHF trains on, one for each of ``trajectory.split_contexts()``."""
        rows = []
        for part in trajectory.split_contexts():
            pictures = packed(part.images, self.vision.processor) if self.vision else None
            response = response_of(part, label=AdvantageInputs().to_json(), pictures=pictures)
            row = self._process_response_into_experience(response, max_len=len(part.ids) + 1)  # which cuts nothing
            row.response_length = torch.tensor([int(part.sampled.sum())])  # without the tokens of the environment
            rows.append(row)
        return rows


def _sample(row: PromptRow, response: dict[str, Any]) -> EpisodeSample:
    label = json.loads(response["label"])
    trajectory = Trajectory.from_dict(label["trajectory"])
    return EpisodeSample(row, label["member"], trajectory, response["updates"])


class WeightsLostError(RuntimeError):
    """vLLM does not sample from the weights that are trained."""

    def __init__(self, seen: str, staleness: int = 0) -> None:
        behind = f", or too much changed in {staleness} updates (openrlhf.staleness): lower training.learning_rate"
        super().__init__(
            f"{seen}: vLLM does not sample from the weights that are trained. Most often those of the last "
            "synchronisation did not arrive: without NCCL vLLM drops them silently (on a CPU set "
            "openrlhf.accelerator=cpu). Else the two compute the model differently: compare their versions, dtypes and "
            f"openrlhf.attention{behind if staleness else ''}."
        )
        self.seen, self.staleness = seen, staleness

    def __reduce__(self) -> tuple[type[WeightsLostError], tuple[str, int]]:
        return type(self), (self.seen, self.staleness)  # made again from what was seen, wherever Ray carries it


@dataclass(frozen=True)
class AdvantageInputs:
    """Inputs of one row's advantages; OpenRLHF carries ragged data in ``labels`` alone."""

    advantage: float = 0.0  # of the whole episode
    turn_ends: tuple[int, ...] = ()  # the column of each turn's last sampled token, counted in actions
    turn_rewards: tuple[float, ...] = ()
    loss: tuple[tuple[int, int], ...] | None = None  # (first, end) of M_loss in columns of actions; None for all
    estimate: tuple[tuple[int, int], ...] | None = None  # the same of M_adv
    continues: bool = False  # the episode of the row before, whose prompts left out earlier turns
    turn_advantages: tuple[float, ...] = ()  # of each turn; empty where all have that of the episode

    def to_json(self) -> str:
        """The label of a row."""
        return json.dumps(asdict(self))


def advantage_inputs(
    trajectory: Trajectory, advantage: float, settings: Training, piece: Callable[[int], str]
) -> AdvantageInputs:
    """The note of a row whose rewards are final; ``piece`` gives a token's text, which selective masks need."""

    def columns(tokens: str) -> tuple[tuple[int, int], ...] | None:
        if tokens == "all":
            return None
        return tuple((first - 1, end - 1) for first, end in reply_parts(trajectory, piece, tokens))

    return AdvantageInputs(
        advantage,
        tuple(end - 1 for end in trajectory.turn_ends),
        trajectory.turn_rewards,
        columns(settings.loss_tokens),
        columns(settings.advantage_tokens),
        turn_advantages=turn_advantages(trajectory),
    )


def pad_rows(rows: Sequence[Any], multiple: int) -> list[Any]:
    """The rows, filled up to a multiple of a step's with rows of two tokens, none of them sampled, hence without loss.

    OpenRLHF steps when so many rows were seen, counted on from one iteration to the next, so a number of rows that is
    no multiple would leave gradients behind for weights that have moved on. A row with pictures keeps them and all its
    tokens: in a pass without pictures a vision encoder has no gradients, for which other processes would wait.
    """
    filled = list(rows)
    while len(filled) % multiple:
        blank = copy(rows[0])
        width = 2 if blank.mm_train_inputs[0] is None else blank.sequences.shape[1]
        blank.sequences, blank.attention_mask = blank.sequences[:, :width], blank.attention_mask[:, :width]
        blank.action_mask = torch.zeros_like(blank.action_mask[:, : width - 1])
        blank.rollout_log_probs = blank.rollout_log_probs[:, : width - 1]
        blank.labels = [AdvantageInputs().to_json()]
        blank.info = dict(blank.info)
        filled.append(blank)
    return filled


class LogProbDifference(NamedTuple):
    """Distance of vLLM's log-probs of the sampled tokens from the trainer's, before any step, in nats a token.

    ``vllm_kl`` is the mean difference (the k1 estimate of KL(vLLM || trainer), of either sign), ``vllm_gap`` its mean
    absolute value, ``mismatch_kl`` the k3 estimate (at least 0).
    """

    vllm_kl: float = 0.0
    vllm_gap: float = 0.0
    mismatch_kl: float = 0.0


def log_prob_difference(experiences: Sequence[Any]) -> LogProbDifference:
    """See ``LogProbDifference``."""
    difference = torch.cat(
        [(e.rollout_log_probs.float() - e.action_log_probs.float())[e.action_mask.bool()] for e in experiences]
    )
    k3 = algo.kl_penalty(difference, torch.zeros_like(difference), "k3")
    return LogProbDifference(float(difference.mean()), float(difference.abs().mean()), float(k3.mean()))


def narrow_to_returns(experience: Any) -> None:
    """Leaves in a critic's loss the tokens that have a return, as the local trainer does."""
    known = experience.returns != NO_RETURN
    experience.action_mask = experience.action_mask * known.to(experience.action_mask.dtype)
    experience.returns = experience.returns.masked_fill(~known, 0.0)


class StarPOExperience(RemoteExperienceMaker):  # type: ignore[misc]
    """Scores rows with the models, then gives every sampled token its advantage."""

    run: RunContext
    difference = LogProbDifference()
    average_entropy = 0.0  # of the rollouts so far, in nats a token
    task_scale = 1.0  # factor of a critic's advantages, see ``ragen_agent.update.advantages``
    sampled_advantages: Sequence[list[float]] = ()  # of the sampled tokens of each episode scored last
    reference_kl = 0.0  # of the policy that sampled from the start, in nats a token; 0 unless it is part of the reward

    def observe(self, iteration: Iteration) -> None:
        """Takes over what the loss of an iteration needs beside its episodes."""
        self.average_entropy, self.task_scale = iteration.average_entropy, iteration.task_scale

    def make_experience(self, samples_list: list[Any]) -> list[Any]:
        """As OpenRLHF; then checks that the weights of the last synchronisation arrived.

        Raises:
            WeightsLostError: the log-probs of vLLM and of the trainer differ by more than ``max_vllm_kl``.
        """
        settings, penalty = self.run.config.training, self.args.algo.kl
        in_loss, penalty.use_loss = penalty.use_loss, True  # or OpenRLHF would drop the reference's log-probs
        try:
            experiences: list[Any] = super().make_experience(samples_list)
        finally:
            penalty.use_loss = in_loss
        self.difference = log_prob_difference(experiences)
        kl, most = self.difference.vllm_kl, self.run.settings.max_vllm_kl
        if not (isfinite(kl) and abs(kl) <= most):
            raise WeightsLostError(
                f"vllm_kl is {kl:.4g} nats a token, more than openrlhf.max_vllm_kl={most:g} from 0",
                self.run.settings.staleness,
            )
        for e in experiences:
            e.action_log_probs = e.action_log_probs.float()
            if e.base_action_log_probs is not None and not in_loss:
                e.kl = algo.kl_penalty(e.action_log_probs, e.base_action_log_probs.float(), settings.kl_estimate)
                e.base_action_log_probs = None
        self.reference_kl = float(torch.cat([e.kl.float()[e.action_mask.bool()] for e in experiences]).mean())
        return experiences

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Fills in ``advantages`` and ``returns``, both (rows, T - 1), and narrows ``action_mask`` to M_loss."""
        settings = self.run.config.training
        notes = [_notes(e) for e in experiences]
        padding = [~e.action_mask.bool().any(dim=1) for e in experiences]
        sampled = [e.action_mask.bool() for e in experiences]
        costs = [self.kl_ctl.value * torch.where(e.action_mask.bool(), e.kl.float(), 0.0) for e in experiences]
        if settings.critic:
            _estimate(experiences, notes, costs, settings, self.task_scale)
        for experience, rows, cost in zip(experiences, notes, costs, strict=True):
            if not settings.critic:
                flat = torch.tensor([note.advantage for note in rows])
                turns, ends = [note.turn_advantages for note in rows], [note.turn_ends for note in rows]
                experience.advantages = token_advantages(flat, turns, ends, experience.action_mask.bool()) - cost
                experience.returns = experience.advantages.clone()
            experience.info["return"] = torch.tensor([float(sum(note.turn_rewards)) for note in rows])
            experience.kl = None
            experience.labels = [""] * len(rows)  # read; the models' processes need not have it
            _narrow(experience, rows, settings)
        self.sampled_advantages = [
            [a for batch, row in rows for a in experiences[batch].advantages[row][sampled[batch][row]].tolist()]
            for rows in _episodes(notes)
        ]
        _count(experiences, notes, padding, settings)
        if settings.entropy_smoothing:
            for experience in experiences:
                ones = torch.ones(len(experience.action_mask))
                experience.info[AVERAGE_ENTROPY] = self.average_entropy * ones
        return experiences


def _notes(experience: Any) -> list[AdvantageInputs]:
    return [AdvantageInputs(**json.loads(label)) for label in experience.labels]


def _episodes(notes: Sequence[Sequence[AdvantageInputs]]) -> list[list[tuple[int, int]]]:
    """The rows of each episode: their batches, and their places in them."""
    episodes: list[list[tuple[int, int]]] = []
    for batch, rows in enumerate(notes):
        for row, note in enumerate(rows):
            if note.continues:
                episodes[-1].append((batch, row))
            else:
                episodes.append([(batch, row)])
    return episodes


def _count(
    experiences: Sequence[Any],
    notes: Sequence[Sequence[AdvantageInputs]],
    padding: Sequence[Tensor],
    settings: Training,
) -> None:
    """Notes at each row what ``ragen_agent.openrlhf.loss`` reads: ``EPISODE_TOKENS`` and ``EPISODE_SHARE``.

    ``padding``: bool (rows,) of each batch, the rows of ``pad_rows``, which are of no episode.
    """
    for experience in experiences:
        ones = torch.ones(len(experience.action_mask))
        experience.info |= {EPISODE_TOKENS: ones, EPISODE_SHARE: torch.zeros_like(ones)}
    every_row = AGGREGATIONS[settings.aggregation].divisor == "rows"
    for rows in _episodes(notes):
        tokens = [float(experiences[batch].action_mask[row].sum()) for batch, row in rows]
        counted = [
            not bool(padding[batch][row]) if every_row else n > 0 for (batch, row), n in zip(rows, tokens, strict=True)
        ]
        for (batch, row), counts in zip(rows, counted, strict=True):
            experiences[batch].info[EPISODE_TOKENS][row] = max(1.0, sum(tokens))
            experiences[batch].info[EPISODE_SHARE][row] = counts / max(1, sum(counted))


def _estimate(
    experiences: Sequence[Any],
    notes: Sequence[Sequence[AdvantageInputs]],
    costs: Sequence[Tensor],
    settings: Training,
    scale: float = 1.0,
) -> None:
    """Advantages, whitened over the tokens of all rows and times ``scale``, and returns by the critic's values.

    The recursion runs over whole episodes: the rows of one follow each other, and are joined here.
    """
    episodes = _episodes(notes)

    def joined(tensors: Sequence[Tensor]) -> Tensor:
        parts = [torch.cat([tensors[batch][row] for batch, row in rows]) for rows in episodes]
        return pad_sequence(parts, batch_first=True)

    sampled = joined([e.action_mask.bool() for e in experiences])
    values = joined([e.values.float() for e in experiences])
    widths = [e.action_mask.shape[1] for e in experiences]
    whole = [_joined([(notes[batch][row], widths[batch]) for batch, row in rows]) for rows in episodes]
    ends, earned = [list(note.turn_ends) for note in whole], [list(note.turn_rewards) for note in whole]
    mask = sampled
    if settings.advantage_tokens != "all":
        mask = algo.part_mask([list(note.estimate or ()) for note in whole], sampled)
    found = critic_estimates(ends, earned, values, joined(costs), mask, settings)
    advantages = scale * algo.whiten(found.advantages, mask, over=found.compared)
    returns = found.returns.masked_fill(sampled & ~mask, NO_RETURN)
    for experience in experiences:
        experience.advantages = torch.zeros(experience.action_mask.shape)
        experience.returns = torch.zeros(experience.action_mask.shape)
    for number, rows in enumerate(episodes):
        first = 0
        for batch, row in rows:
            columns = slice(first, first + widths[batch])
            experiences[batch].advantages[row] = advantages[number, columns]
            experiences[batch].returns[row] = returns[number, columns]
            first += widths[batch]


def _joined(parts: Sequence[tuple[AdvantageInputs, int]]) -> AdvantageInputs:
    """The note of an episode, from those of its rows and their widths in columns."""
    ends: list[int] = []
    rewards: list[float] = []
    spans: list[tuple[int, int]] = []
    first = 0
    for note, width in parts:
        ends += [first + end for end in note.turn_ends]
        rewards += note.turn_rewards
        spans += [(first + start, first + end) for start, end in note.estimate or ()]
        first += width
    return AdvantageInputs(turn_ends=tuple(ends), turn_rewards=tuple(rewards), estimate=tuple(spans))


def _narrow(experience: Any, notes: Sequence[AdvantageInputs], settings: Training) -> None:
    if settings.loss_tokens != "all":
        spans = [list(note.loss or ()) for note in notes]
        experience.action_mask = algo.part_mask(spans, experience.action_mask.bool()).to(experience.action_mask.dtype)
