"""Tries the installed wheel where nothing else is: ``make test-wheel`` runs this outside the repository.

Every command of both programs explains itself; those of the games run; one that needs an extra names it, before it has
done anything.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

BIN = Path(sysconfig.get_path("scripts"))

#: What a user may try first with the games alone.
RUN = [
    "ragen-gym list",
    "ragen-gym info FrozenLake",
    "ragen-gym levels export Bandit -n 3 --out levels.jsonl",
    "ragen-gym play FrozenLake",
    "ragen-gym export-env verifiers hub --game Bandit",
    "ragen-agent settings training",
]
#: Commands that need an extra, and its name.
NEED = {
    "ragen-gym render Sokoban --gif --out a.gif": "render",
    "ragen-gym serve": "serve",
    "ragen-gym bench run --suite smoke --agent random --out run": "bench",
    "ragen-gym check Bandit": "test",
    "ragen-agent train --out run": "agent",
    "ragen-agent eval run": "agent",
    "ragen-agent report run": "agent",
    "ragen-agent doctor": "agent",
    "ragen-agent sft data --out data.jsonl": "agent",
    "ragen-agent data --out data.jsonl": "agent",
}


def call(command: str, folder: str) -> tuple[int, str]:
    """The exit code of a command, and all that it printed."""
    program, *words = command.split()
    done = subprocess.run(
        [BIN / program, *words], cwd=folder, input="q\n", text=True, check=False, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def commands(command: str, folder: str) -> Iterator[tuple[str, int, str]]:
    """A command and all its subcommands, each with what its ``--help`` gives."""
    code, text = call(f"{command} --help", folder)
    yield command, code, text
    if found := re.search(r"^  (?:COMMAND|ACTION)\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL):
        for name in re.findall(r"^ {4}([a-z][\w-]*)", found[1], re.MULTILINE):
            yield from commands(f"{command} {name}", folder)


def faults(folder: str) -> Iterator[str]:
    """What did not go as it should, and a line for each thing that was tried."""
    for program in ("ragen-gym", "ragen-agent"):
        code, text = call(f"{program} --version", folder)
        if code or text.split() != [program, version("ragen-gym")]:
            yield f"{program} --version: {text}"
        tried = list(commands(program, folder))
        print(f"{program}: {len(tried)} commands explain themselves")
        if len(tried) < 5:
            yield f"{program}: only {len(tried)} commands were found in its --help"
        for command, code, text in tried:
            if code or "usage:" not in text or "Traceback" in text:
                yield f"{command} --help ends with {code}:\n{text}"
    for command in RUN:
        code, text = call(command, folder)
        print(command)
        if code or "Traceback" in text:
            yield f"{command} ends with {code}:\n{text}"
    before = sorted(Path(folder).iterdir())
    for command, extra in NEED.items():
        code, text = call(command, folder)
        print(f"{command}: needs {extra}")
        if code != 2 or f"ragen-gym[{extra}]" not in text or "Traceback" in text:
            yield f"{command} ends with {code} and does not name the extra {extra}:\n{text}"
    if left := set(Path(folder).iterdir()) - set(before):
        yield f"commands without their extras left {left}"


def main() -> None:
    """Tries all of it in a new folder; exits with 1 and what is wrong if anything is."""
    extras = [name for name in ("pygame", "rich", "torch", "fastapi", "jinja2") if find_spec(name)]
    if extras:
        sys.exit(f"this environment has {', '.join(extras)}: make test-wheel makes one with the wheel alone.")
    with tempfile.TemporaryDirectory() as folder:
        if found := list(faults(folder)):
            sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
