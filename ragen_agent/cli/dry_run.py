"""``ragen-agent train --dry-run``: the settings, the command, the batches, the memory and one episode of a run.

It needs neither Ray nor vLLM nor the model: a configuration for a cluster can be read on a laptop.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ragen_agent.config import Config, to_toml
from ragen_agent.config.presets import Recipe
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.inference import ImageSpan
from ragen_agent.models.checkpoint import check_context, load_shape
from ragen_agent.models.resources import cpu_threads
from ragen_agent.models.small_vision_model import small_tokenizer, small_vision
from ragen_agent.openrlhf import cpu_patches
from ragen_agent.openrlhf.cli_flags import MODULE, command_flags
from ragen_agent.openrlhf.launch import starting_model
from ragen_agent.preflight.machine_checks import available_memory
from ragen_agent.preflight.memory import check_cpu_model, cpu_memory_parts, memory_parts, model_shape, peak_memory
from ragen_agent.preflight.plan import (
    GamePlan,
    check_supported,
    describe,
    devices_needed,
    doubts,
    duration,
    gpus_of_models,
    is_visual,
)
from ragen_agent.run.policy import device_and_dtype
from ragen_agent.sft.demonstrations import demonstrate
from ragen_agent.tasks.tasks import games_at, make_env
from ragen_agent.tokens.board_tokens import board_tokens
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.storage import read_json_lines
from ragen_gym.envs.turn import TurnEnv

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ragen_agent.inference.vision import Vision

__all__ = ["LEGEND", "TokenView", "command_line", "dry_run", "scripted_episode", "tokenizer_of"]

BOARDS = 32  # that are cut into tokens, to say how a tokenizer reads them
GPU_GIB = 80.0  # of a GPU where no recipe says it
SAMPLED, GIVEN = "bold green", "dim"
OPEN, CLOSE = "⟦", "⟧"
LEGEND = f"Sampled tokens are green and stand in {OPEN}{CLOSE}: the loss is on them alone."


def dry_run(
    config: Config,
    settings: OpenRLHF | None,
    folder: Path,
    extra: Sequence[str],
    console: Console,
    recipe: Recipe | None = None,
) -> None:
    """Prints the configuration, the command, the arithmetic and an episode.

    ``settings`` are those of the distributed trainer, None for the local one; ``folder`` is that of the run that would
    be, ``extra`` are flags passed on to OpenRLHF, and ``recipe`` is what the settings were laid over.

    Raises:
        ValueError: settings or flags that a run would refuse.
    """
    command = command_line(config, settings, folder, extra) if settings else []
    if _has_tokenizer(config):
        check_context(load_shape(Path(config.model))[0], config)
    tokenizer, note = tokenizer_of(config)
    chat = ChatFormat.from_settings(tokenizer, config.turns, _vision(config, tokenizer))
    view = scripted_episode(games_at(config, 0)[0].config, chat)
    games = game_plans(config, chat)
    _title(console, "Configuration")
    _say(
        console,
        to_toml(config) + ("\n" + tomli_w.dumps({"openrlhf": asdict(settings)}) if settings else ""),
        whole=True,
    )
    if settings:
        _title(console, "Command")
        _say(console, _wrapped(command, extra), whole=True)
    _title(console, "Arithmetic")
    for sentence in describe(config, settings):
        _say(console, f"- {sentence}")
    _say(console, f"- {_duration(config, settings, folder, games)}")
    if settings is None:
        _say(console, f"- {_place(config)}")
    else:
        on_cpu = _on_cpu(settings)
        if on_cpu:
            _say(console, "- There is no CUDA here: each of these GPUs stands for a share of the CPU.")
        _memory(console, config, settings, recipe, on_cpu=on_cpu)
    gpus = None if settings and _on_cpu(settings) else settings
    for doubt in doubts(config, gpus, games):
        console.print(Text.assemble("\n", ("Warning", "bold yellow"), f" {doubt}"), soft_wrap=not console.is_terminal)
    if recipe:
        _title(console, f"Recipe {recipe.name}: {recipe.seen}")
        title, source, expect = (" ".join(text.split()) for text in (recipe.title, recipe.source, recipe.expect))
        _say(console, f"{title}.\nSource: {source}\nExpect: {expect}")
        if recipe.cluster:
            _say(console, f"Cluster: {recipe.cluster}")
    _title(console, "One scripted episode")
    console.print(view.text, soft_wrap=True)
    _say(console, f"{LEGEND} {view.counts}{note}")
    env = make_env(games_at(config, 0)[0].config, "train")
    if tokenizer.is_fast and config.turns.observation != "image" and isinstance(env, TurnEnv):
        found = board_tokens(tokenizer, env, range(BOARDS))
        _say(console, f"Its boards: {found}. ragen-agent tokens compares the text formats.")
    _say(console, f"Nothing was run. The run would be in {folder}.")


def command_line(config: Config, settings: OpenRLHF, folder: Path, extra: Sequence[str]) -> list[str]:
    """The flags of OpenRLHF's command for a run in ``folder``.

    Raises:
        ValueError: settings or flags that a run would refuse, but for what only the model's folder tells.
    """
    on_cpu = _on_cpu(settings)
    if on_cpu:
        cpu_patches.check_flags(extra)
        check_cpu_model(config)
    check_supported(config, settings)
    model = starting_model(config, folder)
    return command_flags(config, settings, folder.resolve(), model, cpu=on_cpu, extra=extra)


def _place(config: Config) -> str:
    """Where the local trainer would run, in which dtype it would play, and with how many threads."""
    try:
        device, dtype = device_and_dtype(config)
    except ValueError as error:  # the run may be meant for another machine
        return f"On this machine it would not start: {error}"
    threads = "" if device.startswith("cuda") else f"; threads: {cpu_threads(config)}"
    return f"On this machine it would run on {device} and play in {str(dtype).removeprefix('torch.')}{threads}."


def game_plans(config: Config, chat: ChatFormat) -> list[GamePlan]:
    """Every game of the run, by an episode of each that the demonstrator plays."""
    found, iterations = [], config.training.iterations
    starts = [0, *(step["iteration"] for step in config.curriculum)]
    for start, end in pairwise([*starts, max(iterations, starts[-1])]):
        games = games_at(config, start)
        every = sum(game.weight for game in games)
        for game in games:
            shown = game.config
            if len(games) > 1 and not config.warm_start.epochs:  # nothing imitates, so a thought need not fit them all
                shown = replace(shown, demonstrations=replace(shown.demonstrations, thought="none"))
            episode = scripted_episode(shown, chat).trajectory
            share = max(0, min(end, iterations) - start) * game.weight / every
            found.append(GamePlan(game.config, share, *_unsampled(episode), len(episode.ids)))
    return found


def _duration(config: Config, settings: OpenRLHF | None, folder: Path, games: Sequence[GamePlan]) -> str:
    metrics = folder / "metrics.jsonl"
    seconds = [line["seconds"] for line in read_json_lines(metrics) if "seconds" in line] if metrics.is_file() else []
    shape = model_shape(config) if config.model else None
    if settings:
        device, devices = "cpu" if _on_cpu(settings) else _gpu(), devices_needed(config, settings)
        devices = 1 if device == "cpu" else gpus_of_models(config, settings)["actor"] if settings.colocate else devices
    else:
        device, devices = "a GPU with the local trainer", 1
        with suppress(ValueError):
            device = "cpu" if device_and_dtype(config)[0] == "cpu" else device
    return duration(config, device, devices, shape.parameters if shape else None, games, seconds)


def _gpu() -> str:
    """The first GPU's name; H100, which the estimate then names, where the run is read on a machine without one."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "H100"


def _unsampled(episode: Trajectory) -> tuple[int, int]:
    """Tokens before an episode's first reply, and between two of them, 0 where it has one."""
    first, turns = int(episode.sampled.argmax()), len(episode.turn_ends)
    others = episode.turn_ends[-1] + 1 - first - int(episode.sampled.sum())
    return first, others // (turns - 1) if turns > 1 and not episode.contexts else 0


def _on_cpu(settings: OpenRLHF) -> bool:
    """As the run would decide, but CUDA that is asked for need not be here."""
    return settings.accelerator != "cuda" and cpu_patches.needed(settings.accelerator)


def _wrapped(command: Sequence[str], extra: Sequence[str]) -> str:
    """The command line, a flag a line."""
    lines: list[str] = []
    for word in command:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    text = " \\\n  ".join([f"python -m {MODULE}", *lines])
    passed = f"Passed on as given: {shlex.join(extra)}\n" if extra else ""
    return (
        f"{text}\n\n{passed}ragen-agent starts it with its own trainer, executor and weight check in OpenRLHF's places "
        "(ragen_agent.openrlhf.driver); by itself this line would train without them."
    )


def _memory(console: Console, config: Config, settings: OpenRLHF, recipe: Recipe | None, *, on_cpu: bool) -> None:
    shape = model_shape(config)
    gib = available_memory() if on_cpu else (recipe.gpu_gib if recipe else 0.0) or GPU_GIB
    _title(console, "Memory of this machine, estimated" if on_cpu else f"Memory of a GPU of {gib:g} GiB, estimated")
    if shape is None:
        _say(
            console,
            f"Unknown: {config.model} is neither a folder with a config.json nor a known name, such as "
            "Qwen2.5-7B-Instruct, Qwen3-8B or Llama-3.2-3B.",
        )
        return
    found = cpu_memory_parts(config, settings, shape) if on_cpu else memory_parts(config, settings, shape, gib)
    table = Table(show_edge=False)
    for column in ("memory" if on_cpu else "GPU", "what", "when", "GiB", "arithmetic"):
        table.add_column(column, justify="right" if column == "GiB" else "left", overflow="fold")
    for part in found:
        table.add_row(part.place, part.name, part.when, f"{part.gib:.2f}", part.arithmetic)
    console.print(table)
    most, when = peak_memory(found)
    if on_cpu:
        verdict = "it fits" if most < gib else "it may not fit: end other programs, or lower openrlhf.micro_batch"
        _say(console, f"The run needs at most about {most:.1f} of the {gib:.1f} GiB that are free, {when}: {verdict}.")
        return
    verdict = "it fits" if most < gib else "it does not fit: lower openrlhf.micro_batch or openrlhf.vllm_memory"
    _say(console, f"The fullest GPU needs about {most:.1f} of {gib:g} GiB, while {when}: {verdict}.")


def tokenizer_of(config: Config) -> tuple[PreTrainedTokenizerBase, str]:
    """The model's, or the small one that is made of the games' texts, and a sentence where it stands in."""
    if _has_tokenizer(config):
        return load_shape(Path(config.model))[1], ""
    note = f" The tokenizer of {config.model} is not here: the tokens are the small model's." if config.model else ""
    kind = "vision" if is_visual(config) else config.small_model.kind
    return small_tokenizer(replace(config, small_model=replace(config.small_model, kind=kind))), note


def _has_tokenizer(config: Config) -> bool:
    """Whether the model's folder is to be read, and not its ``config.json`` alone."""
    folder = Path(config.model)
    alone = not any(folder.glob("tokenizer*.json")) and model_shape(config) is not None
    return bool(config.model) and folder.is_dir() and not alone


def _vision(config: Config, tokenizer: PreTrainedTokenizerBase) -> Vision | None:
    """How the model reads pictures; None for one that reads text only."""
    if _has_tokenizer(config):
        from ragen_agent.inference.vision import Vision

        return Vision.from_folder(load_shape(Path(config.model))[0], Path(config.model))
    if not is_visual(config):
        return None
    vision, shape = small_vision(config.small_model, tokenizer), model_shape(config)
    return replace(vision, processor=shape.vision.processor) if shape and shape.vision else vision


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
