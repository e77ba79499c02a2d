"""Print of ``ragen-agent train --dry-run``: settings, command, batches, memory and one episode of a run.

It needs neither Ray nor vLLM nor the model: a configuration for a cluster can be read on a laptop.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tomli_w
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from ragen_agent.config import Config, to_toml
from ragen_agent.config.presets import Recipe
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.inference.vision import Vision
from ragen_agent.models.checkpoint import check_context, load_shape
from ragen_agent.models.named_models import cached_folder
from ragen_agent.models.small_vision_model import small_tokenizer, small_vision
from ragen_agent.preflight.estimates import estimate, hours_in_words, model_shape
from ragen_agent.preflight.plan import describe, is_visual
from ragen_agent.sft.demonstrations import demonstrate
from ragen_agent.tasks.tasks import check_demonstrations, games_at, make_env
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.rollout import Instance, group
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.envs.policies import random_reply
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.turn import TurnEnv

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GPU_GIB = 80.0  # of a GPU where no recipe says it
OPEN, CLOSE = "⟦", "⟧"
LEVELS = 8  # that random play is shown on
LISTED = 6  # returns at most, the commonest ones


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
    """Prints the configuration, the command, the arithmetic, the memory and an episode of a run that would be.

    ``settings``, ``command`` and ``on_cpu`` (without CUDA) are of the distributed trainer; ``recipe`` is the one that
    the settings extend.

    Raises:
        ValueError: settings that a run would refuse.
    """
    if _has_tokenizer(config):
        check_context(load_shape(Path(config.model))[0], config)
    tokenizer, note = tokenizer_of(config)
    chat = ChatFormat.from_settings(tokenizer, config.turns, _vision(config, tokenizer))
    first = games_at(config, 0)[0].config
    env = make_env(first, "train")
    check_demonstrations(config)

    def say(text: str, *, title: str = "", whole: bool = False) -> None:
        """Prints sentences, wrapped in a terminal; ``whole`` lines are to be copied."""
        if title:
            console.print(f"\n{title}", style="bold", markup=False, soft_wrap=not console.is_terminal)
        console.print(text, markup=False, soft_wrap=whole or not console.is_terminal)

    own = "\n" + tomli_w.dumps({"openrlhf": asdict(settings)}) if settings else ""
    say(to_toml(config) + own, title="Configuration", whole=True)
    plan, gpu_gib = describe(config, settings), (recipe.gpu_gib if recipe else 0.0) or GPU_GIB
    if settings is not None:
        say(_wrapped(command), title="Command", whole=True)
        stands = "There is no CUDA here: each of these GPUs stands for a share of the CPU."
        plan += [stands] if on_cpu else hours_in_words(config, settings, gpu_gib)
    say("\n".join(f"- {sentence}" for sentence in plan), title="Arithmetic")
    if settings and not on_cpu:
        say(_memory(config, settings, gpu_gib), title=f"Memory of a GPU of {gpu_gib:g} GiB, estimated")
    for doubt in _overlong(config, chat) if env.has_oracle else ():
        say(doubt, title="Warning")
    if recipe:
        named = recipe.settings.get("model", "")
        expected = f"Expect: {recipe.expect}" if config.model in (named, str(cached_folder(named))) else ""
        about = [recipe.title, expected, recipe.cluster]
        said = "\n".join(" ".join(text.split()) for text in about if text)
        say(said, title=f"Recipe {recipe.name}: {recipe.seen}")
    if env.has_oracle:
        played = scripted_episode(first, chat)
        say("", title="One scripted episode")
        console.print(marked(played, chat), soft_wrap=True)
        rewards = ", ".join(f"{reward:g}" for reward in played.turn_rewards)
        say(
            f"Sampled tokens are green and stand in {OPEN}{CLOSE}: the loss is on them alone. {len(played.ids)} "
            f"tokens, {int(played.sampled.sum())} of them sampled; reward of each turn: {rewards}.{note}"
        )
    if isinstance(env, TurnEnv):
        say(returns_in_words(random_returns(env, first.training.group_size)))
    say(f"Nothing was run. The run would be in {folder}.")


def _overlong(config: Config, chat: ChatFormat) -> list[str]:
    """Warnings of replies that may not fit into an episode, judged by a scripted one of each game."""
    found = []
    games = [game.config for game in games_at(config, 0)]
    for game in games:
        turns, shown = game.turns, game
        if len(games) > 1 and not config.warm_start.epochs:  # nothing imitates, so a thought need not fit them all
            shown = replace(shown, demonstrations=replace(shown.demonstrations, thought="none"))
        episode = scripted_episode(shown, chat)
        prompt, ends = int(episode.sampled.argmax()), episode.turn_ends
        glue = ends[-1] + 1 - prompt - int(episode.sampled.sum())
        between = glue // (len(ends) - 1) if len(ends) > 1 and not episode.contexts else 0
        replies = turns.max_turns if turns.history < 0 else min(turns.max_turns, turns.history + 1)
        if config.program.command or not turns.keep_thinking:  # what a prompt keeps of earlier replies is not known
            replies = 1
        others = prompt + (replies - 1) * between
        needed, most = others + replies * turns.max_tokens_per_turn, turns.max_tokens_per_episode
        if needed > most:
            found.append(
                f"Replies of {game.game} may not fit: {replies} of at most {turns.max_tokens_per_turn:,} tokens and "
                f"{others:,} of prompt and messages are {needed:,}, but turns.max_tokens_per_episode={most}, so an "
                f"episode of long replies is cut. Raise it to {needed}, or lower turns.max_tokens_per_turn."
            )
    return found


def _wrapped(command: Sequence[str]) -> str:
    text = "".join((" \\\n  " if word.startswith("--") else " ") + shlex.quote(word) for word in command).strip()
    return (
        f"{text}\n\nragen-agent starts it with its own trainer, executor and weight check in OpenRLHF's places "
        "(ragen_agent.openrlhf.driver); by itself this line would train without them."
    )


def _memory(config: Config, settings: OpenRLHF, gpu_gib: float) -> str:
    found = estimate(config, settings, gpu_gib)
    if found is None:
        local = f"models/{Path(config.model).name}"
        return (
            f"Unknown: {config.model} is neither a model of a recipe nor a folder with a config.json.\n"
            "Fetch its config.json and name the folder; the estimate needs no weights:\n"
            f"  hf download {config.model} config.json --local-dir {local}\n  --model {local}"
        )
    most, when = found.peak
    fits = "it fits" if most < gpu_gib else "it may not fit: lower openrlhf.micro_batch or openrlhf.vllm_memory"
    lines = [f"{part.gib:6.2f} GiB  {part.place:9}  {part.name}, {part.when}" for part in found.parts]
    return "\n".join([*lines, f"The fullest GPU needs about {most:.1f} of {gpu_gib:g} GiB, while {when}: {fits}."])


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
    """The model's reading of pictures, or the small model's in its place; None for a model that reads text only."""
    if _has_tokenizer(config):
        return Vision.from_folder(load_shape(Path(config.model))[0], Path(config.model))
    return small_vision(config.small_model, tokenizer) if is_visual(config) else None


def scripted_episode(config: Config, chat: ChatFormat) -> Trajectory:
    """An episode on a training level of a game, whose replies the demonstrator writes."""
    process = TokenMDP.from_settings(make_env(config, "train"), chat, config.turns)
    how = replace(config.demonstrations, mistakes=0.0)
    return demonstrate(process, [Instance(0, 0)], how, 0)[0]


def marked(t: Trajectory, chat: ChatFormat) -> Text:
    """The text of an episode; what was sampled is coloured, and bracketed for where there are no colours."""
    edges = {0, *(t.sampled[1:] != t.sampled[:-1]).nonzero()[0] + 1, len(t.ids)}
    images = {image.start: image for image in t.images}
    edges |= {edge for image in t.images for edge in (image.start, image.end)}
    text = Text()
    for a, b in pairwise(sorted(edges)):
        part = str(chat.tokenizer.decode(t.ids[a:b].tolist()))
        if a in images:
            height, width = images[a].pixels.shape[:2]
            part = f"[picture of {height}x{width} pixels: {b - a} times {part[: len(part) // (b - a)]}]"
        text.append(*((f"{OPEN}{part}{CLOSE}", "bold green") if t.sampled[a] else (part, "dim")))
    return text


def random_returns(env: ReplyEnv, group_size: int, levels: int = LEVELS) -> NDArray[np.float64]:
    """The returns of well-formed replies drawn at random: float64 (levels, group_size), a row for each seed from 0 on.

    Raises:
        ValueError: a text task that draws no replies.
    """
    returns = []
    for instance in group(range(levels), group_size):
        random = np.random.default_rng([instance.seed, instance.noise_seed])
        env.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        earned, done = 0.0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(random_reply(env, random))
            earned, done = earned + float(reward), terminated or truncated
        returns.append(round(earned, 6))  # rewards summed in another order
    return np.array(returns).reshape(levels, group_size)


def returns_in_words(returns: NDArray[np.float64]) -> str:
    """One sentence on the groups whose returns differ, and one on the returns."""
    differ = int((returns.max(axis=1) > returns.min(axis=1)).sum())
    values, counts = np.unique(returns, return_counts=True)
    commonest = sorted(zip(-counts, values, strict=True))[:LISTED]
    listed = ", ".join(f"{value:g} ({-count})" for count, value in sorted(commonest, key=lambda each: each[1]))
    levels, size = returns.shape
    return (
        f"Random play: the returns differ on {differ} of {levels} levels, with {size} episodes on each. A level whose "
        f"returns are equal teaches nothing. Returns and their episodes: {listed}"
        + (f", and {len(values) - LISTED} others." if len(values) > LISTED else ".")
    )
