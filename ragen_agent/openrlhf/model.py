"""The model that reinforcement starts from: its folder, and what OpenRLHF and vLLM cannot run of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ragen_agent.config import Config
from ragen_agent.config.settings import pretrained
from ragen_agent.openrlhf.processes import RunContext
from ragen_agent.tasks.tasks import all_settings
from ragen_agent.tokens.chat import ChatFormat

__all__ = ["check_no_code", "check_sees", "starting_model", "suppressed_ids"]


def starting_model(config: Config, folder: Path) -> Path:
    """The folder of the model that reinforcement starts from: the one given, or what its warm start leaves."""
    if pretrained(config.model) and not config.warm_start.epochs:
        return Path(config.model).resolve()
    return folder.resolve() / "warm"


def check_no_code(model: Path) -> None:
    """Raises a ValueError if a model's folder names code of its own: OpenRLHF and vLLM would run it."""
    for path in model.glob("*config.json"):
        keys: set[str] = set()
        with suppress(ValueError):  # damaged: the loader says so
            json.loads(path.read_text(encoding="utf-8"), object_hook=keys.update)
        if "auto_map" in keys:
            raise ValueError(
                f"{path} names code of the model's own (auto_map), which OpenRLHF would run: use a model that "
                "transformers knows, and remove auto_map from its files."
            )


def check_sees(config: Config, model: Path, context: RunContext) -> None:
    """Raises a ValueError if there are pictures, and the model or its chat template takes none."""
    if not any(each.turns.sees for each in all_settings(config)):
        return
    from transformers import AutoTokenizer

    chat = ChatFormat.from_settings(
        AutoTokenizer.from_pretrained(model, trust_remote_code=False), config.turns, context.vision
    )
    if chat.image_refusal:
        raise ValueError(chat.image_refusal)


def suppressed_ids(model: Path) -> tuple[tuple[int, ...], int]:
    """Ids that must not be sampled, and the output layer's width.

    They are those that the model suppresses, those that mean pictures, and padding.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    from ragen_agent.inference.vision import reserved_ids

    config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    width = int(config.get_text_config().vocab_size)
    known = len(AutoTokenizer.from_pretrained(model, trust_remote_code=False))
    suppressed: Sequence[int] = ()
    if (model / "generation_config.json").is_file():
        suppressed = GenerationConfig.from_pretrained(model).suppress_tokens or ()
    return tuple(sorted({*suppressed, *reserved_ids(config), *range(known, width)})), width
