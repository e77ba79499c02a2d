"""``ragen-agent eval``: measure a run or any model next to random and optimal play."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_agent.cli.settings import (
    add_settings,
    check_consent,
    check_not_distributed,
    configure,
    given,
    settings_of,
)
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_gym.core.levels import SPLIT_NAMES

if TYPE_CHECKING:
    from ragen_agent.training.console import Display
    from ragen_agent.training.policy import Policy
    from ragen_agent.training.run_folder import RunFolder

__all__ = ["add"]

EVAL = """\
Plays fixed levels of one split and prints the success rate next to random and optimal play on the same levels, with
95 % Wilson intervals. No level of validation and test makes one problem with a training level; where the run kept
a record of the levels it was trained on (seen.npy), how many of these are among them is said next to the rates. Takes a
run's folder, or the folder of any Hugging Face causal LM whose tokenizer has a chat template. Of a mixture every game
is measured by itself. With --game a run's model plays that game alone, whether or not it was trained on it: by the
game's own options and the run's turns, thinking and limits of tokens."""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    evaluate = commands.add_parser("eval", help="measure a run or a model", description=EVAL)
    evaluate.set_defaults(run=_evaluate)
    evaluate.add_argument(
        "model", type=Path, metavar="RUN|MODEL", help="a run's folder, or a model as train --model takes it"
    )
    evaluate.add_argument(
        "--split",
        choices=SPLIT_NAMES,
        metavar="SPLIT",
        help=f"whose levels: {', '.join(SPLIT_NAMES)} (default: the run's, or test; of a bandit train)",
    )
    evaluate.add_argument("--levels", type=int, metavar="N", help="how many levels (default: the run's, or 256)")
    evaluate.add_argument("--temperature", type=float, metavar="T", help="of sampling (default: the run's, or 0.5)")
    evaluate.add_argument("--json", type=Path, metavar="FILE", help="write the rates here")
    add_settings(evaluate, both_trainers=False)


def _evaluate(options: argparse.Namespace) -> int:
    from ragen_agent.training.console import Display
    from ragen_agent.training.run_folder import RunFolder
    from ragen_gym.core.storage import write_atomic

    check_not_distributed(options)
    if options.json is not None:
        _check_writable(options.json)
    display = Display()
    display.say(f"measuring {options.model}")
    flags = {**given(options, "device", "threads"), "evaluation": given(options, "split", "levels", "temperature")}
    folder, weights, trained = options.model, None, Config()
    if (folder / "config.toml").is_file():
        run, trained = RunFolder.reopen(folder)
        check_consent(folder, options.run_code, trained)
        folder, weights = _policy_of(run)
        asked = settings_of(options, flags)
        if options.game is None and options.config is None and "game" not in asked:
            config = with_settings(trained, merged({"env_options": trained.env_options}, asked))
        else:
            of_run: Settings = {"turns": asdict(trained.turns)} if options.config is None else {}
            config = configure(options, {**flags, "model": str(folder)}, assumed=of_run)
    else:
        config = configure(options, {**flags, "model": str(folder)}, fetch=True)
        folder = Path(config.model)
    with display.waiting("loading torch, transformers and the model"):  # imported only now, for it takes seconds
        from ragen_agent.training.parameters import load_policy
        from ragen_agent.training.policy import Policy
        from ragen_agent.training.tasks import measured_settings
        from ragen_gym.core.seen import find_seen, read_seen

        agent = Policy.build(config, folder)
        if weights is not None:
            load_policy(agent.model, trained.lora, weights)
    record = find_seen(options.model)
    seen = None if record is None else read_seen(record)
    first, *others = (_measured(replace(agent, config=each), seen, display) for each in measured_settings(config))
    if options.json is not None:
        games = {"games": {rates.pop("game"): rates for rates in others}} if others else {}
        write_atomic(options.json, json.dumps({**first, **games}, indent=2) + "\n")
    return 0


def _measured(policy: Policy, seen: Collection[int] | None, display: Display) -> dict[str, Any]:
    """Measures the policy on the game of its settings and prints the table; what ``--json`` writes of it.

    ``seen`` are the families of the levels that it was trained on, where that is known.
    """
    from ragen_agent.training.console import rates_table
    from ragen_agent.training.evaluation import evaluated_levels, measure, seen_levels

    config = policy.config
    rates = {row: rate.to_dict() for row, rate in measure(policy, display).items()}
    display.console.print(rates_table(config.game, config.evaluation, rates))
    counts = None
    if seen is not None:
        counts = dict(zip(("levels", "of"), seen_levels(*evaluated_levels(config), seen), strict=True))
        display.say(
            "{levels} of {of} levels were seen in training, themselves or one of their family.".format(**counts)
        )
    return {"game": config.game, **rates, "seen": counts}


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


def _check_writable(path: Path) -> None:
    """Raises before a long evaluation if its result could not be written to ``path``."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"--json {path} cannot be written; name a file in a folder that exists and may be written to.")
