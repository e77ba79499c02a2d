"""Docstrings open with a noun or a verb, not with a question word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("ragen_gym", "ragen_agent", "benchmarks")
QUESTION = re.compile(r"(What|How|Whether|Who|Where)\b")

#: Rooms with docstrings that still open with a question word. Remove a room once it is clean; add none.
# fmt: off
NOT_YET = {
    "benchmarks.experiments", "ragen_gym.audit", "ragen_gym.bench", "ragen_gym.envs", "ragen_gym.games",
}
# fmt: on


def _documented(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line number and docstring of a module, its classes and its public functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            private = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("_")
            if not private and (text := ast.get_docstring(node)):
                yield getattr(node, "lineno", 1), text


def _questions() -> dict[str, list[str]]:
    """Faulty first lines by room, the first two parts of a module's dotted name."""
    found: dict[str, list[str]] = {}
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        name = path.relative_to(ROOT)
        room = ".".join(name.with_suffix("").parts[:2])
        for line, text in _documented(ast.parse(path.read_text(encoding="utf-8"))):
            if QUESTION.match(text):
                found.setdefault(room, []).append(f"{name}:{line}: {text.splitlines()[0]}")
    return found


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    """Every room but those in NOT_YET is clean, and every room in NOT_YET is not."""
    found = _questions()
    faults = [place for room, places in found.items() if room not in NOT_YET for place in places]
    assert not faults, "open these docstrings with a noun or a verb:\n" + "\n".join(faults)
    clean = sorted(NOT_YET - set(found))
    assert not clean, f"these rooms are clean; remove them from NOT_YET: {clean}"
