"""An adapter made part of its model, in float32, and written in the model's own dtype."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoConfig

from ragen_agent.training.lora import merge, peft_library
from ragen_agent.training.small_model import load_checkpoint, move, save_checkpoint

__all__ = ["merge_adapter"]

ADAPTER_CONFIG = "adapter_config.json"


def merge_adapter(adapter: Path, out: Path, base: Path | None = None) -> Path:
    """Writes the model with the adapter in it to `out`, tokenizer beside it; returns the folder of the base.

    Args:
        adapter: folder in peft's format, or a folder that holds such an `adapter/`.
        out: a folder that does not exist.
        base: folder of the model that it was made for; None for the one that the adapter names.

    Raises:
        ValueError: a folder that does not fit.
        ImportError: peft is not installed.
    """
    peft = peft_library()
    folder = adapter if (adapter / ADAPTER_CONFIG).is_file() else adapter / "adapter"
    if not (folder / ADAPTER_CONFIG).is_file():
        raise ValueError(f"{adapter} holds no adapter (no {ADAPTER_CONFIG}); give the adapter/ of a run with LoRA.")
    if out.exists():
        raise ValueError(f"--out {out} exists already; choose another folder.")
    named = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    if base is None and not (named and Path(named).is_dir()):
        raise ValueError(f"the adapter was made for {named}, which is not here; give --base the model's folder.")
    base = base or Path(named)
    model, tokenizer = load_checkpoint(base)
    try:
        merged = merge(peft.PeftModel.from_pretrained(model, str(folder)))
    except (RuntimeError, KeyError, OSError) as error:
        raise ValueError(f"{folder} does not fit the model in {base}: {error}") from error
    dtype = getattr(AutoConfig.from_pretrained(base, local_files_only=True), "dtype", None) or torch.float32
    out.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(move(merged, "cpu", dtype), tokenizer, out)
    return base
