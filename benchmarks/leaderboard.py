"""Language models and other agents on the suites, in one table with what each cost.

``python -m benchmarks.leaderboard --checkpoint "after SFT=FOLDER" --checkpoint "after RL=FOLDER"``: each agent plays
each suite into a folder of its own under ``--runs``, so the command may be stopped and repeated, or given one row at a
time; episodes that are there are not played again. ``--server "vLLM=MODEL@http://127.0.0.1:8000/v1"`` adds a model
behind a server, such as ``vllm serve FOLDER --dtype bfloat16`` or llama.cpp's ``llama-server``: the same model there
and here should agree, and a server that is killed midway costs no episode, as the next command plays what failed. A row
that is called like another one and after a comma something more, such as ``after SFT, vLLM``, stands below it; each
model is compared with the one before it.

Written are ``leaderboard.json`` and ``leaderboard.md``.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import machine, markdown_table, numbered, page_parser, read_results, write_results
from ragen_agent.agents.hf import weights_hash
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.compare import compare_results
from ragen_gym.bench.episode_plan import RunOptions, Timeouts
from ragen_gym.bench.report.tables import markdown_row, sentences, success
from ragen_gym.bench.results import BenchResults, ResultsFolder, load_results
from ragen_gym.bench.runner import RunProgress, run_suite
from ragen_gym.bench.score import SCALES, score_results
from ragen_gym.bench.suites import Split, Suite, load_suite
from ragen_gym.core.command_line import stops_at_sigterm
from ragen_gym.core.stats import percent
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.threads import wait_passively

SUITES = ("ragen-v1", "generalization")

PAGE = """\
# Leaderboard

Written by `python -m benchmarks.leaderboard`, which resumes; its options are in `--help`. Language models play in this
process (`hf:` of `ragen-gym bench run`), at the temperature of the suite, {max_tokens} tokens a reply at most. Success
in % with its 95 % interval; `normalised` is success on the scale from random play (0) to optimal play (1) of the same
levels, `above blind` on the scale from the blind script (0), without the splits that the script plays optimally: far
below 0 where the script is almost optimal. `well-formed` is the share of replies that could be parsed. `failed`
episodes had an error of the machine or a conversation too long for the model. Minutes are wall-clock time, CPU minutes
of all cores together: where the first are more than the second divided by the number of cores, other programs held the
machine, or the model is behind a server. Machines are given by number; a model played where there is a GPU is on it. A
row of fewer episodes is of the first levels of each split, or of some splits.

The models named (Sokoban) are those of the recipe `smollm2-135m-sokoban`, seed 0 or the one that is named, before and
after its reinforcement ([recipes](recipes.md) has what they reach on held-out levels as they were trained: boards as
coordinates, three turns, and no earlier turn in the prompt). Those named (FrozenLake) begin as
`smollm2-135m-frozenlake` does, seed 2: before and after 60 iterations of StarPO-S they solve 44 and 65 % of held-out
lakes, with boards as coordinates and two turns. A suite shows boards as grids, with all earlier turns. The one
named (Bandit) is that of `smollm2-135m-bandit`, seed 0, before its reinforcement. Rows named vLLM and llama-server are
the same checkpoint behind a server that was killed, or crashed, on the way. llama-server has `--samplers temperature`,
as by default it drops unlikely tokens; vLLM on a CPU has room for all prompts of a step (`--max-num-batched-tokens`),
as it crashes where it reads a prompt in pieces and the request has a seed. Until November 2026 models were trained, and
on a CPU played in this process, with the frequencies of their rotary positions rounded to bfloat16. The weights of
SmolLM2 and Gemma are dequantised from files of 4 bits a weight and more.

Machines: {machines}.
{suites}"""

SUITE = """
## {name}

{about}

{overall}
{said}
{splits}{published}{differences}"""

COLUMNS = (
    *("agent", "success", "normalised", "above blind", "well-formed", "episodes", "failed", "read", "written"),
    *("minutes", "CPU minutes", "machine"),
)


@dataclass(frozen=True)
class Row:
    """An agent of the leaderboard."""

    name: str  # as ``--rows`` and the table say it; the name of its run folders
    agent: str  # of ``make_agent``; of a language model in this process its name or folder
    model: bool = False  # whether it is a language model
    server: str = ""  # the address of the server that it is behind

    def spec(self) -> str:
        """As ``make_agent`` takes it; fetches a model if need be."""
        from ragen_agent.models.named_models import model_folder

        return f"hf:{model_folder(self.agent)}" if self.model and not self.server else self.agent


ROWS = (
    *(Row(name, name) for name in ("random", "blind", "oracle")),
    Row("SmolLM2-135M untrained", "smollm2-135m", model=True),
    Row("Gemma 3 270M untrained", "gemma3-270m", model=True),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Plays what is missing, writes; returns the exit code."""
    arguments = _parser().parse_args(argv)
    wait_passively()  # before torch is loaded
    rows = [*ROWS, *map(_checkpoint, arguments.checkpoint), *map(_server, arguments.server)]
    place = {row.name: number for number, row in enumerate(rows)}
    rows.sort(key=lambda row: place.get(row.name.rpartition(", ")[0], place[row.name]))
    unknown = set(arguments.rows or ()) - {row.name for row in rows}
    if unknown:
        raise SystemExit(f"no row is called {', '.join(sorted(unknown))}: there are {', '.join(r.name for r in rows)}.")
    chosen = [row for row in rows if not arguments.rows or row.name in arguments.rows]
    suites = [load_suite(name) for name in arguments.suite]
    results = {"suites": {}, **read_results(arguments.out, "leaderboard"), "max_tokens": arguments.max_tokens}
    for suite in suites:
        results["suites"].setdefault(suite.name, {"rows": {}})
    for row in chosen:
        for suite in suites:
            entry = results["suites"][suite.name]
            try:
                with stops_at_sigterm():
                    _play(row, suite, arguments)
                entry["rows"][row.name] = _measured(row, suite, arguments)
            except KeyboardInterrupt:
                print("stopped: the same command goes on", file=sys.stderr)
                return 130
            except (ValueError, ImportError) as error:  # no network, no package, another checkpoint of the same name
                print(f"{row.name} on {suite.name} is left out: {error}", file=sys.stderr)
                entry["rows"].setdefault(row.name, {"left_out": str(error)})
            _write(results, rows, suites, arguments)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = page_parser("leaderboard", __doc__)
    parser.add_argument("--suite", nargs="+", default=SUITES, metavar="SUITE", help=f"default: {' '.join(SUITES)}")
    parser.add_argument("--split", nargs="+", default=(), metavar="SPLIT", help="of the suites (default: all of them)")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="agents to play now (default: all of them)")
    for name, form, what in (
        ("--checkpoint", "NAME=FOLDER", "one more language model; repeatable"),
        ("--server", "NAME=MODEL@URL", "one more behind a server; repeatable"),
    ):
        parser.add_argument(name, action="append", default=[], metavar=form, help=what)
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="of a reply (default: 128)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N levels of each split (default: all)")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="replies at once (default: 64)")
    parser.add_argument("--runs", type=Path, default=Path("runs/leaderboard"), metavar="DIR", help="the runs' folder")
    return parser


def _checkpoint(text: str) -> Row:
    name, equals, folder = text.partition("=")
    if not (name and equals and Path(folder).is_dir()):
        raise SystemExit(f"--checkpoint {text}: write it as NAME=FOLDER, with the folder of a model.")
    return Row(name, folder, model=True)


def _server(text: str) -> Row:
    name, _, target = text.partition("=")
    model, at, url = target.rpartition("@")
    if not (name and model and at and url):
        raise SystemExit(f"--server {text}: write it as NAME=MODEL@URL, such as vLLM=smollm2@http://127.0.0.1:8000/v1.")
    return Row(name, f"openai:{model}", model=True, server=url)


def _folder(row: Row, suite: Suite, out: Path) -> Path:
    return out / suite.name / row.name.replace(" ", "-").lower()


def _cost_file(folder: Path) -> Path:
    return folder.with_suffix(".cost.json")


def _play(row: Row, suite: Suite, arguments: argparse.Namespace) -> None:
    """Plays what is missing of one run, and adds what it took to the run's cost."""
    folder = _folder(row, suite, arguments.runs)
    file = _cost_file(folder)
    cost = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"seconds": 0.0, "cpu_seconds": 0.0}
    wanted = {split.name: len(split.levels[: arguments.limit]) for split in suite.splits}
    wanted = {name: count for name, count in wanted.items() if not arguments.split or name in arguments.split}
    if (folder / "run.json").is_file():
        played = ResultsFolder(folder)
        counted = Counter(record.split for record in played.records() if record.counted)
        whole = wanted and all(counted[name] >= count for name, count in wanted.items())
        if whole and _is_same(row, played.info, arguments):
            return  # without loading a model
    began, cpu = time.monotonic(), time.process_time()
    settings: dict[str, Any] = {"max_tokens": arguments.max_tokens, "timeout": 1800.0} if row.model else {}
    if row.model:
        settings |= {"base_url": row.server} if row.server else {"batch": arguments.batch}
    agent = make_agent(row.spec(), **settings)
    options = RunOptions(
        splits=tuple(arguments.split),
        limit=arguments.limit,
        concurrency=arguments.batch if row.model else 32,
        timeouts=Timeouts(episode=None) if row.model else Timeouts(),  # a slow machine is no failure of the model
    )
    print(f"{row.name} plays {suite.name}", file=sys.stderr, flush=True)
    try:
        run_suite(suite, agent, folder, options, RunProgress())
    finally:
        cost["seconds"] += time.monotonic() - began
        cost["cpu_seconds"] += time.process_time() - cpu
        cost["machine"] = machine("torch", "transformers")
        if folder.is_dir():
            write_atomic(file, json.dumps(cost) + "\n")
        del agent
        gc.collect()


def _is_same(row: Row, info: Mapping[str, Any], arguments: argparse.Namespace) -> bool:
    """Whether a run is of what its row names now; if not, going on with it says what differs."""
    agent = info["agent"] if row in ROWS else row.spec()  # a model of ``ROWS`` may have to be fetched for its name
    settings: Mapping[str, Any] = info.get("settings", {})
    weights = weights_hash(Path(agent.removeprefix("hf:"))) if row.model and not row.server else None
    return (
        info["agent"] == agent
        and (not row.model or settings.get("max_tokens") == arguments.max_tokens)
        and weights in (None, settings.get("weights"))
    )


def _results(row: Row, suite: Suite, out: Path) -> BenchResults:
    return replace(load_results(_folder(row, suite, out), suite.name), agent=row.name)


def _measured(row: Row, suite: Suite, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the page says of a run."""
    run = _results(row, suite, arguments.runs)
    summary = score_results(run)
    overall = summary["overall"]
    splits = {
        name: {
            **{key: success(split)[key] for key in ("rate", "low", "high")},
            "n": split["success"]["n"],
            "replies": split["malformed"]["n"] if split["malformed"] else 0,
            "malformed": (split["malformed"]["rate"] or 0.0) if split["malformed"] else 0.0,
            "failures": split["failures"],
        }
        for name, split in summary["splits"].items()
    }
    return {
        "model": row.model,
        "settings": run.info.get("settings", {}),
        "success": overall["success"],
        **{scale: overall[scale] for scale in SCALES},
        "episodes": overall["episodes"],
        "tokens": overall["tokens"],
        "sentences": sentences(summary) if row.model else [],  # random, blind and optimal play are the scale
        **json.loads(_cost_file(_folder(row, suite, arguments.runs)).read_text(encoding="utf-8")),
        "splits": splits,
    }


def _write(
    results: dict[str, Any], rows: Sequence[Row], suites: Sequence[Suite], arguments: argparse.Namespace
) -> None:
    """Writes the results and the page."""
    order = {row.name: place for place, row in enumerate(rows)}
    for suite in suites:
        entry = results["suites"][suite.name]
        entry["rows"] = dict(sorted(entry["rows"].items(), key=lambda item: order.get(item[0], len(order))))
        models = [row for row in rows if row.model and entry["rows"].get(row.name, {}).get("episodes")]
        models = [row for row in models if (_folder(row, suite, arguments.runs) / "run.json").is_file()]
        runs = [_results(row, suite, arguments.runs) for row in models]
        if runs:
            compared = [compare_results(run, other) for other, run in pairwise(runs)]
            entry["differences"] = entry.get("differences", {}) | {  # those of runs that are elsewhere stay
                f"{each['first']} and {each['second']}": {n: s["sentence"] for n, s in each["splits"].items()}
                for each in compared
            }
    write_results(arguments.out, "leaderboard", results, _page(results))


def _page(results: Mapping[str, Any]) -> str:
    shown = [(load_suite(name), entry) for name, entry in results["suites"].items() if entry["rows"]]
    rows = [row for _, entry in shown for row in entry["rows"].values()]
    machines = list(dict.fromkeys(row["machine"] for row in rows if "machine" in row))
    suites = "".join(_suite(suite, entry, machines) for suite, entry in shown)
    return PAGE.format(machines=numbered(machines), max_tokens=results["max_tokens"], suites=suites)


def _suite(suite: Suite, entry: Mapping[str, Any], machines: Sequence[str]) -> str:
    measured = {name: row for name, row in entry["rows"].items() if "left_out" not in row}
    left_out = {name: row["left_out"] for name, row in entry["rows"].items() if "left_out" in row}
    shown = [split for split in suite.splits if any(split.name in row["splits"] for row in measured.values())]
    splits = _rates(shown, {name: row["splits"] for name, row in measured.items()})
    who = dict.fromkeys(name for split in shown for name in split.published)
    reported = {name: {s.name: {"rate": s.published[name]} for s in shown if name in s.published} for name in who}
    published = "\nPublished by others, of other levels of the same games, in %:\n\n" * bool(reported)
    published += _rates(shown, reported) if reported else ""
    differences = "".join(
        f"\n{pair}:\n" + "".join(f"- {name}: {text}\n" for name, text in found.items())
        for pair, found in entry.get("differences", {}).items()
    )
    agents: dict[str, list[str]] = {}  # of which each sentence is true
    for name, row in measured.items():
        for sentence in row["sentences"]:
            agents.setdefault(sentence, []).append(name)
    said = "".join(
        f"\n{'All agents' if len(names) == len(measured) else '; '.join(names)}: {sentence}\n"
        for sentence, names in agents.items()
    )
    reasons = "".join(f"\n{name} was not measured: {reason}\n" for name, reason in left_out.items())
    instances = sum(len(split.levels) for split in suite.splits)
    return SUITE.format(
        name=suite.name,
        about=suite.about,
        overall=markdown_table(COLUMNS, [_overall(name, row, instances, machines) for name, row in measured.items()]),
        said=said,
        splits=splits,
        published=published,
        differences=differences + reasons,
    )


def _rates(splits: Sequence[Split], rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A table of success in %: a row for each name, a column for each split; what is not known is empty."""

    def cell(entry: Mapping[str, Any] | None) -> str:
        if entry is None or entry["rate"] is None:
            return ""
        interval = f" ({100 * entry['low']:.0f} to {100 * entry['high']:.0f})" if "low" in entry else ""
        return f"{100 * entry['rate']:.1f}{interval}"

    head = ["success, %", *(split.name for split in splits)]
    body = [[name, *(cell(rates.get(split.name)) for split in splits)] for name, rates in rows.items()]
    return "\n".join([*map(markdown_row, [head, ["---"] * len(head), *body]), ""])


def _overall(name: str, row: Mapping[str, Any], instances: int, machines: Sequence[str]) -> list[str]:
    replies = sum(split["replies"] for split in row["splits"].values())
    malformed = sum(split["malformed"] * split["replies"] for split in row["splits"].values())
    failed = sum(count for split in row["splits"].values() for count in split["failures"].values())
    tokens = row["tokens"] or {}
    return [
        name,
        "" if row["success"] is None else percent(row["success"]),
        *("" if row[scale] is None else f"{row[scale]:z.2f}" for scale in SCALES),
        percent(1 - malformed / replies) if replies else "",
        f"{row['episodes']:,} of {instances:,}",
        f"{failed:,}",
        *(f"{tokens[kind]:,}" if tokens else "" for kind in ("prompt", "completion")),
        f"{row['seconds'] / 60:.1f}",
        f"{row['cpu_seconds'] / 60:.1f}",
        str(1 + machines.index(row["machine"])) if "machine" in row else "",  # a run of an earlier checkout lacks it
    ]


if __name__ == "__main__":
    raise SystemExit(main())
