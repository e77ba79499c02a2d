"""Tries the wheel in new environments, each of which holds only what one sentence of the documentation installs.

``make test-wheel`` runs this: the wheel alone, each extra alone, and each page's own ``pip install``. Every command
explains itself; those that need a missing extra name it before they have done anything; those of an extra, and all
blocks and commands of a page, run. Trials that install the same share an environment.

    python tests/try_wheel.py [NAME ...]    # names of ``TRIALS`` or of pages; all by default
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.pages import ROOT, TRIED, installs, run_blocks, run_commands

BUILD = ROOT / "build" / "wheel"
PIP = ["--disable-pip-version-check", "-qq"]
TINY = "--set demonstrations.episodes=64 --set evaluation.levels=8"
DASHBOARDS = "--set diagnostics.tensorboard=true --set diagnostics.wandb=ragen"
PRETRAINED = "--iterations 1 --set training.group_size=2 --set training.groups=2"


@dataclass(frozen=True)
class Trial:
    """What is installed, and what runs there."""

    installs: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    needs: dict[str, str] = field(default_factory=dict)  # commands that name a missing extra, and its name
    pages: tuple[Path, ...] = ()
    program: str = ""  # all of whose commands explain themselves


TRIALS = {
    "nothing": Trial(
        runs=(
            "ragen-gym list",
            "ragen-gym info FrozenLake",
            "ragen-gym levels export Bandit -n 3 --out levels.jsonl",
            "ragen-gym play FrozenLake",
            "ragen-gym export-env verifiers hub --game Bandit",
            "ragen-gym new-game TreasureHunt",
            "ragen-gym audit FrozenLake-v1",
        ),
        needs={
            "ragen-gym render Sokoban --gif --out a.gif": "render",
            "ragen-gym serve": "serve",
            "ragen-gym bench run --suite smoke --agent random --out run": "bench",
            "ragen-gym check Bandit": "test",
            "ragen-agent train --out run": "agent",
        },
        program="ragen-gym",
    ),
    "render": Trial((".[render]",), ("ragen-gym render Sokoban --gif --out a.gif",)),
    "multiagent": Trial(
        (".[multiagent]",),
        ("python -c 'from ragen_gym.multiagent import env; env(\"Sokoban\").reset(seed=1)'",),
    ),
    "bench": Trial(
        (".[bench]",),
        (
            "ragen-gym bench run --suite smoke --agent random --out random",
            "ragen-gym bench run --suite smoke --agent oracle --out oracle",
            "ragen-gym bench score oracle",
            "ragen-gym bench compare random oracle",
            "ragen-gym bench report random oracle --out report.html",
            "ragen-gym bench verify oracle",
        ),
        {"ragen-gym bench run --suite smoke --agent hf:smollm2-135m --out run": "agent"},
    ),
    "tasks": Trial(
        (".[tasks]",), ("python -c 'from ragen_gym.tasks import ReasoningGym; ReasoningGym().reset(seed=1)'",)
    ),
    "agent": Trial(
        (".[agent]",),
        (
            f"ragen-agent train --game Bandit --iterations 2 --out tiny {TINY}",
            "ragen-agent eval tiny --levels 8",
            "ragen-agent report tiny --out tiny.html",
            "ragen-agent tokens --game Sokoban",
            "ragen-agent doctor",
            "ragen-agent sft data --game Bandit --episodes 8 --out demonstrations.jsonl",
            "ragen-agent sft train --data demonstrations.jsonl --model tiny/checkpoint --out tuned --batch 8",
            f"ragen-agent train --recipe smollm2-135m-bandit --out bandit {TINY} {PRETRAINED}",
            "ragen-agent train --recipe smollm2-135m-frozenlake --dry-run",
            "ragen-agent train --recipe smollm2-135m-sokoban --dry-run",
        ),
        program="ragen-agent",
    ),
    "sft": Trial(
        (".[sft]",),
        (
            "ragen-agent sft data --game Bandit --episodes 8 --out demonstrations.jsonl",
            "ragen-agent sft train --data demonstrations.jsonl --model smollm2-135m --lora-rank 4 --out tuned",
            "ragen-agent sft merge tuned --out merged",
        ),
    ),
    "tracking": Trial(
        (".[agent,tracking]",),
        (f"ragen-agent train --game Bandit --iterations 1 --out tiny {DASHBOARDS} {TINY}",),
    ),
    **{page.stem: Trial(tuple(installs(page)), pages=(page,)) for page in TRIED},
}


def call(python: Path, command: str, folder: Path) -> tuple[int, str]:
    """The exit code of a command, and all that it printed."""
    program, *words = shlex.split(command)
    done = subprocess.run(
        [python.parent / program, *words],
        cwd=folder,
        input="q\n",
        text=True,
        check=False,
        timeout=900,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "WANDB_MODE": "offline"},
    )
    return done.returncode, done.stdout


def subcommands(python: Path, command: str, folder: Path) -> Iterator[tuple[str, int, str]]:
    """A command and all its subcommands, each with the result of its ``--help``."""
    code, text = call(python, f"{command} --help", folder)
    yield command, code, text
    if found := re.search(r"^  (?:COMMAND|ACTION)\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL):
        for name in re.findall(r"^ {4}([a-z][\w-]*)", found[1], re.MULTILINE):
            yield from subcommands(python, f"{command} {name}", folder)


def faults(trial: Trial, python: Path, folder: Path) -> Iterator[str]:
    """Each thing of the trial that went wrong."""
    if trial.program:
        tried = list(subcommands(python, trial.program, folder))
        if len(tried) < 5:
            yield f"{trial.program}: only {len(tried)} commands were found in its --help"
        for command, code, text in tried:
            if code or "usage:" not in text or "Traceback" in text:
                yield f"{command} --help ends with {code}:\n{text}"
    for command in trial.runs:
        code, text = call(python, command, folder)
        if code or "Traceback" in text:
            yield f"{command} ends with {code}:\n{text}"
    before = set(folder.iterdir())
    for command, extra in trial.needs.items():
        code, text = call(python, command, folder)
        if code != 2 or f"ragen-gym[{extra}]" not in text or "Traceback" in text:
            yield f"{command} ends with {code} and does not name the extra {extra}:\n{text}"
    if trial.needs and (left := set(folder.iterdir()) - before):
        yield f"commands without their extras left {left}"
    for page in trial.pages:
        try:
            run_blocks(page, "python", folder, "-W", "error", python=str(python))
            run_commands(page, folder, str(python))
        except AssertionError as error:
            yield str(error)


def attempt(names: list[str], wheel: Path) -> list[str]:
    """Make the environment of trials that install the same, and try each there."""
    asked, started, place = TRIALS[names[0]].installs or (".",), monotonic(), BUILD / names[0]
    venv.create(place, with_pip=True, clear=True)
    python = place / "bin" / "python"
    words = [re.sub(r"^\.(?=\[|$)", str(wheel), word) for word in asked]
    pip = [str(python), "-P", "-m", "pip", "install", *PIP, "-c", str(ROOT / "constraints.txt"), *words]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    print(f"pip install {' '.join(asked)}: code {done.returncode}, {monotonic() - started:.0f} s", flush=True)
    found = [f"{names[0]}: {done.stderr}"] if done.returncode else []
    for name in [] if found else names:
        started = monotonic()
        with tempfile.TemporaryDirectory() as folder:
            wrong = list(faults(TRIALS[name], python, Path(folder)))
        print(f"  {name}: {len(wrong)} faults, {monotonic() - started:.0f} s", flush=True)
        found += [f"{name}: {fault}" for fault in wrong]
    shutil.rmtree(place)
    return found


def main(names: list[str]) -> None:
    """Try all of it, two environments at a time; exits with 1 and what is wrong if anything is."""
    if unknown := set(names) - set(TRIALS):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there is {', '.join(TRIALS)}")
    shutil.rmtree(BUILD, ignore_errors=True)
    pip = [sys.executable, "-P", "-m", "pip", "wheel", *PIP, "--no-deps", "--wheel-dir", str(BUILD), str(ROOT)]
    subprocess.run(pip, check=True)
    wheel = next(BUILD.glob("*.whl"))
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in names or TRIALS:
        alike.setdefault(TRIALS[name].installs, []).append(name)
    longest_first = sorted(alike.values(), key=len, reverse=True)
    with ThreadPoolExecutor(2) as pool:
        found = [fault for faults in pool.map(lambda each: attempt(each, wheel), longest_first) for fault in faults]
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main(sys.argv[1:])
