"""What takes seconds to load is announced before it is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ragen_agent.config import Config
from ragen_agent.run.run_folder import RunFolder

#: The program ends where it would begin to load one of the libraries that take seconds.
UNTIL_LOADING = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers", "numba", "peft", "matplotlib"):
            sys.stdout.flush()
            raise SystemExit(77)

sys.meta_path.insert(0, Finder())
from ragen_agent.cli import main
raise SystemExit(main())
"""


@pytest.mark.parametrize("command", ["train", "resume", "eval"])
def test_what_takes_seconds_to_load_is_announced_first(command: str, tmp_path: Path) -> None:
    run, new = RunFolder.create(tmp_path / "run", Config()).path, tmp_path / "new"
    words, said = {
        "train": (["train", "--seed", "3", "--out", new], f"training on FrozenLake by grpo, seed 3, in {new}"),
        "resume": (["train", "--resume", run], f"going on with FrozenLake by grpo, seed 0, in {run}"),
        "eval": (["eval", tmp_path], f"measuring {tmp_path}"),
    }[command]
    (tmp_path / "config.json").touch()
    done = subprocess.run(
        [sys.executable, "-c", UNTIL_LOADING, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 77, done.stderr
    assert done.stdout.splitlines() == [said, "loading torch, transformers and the model ..."]
    assert not new.exists(), "a folder is made once the settings and the model are known to be usable"
