"""Print of ``ragen-agent train --dry-run``: settings, command, batches, memory and one episode of a run.

It needs neither Ray nor vLLM nor the model: a configuration for a cluster can be read on a laptop.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ragen_agent.config import Config, to_toml
from ragen_agent.config.presets import Recipe
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.inference import ImageSpan
from ragen_agent.inference.vision import Vision
from ragen_agent.models.checkpoint import check_context, load_shape
from ragen_agent.models.named_models import cached_folder
from ragen_agent.models.resources import cpu_threads
from ragen_agent.models.small_vision_model import small_tokenizer, small_vision
from ragen_agent.preflight.hours import hours_in_words
from ragen_agent.preflight.memory import available_memory, estimate, model_shape
from ragen_agent.preflight.plan import describe, is_visual
from ragen_agent.preflight.returns import random_returns, returns_in_words
from ragen_agent.run.policy import device_and_dtype
from ragen_agent.sft.demonstrations import demonstrate
from ragen_agent.tasks.tasks import games_at, make_env
from ragen_agent.tokens.board_tokens import board_tokens
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.envs.turn import TurnEnv

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["LEGEND", "TokenView", "dry_run", "scripted_episode", "tokenizer_of"]

BOARDS = 32  # that are cut into tokens, to say how a tokenizer reads them
GPU_GIB = 80.0  # of a GPU where no recipe says it
SAMPLED, GIVEN = "bold green", "dim"
OPEN, CLOSE = "⟦", "⟧"
LEGEND = f"Sampled tokens are green and stand in {OPEN}{CLOSE}: the loss is on them alone."


def dry_run(
    config: Config,
    settings: OpenRLHF | None,
    folder: Path,
    console: Console,
    recipe: Recipe | None = None,
    *,
    command: Sequence[str] = (),
    on_cpu: bool = False,
) -> None:
    """Prints the configuration, the command, the arithmetic, the memory and an episode.

    Args:
        config: of the run.
        settings: those of the distributed trainer, None for the local one.
        folder: of the run that would be.
        console: where to print.
        recipe: what the settings were laid over.
        command: that starts the distributed trainer.
        on_cpu: the distributed trainer would do without CUDA.

    Raises:
        ValueError: settings that a run would refuse.
    """
    if _has_tokenizer(config):
        check_context(load_shape(Path(config.model))[0], config)
    tokenizer, note = tokenizer_of(config)
    chat = ChatFormat.from_settings(tokenizer, config.turns, _vision(config, tokenizer))
    first = games_at(config, 0)[0].config
    view = scripted_episode(first, chat)
    _title(console, "Configuration")
    own = "\n" + tomli_w.dumps({"openrlhf": asdict(settings)}) if settings else ""
    _say(console, to_toml(config) + own, whole=True)
    if settings:
        _title(console, "Command")
        _say(console, _wrapped(command), whole=True)
    _title(console, "Arithmetic")
    for sentence in describe(config, settings):
        _say(console, f"- {sentence}")
    if settings is None:
        _say(console, f"- {_place(config)}")
    else:
        if on_cpu:
            _say(console, "- There is no CUDA here: each of these GPUs stands for a share of the CPU.")
        gpu_gib = 0.0 if on_cpu else (recipe.gpu_gib if recipe else 0.0) or GPU_GIB
        for sentence in hours_in_words(config, settings, gpu_gib) if gpu_gib else ():
            _say(console, f"- {sentence}")
        _memory(console, config, settings, gpu_gib)
    for doubt in _overlong(config, chat):
        console.print(Text.assemble("\n", ("Warning", "bold yellow"), f" {doubt}"), soft_wrap=not console.is_terminal)
    if recipe:
        _title(console, f"Recipe {recipe.name}: {recipe.seen}")
        title, source, expect = (" ".join(text.split()) for text in (recipe.title, recipe.source, recipe.expect))
        named = recipe.settings.get("model", "")
        expected = f"\nExpect: {expect}" * (config.model in (named, str(cached_folder(named))))
        _say(console, f"{title}.\nSource: {source}{expected}")
        if recipe.cluster:
            _say(console, f"Cluster: {recipe.cluster}")
    _title(console, "One scripted episode")
    console.print(view.text, soft_wrap=True)
    _say(console, f"{LEGEND} {view.counts}{note}")
    env = make_env(first, "train")
    if isinstance(env, TurnEnv):
        _say(console, returns_in_words(random_returns(env, first.training.group_size)))
    if tokenizer.is_fast and config.turns.observation != "image" and isinstance(env, TurnEnv):
        found = board_tokens(tokenizer, env, range(BOARDS))
        _say(console, f"Its boards: {found}. ragen-agent tokens compares the text formats.")
    _say(console, f"Nothing was run. The run would be in {folder}.")


def _place(config: Config) -> str:
    """Where the local trainer would run, in which dtype it would play, and with how many threads."""
    try:
        device, dtype = device_and_dtype(config)
    except ValueError as error:  # the run may be meant for another machine
        return f"On this machine it would not start: {error}"
    threads = "" if device.startswith("cuda") else f"; threads: {cpu_threads(config)}"
    return f"On this machine it would run on {device} and play in {str(dtype).removeprefix('torch.')}{threads}."


def _overlong(config: Config, chat: ChatFormat) -> list[str]:
    """Warnings of replies that may not fit into an episode, judged by a scripted one of each game."""
    found: list[str] = []
    starts = [0, *(step["iteration"] for step in config.curriculum)]
    games = [game.config for start in starts for game in games_at(config, start)]
    for game in games:
        shown, turns = game, game.turns
        if len(games) > 1 and not config.warm_start.epochs:  # nothing imitates, so a thought need not fit them all
            shown = replace(shown, demonstrations=replace(shown.demonstrations, thought="none"))
        prompt, between = _unsampled(scripted_episode(shown, chat).trajectory)
        replies = turns.max_turns if turns.history < 0 else min(turns.max_turns, turns.history + 1)
        if config.program.command or not turns.keep_thinking:  # what a prompt keeps of earlier replies is not known
            replies = 1
        most, limit = turns.max_tokens_per_episode, turns.max_tokens_per_turn
        others = prompt + (replies - 1) * between
        needed, fits = others + replies * limit, max(0, most - others) // replies
        if needed > most:
            lower = f", or lower turns.max_tokens_per_turn to {fits}" if fits else ""
            of = f" of {game.game}" if len(games) > 1 else ""
            found.append(
                f"Replies{of} may not fit: {replies} of at most {limit:,} tokens and {others:,} of prompt and messages "
                f"are {needed:,}, but turns.max_tokens_per_episode={most}, so an episode of long replies is cut. Raise "
                f"it to {needed}{lower}."
            )
    return [*dict.fromkeys(found)]


def _unsampled(episode: Trajectory) -> tuple[int, int]:
    """Tokens before an episode's first reply, and between two of them, 0 where it has one."""
    first, turns = int(episode.sampled.argmax()), len(episode.turn_ends)
    others = episode.turn_ends[-1] + 1 - first - int(episode.sampled.sum())
    return first, others // (turns - 1) if turns > 1 and not episode.contexts else 0


def _wrapped(command: Sequence[str]) -> str:
    """The command line, a flag a line."""
    text = "".join((" \\\n  " if word.startswith("--") else " ") + shlex.quote(word) for word in command).strip()
    return (
        f"{text}\n\nragen-agent starts it with its own trainer, executor and weight check in OpenRLHF's places "
        "(ragen_agent.openrlhf.driver); by itself this line would train without them."
    )


def _memory(console: Console, config: Config, settings: OpenRLHF, gpu_gib: float) -> None:
    """Table of the estimate, for GPUs of this size; for 0, for this machine."""
    gib = gpu_gib or available_memory()
    _title(console, f"Memory of a GPU of {gib:g} GiB, estimated" if gpu_gib else "Memory of this machine, estimated")
    found = estimate(config, settings, gpu_gib)
    if found is None:
        local = f"models/{Path(config.model).name}"
        _say(console, f"Unknown: {config.model} is neither a model of a recipe nor a folder with a config.json.")
        _say(console, "Fetch its config.json and name the folder; the estimate needs no weights:")
        fetch = f"hf download {config.model} config.json --local-dir {local}"
        _say(console, f"  {fetch}\n  --model {local}", whole=True)
        return
    table = Table(show_edge=False)
    for column in ("GPU" if gpu_gib else "memory", "what", "when", "GiB"):
        table.add_column(column, justify="right" if column == "GiB" else "left", overflow="fold")
    for part in found.parts:
        table.add_row(part.place, part.name, part.when, f"{part.gib:.2f}")
    console.print(table)
    most, when = found.peak
    verdict = "it fits" if most < gib else "it may not fit: lower openrlhf.micro_batch or openrlhf.vllm_memory"
    what, of = ("The fullest GPU", f"{gib:g} GiB") if gpu_gib else ("The run", f"the {gib:.1f} GiB that are free")
    _say(console, f"{what} needs about {most:.1f} of {of}, while {when}: {verdict}.")


def tokenizer_of(config: Config) -> tuple[PreTrainedTokenizerBase, str]:
    """The model's, or the small one that is made of the games' texts, and a sentence where it stands in."""
    if _has_tokenizer(config):
        return load_shape(Path(config.model))[1], ""
    note = f" The tokenizer of {config.model} is not here: the tokens are the small model's." if config.model else ""
    kind = "vision" if is_visual(config) else config.small_model.kind
    return small_tokenizer(replace(config, small_model=replace(config.small_model, kind=kind))), note


def _has_tokenizer(config: Config) -> bool:
    """True if the model's folder is to be read, and not its ``config.json`` alone."""
    folder = Path(config.model)
    alone = not any(folder.glob("tokenizer*.json")) and model_shape(config) is not None
    return bool(config.model) and folder.is_dir() and not alone


def _vision(config: Config, tokenizer: PreTrainedTokenizerBase) -> Vision | None:
    """How the model reads pictures; None for one that reads text only."""
    if _has_tokenizer(config):
        return Vision.from_folder(load_shape(Path(config.model))[0], Path(config.model))
    if not is_visual(config):
        return None
    vision, shape = small_vision(config.small_model, tokenizer), model_shape(config)
    return replace(vision, processor=shape.processor) if shape and shape.processor else vision


def _title(console: Console, text: str) -> None:
    console.print(f"\n{text}", style="bold", markup=False, soft_wrap=not console.is_terminal)


def _say(console: Console, text: str, *, whole: bool = False) -> None:
    """Prints sentences, wrapped in a terminal; ``whole`` lines are to be copied."""
    console.print(text, markup=False, soft_wrap=whole or not console.is_terminal)


@dataclass(frozen=True)
class TokenView:
    """One episode, and its text in alternating spans (whether sampled, text), special tokens written out."""

    trajectory: Trajectory
    spans: tuple[tuple[bool, str], ...]

    @property
    def text(self) -> Text:
        """Coloured, and bracketed for where there are no colours."""
        return Text.assemble(
            *((f"{OPEN}{part}{CLOSE}", SAMPLED) if sampled else (part, GIVEN) for sampled, part in self.spans)
        )

    @property
    def counts(self) -> str:
        """One sentence."""
        t = self.trajectory
        rewards, turns = ", ".join(f"{reward:g}" for reward in t.turn_rewards), len(t.turn_rewards)
        return (
            f"{len(t.ids)} tokens, {int(t.sampled.sum())} of them sampled, in {turns} turn{'s' * (turns > 1)} "
            f"(reward {rewards}); {'solved' if t.success else 'not solved'}."
        )


def scripted_episode(config: Config, chat: ChatFormat) -> TokenView:
    """An episode on a training level of a game, whose replies the demonstrator writes."""
    process = TokenMDP.from_settings(make_env(config, "train"), chat, config.turns)
    how = replace(config.demonstrations, mistakes=0.0)
    (t,) = demonstrate(process, [Instance(0, 0)], how, 0)
    edges = {0, *(t.sampled[1:] != t.sampled[:-1]).nonzero()[0] + 1, len(t.ids)}
    images = {image.start: image for image in t.images}
    edges |= {edge for image in t.images for edge in (image.start, image.end)}
    spans = []
    for a, b in pairwise(sorted(edges)):
        text = str(chat.tokenizer.decode(t.ids[a:b].tolist()))
        spans.append((bool(t.sampled[a]), _shown(images[a], text) if a in images else text))
    return TokenView(t, tuple(spans))


def _shown(image: ImageSpan, text: str) -> str:
    """A picture, and what its placeholders are written as."""
    height, width = image.pixels.shape[:2]
    return f"[picture of {height}x{width} pixels: {image.tokens} times {text[: len(text) // image.tokens]}]"
