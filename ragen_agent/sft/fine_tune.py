"""``ragen-agent sft train``: fine-tuning of a model on a file of conversations.

Its folder holds:

sft.json        the settings; ``--resume`` reads them
versions.json   the versions of Python, packages and code, as in a run of ``ragen-agent train``
metrics.jsonl   one line a step
state.pt        the last checkpoint: trained weights and optimiser
model/          the trained model in Hugging Face format; with LoRA, instead:
adapter/        the trained adapter in peft's format, for ``ragen-agent sft merge``
seen.npy        the families of the levels of the conversations and of the starting model's training, if every
                conversation names its level; see ``ragen_gym.core.seen``

On a CUDA GPU a pretrained model computes in bfloat16, with float32 copies of its weights (``Float32AdamW``) or, with
LoRA, frozen beside a float32 adapter. On a CPU a resumed fine-tuning equals an uninterrupted one bit for bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig

from ragen_agent.config import Config, Turns, with_settings
from ragen_agent.config.trainers import FineTuning
from ragen_agent.inference.weights import move
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.models.parameters import Float32AdamW, adamw, adapt, save_adapter
from ragen_agent.models.small_model import check_known
from ragen_agent.run.console import Display
from ragen_agent.run.policy import Policy, device_and_dtype
from ragen_agent.run.run_folder import RunFolder, resumable
from ragen_agent.sft.demonstrations import check_data, families_of, read_conversations, trajectories_of
from ragen_agent.sft.trainer import fit, restore, snapshot
from ragen_agent.tasks.tasks import SeedStream, derive_seed
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.command_line import DeferredInterrupt, shell_word
from ragen_gym.core.storage import append_json_lines, read_json_lines, write_atomic

if TYPE_CHECKING:
    from peft import PeftModel

MODEL, ADAPTER, SETTINGS = "model", "adapter", "sft.json"
WARM_UP = 0.05  # share of the steps until the learning rate is full


def begin(settings: FineTuning, out: Path) -> FineTuning:
    """The settings with the hash of their data; writes nothing.

    Raises:
        ValueError: no model is given, or ``out`` holds anything.
    """
    if not settings.model:
        raise ValueError("sft train needs --model: a folder, a name, or the checkpoint/ of a run of ragen-agent train.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"--out {out} is not an empty folder; choose another, or go on with it: --resume {shell_word(out)}"
        )
    return replace(settings, data_sha256=_hash(Path(settings.data)))


def is_begun(out: Path) -> bool:
    """True if a folder holds a fine-tuning that can be resumed."""
    return (out / SETTINGS).is_file()


def reopen(out: Path) -> FineTuning:
    """The settings of an existing fine-tuning.

    Raises:
        ValueError: there is none, or its data have changed.
    """
    if not is_begun(out):
        raise ValueError(f"{out} holds no fine-tuning (no {SETTINGS}); give the folder that an earlier --out named.")
    saved: dict[str, Any] = json.loads((out / SETTINGS).read_text(encoding="utf-8"))
    settings = with_settings(FineTuning(), saved)
    if _hash(Path(settings.data)) != settings.data_sha256:
        raise ValueError(f"{settings.data} is not the file that {out} was begun with; begin anew with another --out.")
    return settings


def fine_tune(settings: FineTuning, out: Path, display: Display) -> dict[str, Any]:
    """Train from the last checkpoint in ``out``, or from the start.

    The folder is created after the data, the model and the adapter's layers are checked.

    Returns:
        ``model``, the folder of the result; ``steps``; ``rows``, the number of conversations trained on; the numbers
        left out; ``loss`` of the last step, nats a token.

    Raises:
        ValueError: data or a model that does not fit.
        ImportError: LoRA without peft.
        KeyboardInterrupt: Ctrl-C was pressed; a checkpoint was written.
    """
    lines = read_conversations(Path(settings.data))
    families = families_of(lines)
    policy = Policy.build(agent_config(settings, lines))
    rows, left_out = trajectories_of(policy.chat, lines, settings.max_tokens, successes_only=settings.successes_only)
    for row in rows:
        check_known(policy.tokenizer, row.ids.tolist())
    adapter = None
    if settings.lora.rank:
        adapter = adapt(policy.model, settings.lora, derive_seed(settings.seed, SeedStream.FINE_TUNING_ADAPTER))
    optimiser = adamw(policy.model, settings.peak_learning_rate, weight_decay=0.0)
    with resumable(out, "ragen-agent sft train --resume", f"raise accumulate in its {SETTINGS}"):
        if not is_begun(out):
            write_atomic(out / SETTINGS, json.dumps(asdict(settings), indent=2) + "\n")
        _note_seen(lines, families, settings, RunFolder(out), display)
        RunFolder(out).note_versions()
        last = _train(policy, optimiser, rows, settings, RunFolder(out), display)
        kept = _save(policy, optimiser, adapter, settings, out)
    return {"model": str(kept), "rows": len(rows), **left_out, **last}


def _note_seen(
    lines: list[dict[str, Any]],
    families: frozenset[int] | None,
    settings: FineTuning,
    folder: RunFolder,
    display: Display,
) -> None:
    """Writes the record of the data's levels; warns if some are not of the training split."""
    if families is not None:
        folder.begin_seen(settings.model)
        folder.add_seen(families)
    others = sum(line["split"] != "train" for line in lines if "split" in line)
    if others:
        display.say(
            f"{others} of {len(lines)} conversations show levels outside the training split; the model may have "
            "seen test levels, so its test rate is less reliable. (split=None draws from all splits.)"
        )


def _train(
    policy: Policy,
    optimiser: torch.optim.Optimizer,
    rows: list[Trajectory],
    settings: FineTuning,
    folder: RunFolder,
    display: Display,
) -> dict[str, Any]:
    model, plan = policy.model, _batches(len(rows), settings)
    steps, warm_up = len(plan), round(WARM_UP * len(plan))
    done, tokens = 0, 0
    if state := folder.load_state():
        done, tokens = restore(state, model, optimiser, settings.peak_learning_rate), state["tokens"]
    del state  # as large as the model and its moments
    folder.keep(folder.metrics, lambda line: line["step"] <= done)

    def rate(step: int) -> float:
        return step / warm_up if step < warm_up else (steps - step) / (steps - warm_up)

    def after_step(step: int, figures: dict[str, float]) -> None:
        nonlocal tokens
        tokens += int(figures["tokens"])
        record = {
            "step": step,
            "loss": figures["loss"],
            "grad_norm": figures["grad_norm"],
            "learning_rate": figures["learning_rate"],
            "entropy": figures["entropy"],
            "mean_token_accuracy": figures["accuracy"],
            "num_tokens": tokens,
            "epoch": step * settings.epochs / steps,
        }
        append_json_lines(folder.metrics, [record])
        display.advance({"loss": record["loss"]})
        if step % settings.save_every == 0 or step == steps or ctrl_c.pressed:
            folder.save_state({"tokens": tokens, **snapshot(step, model, optimiser)})
        if ctrl_c.pressed and step < steps:
            raise KeyboardInterrupt

    if model.device.type == "cuda":
        # ``transformers`` renamed the method.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    model.train()
    with (
        display.progress("fine-tuning", steps, done),
        DeferredInterrupt("step", display.say) as ctrl_c,
        torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []),
    ):
        fit(
            model,
            optimiser,
            ([rows[index] for index in batch] for batch in plan[done:]),
            torch.zeros_like(policy.engine.bias),
            first=done,
            micro_batch=settings.batch // settings.accumulate,
            rate=rate,
            dropout_seed=derive_seed(settings.seed, SeedStream.FINE_TUNING_DROPOUT),
            details=True,
            after_step=after_step,
        )
    model.eval()
    return {"steps": steps, "loss": read_json_lines(folder.metrics)[-1]["loss"]}


def _batches(count: int, settings: FineTuning) -> list[list[int]]:
    """The indices of each step's rows; every epoch has its own random order."""
    seed, batches = derive_seed(settings.seed, SeedStream.FINE_TUNING_ORDER) % 2**31, []
    for epoch in range(settings.epochs):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
        batches += [batch.tolist() for batch in order.split(settings.batch)]
    return batches


def _save(
    policy: Policy, optimiser: torch.optim.Optimizer, adapter: PeftModel | None, settings: FineTuning, out: Path
) -> Path:
    if adapter is not None:
        save_adapter(adapter, out / ADAPTER, Path(settings.model))
        RunFolder(out).copy_seen(out / ADAPTER)
        return out / ADAPTER
    shape = AutoConfig.from_pretrained(settings.model, local_files_only=True, trust_remote_code=False)
    dtype = getattr(shape, "dtype", None)
    move(policy.model, str(policy.model.device), dtype or torch.float32)
    if isinstance(optimiser, Float32AdamW):
        with torch.no_grad():
            for weight, copy in zip(optimiser.weights, optimiser.copies, strict=True):
                weight.copy_(copy)
    save_checkpoint(policy.model, policy.tokenizer, out / MODEL)
    RunFolder(out).copy_seen(out / MODEL)
    return out / MODEL


def _turns(settings: FineTuning, lines: list[dict[str, Any]]) -> Turns:
    """Settings for encoding the conversations: recorded by ``ragen-agent sft data``, else the defaults."""
    names = ("keep_thinking", "template_options", "prompt", "think")
    said = [line["turns"] if isinstance(line.get("turns"), Mapping) else {} for line in lines]
    first, *others = [{name: turns[name] for name in names if name in turns} for turns in said]
    for number, other in enumerate(others, start=2):
        if other != first:
            raise ValueError(
                f"{settings.data}, line {number}, has the turns {other}, line 1 {first}: conversations that become "
                "tokens in different ways cannot be learned together; make a file of each, and fine-tune twice."
            )
    return with_settings(Turns(), first)


def agent_config(settings: FineTuning, lines: list[dict[str, Any]]) -> Config:
    """The settings of an agent that plays these conversations.

    Raises:
        ValueError: turns that do not fit, or that differ.
    """
    run = {"model": settings.model, "seed": settings.seed, "threads": settings.threads, "lora": asdict(settings.lora)}
    config = with_settings(Config(), {**run, "device": settings.device})
    config = replace(config, device=device_and_dtype(config)[0])
    return replace(config, turns=_turns(settings, lines))


def _hash(path: Path) -> str:
    check_data(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()
