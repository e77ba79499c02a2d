"""No command writes control characters of a run's files or names to the terminal, nor advice to run a file's code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.text import Text

from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.console import json_text, plain_output, rich_console

ESCAPES = "\x1b]0;taken\x07\x1b[2J\x9b31m\x08\r\u202e[/red]"
RATE = {"rate": 0.5, "low": 0.2, "high": 0.8, "n": 4, "successes": 2, "failed": 0, "overflowed": 0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose name, reasons, episodes and settings hold control characters."""
    config = with_settings(Config(), {"env_options": {"vocabulary": f"n{ESCAPES}"}, "diagnostics": {"wandb": ESCAPES}})
    folder = RunFolder.create(tmp_path / f"run{ESCAPES}", config)
    summary = {"random": RATE, "before": RATE, "optimal": RATE, "stopped": f"because {ESCAPES}"}
    folder.write_summary(summary)
    text = f"board {ESCAPES}"
    messages = [{"role": role, "content": text} for role in ("system", "user", "assistant")]
    episode: dict[str, Any] = {"phase": f"now{ESCAPES}", "messages": messages, "failure": None, "success": True}
    episode |= {"turn_rewards": [1.0], "turn_ends": [3], "iteration": 0, "level_id": ESCAPES, "seed": None}
    episode |= {"ids": [0, 1, 2, 3], "sampled": [0, 0, 0, 1], "log_probs": [0.0] * 4, "turn_infos": []}
    episode |= {"terminated": True, "truncated": False}
    folder.episodes.write_text(json.dumps(episode) + "\n", encoding="utf-8")
    folder.metrics.write_text('{"iteration": 0, "success": 0.5, "seconds": 1.0}\n', encoding="utf-8")
    return folder.path


@pytest.mark.parametrize(
    "words",
    [
        "watch RUN --once",
        "watch RUN --json",
        "report RUN",
        "eval RUN",
        "train --resume RUN",
        "train --resume RUN --dry-run",
        "train --config RUN/config.toml --dry-run",
        "tokens --config RUN/config.toml",
        "sft data --config RUN/config.toml --out RUN/demos.jsonl",
        "sft merge RUN --out RUN/merged",
        "sft train --resume RUN",
    ],
)
def test_every_command_that_reads_a_run(run: Path, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    if words == "report RUN":  # whose viewer needs whole episodes
        (run / "episodes.jsonl").unlink()
    main([word.replace("RUN", str(run)) for word in words.split()])
    said = "".join(capfd.readouterr())
    assert said
    assert not set(said) & set("\x1b\x07\x08\x9b\u202e"), ascii(said)


def test_colours_of_our_own_are_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    with plain_output():
        print(f"plain{ESCAPES}")
        rich_console(force_terminal=True).print(Text.assemble(("red", "red"), f" {ESCAPES}"))
    plain, rich = capsys.readouterr().out.split("\n")[:2]
    assert plain.replace("\r", "").isprintable()  # progress bars of libraries need it
    assert "\x1b[31mred\x1b[0m" in rich
    assert "\x1b[2J" not in rich
    assert "\x9b" not in rich


def test_json_keeps_what_it_says() -> None:
    text = json_text({"name": ESCAPES, "é": "雪 \u00a0\u200d"})
    assert json.loads(text) == {"name": ESCAPES, "é": "雪 \u00a0\u200d"}
    assert "雪" in text
    assert not set(text) & set("\x1b\x07\x08\x9b\u202e")


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran",)


def test_a_state_that_holds_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(tmp_path / "run", Config())
    torch.save({"model": Evil()}, folder.path / "state.pt")
    with pytest.raises(ValueError, match="is damaged: it is damaged, or holds other objects than tensors") as error:
        folder.load_state()
    assert "weights_only" not in str(error.value)
    assert not Path("ran").exists()
