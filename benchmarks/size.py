"""Modules and lines of the product and of its tests: ``python -m benchmarks.size``."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("ragen_gym", "ragen_agent", "benchmarks")


def main() -> int:
    """Print a row for each tree, and the sum of the product."""
    sizes = {tree: _size(ROOT / tree) for tree in (*PRODUCT, "tests")}
    modules, lines = (sum(sizes[tree][column] for tree in PRODUCT) for column in (0, 1))
    print(f"{'':<12} {'modules':>8} {'lines':>8}")
    for name, size in {**sizes, "product": (modules, lines)}.items():
        print(f"{name:<12} {size[0]:>8,} {size[1]:>8,}")
    return 0


def _size(folder: Path) -> tuple[int, int]:
    """Number of Python files in a folder, and of their lines."""
    files = sorted(folder.rglob("*.py"))
    return len(files), sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


if __name__ == "__main__":
    raise SystemExit(main())
