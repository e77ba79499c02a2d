"""``ragen-agent eval``: measure a run or any model through the benchmark's runner."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_agent.cli.settings import (
    add_settings,
    check_consent,
    check_not_distributed,
    configure,
    free_folder,
    given,
    settings_of,
)
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_gym.core.command_line import add_command, shell_word, stops_at_sigterm
from ragen_gym.core.failures import memory_was_full
from ragen_gym.core.levels import SPLITS
from ragen_gym.core.settings import OPENS
from ragen_gym.core.storage import check_parent

if TYPE_CHECKING:
    from ragen_agent.run.console import Display
    from ragen_agent.run.policy import Policy
    from ragen_agent.run.run_folder import RunFolder

EVAL = """\
Plays fixed levels of one split and prints the success rate beside random play, a blind script and optimal play on the
same levels, with 95 % Wilson intervals, and the share of malformed replies with the commonest problem. The blind
script goes for the goal and ignores what is in the way. No level of validation and test makes one problem with a
training level; where the run kept a record of the levels it was trained on (seen.npy), how many of these are among
them is said next to the rates. Takes a run's folder, or the folder of any Hugging Face causal LM whose tokenizer has
a chat template. Of a mixture every game is measured by itself. With --game a run's model plays that game alone,
whether or not it was trained on it: by the game's own options and the run's turns, thinking and limits of tokens.

The episodes are kept in a folder of results, which `ragen-gym bench` scores, compares, verifies and shows. The exit
code is 1 if episodes failed for reasons of infrastructure."""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    evaluate = add_command(commands, "eval", "measure a run or a model", _evaluate, description=EVAL)
    add_measured(evaluate)
    evaluate.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the folder of the results, new or to resume (default: a new runs/eval-NAME-GAME-SPLIT)",
    )
    scores = "write the scores here, as bench score --json does"
    evaluate.add_argument("--json", dest="scores", type=Path, metavar="FILE", help=scores)


def add_measured(parser: argparse.ArgumentParser) -> None:
    """Adds what ``measured_policy`` reads: a model, its levels and the settings."""
    parser.add_argument(
        "model", type=Path, metavar="RUN|MODEL", help="a run's folder, or a model as train --model takes it"
    )
    parser.add_argument(
        "--split",
        choices=SPLITS,
        metavar="SPLIT",
        help=f"whose levels: {', '.join(SPLITS)} (default: the run's, or test; of a bandit train)",
    )
    parser.add_argument("--levels", type=int, metavar="N", help="how many levels (default: the run's, or 256)")
    add_settings(parser)


def _evaluate(options: argparse.Namespace) -> int:
    from ragen_agent.run.console import Display

    if options.scores is not None:
        check_parent(options.scores)
    display = Display()
    display.say(f"measuring {options.model}")
    return _play(options, *measured_policy(options, display), display)


def measured_policy(options: argparse.Namespace, display: Display) -> tuple[Policy, dict[str, Any]]:
    """The policy that a command measures, with the settings to measure it by, and what tells its weights from others.

    Args:
        options: of a parser with ``add_measured``.
        display: says what is waited for.
    """
    from ragen_agent.run.run_folder import RunFolder

    check_not_distributed(options)
    flags = {**given(options, "device"), "evaluation": given(options, "split", "levels")}
    folder, state, trained = options.model, None, Config()
    if (folder / "config.toml").is_file():
        run, trained = RunFolder.reopen(folder)
        check_consent(folder, options.run_code, trained, kinds={*OPENS} - {"upload"})
        folder, state = _policy_of(run)
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
        from ragen_agent.agents.hf import weights_hash
        from ragen_agent.models.parameters import load_policy
        from ragen_agent.run.policy import Policy

        policy = Policy.build(config, folder)
        weights = {"hash": weights_hash(folder)}
        if state is not None:
            load_policy(policy.model, trained.lora, state["model"])
            weights["iteration"] = state["iteration"]
    return policy, weights


def _play(options: argparse.Namespace, policy: Policy, weights: dict[str, Any], display: Display) -> int:
    from ragen_agent.run.benchmark import PlayedAgent, evaluation_suite
    from ragen_agent.tasks.tasks import measured_settings
    from ragen_gym.bench.episode_plan import RunOptions, identity
    from ragen_gym.bench.results import ResultsFolder, load_results
    from ragen_gym.bench.runner import run_suite
    from ragen_gym.bench.score import score_results
    from ragen_gym.core.seen import find_seen
    from ragen_gym.core.storage import write_atomic

    games = measured_settings(policy.config)
    folder = ResultsFolder(options.out or free_folder(results_name("eval", options.model, policy.config)))
    with tempfile.TemporaryDirectory() as temporary:
        suite = evaluation_suite(games, Path(temporary))
        agent = PlayedAgent(f"hf:{options.model}", policy, games, weights, find_seen(options.model))
        folder.check(identity(suite, agent, RunOptions()))
        evaluation_suite(games, folder.suite)
    kept: dict[str, set[int]] = {config.game: set() for config in games}
    for record in folder.records():
        if record.counted:
            kept[record.split].add(record.index)
    stopped = False
    try:
        with stops_at_sigterm():
            for config in games:
                if len(kept[config.game]) < config.evaluation.levels:
                    agent.play(config, display, kept[config.game])
    except KeyboardInterrupt:
        stopped = True
    outcome = run_suite(suite, agent, folder.path)
    if stopped:
        print(
            f"\nragen-agent: stopped; {outcome.kept + outcome.played} of {outcome.wanted} episodes are kept. The same "
            f"command with --out {shell_word(folder.path)} plays the others.",
            file=sys.stderr,
        )
        return 130
    if not any(record.counted for record in folder.records()):
        record = folder.records()[0]
        advice = ". Lower evaluation.batch: so many episodes are played at a time" * memory_was_full(record.detail)
        raise ValueError(
            f"all {outcome.wanted} episodes failed, so nothing was measured. The first failed by: {record.failure}: "
            f"{record.detail}{advice}"
        )
    summary = score_results(load_results(folder.path, folder.suite))
    folder.write_summary(summary)
    if options.scores is not None:
        write_atomic(options.scores, json.dumps(summary, indent=2) + "\n")
    _print(games, summary, folder.path, display)
    return 1 if outcome.infrastructure else 0


def _print(games: list[Config], summary: dict[str, Any], folder: Path, display: Display) -> None:
    from ragen_agent.run.console import rates_table, run_code_flag
    from ragen_gym.bench.report.tables import at_most_blind, success
    from ragen_gym.core.stats import percent
    from ragen_gym.envs.reply import Problem, explain_problem

    for config in games:
        split = summary["splits"][config.game]
        counts = {"failed": split["excluded"], "overflowed": split["failures"].get("context_overflow", 0)}
        rates = {row: split[row] for row in ("random", "blind", "optimal") if row in split}
        display.console.print(
            rates_table(config.game, config.evaluation, {"model": {**success(split), **counts}, **rates})
        )
        if split["levels"] < split["instances"]:
            display.say(f"Only {split['levels']} different levels were found for these {split['instances']} episodes.")
        if "lacks" in split:
            display.say(split["lacks"])
        if malformed := split["malformed"]:
            number = sum(malformed["problems"].values())
            display.say(f"Malformed replies: {number} of {malformed['n']} ({percent(malformed['rate'])}).")
        if common := split.get("common_problem"):
            said = explain_problem(Problem(common["problem"])).removeprefix("Malformed: ")
            cut = f" A limit of tokens cut {common['cut']} of them." * bool(common["cut"])
            reply = common["reply"].replace("\n", "\n  ")
            display.say(f"The commonest problem, in {common['n']} replies: {said}.{cut} The first of them:\n  {reply}")
        if split["seen"] is not None:
            display.say(
                f"{split['seen']} of {split['levels']} levels were seen in training, themselves or one of their family."
            )
    for said in at_most_blind(summary):
        display.say(said)
    suite = f" --suite {shell_word(folder / 'suite')}" if run_code_flag(games[0]) else ""
    display.say(f"Results for ragen-gym bench score, compare and verify: {folder}")
    display.say(f"Every reply on a page: ragen-gym bench report {shell_word(folder)}{suite}")


def results_name(command: str, model: Path, config: Config) -> str:
    """Name of a folder of results, such as ``eval-MODEL-GAME-SPLIT``."""
    return f"{command}-{model.resolve().name}-{config.game.rpartition(':')[2]}-{config.evaluation.split}"


def _policy_of(run: RunFolder) -> tuple[Path, dict[str, Any] | None]:
    """The folder of a run's model and, where the run was cut short, its last saved state, whose weights are newer."""
    if run.checkpoint.is_dir() and "after" in run.read_summary():
        return run.checkpoint, None
    state = run.load_state()  # never older than a checkpoint, which an earlier Ctrl-C may have left
    if state is not None and run.warm.is_dir():
        print(f"{run.path} was cut short: this is its model after iteration {state['iteration']} of reinforcement.")
        return run.warm, state
    if run.checkpoint.is_dir():
        return run.checkpoint, None
    if run.warm.is_dir():
        print(f"{run.path} was cut short: this is its model before reinforcement.")
        return run.warm, None
    raise ValueError(
        f"{run.path} holds no model yet; go on with it first: ragen-agent train --resume {shell_word(run.path)}"
    )
