"""Checks of a model's folder: its tokenizer, its chat template, its sizes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["CPU_HEADS", "Check", "fail", "model_checks", "ok", "warn"]

CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's attention has on a CPU."""

GAMES = ("FrozenLake", "Sokoban", "NewVocab", "Bandit")
REPLY = "<think>The goal is up.</think><answer>Up || Left</answer>"


@dataclass(frozen=True)
class Check:
    """`state`: ok, warn (a run may still work) or fail (it will not). `advice`: what to do; empty for ok."""

    name: str
    state: str
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Check:
    """Nothing to do."""
    return Check(name, "ok", found)


def warn(name: str, found: str, advice: str) -> Check:
    """A run may work all the same."""
    return Check(name, "warn", found, advice)


def fail(name: str, found: str, advice: str) -> Check:
    """A run would break."""
    return Check(name, "fail", found, advice)


def model_checks(folder: Path | None, *, cpu: bool) -> list[Check]:
    """All checks of a folder; those of the small model's tokenizer where there is none."""
    from ragen_agent.training.tokenizer import build_tokenizer, game_texts
    from ragen_gym.envs.turn import make_turn

    if folder is None:
        tokenizer = build_tokenizer([game_texts(make_turn("FrozenLake"), "direction")])
        return [_round_trip(tokenizer, ("FrozenLake",), "the small model's"), *_template(tokenizer)]
    if not (folder / "config.json").is_file():
        return [fail("model", f"{folder} holds no config.json", "give the folder of a Hugging Face causal LM")]
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever a damaged file leads to
        advice = "save one there: tokenizer.save_pretrained(folder)"
        return [fail("tokenizer", f"{folder}: {type(error).__name__}: {error}", advice)]
    games = GAMES if "tokenizer_sha256" not in (folder / "config.json").read_text(encoding="utf-8") else ()
    trips = [_round_trip(loaded, games, str(folder))] if games else []
    return [*_sizes(folder, loaded, cpu), *trips, *_template(loaded)]


def _sizes(folder: Path, tokenizer: PreTrainedTokenizerBase, cpu: bool) -> list[Check]:
    """The output layer against the tokenizer, and the heads against vLLM's."""
    try:
        told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        width = int(told["vocab_size"])
        head = int(told.get("head_dim") or told["hidden_size"] // told["num_attention_heads"])
    except (ValueError, KeyError) as error:
        return [fail("model", f"{folder}/config.json does not say its sizes: {error!r}", "use a causal LM's folder")]
    known = len(tokenizer)
    if width < known:
        advice = "model.resize_token_embeddings(len(tokenizer)), or take the tokenizer that belongs to the model"
        return [fail("model", f"{known} token ids, but an output layer of {width}", advice)]
    padding = f"; the {width - known} beyond them are never sampled" if width > known else ""
    checks = [ok("model", f"{known} token ids{padding}")]
    if cpu and head not in CPU_HEADS:
        advice = f"vLLM on a CPU has {', '.join(map(str, CPU_HEADS))}: use another model here, or a GPU"
        checks.append(fail("attention heads", f"their size is {head}", advice))
    return checks


def _round_trip(tokenizer: PreTrainedTokenizerBase, games: tuple[str, ...], whose: str) -> Check:
    """Texts of the games, and a reply, encoded and decoded."""
    from ragen_gym.envs.turn import make_turn

    texts = [REPLY]
    for game in games:
        env = make_turn(game)
        message, _ = env.reset(seed=0)
        texts += [env.instructions, message]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        back = str(tokenizer.decode(ids))
        if back != text:
            place = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), len(back))
            found = f"{text[max(0, place - 10) : place + 10]!r} comes back as {back[max(0, place - 10) : place + 10]!r}"
            advice = "the model would read other boards than are played; use a byte-level tokenizer (Qwen, Llama 3)"
            return fail("tokenizer round trip", found, advice)
    return ok("tokenizer round trip", f"{len(texts)} texts come back as they were ({whose} tokenizer)")


def _template(tokenizer: PreTrainedTokenizerBase) -> list[Check]:
    """Whether a conversation's ids are a prefix of the longer conversation's."""
    from ragen_agent.chat import ChatFormat

    try:
        chat = ChatFormat.from_tokenizer(tokenizer)
    except ValueError as error:
        return [fail("chat template", str(error), "use another template; a run with this one would refuse to begin")]
    if chat.deviations:
        found = "; ".join(chat.deviations)
        advice = "nothing, if that is meant: training and sampling read the same row, which differs from the template"
        return [warn("chat template", found, advice)]
    return [ok("chat template", "keeps every prefix: a conversation's ids begin the longer conversation's")]
