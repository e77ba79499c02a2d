"""The small model: a Qwen2 of a few hundred thousand parameters from scratch, in Hugging Face format.

Its head size is 32, which inference servers' attention kernels support, so the checkpoint loads wherever a Qwen2
loads.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils import logging

from ragen_agent.config import SmallModel
from ragen_agent.training.tokenizer import reading_only

__all__ = ["build_model", "load_checkpoint", "move", "save_checkpoint", "tokenizer_hash"]

HEAD_SIZE = 32
CONTEXT = 4096
INITIAL_SCALE = 0.1  # about 1 / sqrt(hidden); the usual 0.02, meant for wide models, learns several times slower here


def build_model(shape: SmallModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> Qwen2ForCausalLM:
    """A model with weights drawn from `seed`, which may not write the tokenizer's ids for reading only.

    Raises:
        ValueError: a model without layers or without units in them.
    """
    for name, number in (("layers", shape.layers), ("feed_forward", shape.feed_forward)):
        if number < 1:
            raise ValueError(f"small_model.{name} is {number}; it must be at least 1.")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // HEAD_SIZE,
        num_key_value_heads=shape.hidden // HEAD_SIZE,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=INITIAL_SCALE,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config.tokenizer_sha256 = tokenizer_hash(tokenizer)
    with torch.random.fork_rng():  # weights are drawn from torch's global state: seed it, then put it back as it was
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        suppress_tokens=reading_only(tokenizer),
        do_sample=True,
    )
    model.eval()
    return model


def move(model: PreTrainedModel, device: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The same model, on `device` and of `dtype`."""
    torch.nn.Module.to(model, torch.device(device), dtype)
    return model


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of the words, their ids, and how a text that holds them all is cut; it differs where tokenizers do."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    cut = tokenizer.encode("".join(word for word, _ in words), add_special_tokens=False)
    return hashlib.sha256(json.dumps([words, cut]).encode()).hexdigest()


def save_checkpoint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes model and tokenizer side by side; a folder that exists is replaced only once the new one is complete."""
    logging.disable_progress_bar()
    new, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    for leftover in (new, old):  # of a save that was cut short
        shutil.rmtree(leftover, ignore_errors=True)
    model.save_pretrained(new)
    tokenizer.save_pretrained(new)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (of `dtype`, in evaluation mode) and tokenizer of a Hugging Face folder.

    Raises:
        ValueError: no such folder, no model, tokenizer or chat template in it, or a tokenizer that is not the
            model's.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder; give that of a run, or of a Hugging Face causal LM.")
    if not (folder / "config.json").is_file():
        raise ValueError(f"--model {folder}: it holds no config.json; give the folder of a Hugging Face causal LM.")
    if not (folder / "tokenizer.json").is_file() and not (folder / "tokenizer_config.json").is_file():
        raise ValueError(
            f"--model {folder}: it holds no tokenizer; save one there with tokenizer.save_pretrained(folder)."
        )
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"--model {folder}: transformers cannot load it: {error}") from error
    if not tokenizer.chat_template:
        raise ValueError(
            f"--model {folder}: its tokenizer has no chat template; use an instruction-tuned model's folder."
        )
    expected = getattr(model.config, "tokenizer_sha256", None)
    if expected is not None and expected != tokenizer_hash(tokenizer):
        raise ValueError(
            f"--model {folder}: the tokenizer beside the model is not the one that the model was trained with (its ids "
            "would mean other words); restore the folder's own tokenizer.json."
        )
    model.eval()
    return move(model, device, dtype), tokenizer
