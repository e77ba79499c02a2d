"""trl's SFTTrainer on rows of tokens: checkpoints, one line of figures a step, and a stop between two steps."""

from __future__ import annotations

import json
import math
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.utils import logging

from ragen_agent.training.console import Display
from ragen_gym.core.storage import read_json_lines, write_atomic

if TYPE_CHECKING:
    from peft import PeftModel

    from ragen_agent.sft.train import Settings

__all__ = ["last_checkpoint", "run_trainer"]

METRICS, CHECKPOINTS, STATE = "metrics.jsonl", "trainer", "trainer_state.json"
WARM_UP = 0.05  # share of the steps until the learning rate is full


def run_trainer(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Mapping[str, list[int]]],
    settings: Settings,
    out: Path,
    display: Display,
    seed: int,
) -> dict[str, Any]:
    """Trains `model` in place on rows of `input_ids` and `labels`; the last step's figures.

    Raises:
        ImportError: a library is not installed.
        KeyboardInterrupt: Ctrl-C was pressed; a checkpoint was written.
    """
    try:
        from datasets import Dataset
        from trl.trainer.sft_config import SFTConfig
        from trl.trainer.sft_trainer import SFTTrainer
    except ImportError as error:
        raise ImportError(
            "supervised fine-tuning needs trl, peft and datasets: pip install 'ragen-gym[sft]'"
        ) from error

    logging.disable_progress_bar()
    steps = settings.epochs * math.ceil(len(rows) / settings.batch)
    on_gpu = model.device.type == "cuda"
    arguments = SFTConfig(
        output_dir=str(out / CHECKPOINTS),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch // settings.accumulate,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.rate,
        warmup_steps=round(WARM_UP * steps),
        optim="adamw_torch",
        seed=seed,
        max_length=None,  # rows that are too long were left out: none is cut
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=on_gpu,
        dataloader_pin_memory=on_gpu,
        save_strategy="steps",
        save_steps=settings.save_every,
        save_total_limit=2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    found = last_checkpoint(out / CHECKPOINTS)
    watch = _Watch(out / METRICS, display, steps, 0 if found is None else _step_of(found))
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list([dict(row) for row in rows]),
        processing_class=tokenizer,
        callbacks=[watch],
    )
    trainer.remove_callback(_printer())
    with watch:
        trainer.train(resume_from_checkpoint=None if found is None else str(found))
    if watch.stopped and trainer.state.global_step < steps:
        raise KeyboardInterrupt
    model.eval()
    return {"steps": trainer.state.global_step, "loss": watch.last.get("loss")}


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint; those that were torn are removed, since the trainer writes its state last."""
    whole = []
    for path in folder.glob("checkpoint-*"):
        try:
            json.loads((path / STATE).read_text(encoding="utf-8"))
            whole.append(path)
        except (OSError, ValueError):
            shutil.rmtree(path, ignore_errors=True)
    return max(whole, key=_step_of, default=None)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rsplit("-", 1)[-1])


def _printer() -> type[TrainerCallback]:
    from transformers.trainer_callback import PrinterCallback

    return PrinterCallback


class _Watch(TrainerCallback):
    """Writes each step's figures down, shows progress, and at Ctrl-C has the trainer save and stop after its step."""

    def __init__(self, metrics: Path, display: Display, steps: int, done: int) -> None:
        self.metrics, self.display, self.steps, self.done = metrics, display, steps, done
        self.stopped = False
        self.last: dict[str, Any] = {}
        lines = [line for line in read_json_lines(metrics) if line["step"] <= done]
        if lines:
            self.last = lines[-1]
        write_atomic(metrics, "".join(json.dumps(line) + "\n" for line in lines))

    def __enter__(self) -> None:
        self.display.begin("fine-tuning", self.steps, self.done)
        self._old = None
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(signal.SIGINT, self._stop)

    def __exit__(self, *_: object) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)
        self.display.end()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:  # the second time at once
            raise KeyboardInterrupt
        self.stopped = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """After each step."""
        if self.stopped:
            control.should_save = control.should_training_stop = True
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """After each step; and once after the last, with figures of the whole run that are not written down."""
        if logs is None or "loss" not in logs:
            return
        self.last = {"step": state.global_step, **logs}
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.last) + "\n")
        self.display.advance({"loss": float(logs["loss"])})
