"""The pages' examples, run as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "renders").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run(page: Path, tmp_path: Path) -> None:
    """A block that begins with a comment that names a file is that file, and so is the block after it."""
    script, module = [], None
    for block in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", block):
            module = tmp_path / name[1]
            module.write_text(block, encoding="utf-8")
        elif module:
            module.write_text(module.read_text(encoding="utf-8") + "\n\n" + block, encoding="utf-8")
            module = None
        else:
            script.append(block)
    program = tmp_path / "page.py"
    program.write_text("\n".join(script), encoding="utf-8")
    done = subprocess.run([sys.executable, "-W", "error", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


COMMANDS = [
    line.partition("#")[0].strip()
    for page in PAGES
    for block in blocks(page, "sh")
    for line in block.splitlines()
    if line.startswith(("ragen-gym ", "ragen-agent "))
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command: str, tmp_path: Path) -> None:
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", f"{program.replace('-', '_')}.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        input="q\n",
    )
    assert done.returncode == 0, done.stderr


def test_every_command_of_the_makefile_is_named_there_or_in_its_help() -> None:
    named = set(re.findall(r"^make (\w+)", "\n".join(blocks(ROOT / "README.md", "sh")), re.MULTILINE))
    targets = set(re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named
    assert named <= targets
