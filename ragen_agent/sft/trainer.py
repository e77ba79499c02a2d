"""The loop of supervised fine-tuning: maximum likelihood of a player's tokens.

``fit`` is the loop, and ``imitate`` a supervised phase of ``ragen-agent train``: its warm start, and the baselines of
further imitation and of a faultless demonstrator. ``ragen-agent sft train`` is in ``fine_tune``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_agent.algo import masked_mean
from ragen_agent.config import Config
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.models.parameters import adamw, load_trained, restore_optimiser, trained
from ragen_agent.models.resources import release_freed_memory
from ragen_agent.run.console import Display
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import IMITATION, RunFolder
from ragen_agent.sft.demonstrations import generate_demonstrations
from ragen_agent.tasks.tasks import SeedStream, derive_seed
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.batches import Batch, by_length, distinct_prefixes, readings_of
from ragen_agent.update.scoring import sampled_scores
from ragen_gym.core.command_line import DeferredInterrupt

MAX_GRAD_NORM = 1.0  # gradients are scaled down to this norm
WARM_UP = 20  # steps of a phase until the learning rate is full
SAVE_SECONDS = 300.0  # between two saves of a phase; writing a large model takes seconds
RELEASE_SECONDS = 2.0  # between releases of freed memory, which take as long as half a small step

Figures = dict[str, float]


def fit(
    model: PreTrainedModel,
    optimiser: torch.optim.Optimizer,
    batches: Iterable[Sequence[Trajectory]],
    bias: Tensor,
    *,
    first: int = 0,
    micro_batch: int | None = None,
    rate: Callable[[int], float] = lambda step: 1.0,
    dropout_seed: int | None = None,
    details: bool = False,
    after_step: Callable[[int, Figures], None] = lambda step, figures: None,
) -> None:
    """One step of maximum likelihood for each batch.

    Args:
        model: trained in place.
        optimiser: the optimiser of the model's parameters.
        batches: trajectories to imitate.
        bias: float32 (vocabulary,), added to the logits; see ``sampled_scores``.
        first: the number of the first step, above 0 on resume.
        micro_batch: rows per forward and backward pass, to save memory; None for the whole batch.
        rate: factor on the learning rate at each step, counted from 0.
        dropout_seed: seed, with the step's number, of the model's dropout, if any; None for the model's current mode.
        details: True to measure ``entropy`` and ``accuracy`` too.
        after_step: called with the number of steps taken and the last one's figures: ``loss`` (nats a token),
            ``grad_norm`` (before it is scaled down to ``MAX_GRAD_NORM``), ``learning_rate`` and ``tokens`` (see
            ``Batch.tokens``).

    Raises:
        ValueError: a gradient is not finite; the weights of the previous step are kept.
    """
    base = [group["lr"] for group in optimiser.param_groups]
    released = time.monotonic()
    for step, rows in enumerate(batches, first):
        for group, lr in zip(optimiser.param_groups, base, strict=True):
            group["lr"] = lr * rate(step)
        if dropout_seed is not None:
            torch.manual_seed(derive_seed(dropout_seed, step))
        optimiser.zero_grad(set_to_none=True)
        count = sum(int(row.sampled.sum()) for row in rows)
        figures: Figures = {}
        size = micro_batch or len(rows)
        for start in range(0, len(rows), size):
            batch = Batch.of(rows[start : start + size], bias.device)
            scores = sampled_scores(model, batch, bias)
            loss = -masked_mean(scores.log_probs, batch.sampled, count)
            loss.backward()
            measured = {"loss": float(loss.detach()), "tokens": float(batch.tokens)}
            if details:
                measured["entropy"] = float(scores.entropy.detach().sum()) / count
                measured["accuracy"] = int(scores.likeliest.sum()) / count
            figures = {name: figures.get(name, 0.0) + value for name, value in measured.items()}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        if not norm.isfinite():  # a step would turn every weight into NaN
            raise ValueError(
                f"step {step + 1}: the gradient is not finite, at a loss of {figures['loss']:.3g}. If the loss rose "
                "before, lower learning_rate; if this is the first step, the model's weights are not finite."
            )
        optimiser.step()
        figures |= {"grad_norm": float(norm), "learning_rate": optimiser.param_groups[0]["lr"]}
        if time.monotonic() - released > RELEASE_SECONDS:
            release_freed_memory()
            released = time.monotonic()
        after_step(step + 1, figures)
    optimiser.zero_grad(set_to_none=True)  # as large as the weights, and copied with them
    for group, lr in zip(optimiser.param_groups, base, strict=True):
        group["lr"] = lr


def imitate(
    config: Config,
    policy: Policy,
    rows: list[Trajectory],
    phase: str,
    display: Display,
    *,
    epochs: int = 0,
    tokens: int = 0,
    stream: int = 0,
    run: RunFolder | None = None,
) -> None:
    """A supervised phase of a run: ``epochs`` epochs, or, if 0, steps until ``tokens`` are spent.

    With a ``run`` the phase resumes where it stopped, bit for bit on a CPU. Drop its saved state once the result is
    kept.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the step was finished, and saved if there is a ``run``.
    """
    warm = config.warm_start
    generator = torch.Generator().manual_seed(derive_seed(config.seed, SeedStream.SUPERVISED_BATCHES, stream))
    plan = list(_batches(readings_of(rows), warm.batch, generator, epochs, tokens))
    optimiser = adamw(policy.model, warm.learning_rate, betas=(0.9, 0.99))
    done, saved = 0, time.monotonic()
    state = run.load_state(IMITATION) if run else None
    if state is not None and state["phase"] == phase:
        done = restore(state, policy.model, optimiser, warm.learning_rate)
    del state  # as large as the model and its moments

    def after_step(step: int, figures: Figures) -> None:
        nonlocal saved
        display.advance({"loss": figures["loss"]})
        if run and (ctrl_c.pressed or time.monotonic() - saved > SAVE_SECONDS):
            run.save_state({"phase": phase, **snapshot(step, policy.model, optimiser)}, IMITATION)
            saved = time.monotonic()
        if ctrl_c.pressed:
            raise KeyboardInterrupt

    with display.progress(phase, len(plan), done), DeferredInterrupt("step", display.say) as ctrl_c:
        fit(
            policy.model,
            optimiser,
            ([rows[index] for index in batch] for batch in plan[done:]),
            policy.engine.bias,
            first=done,
            rate=lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - 0.9 * step / len(plan)),
            after_step=after_step,
        )


def warm_start(
    config: Config, policy: Policy, folder: Path, display: Display, run: RunFolder | None = None
) -> list[Trajectory]:
    """Imitates demonstrations for ``warm_start.epochs``, saves the model in ``folder``, and returns the demonstrations.

    With a ``run`` it resumes where it stopped.
    """
    rows: list[Trajectory] = []
    if epochs := config.warm_start.epochs:
        rows = generate_demonstrations(config, policy, config.demonstrations, display)
        imitate(config, policy, rows, "warm start", display, epochs=epochs, run=run)
    save_checkpoint(policy.model, policy.tokenizer, folder)
    if run:
        run.drop_state(IMITATION)
    return rows


def snapshot(step: int, model: PreTrainedModel, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """The state that ``restore`` needs to continue after ``step`` steps."""
    return {"step": step, "model": dict(trained(model)), "optimiser": optimiser.state_dict()}


def restore(
    state: Mapping[str, Any], model: PreTrainedModel, optimiser: torch.optim.Optimizer, learning_rate: float
) -> int:
    """Restores a ``snapshot``, with the full learning rate; returns its number of steps."""
    load_trained(model, state["model"])
    restore_optimiser(optimiser, state["optimiser"])
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
    return int(state["step"])


def _batches(
    readings: list[list[list[int]]], size: int, generator: torch.Generator, epochs: int, tokens: int
) -> Iterator[list[int]]:
    """Batches of ``epochs`` epochs, or as many as ``tokens`` allow; ``readings`` come from ``readings_of``."""
    lengths = [sum(map(len, contexts)) for contexts in readings]
    for _ in range(epochs):
        yield from by_length(lengths, size, generator)
    while not epochs:
        for batch in by_length(lengths, size, generator):
            tokens -= distinct_prefixes([row for index in batch for row in readings[index]])
            if tokens < 0:
                return
            yield batch
