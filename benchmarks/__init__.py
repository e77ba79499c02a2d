"""Measurements and experiments of the repository; they are not part of the installed packages.

This module imports nothing but the standard library, as the programs that are compared with ours lack the rest.
"""

import argparse
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = [
    "machine",
    "markdown_table",
    "numbered",
    "page_parser",
    "read_records",
    "read_results",
    "write_results",
]


def machine(*packages: str) -> str:
    """The processor, the GPU if there is one, and the versions of Python and of these packages: a line for a page."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = f"{names[0]}, {len(names)} cores" if names else model
    if "torch" in packages:
        import torch

        if torch.cuda.is_available():
            model += f", {torch.cuda.get_device_name()}"
    versions = (f"{name} {version(name)}" for name in packages)
    return "; ".join([model, ", ".join([f"Python {platform.python_version()}", *versions])])


def page_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of a measurement, with the first paragraph of its module's docstring and the folder of its page."""
    about = (about or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    here = Path(__file__).parent
    parser.add_argument("--out", type=_made_folder, default=here, metavar="DIR", help="folder of the page and results")
    return parser


def _made_folder(text: str) -> Path:
    """The folder of a page, made before hours of measuring."""
    Path(text).mkdir(parents=True, exist_ok=True)
    return Path(text)


def read_results(folder: Path, name: str) -> dict[str, Any]:
    """The results of a measurement so far."""
    file = folder / f"{name}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def write_results(folder: Path, name: str, results: Mapping[str, Any], page: str) -> None:
    """Write the results of a measurement as JSON, and its page."""
    from ragen_gym.core.storage import write_atomic

    write_atomic(folder / f"{name}.json", json.dumps(results, indent=1) + "\n")
    write_atomic(folder / f"{name}.md", page)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a measurement so far; one that was torn when it was killed is dropped."""
    from ragen_gym.core.storage import read_json_lines, repair_json_lines

    if path.exists():
        repair_json_lines(path)
    return read_json_lines(path)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def numbered(machines: Sequence[str]) -> str:
    """Machines with the numbers, from 1, by which a table names them."""
    return "; ".join(f"({number}) {each}" for number, each in enumerate(machines, start=1))
