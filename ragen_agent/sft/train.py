"""Supervised fine-tuning of a model on a file of conversations, by trl's SFTTrainer.

A folder of it holds:

sft.json        what it was told; `--resume` reads it
metrics.jsonl   one line a step
trainer/        the last two checkpoints, of trl's trainer
model/          the model in Hugging Face format, or, with LoRA, adapter/ in peft's: `ragen-agent sft merge` joins them
start/          the small model before LoRA, which nobody else has

trl gets rows of tokens with labels (`ragen_agent.sft.rows`) and re-encodes nothing. On a CUDA GPU it computes in
bfloat16 over weights in float32, or, with LoRA, over frozen weights in bfloat16 and an adapter in float32.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, PreTrainedModel

from ragen_agent.config import Config, Lora, with_settings
from ragen_agent.config.game_defaults import pretrained
from ragen_agent.sft.rows import read_conversations, rows_of
from ragen_agent.training.console import Display
from ragen_agent.training.lora import adapt, save_adapter
from ragen_agent.training.policy import Policy, device_and_dtype
from ragen_agent.training.small_model import move, save_checkpoint
from ragen_agent.training.tasks import derive_seed
from ragen_agent.training.tokenizer import check_known
from ragen_gym.core.storage import write_atomic

if TYPE_CHECKING:
    from peft import PeftModel

__all__ = ["ADAPTER", "MODEL", "Settings", "begin", "fine_tune", "reopen"]

MODEL, ADAPTER, START, TOLD = "model", "adapter", "start", "sft.json"
SEED, LORA_SEED = 30, 31  # the second number of `derive_seed`


@dataclass(frozen=True)
class Settings:
    """What a fine-tuning is told.

    `data`: file of conversations. `model`: Hugging Face folder, or empty for the small model, whose tokenizer is made
    of the texts of the data's games. `batch`: conversations a step, in `accumulate` parts. `learning_rate`: 0 for
    3e-3 (small model), 2e-4 (LoRA) or 1e-5. `save_every`: steps between checkpoints. `max_tokens`: longer
    conversations are left out. `data_sha256` is filled in by `begin`.
    """

    data: str
    model: str = ""
    epochs: int = 1
    batch: int = 32
    accumulate: int = 1
    learning_rate: float = 0.0
    save_every: int = 100
    max_tokens: int = 4096
    successes_only: bool = False
    seed: int = 0
    device: str = "auto"
    threads: int = 1
    lora: Lora = field(default_factory=Lora)
    data_sha256: str = ""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulate", "save_every", "max_tokens", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1.")
        if self.batch % self.accumulate:
            raise ValueError(f"--batch is {self.batch}; it must be a multiple of --accumulate, {self.accumulate}.")
        if not 0 <= self.learning_rate < 1e3:
            raise ValueError(f"--learning-rate is {self.learning_rate}; it must be above 0, such as 1e-5.")

    @property
    def rate(self) -> float:
        """The learning rate with its default resolved."""
        large = 2e-4 if self.lora.rank else 1e-5
        return self.learning_rate or (large if pretrained(self.model) else 3e-3)


def begin(settings: Settings, out: Path) -> Settings:
    """Makes the folder; returns the settings as written down. Raises a ValueError if it holds anything."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"--out {out} is not an empty folder; choose another, or go on with it: --resume {out}")
    settings = replace(settings, data_sha256=_hash(Path(settings.data)))
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / TOLD, json.dumps(asdict(settings), indent=2) + "\n")
    return settings


def reopen(out: Path) -> Settings:
    """The settings of a fine-tuning that was begun; raises a ValueError if there is none, or if its data changed."""
    if not (out / TOLD).is_file():
        raise ValueError(f"{out} holds no fine-tuning (no {TOLD}); give the folder that an earlier --out named.")
    told: dict[str, Any] = json.loads((out / TOLD).read_text(encoding="utf-8"))
    settings = Settings(**{**told, "lora": Lora(**told["lora"])})
    if _hash(Path(settings.data)) != settings.data_sha256:
        raise ValueError(f"{settings.data} is not the file that {out} was begun with; begin anew with another --out.")
    return settings


def fine_tune(settings: Settings, out: Path, display: Display) -> dict[str, Any]:
    """Trains from the last checkpoint in `out` on, or from the start.

    Returns:
        `model`, the folder of what came out; `steps`; `rows`, conversations that were learned from; what was left out;
        `loss` of the last step, nats a token.

    Raises:
        ValueError: data or a model that does not fit.
        ImportError: trl, peft or datasets is not installed.
        KeyboardInterrupt: Ctrl-C was pressed; a checkpoint was written.
    """
    from ragen_agent.sft.trainer import run_trainer

    lines = read_conversations(Path(settings.data))
    agent = Policy.build(_config(settings, lines))
    rows, left_out = rows_of(agent.chat, lines, settings.max_tokens, successes_only=settings.successes_only)
    for row in rows:
        check_known(agent.tokenizer, row["input_ids"])
    model, adapter = agent.model, None
    if settings.lora.rank:
        if not settings.model and not (out / START).is_dir():
            save_checkpoint(model, agent.tokenizer, out / START)
        adapter = adapt(model, settings.lora, derive_seed(settings.seed, LORA_SEED))
    policy = model if adapter is None else adapter
    seed = derive_seed(settings.seed, SEED) % 2**31  # as large as the libraries take
    last = run_trainer(policy, agent.tokenizer, rows, settings, out, display, seed)
    kept = _keep(agent, adapter, settings, out)
    return {"model": str(kept), "rows": len(rows), **left_out, **last}


def _keep(agent: Policy, adapter: PeftModel | None, settings: Settings, out: Path) -> Path:
    """Writes down what was trained."""
    if adapter is not None:
        base = Path(settings.model) if settings.model else out / START
        save_adapter(adapter, out / ADAPTER, base)
        return out / ADAPTER
    save_checkpoint(_as_it_was(agent.model, settings.model), agent.tokenizer, out / MODEL)
    return out / MODEL


def _as_it_was(model: PreTrainedModel, folder: str) -> PreTrainedModel:
    """The model in the dtype that its folder holds."""
    dtype = getattr(AutoConfig.from_pretrained(folder, local_files_only=True), "dtype", None) if folder else None
    return move(model, str(model.device), dtype or torch.float32)


def _config(settings: Settings, lines: list[dict[str, Any]]) -> Config:
    """The settings of an agent that plays what the data show."""
    lora = asdict(settings.lora)
    run = {"model": settings.model, "seed": settings.seed, "threads": settings.threads, "lora": lora}
    config = with_settings(Config(), {**run, "device": settings.device})
    device, _ = device_and_dtype(config)
    frozen_half = device.startswith("cuda") and settings.lora.rank > 0 and pretrained(settings.model)
    config = replace(config, device=device, dtype="bfloat16" if frozen_half else "float32")
    if settings.model:
        return config
    games: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        if not isinstance(line.get("env"), str) or not isinstance(line.get("turns"), Mapping):
            raise ValueError(
                f"{settings.data}, line {number}, does not say its env and turns, of whose texts the small model's "
                "tokenizer is made; give --model, or data that ragen-agent sft data wrote."
            )
        thought = line.get("demonstrator", {}).get("thought", "none")
        row = {"game": line["env"], "env_options": line.get("knobs", {}), "turns": line["turns"], "thought": thought}
        games.setdefault(json.dumps(row, sort_keys=True), row)
    first, *others = games.values()
    one = {"game": first["game"], "env_options": first["env_options"], "turns": first["turns"]}
    small = with_settings(config, {**one, "demonstrations": {"thought": first["thought"]}})
    return replace(small, games=[first, *others] if others else [])


def _hash(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"--data {path}: there is no such file; make one with ragen-agent sft data --out {path}.")
    return hashlib.sha256(path.read_bytes()).hexdigest()
