"""Tries the wheel in new environments, each of which holds only what one sentence of the documentation installs.

``make test-wheel`` runs this: the wheel alone, each extra alone, and each page's own ``pip install``. Every command
explains itself; those that need a missing extra name it before they have done anything; those of an extra, and all
blocks and commands of a page, run.

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

from tests.pages import PAGES, ROOT, blocks, installs, run_blocks, run_commands

BUILD = ROOT / "build" / "wheel"
PIP = ["--disable-pip-version-check", "-qq"]
TINY = "--set demonstrations.episodes=64 --set evaluation.levels=8"
PRETRAINED = "--iterations 1 --set training.group_size=2 --set training.groups=2"


@dataclass(frozen=True)
class Trial:
    """An environment and what runs in it."""

    installs: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    needs: dict[str, str] = field(default_factory=dict)  # commands that name a missing extra, and its name
    pages: tuple[Path, ...] = ()


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
            "ragen-agent sft train --data demonstrations.jsonl --model smollm2-135m --out tuned --batch 8",
            f"ragen-agent train --recipe smollm2-135m-bandit --out bandit {TINY} {PRETRAINED}",
            "ragen-agent train --recipe smollm2-135m-frozenlake --dry-run",
            "ragen-agent train --recipe smollm2-135m-sokoban --dry-run",
        ),
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
        (
            f"ragen-agent train --game Bandit --iterations 1 --out tiny --set diagnostics.tensorboard=true {TINY}",
            f"ragen-agent train --game Bandit --iterations 1 --out other --set diagnostics.wandb=ragen {TINY}",
        ),
    ),
    **{
        page.stem: Trial(tuple(installs(page)), pages=(page,))
        for page in PAGES
        if blocks(page, "python") and page.parent.name != "environments"
    },
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
    programs = {(): ["ragen-gym"], (".[agent]",): ["ragen-agent"]}
    for program in programs.get(trial.installs, ()):
        tried = list(subcommands(python, program, folder))
        if len(tried) < 5:
            yield f"{program}: only {len(tried)} commands were found in its --help"
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
            run_blocks(page, "python", folder, python=str(python))
            run_commands(page, folder, str(python))
        except AssertionError as error:
            yield str(error)


def attempt(name: str, wheel: Path) -> list[str]:
    """Make the environment of a trial, and try it there."""
    trial, started, place = TRIALS[name], monotonic(), BUILD / name
    venv.create(place, with_pip=True, clear=True)
    python = place / "bin" / "python"
    asked = [re.sub(r"^\.(?=\[|$)", str(wheel), word) for word in trial.installs or (".",)]
    pip = [str(python), "-P", "-m", "pip", "install", *PIP, "-c", str(ROOT / "constraints.txt"), *asked]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    with tempfile.TemporaryDirectory() as folder:
        found = [done.stderr] if done.returncode else list(faults(trial, python, Path(folder)))
    shutil.rmtree(place)
    print(f"{name}: pip install {' '.join(trial.installs) or '.'}: {len(found)} faults, {monotonic() - started:.0f} s")
    return [f"{name}: {fault}" for fault in found]


def main(names: list[str]) -> None:
    """Try all of it, two environments at a time; exits with 1 and what is wrong if anything is."""
    if unknown := set(names) - set(TRIALS):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there is {', '.join(TRIALS)}")
    shutil.rmtree(BUILD, ignore_errors=True)
    pip = [sys.executable, "-P", "-m", "pip", "wheel", *PIP, "--no-deps", "--wheel-dir", str(BUILD), str(ROOT)]
    subprocess.run(pip, check=True)
    wheel = next(BUILD.glob("*.whl"))
    with ThreadPoolExecutor(2) as pool:
        found = [fault for faults in pool.map(lambda name: attempt(name, wheel), names or TRIALS) for fault in faults]
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main(sys.argv[1:])
