"""How often a language model that judges descriptions of boards is wrong: ``python -m benchmarks.judge``.

VAGEN pays for what a reply says of the state by the verdict of such a judge (arXiv 2510.16907, section 4). Here the
truth is known exactly. The judge is asked as training asks it (``ragen_agent.training.judge``), of true descriptions
and of ones that are wrong in a known way, on levels of the test split, and its verdicts are counted.

``--base-url URL --model NAME`` asks any OpenAI-compatible server; ``--serve NAME`` serves a model here (a folder, or a
name of ``ragen-agent model --list``). Verdicts that ``judge.json`` holds are not asked for again, so the command may be
stopped and repeated; ``judge.md`` is written from it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine, made_folder
from benchmarks.served_model import served
from ragen_agent.config import Judge as JudgeSettings
from ragen_agent.training.judge import Description, Judge, check_judge
from ragen_gym.core.failures import Failure
from ragen_gym.core.stats import wilson
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.text import EDGE
from ragen_gym.envs.turn import TurnEnv, make_turn

__all__ = ["FORMATS", "GAMES", "KINDS", "Item", "description_of", "items", "main"]

HERE = Path(__file__).parent
GAMES = ("FrozenLake", "Sokoban")
FORMATS = ("symbols", "coordinates", "sentences")
#: How a description differs from the truth, and whether it is right all the same.
KINDS = {
    "the truth": True,
    "the truth in another order": True,
    "a thing one cell off": False,
    "a thing left out": False,
    "a thing that is not there": False,
    "another level": False,
}
UNREADABLE = f"{Failure.MODEL_ERROR}: no verdict"

PAGE = """\
# Judges of what agents say they see

Written by `python -m benchmarks.judge`. A language model is told the true board and a description of it, and answers
whether the two match, as VAGEN's judge does (arXiv 2510.16907, section 4). *Accepted*: of the verdicts, in %, with
Wilson's 95 % interval. Accepting what is true is right; accepting what is wrong is an error that training would pay
for. *No verdict*: answers that do not end with YES or NO in their tags. The exact state reward (`turns.state_reward`)
compares with the true board, and makes none of these errors.

{sections}
Machine: {machine}.
"""
SECTION = """\
## {model}

{judged} descriptions, at most {max_tokens} tokens an answer, temperature 0, {seconds:.1f} s each{where}.{useless}

| descriptions | judged | no verdict | accepted, true | accepted, wrong | verdicts that are wrong |
|---|---|---|---|---|---|
{formats}

| what differs | judged | no verdict | accepted | should be |
|---|---|---|---|---|
{kinds}
"""

USELESS = " None of its answers is a verdict, so a training run that asks it stops in its first iteration."


class Item(NamedTuple):
    """One description to be judged."""

    game: str
    state_format: str
    kind: str
    number: int  # of the level, from 0

    @property
    def key(self) -> str:
        """Its name in the results."""
        return " | ".join(map(str, self))


def main(argv: Sequence[str] | None = None) -> int:
    """Asks what is missing, writes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge", description=(__doc__ or "").split("\n")[0])
    judge = JudgeSettings()
    parser.add_argument("--base-url", metavar="URL", help="of an OpenAI-compatible server, such as http://host:8000/v1")
    parser.add_argument("--model", metavar="NAME", help="the model's name there")
    parser.add_argument("--key-env", default=judge.key_env, metavar="VARIABLE", help="which holds the key")
    parser.add_argument("--serve", metavar="MODEL", help="serve this model here instead, on the CPU")
    parser.add_argument("--judgements", type=int, default=340, metavar="N", help="in all (default 340)")
    parser.add_argument("--max-tokens", type=int, default=judge.max_tokens, metavar="N", help="of an answer")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S", help="of a request, in seconds")
    parser.add_argument("--retries", type=int, default=judge.retries, metavar="N", help="of a request that failed")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="requests at a time (default 16)")
    parser.add_argument("--out", type=made_folder, default=HERE, metavar="DIR", help="folder of the two files")
    arguments = parser.parse_args(argv)
    if bool(arguments.serve) == bool(arguments.base_url) or bool(arguments.base_url) != bool(arguments.model):
        parser.error("give --base-url with --model, or --serve alone.")
    if arguments.serve:
        with served(arguments.serve, arguments.max_tokens, arguments.concurrency) as url:
            return _measure(arguments, url, arguments.serve)
    return _measure(arguments, arguments.base_url, arguments.model)


def _measure(arguments: argparse.Namespace, url: str, model: str) -> int:
    settings = JudgeSettings(
        base_url=url,
        model="policy" if arguments.serve else model,
        key_env=arguments.key_env,
        max_tokens=arguments.max_tokens,
        timeout=arguments.timeout,
        retries=arguments.retries,
        concurrency=arguments.concurrency,
    )
    try:
        if notice := check_judge(settings):
            print(notice)
        judge = Judge(settings)
    except (ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    file = arguments.out / "judge.json"
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"models": {}}
    mine = results["models"].setdefault(
        model, {"max_tokens": arguments.max_tokens, "seconds": 0.0, "served": bool(arguments.serve), "verdicts": {}}
    )
    if mine["max_tokens"] != arguments.max_tokens:
        print(f"{file} holds verdicts of {model} with --max-tokens {mine['max_tokens']}: give that.", file=sys.stderr)
        return 1
    missing = [item for item in items(arguments.judgements) if not _is_over(mine["verdicts"].get(item.key))]
    for first in range(0, len(missing), 2 * arguments.concurrency):
        asked = missing[first : first + 2 * arguments.concurrency]
        began = time.monotonic()
        verdicts = judge.ask([description_of(item) for item in asked])
        for item, verdict in zip(asked, verdicts, strict=True):
            said = verdict.failure if verdict.accepted is None else "yes" if verdict.accepted else "no"
            mine["verdicts"][item.key] = said
        if not any(_is_over(mine["verdicts"][item.key]) for item in asked):
            print(f"{model} answers nothing: {verdicts[0].failure}", file=sys.stderr)
            return 1
        mine["seconds"] += time.monotonic() - began
        results["machine"] = machine("openai", *(["torch"] if mine["served"] else []))
        write_atomic(file, json.dumps(results, indent=1) + "\n")
        write_atomic(arguments.out / "judge.md", _page(results))
        done = len(missing) - first - len(asked)
        print(f"{len(mine['verdicts'])} judged, {mine['seconds']:.0f} s in all, {done} to go", flush=True)
    write_atomic(arguments.out / "judge.md", _page(results))
    return 0


def items(count: int) -> list[Item]:
    """Descriptions to judge: level after level, on each every game, form and difference."""
    each = [
        (game, state_format, kind)
        for kind in KINDS
        for game in GAMES
        for state_format in FORMATS
        if not (state_format == "symbols" and kind == "the truth in another order")  # rows have no other order
    ]
    return [Item(*each[index % len(each)], index // len(each)) for index in range(count)]


def description_of(item: Item) -> Description:
    """The description, drawn from the item alone."""
    env = make_turn(item.game, split="test", grounding=True, state_format=item.state_format)
    rng = np.random.default_rng([item.number, *item.game.encode(), *item.kind.encode()])
    board = _board(env, item.number, rng)
    truth = env.state_text.write(board)
    said = env.state_text.write(_other(item.kind, env, board, item.number, rng))
    if item.kind == "the truth in another order":
        separator = "\n" if item.state_format == "coordinates" else ". "
        parts = said.removesuffix(".").split(separator)
        said = separator.join(parts[::-1]) + "." * said.endswith(".")
    return Description(0, "observation", said, truth, env.state_text.compare(said, board).right)


def _board(env: TurnEnv, number: int, rng: np.random.Generator) -> bytes:
    """The board after some random moves on a level."""
    env.reset(seed=number)
    for _ in range(int(rng.integers(4))):
        _, _, terminated, truncated, _ = env.env.step(int(rng.integers(len(env.action_names))))
        if terminated or truncated:
            env.reset(seed=number)
    return bytes(env.env.state[0])


def _other(kind: str, env: TurnEnv, board: bytes, number: int, rng: np.random.Generator) -> bytes:
    """A board that differs in this way."""
    if kind == "another level":
        found = board
        while found == board:
            number += 1000
            found = _board(env, number, rng)
        return found
    grounds = [tile for tile in env.game.ground_tiles if tile in board]
    things = [cell for cell, tile in enumerate(board) if tile != EDGE and tile not in env.game.ground_tiles]
    free = [cell for cell, tile in enumerate(board) if tile in grounds]
    changed, stride = bytearray(board), env.game.width + 1
    ground = board[free[0]]
    if kind == "a thing one cell off":
        pairs = [
            (cell, to) for cell in things for to in (cell - stride, cell + stride, cell - 1, cell + 1) if to in free
        ]
        cell, to = pairs[int(rng.integers(len(pairs)))]
        changed[cell], changed[to] = board[to], board[cell]
    elif kind == "a thing left out":
        changed[things[int(rng.integers(len(things)))]] = ground
    elif kind == "a thing that is not there":
        kinds = sorted({board[cell] for cell in things} - set(env.game.player_tiles))
        changed[free[int(rng.integers(len(free)))]] = kinds[int(rng.integers(len(kinds)))]
    return bytes(changed)


def _is_over(verdict: str | None) -> bool:
    """Whether the judge said something; what a server failed to answer is asked again."""
    return verdict is not None and (verdict in ("yes", "no") or verdict.startswith(UNREADABLE))


def _page(results: Mapping[str, Any]) -> str:
    """The page of these results."""
    sections = "\n".join(_section(name, mine) for name, mine in results["models"].items())
    return PAGE.format(sections=sections, machine=results.get("machine", "-"))


def _section(model: str, mine: Mapping[str, Any]) -> str:
    verdicts = {key: verdict for key, verdict in mine["verdicts"].items() if _is_over(verdict)}
    rows = [(*key.split(" | "), verdict) for key, verdict in verdicts.items()]
    formats, kinds = [], []
    for name in (*FORMATS, "all"):
        chosen = [(KINDS[kind], verdict) for _, form, kind, _, verdict in rows if name in (form, "all")]
        accepted = [_accepted([v for right, v in chosen if right is truth]) for truth in (True, False)]
        said = [(right, verdict) for right, verdict in chosen if verdict in ("yes", "no")]
        wrong = _rate([right != (verdict == "yes") for right, verdict in said])
        lost = len(chosen) - len(said)
        formats.append(f"| {name} | {len(chosen)} | {lost} | {accepted[0]} | {accepted[1]} | {wrong} |")
    for name, right in KINDS.items():
        found = [verdict for _, _, kind, _, verdict in rows if kind == name]
        lost = sum(verdict not in ("yes", "no") for verdict in found)
        kinds.append(f"| {name} | {len(found)} | {lost} | {_accepted(found)} | {100 * right} |")
    return SECTION.format(
        model=model,
        judged=len(rows),
        max_tokens=mine["max_tokens"],
        seconds=mine["seconds"] / max(1, len(rows)),
        where=", served on the machine below" if mine["served"] else "",
        useless="" if any(verdict in ("yes", "no") for verdict in verdicts.values()) else USELESS,
        formats="\n".join(formats),
        kinds="\n".join(kinds),
    )


def _accepted(verdicts: Sequence[str]) -> str:
    return _rate([verdict == "yes" for verdict in verdicts if verdict in ("yes", "no")])


def _rate(answers: Sequence[bool]) -> str:
    if not answers:
        return "-"
    rate = wilson(sum(answers), len(answers))
    return f"{100 * rate.rate:.0f} ({100 * rate.low:.0f} to {100 * rate.high:.0f})"


if __name__ == "__main__":
    raise SystemExit(main())
