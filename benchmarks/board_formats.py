"""What a pretrained model learns from demonstrations, by how boards are written and by what thoughts say.

``python -m benchmarks.board_formats``: each pair of a text format and a thought is a warm start of the recipe from the
same model, on the same number of demonstrations of the same levels, measured on the same held-out levels. Pairs that
``board_formats.json`` holds already are not run again, so the command may be stopped and repeated, and two may share
the pairs, as by ``--thoughts``; one of other levels is left as it is. ``board_formats.json`` and ``board_formats.md``
are written after each pair.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine, made_folder, numbered
from ragen_agent.config import Config, with_settings
from ragen_agent.config.io import merged
from ragen_agent.config.presets import default_settings, read_recipe
from ragen_agent.models.named_models import model_folder
from ragen_agent.run.console import Display
from ragen_agent.run.evaluation import baselines, evaluated_levels, play_fixed, rate_of_played
from ragen_agent.run.policy import Policy
from ragen_agent.sft.demonstrations import demonstrator_rate, generate_demonstrations
from ragen_agent.sft.trainer import imitate
from ragen_agent.update.metrics import reply_figures
from ragen_gym.core.storage import write_atomic

__all__ = ["main"]

HERE = Path(__file__).parent
RECIPE = "smollm2-135m-frozenlake"
FORMATS = ("grid", "spaced", "coord", "grid_coord")
THOUGHTS = ("relative", "plan", "direction")

PAGE = """\
# What boards and thoughts teach

Written by `python -m benchmarks.board_formats`. {model} imitates {episodes} demonstrations of the recipe
`{recipe}` ({game}, at most {turns} turns), once, in the text formats and with the thoughts below, and plays {levels}
held-out levels: success in %, with Wilson's 95 % interval. The demonstrator reaches {demonstrator}, random replies
{random}, optimal play {optimal}.

| boards | thoughts | success | well-formed turns | tokens an episode | machine |
|---|---|---|---|---|---|
{rows}

`ragen-agent tokens` shows how a tokenizer cuts each format; `ragen-agent settings demonstrations.thought` says what
the thoughts are. Machines: {machines}.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what is missing, writes; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.board_formats", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS, help="text formats (default all)")
    parser.add_argument("--thoughts", nargs="+", choices=THOUGHTS, default=THOUGHTS, help="thoughts (default all)")
    parser.add_argument("--levels", type=int, default=128, metavar="N", help="held-out levels (default 128)")
    parser.add_argument("--out", type=made_folder, default=HERE, metavar="DIR", help="folder of the two files")
    arguments = parser.parse_args(argv)
    recipe = read_recipe(RECIPE).settings
    settings: dict[str, Any] = merged(default_settings(str(recipe["game"]), str(recipe["model"])), recipe)
    settings.pop("openrlhf", None)
    config = with_settings(Config(), {**settings, "model": str(model_folder(str(recipe["model"])))})
    config = replace(config, evaluation=replace(config.evaluation, levels=arguments.levels))
    file = arguments.out / "board_formats.json"
    about = _baselines(config) | {"model": recipe["model"]}
    for thought in arguments.thoughts:
        for text_format in arguments.formats:
            if not any(
                (pair["format"], pair["thought"]) == (text_format, thought) for pair in _results(file, about)["pairs"]
            ):
                pair = _pair(config, text_format, thought)
                results = _results(file, about)
                results["pairs"].append(pair)
                write_atomic(file, json.dumps(results, indent=1) + "\n")
                write_atomic(arguments.out / "board_formats.md", _page(results))
    write_atomic(arguments.out / "board_formats.md", _page(_results(file, about)))
    return 0


def _results(file: Path, about: dict[str, Any]) -> dict[str, Any]:
    """What is measured so far of the levels that it is ``about``; read anew, since another process may add to it."""
    if not file.exists():
        return {**about, "pairs": []}
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if differing := [
        f"{name} {results.get(name)}, not {about[name]}" for name in about if results.get(name) != about[name]
    ]:
        raise SystemExit(f"{file} is of something else ({'; '.join(differing)}): choose another --out.")
    return results


def _pair(config: Config, text_format: str, thought: str) -> dict[str, Any]:
    """One warm start and its measurement."""
    config = replace(
        config,
        env_options={**config.env_options, "text_format": text_format},
        demonstrations=replace(config.demonstrations, thought=thought),
    )
    policy, display = Policy.build(config), Display(Console())
    display.say(f"{text_format} boards, thoughts {thought}")
    rows = generate_demonstrations(config, policy, config.demonstrations, display)
    imitate(config, policy, rows, "imitation", display, epochs=config.warm_start.epochs)
    played = play_fixed(policy, evaluated_levels(config)[1], display)
    rate = rate_of_played(played)
    invalid = reply_figures(played)["invalid_rate"]
    display.rate(f"{text_format}, {thought}", rate.to_dict())
    tokens = sum(len(row.ids) for row in rows) / len(rows)
    return {
        "format": text_format,
        "thought": thought,
        "tokens": tokens,
        "invalid": invalid,
        **rate.to_dict(),
        "machine": machine("torch"),
    }


def _baselines(config: Config) -> dict[str, Any]:
    """What the table is read against."""
    env, instances = evaluated_levels(config)
    found = {name: rate.rate for name, rate in baselines(env, instances).items()}
    found["demonstrator"] = demonstrator_rate(config.demonstrations, env, instances).rate
    return {**found, "episodes": config.demonstrations.episodes, "levels": config.evaluation.levels,
            "game": config.game, "turns": config.turns.max_turns}  # fmt: skip


def _page(results: dict[str, Any]) -> str:
    """The page of these results."""
    machines = list(dict.fromkeys(pair["machine"] for pair in results["pairs"]))
    rows = "\n".join(
        f"| {p['format']} | {p['thought']} | {100 * p['rate']:.1f} ({100 * p['low']:.0f} to {100 * p['high']:.0f}) | "
        f"{100 * (1 - p['invalid']):.0f} % | {p['tokens']:.0f} | {1 + machines.index(p['machine'])} |"
        for p in sorted(results["pairs"], key=lambda pair: -pair["rate"])
    )
    shares = {name: f"{100 * results[name]:.1f} %" for name in ("demonstrator", "random", "optimal")}
    return PAGE.format(**{**results, **shares, "rows": rows, "recipe": RECIPE, "machines": numbered(machines)})


if __name__ == "__main__":
    raise SystemExit(main())
