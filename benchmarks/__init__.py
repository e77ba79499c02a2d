"""Measurements and experiments of the repository; they are not part of the installed packages."""

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["machine", "made_folder", "numbered", "page_parser", "write_results"]


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


def made_folder(text: str) -> Path:
    """The type of an option that names the folder of a page: made at once, and not missed after hours of measuring."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be made: {error.strerror}; name another folder.") from error
    return Path(text)


def page_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of a measurement, with the first paragraph of its module's docstring and the folder of its page."""
    about = (about or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    here = Path(__file__).parent
    parser.add_argument("--out", type=made_folder, default=here, metavar="DIR", help="folder of the page and results")
    return parser


def write_results(folder: Path, name: str, results: Mapping[str, Any], page: str) -> None:
    """Write the results of a measurement as JSON, and its page."""
    from ragen_gym.core.storage import write_atomic  # which programs that are compared with ours lack

    write_atomic(folder / f"{name}.json", json.dumps(results, indent=1) + "\n")
    write_atomic(folder / f"{name}.md", page)


def numbered(machines: Sequence[str]) -> str:
    """Machines with the numbers, from 1, by which a table names them."""
    return "; ".join(f"({number}) {each}" for number, each in enumerate(machines, start=1))
