"""Estimate of a distributed run's hours on GPUs, from the data sheet of one and shares of it that runs reach.

An iteration plays, then trains. A decoding step reads the weights and the cache of its rows once (memory bound) and
computes 2 N operations a row; training computes 6 N a token, and 2 N more with gradient checkpointing; a pass that only
scores computes 2 N. Attention's own operations and padding are left out. Nothing of it was measured with this trainer,
so every figure is a range: ``FAST`` and ``SLOW``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ragen_agent.config import Config
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.preflight.memory import GIB, ModelShape, model_shape
from ragen_agent.preflight.plan import BatchPlan, devices_needed, gpus_of_models, rows_of_episode

__all__ = ["FAST", "SLOW", "Hours", "Pace", "estimate_hours", "hours_in_words"]

PEAK, BANDWIDTH = 989e12, 3.35e12
"""Operations a second in bfloat16 and bytes a second of an H100 (SXM) by its data sheet."""


@dataclass(frozen=True)
class Pace:
    """Shares of the hardware's peak that a run reaches, and the length of its replies."""

    compute: float  # share of PEAK in training
    memory: float  # share of BANDWIDTH in decoding
    step: float  # seconds that a decoding step takes at least
    between: float  # seconds of an iteration for the environment, the weights' way to vLLM and waking up
    length: float  # share of the token limits that replies use


FAST = Pace(compute=0.4, memory=0.6, step=0.003, between=5.0, length=0.25)
SLOW = Pace(compute=0.15, memory=0.2, step=0.015, between=40.0, length=1.0)


@dataclass(frozen=True)
class Hours:
    """A run's duration at one pace."""

    playing: float  # seconds of an iteration
    training: float  # the same
    run: float  # hours of the whole run, evaluations included


def estimate_hours(config: Config, settings: OpenRLHF, gpu_gib: float, pace: Pace) -> Hours | None:
    """The duration on GPUs of ``gpu_gib`` GiB as fast as an H100; None for a model of unknown sizes."""
    shape = model_shape(config)
    if shape is None:
        return None
    training, plan = config.training, BatchPlan.of(config, distributed=True)
    playing = _playing(config, settings, shape, gpu_gib, pace, plan.episodes)
    gpus, size = gpus_of_models(config, settings), shape.parameters
    tokens = plan.rows * config.turns.max_tokens_per_episode * pace.length
    learn = training.updates * (8 if settings.gradient_checkpointing else 6)
    work = {"actor": 2 + learn, "critic": 2 + learn, "reference": 2}
    seconds = [work[m] * size * tokens / (gpus[m] * PEAK * pace.compute) for m in work if gpus[m]]
    learning = sum(seconds) if settings.colocate else max(seconds)
    iteration = max(playing, learning) if settings.staleness else playing + learning
    often = 2 + (training.iterations - 1) // settings.evaluate_every if settings.evaluate_every else 2
    measuring = often * _playing(config, settings, shape, gpu_gib, pace, config.evaluation.levels)
    run = (training.iterations * (iteration + pace.between) + measuring) / 3600
    return Hours(playing, learning, run)


def _playing(config: Config, settings: OpenRLHF, shape: ModelShape, gpu_gib: float, pace: Pace, episodes: int) -> float:
    turns, gpus = config.turns, settings.vllm_tensor_parallel
    token = 4 * shape.layers * shape.key_value  # bytes of a key and a value in bfloat16, in all layers
    weights = 2 * shape.parameters
    context = turns.max_tokens_per_episode * pace.length
    room = max(gpus * settings.vllm_memory * gpu_gib * GIB - weights, token * context)
    each = math.ceil(episodes / settings.vllm_engines)
    rows = max(1, min(each, int(room / (token * context))))
    read = (weights + rows * token * context) / (gpus * BANDWIDTH * pace.memory)
    computed = weights * rows / (gpus * PEAK * pace.compute)
    prompts = turns.max_turns if rows_of_episode(config) > 1 else 1  # each may be as long as an episode's limit
    sampled = min(turns.max_turns * turns.max_tokens_per_turn, prompts * turns.max_tokens_per_episode) * pace.length
    return math.ceil(each / rows) * sampled * max(read, computed, pace.step)


def hours_in_words(config: Config, settings: OpenRLHF, gpu_gib: float) -> list[str]:
    """The estimate in sentences; empty for a model of unknown sizes."""
    found = [estimate_hours(config, settings, gpu_gib, pace) for pace in (FAST, SLOW)]
    fast, slow = found
    if fast is None or slow is None:
        return []
    count = devices_needed(config, settings)
    said = [
        f"Hours, estimated and not measured: {_range(fast.run, slow.run)} on {count} GPU{'s' * (count > 1)} as fast as "
        f"an H100, {_range(fast.run * count, slow.run * count)} GPU-hours. An iteration plays for "
        f"{_range(fast.playing, slow.playing)} s and trains for {_range(fast.training, slow.training)} s. "
        f"Assumed: replies of {FAST.length:.0%} to all of their limits, {SLOW.compute:.0%} to {FAST.compute:.0%} of "
        f"{PEAK / 1e12:.0f} TFLOP/s in training, {SLOW.memory:.0%} to {FAST.memory:.0%} of {BANDWIDTH / 1e12:g} TB/s "
        f"in decoding, {FAST.between:g} to {SLOW.between:g} s between."
    ]
    engines, episodes = settings.vllm_engines, BatchPlan.of(config, distributed=True).episodes
    if not settings.colocate:
        trains = count - gpus_of_models(config, settings)["vllm"]
        half = "the slower half" if settings.staleness else "the engines while these play"
        said.append(f"Idle: the GPUs that train ({trains}) wait for {half}; openrlhf.colocate=true shares them.")
    elif engines > 1:
        said.append(
            f"Idle: GPUs whose {math.ceil(episodes / engines)} episodes end first wait for the longest one of all "
            f"{episodes}; in training none."
        )
    return said


def _range(low: float, high: float) -> str:
    """Two numbers with as many digits as an estimate deserves."""
    return " to ".join(f"{x:.{0 if x >= 10 else 1 if x >= 1 else 2}f}" for x in (low, high))
