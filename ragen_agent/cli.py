"""`ragen-agent`: train an agent on a game of the suite, and measure any model on it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from ragen_agent.config import Config, Settings, merged, with_settings

if TYPE_CHECKING:
    from ragen_agent.local.run_folder import RunFolder
    from ragen_agent.openrlhf.settings import OpenRLHF

__all__ = ["add_settings", "configure", "main", "settings_of_pairs"]

#: Modules that add their own commands to the parser; each imports what it needs when it runs.
COMMANDS = (
    "ragen_agent.experiments.command",
    "ragen_agent.openrlhf.data_command",
    "ragen_agent.openrlhf.doctor_command",
    "ragen_agent.sft.command",
    "ragen_agent.report.command",
)

OPENRLHF = "openrlhf"  # the table of the distributed trainer's settings
DESCRIPTION = "Train a language-model agent on a game by StarPO-S, or measure one."
TRAIN = """\
Warm-starts a small language model on demonstrations, trains it further by reinforcement (StarPO-S, arXiv 2504.20073),
and compares it, on fixed levels of one split, with its start, random play, optimal play, the demonstrator, and more
imitation of the same demonstrations at the same cost. Training draws from the split `train` alone; the default run is
measured on `test`, levels that it never saw. The bandits are measured on `train`, whose names the small model has read.

The demonstrations are imperfect on purpose. In the default run, FrozenLake without slip and with two answers an
episode, the demonstrator knows the way but mostly dares one move an answer and so runs out of answers: that several
moves fit into one answer, and which, is left to reinforcement. It takes six to seven minutes on one
CPU core, without a GPU or a network."""
EVAL = """\
Plays fixed levels of one split and prints the success rate beside random and optimal play on the same levels, with
95 % Wilson intervals. The levels of `validation` and `test` are distinct from all training levels. Takes a
run's folder, or the folder of any Hugging Face causal LM whose tokenizer has a chat template."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, 2 for a mistake in what was asked, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:end])
    try:
        if end < len(words) and getattr(options, "backend", None) != "openrlhf":
            raise ValueError("flags after -- go to OpenRLHF: give --backend openrlhf, or leave them out.")
        options.extra = words[end + 1 :]
        code: int = options.run(options)
        return code
    except _refusals() as error:
        if isinstance(error, ImportError) and error.name:  # not one of ours, which say what to install: a defect
            raise
        print(f"ragen-agent: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nragen-agent: stopped.", file=sys.stderr)
        return 130


def _refusals() -> tuple[type[Exception], ...]:
    """What is said to the person in one line; a solver's limit too, where a solver was imported."""
    solver = sys.modules.get("ragen_gym.games.sokoban.solve")
    limits = (solver.NotSolvedError,) if solver else ()
    return ValueError, OSError, ImportError, gymnasium.error.Error, *limits


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ragen-agent", description=DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    raw = argparse.RawDescriptionHelpFormatter
    train = commands.add_parser(
        "train", help="train an agent and show what it gained", description=TRAIN, formatter_class=raw
    )
    train.set_defaults(run=_train)
    add_settings(train)
    train.add_argument(
        "--model",
        metavar="DIR",
        help="start from this Hugging Face causal LM instead of the small model; no warm start",
    )
    train.add_argument(
        "--algo", choices=("grpo", "ppo"), help="advantages within groups (grpo, default) or from a critic (ppo)"
    )
    train.add_argument(
        "--starpo-s", action=argparse.BooleanOptionalAction, default=None, help="StarPO-S (default) or vanilla StarPO"
    )
    train.add_argument("--iterations", type=int, metavar="N", help="iterations of reinforcement")
    train.add_argument(
        "--backend",
        choices=("local", "openrlhf"),
        help="the trainer: this process (local, default), or OpenRLHF on Ray, vLLM and DeepSpeed, whose own flags may "
        "follow after --",
    )
    train.add_argument("--recipe", metavar="NAME", help="a whole run by name, such as qwen2.5-0.5b-sokoban")
    train.add_argument("--list-recipes", action="store_true", help="say which recipes there are, and stop")
    train.add_argument(
        "--dry-run",
        action="store_true",
        help="print the settings, the command of OpenRLHF, the arithmetic and a scripted episode, and stop",
    )
    train.add_argument("--seed", type=int, metavar="N", help="seed of everything random (default 0)")
    train.add_argument("--out", type=Path, metavar="DIR", help="new folder for the run (default runs/GAME-ALGO-seedN)")
    train.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on with the run in this folder; takes no other setting"
    )
    evaluate = commands.add_parser("eval", help="measure a run or a model", description=EVAL, formatter_class=raw)
    evaluate.set_defaults(run=_evaluate)
    evaluate.add_argument("model", type=Path, metavar="RUN|MODEL", help="a run's folder, or a Hugging Face model's")
    add_settings(evaluate)
    evaluate.add_argument(
        "--split", choices=("train", "validation", "test"), help="whose levels (default: the run's, test)"
    )
    evaluate.add_argument("--levels", type=int, metavar="N", help="how many levels (default 256)")
    evaluate.add_argument("--temperature", type=float, metavar="T", help="of sampling (default 0.5)")
    evaluate.add_argument("--json", type=Path, metavar="FILE", help="write the rates here")
    for module in COMMANDS:
        import_module(module).add(commands)
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose a game and change settings."""
    parser.add_argument(
        "--game", metavar="NAME", help="FrozenLake (default), Bandit, BanditRev, ...: see ragen-gym list"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML, such as a run's config.toml")
    parser.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a knob of the game, such as size=5; repeatable",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, such as training.learning_rate=5e-4; repeatable",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="cpu, cuda, or auto (default): a GPU for a pretrained model where there is one"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default 1; more only help where cores are idle)"
    )


def _train(options: argparse.Namespace) -> int:
    from ragen_agent.local.display import Display
    from ragen_agent.local.run_folder import RunFolder
    from ragen_agent.local.train import train

    if options.list_recipes:
        return _list_recipes()
    if options.resume is not None:
        own = ("run", "resume", "extra", "backend", "dry_run", "list_recipes")
        others = {k: v for k, v in vars(options).items() if k not in own and v not in (None, [])}
        if others:
            raise ValueError(
                f"--resume goes on with the run's own settings: leave out {', '.join('--' + k for k in others)}."
            )
        folder, config = RunFolder.reopen(options.resume)
        if options.dry_run:
            return _dry_run(options, config, folder)
    else:
        config = configure(options, _flags(options))
        if options.dry_run:
            return _dry_run(options, config, RunFolder(options.out or _fresh(config)))
        _check(config)
        folder = RunFolder.create(options.out or _fresh(config), config)
    distributed = _distributed(options, folder)
    try:
        if distributed is None:
            train(config, folder, Display())
        else:
            from ragen_agent.openrlhf.launch import train_distributed

            train_distributed(config, distributed, folder, Display(), options.extra)
    except KeyboardInterrupt:
        print(
            f"\nragen-agent: stopped; everything so far is kept. Go on with: ragen-agent train --resume {folder.path}",
            file=sys.stderr,
        )
        return 130
    return 0


def _distributed(options: argparse.Namespace, folder: RunFolder) -> OpenRLHF | None:
    """The settings of the distributed trainer: a resumed run's own, or those asked for; None for the local one."""
    if options.resume is None and options.backend != "openrlhf":
        return None
    from ragen_agent.openrlhf.settings import OpenRLHF, read_settings

    if options.resume is not None:
        return read_settings(folder.path)
    told = merged(_files(options).get(OPENRLHF, {}), _pairs(options).get(OPENRLHF, {}))
    return with_settings(OpenRLHF(), told, "openrlhf.")


def _dry_run(options: argparse.Namespace, config: Config, folder: RunFolder) -> int:
    from rich.console import Console

    from ragen_agent.dry_run import dry_run
    from ragen_agent.recipes import base_of, read

    name = options.recipe or (base_of(options.config) if options.config is not None else "")
    recipe = read(name) if name else None
    settings = _distributed(options, folder)
    dry_run(config, settings, folder.path, options.extra, Console(highlight=False), recipe)
    return 0


def _list_recipes() -> int:
    from ragen_agent.recipes import names, read

    for recipe in map(read, names()):
        print(f"{recipe.name}\n    {recipe.title}; about {recipe.memory_gib:g} GiB of it; {recipe.seen}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from ragen_agent.local.agent import Agent
    from ragen_agent.local.display import Display, rates_table
    from ragen_agent.local.evaluation import measure
    from ragen_agent.local.lora import load_policy
    from ragen_agent.local.run_folder import RunFolder, write_whole

    if options.json is not None:
        _check_writable(options.json)
    flags: Settings = {"evaluation": {}}
    for key in ("split", "levels", "temperature"):
        if getattr(options, key) is not None:
            flags["evaluation"][key] = getattr(options, key)
    for key in ("device", "threads"):
        if getattr(options, key) is not None:
            flags[key] = getattr(options, key)
    folder, weights, trained = options.model, None, Config()
    if (folder / "config.toml").is_file():
        run, trained = RunFolder.reopen(folder)
        folder, weights = _policy_of(run)
        if options.game is None and options.config is None:
            config = with_settings(trained, merged(flags, _pairs(options)))
        else:
            config = configure(options, flags)
    else:
        config = configure(options, {**flags, "model": str(folder)})
    agent = Agent.build(config, folder)
    if weights is not None:
        load_policy(agent.model, trained.lora, weights)
    rates = {row: rate.to_dict() for row, rate in measure(agent).items()}
    Display().console.print(rates_table(config, rates))
    if options.json is not None:
        write_whole(options.json, json.dumps({"game": config.game, **rates}, indent=2) + "\n")
    return 0


def _policy_of(run: RunFolder) -> tuple[Path, dict[str, Any] | None]:
    """The folder of a run's model and, where the run was cut short, the weights of its last saved iteration."""
    if run.checkpoint.is_dir() and "after" in run.read_summary():
        return run.checkpoint, None
    state = run.load_state()  # never older than a checkpoint, which an earlier Ctrl-C may have left
    if state is not None and run.warm.is_dir():
        print(f"{run.path} was cut short: this is its model after iteration {state['iteration']} of reinforcement.")
        return run.warm, state["model"]
    if run.checkpoint.is_dir():
        return run.checkpoint, None
    if run.warm.is_dir():
        print(f"{run.path} was cut short: this is its model before reinforcement.")
        return run.warm, None
    raise ValueError(f"{run.path} holds no model yet; go on with it first: ragen-agent train --resume {run.path}")


def _flags(options: argparse.Namespace) -> Settings:
    top = {key: getattr(options, key) for key in ("model", "seed", "device", "threads")}
    training = {key: getattr(options, key) for key in ("algo", "starpo_s", "iterations")}
    settings: Settings = {key: value for key, value in top.items() if value is not None}
    settings["training"] = {key: value for key, value in training.items() if value is not None}
    if options.model is not None:
        settings["warm_start"] = {"epochs": 0}
    return settings


def configure(options: argparse.Namespace, flags: Settings) -> Config:
    """Defaults, the game's settings, the recipe, the file, the flags: each laid over the one before."""
    from ragen_agent.local.recipes import recipe
    from ragen_gym.registry import find

    file = _files(options)
    game = find(options.game or file.get("game", Config.game)).name
    settings: Settings = merged(recipe(game, str(flags.get("model") or file.get("model", ""))), file)
    settings = merged(merged(settings, flags), _pairs(options))
    settings.pop(OPENRLHF, None)  # one file serves both trainers
    return with_settings(Config(), {**settings, "game": game})


def _files(options: argparse.Namespace) -> Settings:
    """The recipe, and the file over it."""
    from ragen_agent.recipes import read, read_settings_file

    name = getattr(options, "recipe", None)
    recipe = read(name).settings if name else {}
    return merged(recipe, read_settings_file(options.config)) if options.config is not None else recipe


def _pairs(options: argparse.Namespace) -> Settings:
    knobs = settings_of_pairs("--knob", [f"knobs.{pair}" for pair in options.knob])
    return merged(settings_of_pairs("--set", options.set), knobs)


def settings_of_pairs(flag: str, pairs: Sequence[str]) -> Settings:
    """KEY=VALUE pairs as nested tables; raises a ValueError for one without a value."""
    settings: Settings = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{flag} {pair.removeprefix('knobs.')} needs a value: KEY=VALUE.")
        value: Any = _value(text)
        for part in reversed(key.split(".")):
            value = {part: value}
        settings = merged(settings, value)
    return settings


def _value(text: str) -> Any:
    """A value as JSON reads it (3, 1e-3, true, [0.7, 0.3]), or else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _check(config: Config) -> None:
    """Raises before a run's folder is made if there is no such game or knob, or if the model cannot be used."""
    from ragen_agent.local.agent import Agent, make_env

    make_env(config, config.evaluation.split).reset(seed=0)
    Agent.build(config)


def _check_writable(path: Path) -> None:
    """Raises before a long evaluation if its result could not be written to `path`."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"--json {path} cannot be written; name a file in a folder that exists and may be written to.")


def _fresh(config: Config) -> Path:
    name = f"{config.game}-{config.training.algo}-seed{config.seed}"
    candidates = [Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000)]
    return next(path for path in candidates if not path.exists())


if __name__ == "__main__":
    sys.exit(main())
