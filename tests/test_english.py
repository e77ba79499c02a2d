"""Docstrings open with a noun or a verb, not with a question word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("ragen_gym", "ragen_agent", "benchmarks")
QUESTION = re.compile(r"(What|How|Whether|Who|Where|Which|When)\b")


def _documented(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line number and docstring of a module, its classes and its public functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            private = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("_")
            if not private and (text := ast.get_docstring(node)):
                yield getattr(node, "lineno", 1), text


def _questions() -> list[str]:
    """Faulty first lines, each with its place."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in _documented(ast.parse(path.read_text(encoding="utf-8")))
        if QUESTION.match(text)
    ]


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    faults = _questions()
    assert not faults, "open these docstrings with a noun or a verb:\n" + "\n".join(faults)
