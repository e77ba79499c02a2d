"""The speedrun as a task for coding agents: ``python -m benchmarks.speedrun_task DIR`` writes a folder for Harbor.

``inspect eval benchmarks/speedrun_inspect.py -T folder=DIR --model MODEL`` plays the same folder in Inspect AI. The
agent writes ``/app/speedrun.py``; the test measures it with a runner of its own. The reward is 0 for a file that solves
too few lakes, and otherwise the record's time over the file's: above 1.11 is a record in time.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import read_results
from benchmarks.speedrun_page import RULES, costs, records

ROOT = Path(__file__).parents[1]
SOURCE = (
    "ragen_gym",
    "ragen_agent",
    "benchmarks",
    "examples",
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "LICENSE",
)
FILES = {
    "task.toml": """\
schema_version = "1.0"

[task]
name = "ragen-gym/speedrun"
description = "Train a small language model that solves held-out lakes in as few CPU seconds as possible."

[agent]
timeout_sec = 7200.0

[verifier]
timeout_sec = 3600.0

[environment]
build_timeout_sec = 1800.0
cpus = 1
memory_mb = 4096
""",
    "instruction.md": """\
Write `/app/speedrun.py`. `python speedrun.py --seed SEED --out DIR` trains a language model from scratch that plays 4x4
frozen lakes, on one CPU core. It must solve 60 % of 256 held-out lakes, at the lower end of the 95 % interval over
five seeds; the fewer CPU seconds it takes, the better. Begin with `/src/examples/starpo_from_scratch.py`, which is far
too slow.

{rules}

Measure it as the test does: `cd /src && python -m benchmarks.speedrun /app/speedrun.py --split validation`.
""",
    "environment/Dockerfile": """\
FROM python:3.12-slim
ADD source.tar.gz /src
WORKDIR /src
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu \\
    && pip install --no-cache-dir -c constraints.txt -e '.[agent,bench]' && rm examples/speedrun.py && mkdir -p /app
WORKDIR /app
""",
    "tests/test.sh": """\
#!/bin/bash
# What the agent changed in /src does not count: the runner is unpacked anew. Installed packages stay as it left them.
tests=$(cd "$(dirname "$0")" && pwd); runner=$(mktemp -d); logs=${{LOGS:-/logs/verifier}}; mkdir -p "$logs"
echo 0 > "$logs/reward.txt"
tar xzf "$tests/source.tar.gz" -C "$runner" && cd "$runner" && export PYTHONPATH=$runner
python -m benchmarks.speedrun "${{APP:-/app}}/speedrun.py" --out "$logs" --record agent "$@"
python -m benchmarks.speedrun_task --reward "$logs"
""",
    "solution/solve.sh": """\
#!/bin/bash
cp "$(dirname "$0")/speedrun.py" "${{APP:-/app}}/speedrun.py"
""",
}


def write_task(folder: Path) -> None:
    """Writes the task into a folder, with the sources of this checkout; the fastest file is its solution."""
    source = io.BytesIO()
    with tarfile.open(fileobj=source, mode="w:gz") as archive:
        for name in SOURCE:
            archive.add(ROOT / name, name, filter=_kept)
    record = (ROOT / "examples" / "speedrun.py").read_text(encoding="utf-8")
    texts = {name: text.format(rules=RULES) for name, text in FILES.items()} | {"solution/speedrun.py": record}
    for name, content in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    for place in ("environment", "tests"):
        (folder / place / "source.tar.gz").write_bytes(source.getvalue())


def _kept(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Python files, data of the packages and the records of the speedrun; no results of other measurements."""
    parts = Path(file.name).parts
    other = parts[0] == "benchmarks" and not (file.isdir() or file.name.endswith(".py") or "speedrun" in file.name)
    return None if "__pycache__" in parts or other else file


def reward(folder: Path) -> float:
    """The least time of the records over that of the run in a folder, by product or loop, whichever gains less.

    0 for a run that solves too few lakes.
    """
    runs = read_results(folder, "speedrun").get("runs", [])
    if not records(runs):
        return 0.0
    known = records(read_results(Path(__file__).parent, "speedrun")["runs"])
    least = [min(each) for each in zip(*map(costs, known or runs), strict=True)]
    product, loop, _ = costs(runs[0])
    return float(min(least[0] / product, least[1] / loop))


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the folder, or the reward of a run; 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speedrun_task", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reward", action="store_true", help="write reward.txt beside the run in the folder")
    options = parser.parse_args(argv)
    if options.reward:
        (options.folder / "reward.txt").write_text(f"{reward(options.folder):.4f}\n")
    else:
        write_task(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
