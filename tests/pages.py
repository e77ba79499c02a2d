"""Examples of the documentation: the scripts and commands of a page, run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of that language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


#: The pages whose examples run where nothing but their own ``pip install`` is: see ``tests/try_wheel.py``.
TRIED = [page for page in PAGES if blocks(page, "python") and page.parent.name != "environments"]


def script_of(page: Path, language: str, folder: Path) -> str:
    """A page's blocks of that language as one script, its modules written to ``folder``.

    A block that begins with a comment that names a file is that file, or goes on with it: ``# game.py, continued``.
    """
    script: list[str] = []
    for block in blocks(page, language):
        if name := re.match(r"# (\w+\.(?:py|toml))(, continued)?\n", block):
            module = folder / name[1]
            before = module.read_text(encoding="utf-8") + "\n\n" if name[2] else ""
            module.write_text(before + block, encoding="utf-8")
        else:
            script.append(block)
    return "\n".join(script)


def run_blocks(page: Path, language: str, folder: Path, *flags: str, python: str = sys.executable) -> None:
    """Run a page's blocks of that language in ``folder``."""
    program = folder / "page.py"
    program.write_text(script_of(page, language, folder), encoding="utf-8")
    done = subprocess.run([python, *flags, str(program)], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, f"{page.name}\n{done.stderr}"


def commands(page: Path) -> list[str]:
    """The page's commands of both programs, in their order."""
    lines = [line.strip() for block in blocks(page, "sh") for line in block.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.startswith(("ragen-gym ", "ragen-agent "))]


def run_commands(page: Path, folder: Path, python: str = sys.executable) -> None:
    """Run a page's commands in ``folder``, beside the files that its blocks are."""
    for language in ("python", "toml"):
        script_of(page, language, folder)
    for command in commands(page):
        program, *arguments = shlex.split(command)
        done = subprocess.run(
            [python, "-m", f"{program.replace('-', '_')}.cli", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            input="q\n",
        )
        assert done.returncode == 0, f"{page.name}: {command}\n{done.stderr}"


def installs(page: Path) -> list[str]:
    """The requirements of the page's first ``pip install`` that names an extra, as ``.[a,b]``, or a library."""
    found = re.search(r"pip install ('\.\[[^`#\n]+)", page.read_text(encoding="utf-8"))
    return shlex.split(found[1]) if found else []
