"""``ragen-agent train``: train an agent on a game, in this process or on OpenRLHF."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_agent.cli.settings import (
    add_settings,
    check_consent,
    check_not_distributed,
    configure,
    distributed,
    free_folder,
    given,
    settings_of,
)
from ragen_agent.config import Config, Settings, to_toml, with_settings
from ragen_gym.core.command_line import add_command, shell_word, stops_at_sigterm
from ragen_gym.core.storage import write_atomic

if TYPE_CHECKING:
    from ragen_agent.config.trainers import OpenRLHF
    from ragen_agent.run.policy import Policy
    from ragen_agent.run.run_folder import RunFolder

#: Flags that the distributed trainer does not read, and what to do instead.
UNREAD = {"device": "use openrlhf.accelerator", "compare": "train with --backend local"}

TRAIN = """\
Warm-starts a small language model on demonstrations, trains it further by reinforcement learning (StarPO-S, arXiv
2504.20073), and compares it, on fixed levels of one split, with its start, random play, a blind script, optimal play
and the demonstrator; with --compare also with more imitation of the same demonstrations at the same cost. Training
draws from the split train alone; the default run is evaluated on test, levels that it never saw. The bandits are
evaluated on train, whose names the small model has read.

The demonstrations are imperfect on purpose. In the default run, FrozenLake without slipping and with two turns an
episode, the demonstrator knows the way but mostly plays one move a turn and so runs out of turns: that several moves
fit into one reply, and which, is left to reinforcement learning. It needs one CPU core, no GPU and no network: on an
Intel Xeon 2.5 minutes of computing to the result, and 5.4 with --compare.

Ctrl-C finishes the step or iteration and saves it; --resume goes on from there. Pressed again, it stops at once, as
it always does with --backend openrlhf, where --resume goes on from the last iteration that was saved."""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    train = add_command(commands, "train", "train an agent and show what it gained", _train, description=TRAIN)
    train.add_argument(
        "--model",
        metavar="MODEL",
        help="start from this Hugging Face causal LM instead of the small model, without a warm start: a folder, "
        "owner/name or owner/name@revision on the Hub, or a name of ragen-agent model --list",
    )
    train.add_argument(
        "--iterations", type=int, metavar="N", help="iterations of reinforcement (default: the game's or the recipe's)"
    )
    train.add_argument(
        "--backend",
        choices=("local", "openrlhf"),
        help="the trainer: this process (local, default), or OpenRLHF on Ray, vLLM and DeepSpeed",
    )
    train.add_argument("--recipe", metavar="NAME", help="a whole run by name, such as smollm2-135m-bandit")
    train.add_argument("--list-recipes", action="store_true", help="say which recipes there are, and stop")
    train.add_argument(
        "--dry-run",
        action="store_true",
        help="print the settings, the command of OpenRLHF, the arithmetic and a scripted episode, and stop",
    )
    train.add_argument(
        "--compare",
        action="store_true",
        help="after the result, also train what it is worth comparing with: further imitation at the cost of the "
        "reinforcement, and imitation of an optimal demonstrator (evaluation.imitation); with --resume, of that run",
    )
    train.add_argument("--seed", type=int, metavar="N", help="seed of everything random (default 0)")
    train.add_argument("--out", type=Path, metavar="DIR", help="new folder for the run (default runs/GAME-ALGO-seedN)")
    train.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on with the run in this folder; takes no other setting"
    )
    add_settings(train)


def _train(options: argparse.Namespace) -> int:
    if options.list_recipes:
        return _list_recipes()
    from ragen_agent.run.console import Display, run_code_flag
    from ragen_agent.run.run_folder import RunFolder
    from ragen_agent.tasks.tasks import risk_notice

    display = Display()
    if options.resume is not None:
        folder, config = _reopened(options)
        _check_compared(options, config)
        if options.dry_run:
            return _dry_run(options, config, folder)
        settings = _distributed(options, folder)
        if options.compare:
            write_atomic(folder.path / "config.toml", to_toml(config))
    else:
        without: Settings = {} if options.model is None else {"warm_start": {"epochs": 0}}
        config = configure(options, _flags(options), assumed=without, fetch=not options.dry_run)
        _check_compared(options, config)
        if options.dry_run:
            return _dry_run(options, config, RunFolder(options.out or fresh_folder(config)))
        folder = RunFolder(options.out or fresh_folder(config))
        folder.check_new()
        settings = _distributed(options, folder)
    doing = "training on" if options.resume is None else "going on with"
    display.say(f"{doing} {config.game} by {config.training.algo}, seed {config.seed}, in {folder.path}")
    if notice := risk_notice(config):
        display.say(notice)
    with display.waiting("loading torch, transformers and the model"):  # imported only now, for it takes seconds
        from ragen_agent.local.run import train
        from ragen_agent.openrlhf.launch import check_run, train_distributed

        if settings is not None:
            check_run(config, settings)
        policy = _usable(config) if options.resume is None else None
    if options.resume is None:
        folder = RunFolder.create(folder.path, config)
    try:
        with stops_at_sigterm():
            if settings is None:
                train(config, folder, display, policy)
            else:
                policy = None  # its processes load their own
                train_distributed(config, settings, folder, display)
    except KeyboardInterrupt:
        again = f"ragen-agent train --resume {shell_word(folder.path)}{run_code_flag(config, settings)}"
        print(f"\nragen-agent: stopped; {_kept(folder, settings)}. Go on with: {again}", file=sys.stderr)
        return 130
    return 0


def _kept(folder: RunFolder, settings: OpenRLHF | None) -> str:
    """Clause on what is kept: the local trainer saves when it is stopped, the distributed one now and then."""
    if settings is not None:
        from ragen_agent.openrlhf.processes import read_state
        from ragen_gym.core.storage import read_json_lines

        saved, done = read_state(folder.path).iteration, len(read_json_lines(folder.metrics))
        if saved < done:
            return f"{saved} of {done} iterations were saved and are kept (training.save_every)"
    return "everything so far is kept"


def _reopened(options: argparse.Namespace) -> tuple[RunFolder, Config]:
    from ragen_agent.run.run_folder import RunFolder

    own = ("run", "run_code", "resume", "backend", "compare", "dry_run", "list_recipes")
    others = {k: v for k, v in vars(options).items() if k not in own and v not in (None, [])}
    if others:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise ValueError(
            f"--resume goes on with the run's own settings: leave out {flags}. To train its model further, begin a "
            f"new run: ragen-agent train --config {shell_word(options.resume / 'config.toml')} --model "
            f"{shell_word(options.resume / 'checkpoint')} --seed N."
        )
    folder, config = RunFolder.reopen(options.resume)
    check_consent(options.resume, options.run_code, config)
    return folder, with_settings(config, _flags(options))


def _check_compared(options: argparse.Namespace, config: Config) -> None:
    if options.compare and not config.warm_start.epochs:
        raise ValueError(
            "--compare trains further imitation, but warm_start.epochs is 0, so there is none: leave it out, or let "
            "the run begin with imitation (--set warm_start.epochs=1)."
        )


def _distributed(options: argparse.Namespace, folder: RunFolder) -> OpenRLHF | None:
    """The settings of the distributed trainer: a resumed run's own, or those asked for; None for the local one."""
    if options.resume is None and options.backend != "openrlhf":
        check_not_distributed(options, "give --backend openrlhf, or leave it out")
        return None
    from ragen_agent.config.trainers import OpenRLHF, read_openrlhf

    if options.resume is not None:
        settings = read_openrlhf(folder.path)
        own = "local" if settings is None else "openrlhf"
        if options.backend not in (None, own):
            raise ValueError(
                f"--backend {options.backend}: {folder.path} is a run of the trainer {own}, which goes on with it: "
                "leave --backend out."
            )
        if settings is not None:
            check_consent(options.resume, options.run_code, settings)
        return settings
    for name, instead in UNREAD.items():
        if getattr(options, name):
            raise ValueError(f"--{name} has no effect with --backend openrlhf: {instead}.")
    settings = with_settings(OpenRLHF(), distributed(options), "openrlhf.")
    if options.config is not None:
        check_consent(options.config, options.run_code, settings, asked=settings_of(options))
    return settings


def _dry_run(options: argparse.Namespace, config: Config, folder: RunFolder) -> int:
    from ragen_agent.config.presets import base_of, read_recipe
    from ragen_agent.models.named_models import cached_folder
    from ragen_agent.run.console import Display
    from ragen_gym.core.console import rich_console

    with Display(rich_console(stderr=True)).waiting("loading torch and transformers"):
        from ragen_agent.openrlhf.launch import planned_command
        from ragen_agent.preflight.dry_run import dry_run
    if config.model:
        config = replace(config, model=str(cached_folder(config.model)))
    name = options.recipe or (base_of(options.config) if options.config is not None else "")
    recipe = read_recipe(name) if name else None
    settings = _distributed(options, folder)
    command, on_cpu = planned_command(config, settings, folder.path) if settings else ([], False)
    dry_run(config, settings, folder.path, rich_console(), recipe, command=command, on_cpu=on_cpu)
    return 0


def _list_recipes() -> int:
    from ragen_agent.config.presets import read_recipe, recipe_names
    from ragen_gym.core.command_line import terminal_width, wrap

    for recipe in map(read_recipe, recipe_names()):
        memory = f"; about {recipe.memory_gib:g} GiB of it" if recipe.memory_gib else ""
        about = f"{' '.join(recipe.title.split())}{memory}; {recipe.seen}"
        print("\n".join([recipe.name, *wrap(about, terminal_width(), "    ")]))
    return 0


def _flags(options: argparse.Namespace) -> Settings:
    compared: Settings = {"evaluation": {"imitation": True}} if options.compare else {}
    return {**given(options, "model", "seed", "device"), "training": given(options, "iterations"), **compared}


def _usable(config: Config) -> Policy:
    """The policy; raises before a run's folder is made if there is no such game or option, or no such model."""
    from ragen_agent.run.policy import Policy
    from ragen_agent.run.tracking import check_installed
    from ragen_agent.tasks.tasks import check_demonstrations, make_env

    check_installed(config.diagnostics)
    make_env(config, config.evaluation.split).reset(seed=0)
    check_demonstrations(config)
    return Policy.build(config)


def fresh_folder(config: Config) -> Path:
    """The first folder for such a run that is not there yet."""
    return free_folder(f"{config.game.rpartition(':')[2]}-{config.training.algo}-seed{config.seed}")
