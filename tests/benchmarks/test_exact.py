"""The page on exact evaluation, held to its results."""

from __future__ import annotations

import json
from pathlib import Path

import benchmarks
from benchmarks.exact import _page


def test_the_page_is_made_of_its_results() -> None:
    here = Path(benchmarks.__file__).parent
    results = json.loads((here / "exact.json").read_text(encoding="utf-8"))
    assert _page(results) == (here / "exact.md").read_text(encoding="utf-8")
