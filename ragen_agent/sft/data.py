"""Demonstrations as a file of conversations, one JSON object a line, in the format that trl and others read.

Each line holds `messages`, from the system's to the last reply, and beside them where they come from: `env`, `knobs`
and `turns` (the budgets), `split` (always train), `seed`, `noise_seed`, `level_id`, the demonstrator's settings, the
`run_seed` and `index`; and how it went: `success` and `return`. They are the demonstrations that the warm start of
`ragen-agent train` shows with the same settings, episode by episode (as long as those fit into its token budgets).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ragen_agent.config import Config
from ragen_agent.sft.demonstrations import scripted_reply
from ragen_agent.sft.warm_start import Part, parts
from ragen_agent.training.console import Display
from ragen_agent.training.tasks import make_env
from ragen_gym.core.storage import read_json_lines, write_atomic

__all__ = ["conversations", "part_file", "write_data"]

SPLIT = "train"


def part_file(path: Path) -> Path:
    """Where the lines stand until all of them are there."""
    return path.with_name(path.name + ".part")


def write_data(config: Config, path: Path, display: Display) -> dict[str, Any]:
    """Writes `config.demonstrations.episodes` conversations; goes on where an earlier call was stopped.

    Returns:
        `episodes`, `successes`, and `resumed`, how many of them an earlier call had written.

    Raises:
        ValueError: `path` exists, or an earlier call wrote other demonstrations beside it; or settings that do not fit.
    """
    if path.exists():
        raise ValueError(f"--out {path} exists already; choose another name, or remove it.")
    if config.turns.history != -1:
        raise ValueError(
            f"turns.history is {config.turns.history}, but a conversation shows every turn; leave it out for sft data."
        )
    unfinished, how = part_file(path), config.demonstrations
    found = read_json_lines(unfinished)
    done: list[dict[str, Any]] = []
    resumed: int | None = None
    display.begin("conversations", how.episodes)
    for part in parts(config, how):
        lines = found[len(done) : len(done) + len(part.places)]
        if any(not _same(line, _origin(config, part, number)) for number, line in enumerate(lines)):
            raise ValueError(f"{unfinished} holds other demonstrations; remove it, or choose another --out.")
        if len(lines) < len(part.places):
            if resumed is None:  # what is there of a part that was stopped is made again
                found, resumed = [], len(done)
                write_atomic(unfinished, _lines(done))
            lines = list(conversations(config, part))
            with unfinished.open("a", encoding="utf-8") as file:
                file.write(_lines(lines))
                file.flush()
                os.fsync(file.fileno())
        done += lines
        display.advance({}, len(part.places))
    display.end()
    write_atomic(unfinished, _lines(sorted(done, key=lambda line: line["index"])))
    os.replace(unfinished, path)
    successes = sum(line["success"] for line in done)
    return {"episodes": len(done), "successes": successes, "resumed": len(done) if resumed is None else resumed}


def conversations(config: Config, part: Part) -> Iterator[dict[str, Any]]:
    """The episodes of a part, as the lines of the file."""
    env, rng = make_env(part.config, SPLIT), np.random.default_rng(part.seed)
    for number, instance in enumerate(part.instances):
        _, info = env.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        earned = 0.0
        while not env.over:
            _, reward, _, _, info = env.step(scripted_reply(env, part.how, rng))
            earned += reward
        messages = list(info["messages"][:-1])  # the last one says how the last reply went: nobody replies to it
        outcome = {"level_id": info["level_id"], "success": bool(info["success"]), "return": earned}
        yield {"messages": messages, **_origin(config, part, number), **outcome}


def _origin(config: Config, part: Part, number: int) -> dict[str, Any]:
    """Where an episode of a part comes from."""
    instance, how = part.instances[number], asdict(part.how)
    episodes = how.pop("episodes")
    return {
        "env": part.config.game,
        "knobs": dict(part.config.env_options),
        "turns": asdict(part.config.turns),
        "split": SPLIT,
        "seed": instance.seed,
        "noise_seed": instance.noise_seed,
        "demonstrator": how,
        "model": config.model,
        "run_seed": config.seed,
        "index": part.places[number],
        "of": episodes,
    }


def _same(record: dict[str, Any], origin: dict[str, Any]) -> bool:
    return json.dumps({name: record.get(name) for name in origin}) == json.dumps(origin)


def _lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
