"""Models and tokenizers as folders in Hugging Face format."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from ragen_agent.config import Config
from ragen_agent.config.consent import check_no_kernels, load_problem
from ragen_agent.inference.vision import FAMILIES, Vision, attach, vision_of
from ragen_agent.inference.weights import move
from ragen_agent.tasks.tasks import all_settings
from ragen_gym.core.storage import atomic_folder


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of the words, their ids, and the tokens of a text of all words; it identifies a tokenizer."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    cut = tokenizer.encode("".join(word for word, _ in words), add_special_tokens=False)
    return hashlib.sha256(json.dumps([words, cut]).encode()).hexdigest()


def save_checkpoint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes model and tokenizer to one folder, with the image processor of a visual model.

    An existing folder is replaced only once the new one is complete.
    """
    logging.disable_progress_bar()
    with atomic_folder(folder) as new:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        if (vision := vision_of(model)) is not None:
            vision.save(new)


def load_shape(folder: Path) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Config and tokenizer of a Hugging Face folder; raises a ValueError like ``load_checkpoint``."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder; give a run's folder, or one of a Hugging Face causal LM.")
    if not (folder / "config.json").is_file():
        of_run = f" {folder / 'checkpoint'} is the run's." if (folder / "checkpoint").is_dir() else ""
        raise ValueError(
            f"model {folder}: it holds no config.json; give the folder of a Hugging Face causal LM.{of_run}"
        )
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise ValueError(
            f"model {folder}: it holds no tokenizer; save one there with tokenizer.save_pretrained(folder)."
        )
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        check_no_kernels(config)
        return config, AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged file can raise any error
        raise _cannot_load(folder, error) from error


def _cannot_load(folder: Path, error: Exception) -> ValueError:
    return ValueError(f"model {folder}: transformers cannot load it: {load_problem(error)}")


def load_checkpoint(
    folder: Path, device: str = "cpu", dtype: torch.dtype | None = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (of ``dtype``, None for the checkpoint's own, in evaluation mode) and tokenizer of a Hugging Face folder.

    A visual model's image processor is attached to it (``ragen_agent.inference.vision.vision_of``).

    Raises:
        ValueError: a missing folder, model, tokenizer, chat template, or image processor of a visual model; or a
            tokenizer that is not the model's.
    """
    config, tokenizer = load_shape(folder)
    logging.disable_progress_bar()
    try:
        auto = AutoModelForImageTextToText if config.model_type in FAMILIES else AutoModelForCausalLM
        model = auto.from_pretrained(folder, local_files_only=True, dtype=dtype or "auto", trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise _cannot_load(folder, error) from error
    if not tokenizer.chat_template:
        raise ValueError(
            f"model {folder}: its tokenizer has no chat template; use an instruction-tuned model's folder."
        )
    expected = getattr(model.config, "tokenizer_sha256", None)
    if expected is not None and expected != tokenizer_hash(tokenizer):
        raise ValueError(
            f"model {folder}: the tokenizer next to the model is not the one that it was trained with (its ids would "
            "mean other words); restore the folder's own tokenizer.json."
        )
    for name in ("is_local", "local_files_only", "trust_remote_code"):  # loading options are not saved with it
        tokenizer.init_kwargs.pop(name, None)
    if (vision := Vision.from_folder(model.config, folder)) is not None:
        attach(model, vision)
    model.eval()
    return move(model, device, dtype or model.dtype), tokenizer


def check_context(model: PreTrainedConfig, config: Config) -> None:
    """Raises a ValueError if a conversation may outgrow the model's context; with a ``history`` it is cut."""
    most = getattr(model.get_text_config(), "max_position_embeddings", None)
    for turns in (game.turns for game in all_settings(config)):
        if most is not None and turns.history < 0 and turns.max_tokens_per_episode > most:
            raise ValueError(
                f"turns.max_tokens_per_episode is {turns.max_tokens_per_episode}, but the model reads at most {most} "
                f"tokens; give --set turns.max_tokens_per_episode={most}, or --set turns.history=0 for prompts that "
                "hold the current turn alone."
            )
