"""The processes of a run: what they share, how far they have come, and that none outlives the run.

Ray ends its own processes. Two are not Ray's: the run's driver, which the launcher starts, and vLLM's engine, which
an actor starts. Left alone, the driver would go on training and the engine would keep its memory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.run.loop import LoopState
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import write_atomic

if TYPE_CHECKING:
    from ragen_agent.inference.vision import Vision

START = "openrlhf.json"
"""The file in a run's folder that says how its driver was last started."""

VARIABLE = "RAGEN_AGENT_RUN"
"""The environment variable in which every process of a run finds its ``RunContext``."""

POLL_INTERVAL = 1.0  # seconds
STOP_TIMEOUT = 30.0  # seconds in which a process may stop in order
GRACE_PERIOD = 5  # seconds in which a process may end by itself before it is killed


@dataclass(frozen=True)
class RunContext:
    """Context of every process of a run, sent as one environment variable."""

    config: Config  # the settings that both trainers share
    settings: OpenRLHF  # those of this trainer
    folder: str  # the run's
    suppressed_ids: tuple[int, ...]  # token ids that must not be sampled
    vocabulary_size: int  # width of the model's output layer
    model: str = ""  # the folder of the model that reinforcement starts from

    def to_json(self) -> str:
        """One line; ``from_json`` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunContext:
        """The context that ``to_json`` wrote."""
        record = json.loads(text)
        return cls(
            with_settings(Config(), record["config"]),
            with_settings(OpenRLHF(), record["settings"]),
            record["folder"],
            tuple(record["suppressed_ids"]),
            record["vocabulary_size"],
            record["model"],
        )

    @property
    def vision(self) -> Vision | None:
        """Picture reader of the run's model; None of one that reads text only."""
        if not self.model:
            return None
        from transformers import AutoConfig

        from ragen_agent.inference.vision import SAME_PROCESSOR, Vision

        return Vision.from_folder(
            AutoConfig.from_pretrained(self.model, trust_remote_code=False), Path(self.model), SAME_PROCESSOR
        )

    @classmethod
    def from_environment(cls) -> RunContext:
        """That of the run that this process belongs to; raises a RuntimeError if it belongs to none."""
        if VARIABLE not in os.environ:
            raise RuntimeError(f"{VARIABLE} is not set: this code runs inside a training run; see ragen-agent train.")
        return cls.from_json(os.environ[VARIABLE])


def tag_of(iteration: int) -> str:
    """The name of the checkpoint of a run's models after so many iterations."""
    return f"iteration{iteration}"


def read_state(folder: Path) -> LoopState:
    """The last state that was saved completely; that of a run's start if there is none."""
    path = folder / "state.json"
    return LoopState(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else LoopState()


def write_state(folder: Path, state: LoopState) -> None:
    """Replaces the state; the iteration counts as saved from here on."""
    write_atomic(folder / "state.json", json.dumps(asdict(state)) + "\n")


def repair(folder: RunFolder) -> LoopState:
    """Removes what an interruption left behind: records and parts of iterations that were not saved completely.

    DeepSpeed reads from a file which of its checkpoints is the latest; actor and critic have one each, and a run that
    is killed between the two would resume with models of different iterations.
    """
    state = read_state(folder.path)
    summary = folder.read_summary()
    shutil.rmtree(folder.path / "checkpoint.new", ignore_errors=True)  # a final model that was not saved completely
    if "after" in summary and not folder.checkpoint.is_dir():  # evaluated, then killed before the model was saved
        del summary["after"]
        folder.write_summary(summary)
    folder.drop_unfinished(state.iteration)
    for part in sorted((folder.path / "deepspeed").glob("_*")):
        if not state.iteration:
            shutil.rmtree(part)
            continue
        for saved in part.iterdir():
            number = saved.name.removeprefix("iteration")
            if saved.is_dir() and number.isdigit() and int(number) > state.iteration:
                shutil.rmtree(saved)
        write_atomic(part / "latest", tag_of(state.iteration))
    return state


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stops a process: by SIGINT, if that takes too long by SIGTERM, then by SIGKILL."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            continue


def stop_without_parent() -> None:
    """Stops this process, as Ctrl-C does, once the one that started it has ended; kills it if that takes too long."""
    parent, main = os.getppid(), threading.main_thread().ident
    assert main is not None, "the main thread has begun"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in what a script starts with &

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_INTERVAL)
        signal.pthread_kill(main, signal.SIGINT)  # to that thread, or what it waits for would not be interrupted
        time.sleep(STOP_TIMEOUT)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def kill_after_exit(pids: Sequence[int]) -> subprocess.Popen[bytes]:
    """Kills other processes some seconds after this one has ended.

    A shell waits for the end of a pipe that this process alone holds open; the kernel closes it even after a kill. Keep
    a reference to the shell that is returned: its pipe is closed with it.
    """
    script = f'read -r _; sleep {GRACE_PERIOD}; kill -9 "$@" 2> /dev/null'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", *map(str, pids)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
