"""A distributed run from top to bottom: prepare the folder, start OpenRLHF, show its progress, finish.

The folder is a local run's (``ragen_agent.run.run_folder``), and also holds:

openrlhf.toml    the settings of this backend
prompts.jsonl    the prompt dataset
openrlhf.json    the exact command line and environment of the last start
openrlhf.log     the output of OpenRLHF, Ray, vLLM and DeepSpeed
state.json       the last iteration that was saved completely; deepspeed/ its weights and optimiser states
stopped.json     why a run stopped, if it did not finish
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w
import torch

from ragen_agent.config import Config
from ragen_agent.config.settings import pretrained
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.inference.vision import reserved_ids
from ragen_agent.inference.vllm_engine import VLLM_ON_CPU
from ragen_agent.models.resources import cpu_threads
from ragen_agent.openrlhf import patches
from ragen_agent.openrlhf.cli_flags import MODULE, command_flags
from ragen_agent.openrlhf.processes import START, VARIABLE, RunContext, repair, stop_process
from ragen_agent.openrlhf.prompt_dataset import train_rows, write_rows
from ragen_agent.openrlhf.supported import check_biased, check_no_code, check_sees, check_supported
from ragen_agent.preflight.doctor import INSTALL, extensions_folder, left_locks
from ragen_agent.preflight.plan import check_devices, devices_needed
from ragen_agent.run.alarm import History
from ragen_agent.run.console import Display, plot_curve, run_code_flag
from ragen_agent.run.evaluation import evaluated_levels
from ragen_agent.run.hub import push
from ragen_agent.run.model_card import write_model_card
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder, resumable
from ragen_agent.run.tracking import Tracker, track
from ragen_agent.sft.demonstrations import demonstrated_families, measure_baselines
from ragen_agent.sft.trainer import warm_start
from ragen_agent.tasks.tasks import all_settings
from ragen_gym.core.child_python import child_environment, child_python
from ragen_gym.core.command_line import shell_word
from ragen_gym.core.storage import read_json_lines, write_atomic
from ragen_gym.core.threads import WAITING, wait_passively
from ragen_gym.games.registry import own_module

STARTS = 3  # of the driver, where other programs take its ports
PORT_TAKEN = re.compile(rb"EADDRINUSE|address already in use", re.IGNORECASE)
POLL_INTERVAL = 0.5  # seconds between reads of a run's metrics
DRIVER = child_python("-m", "ragen_agent.openrlhf.driver")
PASSED_PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_")
"""Environment variables that begin so reach every process of a cluster as they are here."""
OF_ONE_NODE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_HOSTID")
"""Those that do not: interfaces and nodes have other names elsewhere, so each process has them from its node's Ray."""
CPU_ENVIRONMENT = {
    **VLLM_ON_CPU,
    "DS_ACCELERATOR": "cpu",  # or DeepSpeed warns on the terminal that it found no GPU
}


class RunStoppedError(ValueError):
    """The run ended before its last iteration; the message says why and how to resume it."""


def check_run(config: Config, settings: OpenRLHF) -> bool:
    """Checks a run before anything of it is made; returns whether it does without CUDA.

    Raises:
        ValueError: settings that do not fit each other, the model or this machine.
    """
    _check_installed()
    if locks := left_locks():
        raise ValueError(f"killed workers left locks, for which the run would wait for ever; remove them: rm {locks}")
    check_supported(config, settings)
    if patches.needed(settings.accelerator):
        return True
    patches.check_attention(settings.attention)
    if config.model and (Path(config.model) / "config.json").is_file():
        check_biased(len(suppressed_ids(Path(config.model))[0]))
    if not settings.ray_address:  # or the cluster's GPUs are counted once it is joined
        check_devices(config, settings, torch.cuda.device_count())
    return False


def planned_command(config: Config, settings: OpenRLHF, folder: Path) -> tuple[list[str], bool]:
    """OpenRLHF's command for a run in ``folder``, and whether it does without CUDA, for which CUDA need not be here.

    Raises:
        ValueError: settings that a run would refuse.
    """
    check_supported(config, settings)
    on_cpu = settings.accelerator != "cuda" and patches.needed(settings.accelerator)
    flags = command_flags(config, settings, folder.resolve(), starting_model(config, folder), cpu=on_cpu)
    return ["python", "-P", "-m", MODULE, *flags], on_cpu


def train_distributed(config: Config, settings: OpenRLHF, folder: RunFolder, display: Display) -> dict[str, Any]:
    """Starts the run of a folder, or resumes it, and returns its summary.

    Raises:
        ValueError: see ``check_run``; ``RunStoppedError`` if the run was interrupted.
    """
    on_cpu = check_run(config, settings)
    if on_cpu:
        os.environ.update(CPU_ENVIRONMENT)  # libraries of the stack are imported here too
        wait_passively()  # the processes work in turn: threads that wait must not hold the cores
    atexit.register(_send_stderr_to, folder.path / "openrlhf.log")
    with resumable(folder.path, f"ragen-agent train{run_code_flag(config, settings)} --resume"):
        with _timed(folder):
            _train(config, settings, folder, display, on_cpu=on_cpu)
        summary = folder.read_summary()
        if "stopped" in summary:
            display.say(summary["stopped"])
        for name in ("before", "after"):
            display.rate(name, summary.get(name))
        plot_curve(read_json_lines(folder.metrics), summary, folder.path / "curve.png", config)
        write_model_card(config, summary, folder)
        push(config, summary, folder, display.say)
        display.report(config, summary, folder)
        return summary


def _train(config: Config, settings: OpenRLHF, folder: RunFolder, display: Display, *, on_cpu: bool) -> None:
    """Trains until the final model is in the folder: the warm start, then OpenRLHF in processes of its own."""
    write_atomic(folder.path / "openrlhf.toml", tomli_w.dumps(dataclasses.asdict(settings)))
    folder.note_versions()
    state = repair(folder)
    if not (folder.path / "prompts.jsonl").is_file():
        write_rows(folder.path / "prompts.jsonl", train_rows(config))
    model = _model(config, folder, display)
    check_no_code(model)
    summary = folder.read_summary()
    measure_baselines(config, *evaluated_levels(config), summary, display)
    folder.write_summary(summary)
    path = folder.path.resolve()
    context = RunContext(config, settings, str(path), *suppressed_ids(model), str(model))
    check_sees(config, model, context)
    start = {
        "cpu": on_cpu,
        "devices": devices_needed(config, settings),
        "environment": _environment(context, on_cpu),
        # packages or modules of games that are not of this suite, which the machines of a cluster may not have
        "modules": sorted({own_module(game.game).partition(".")[0] for game in all_settings(config)} - {""}),
        "flags": command_flags(config, settings, path, model, cpu=on_cpu, resume=bool(state.iteration)),
    }
    if "after" not in folder.read_summary():
        write_atomic(folder.path / START, json.dumps(start, indent=2) + "\n")
        with track(config, folder) as trackers:
            _run(folder, config, settings, state.iteration, display, trackers)
    new = folder.path / "checkpoint.new"
    if new.is_dir():  # the final model is complete
        shutil.rmtree(folder.checkpoint, ignore_errors=True)
        new.rename(folder.checkpoint)
        folder.copy_seen(folder.checkpoint)


@contextmanager
def _timed(folder: RunFolder) -> Iterator[None]:
    """Adds the seconds of the block to the run's ``wall_s``, however it ends."""
    started = time.monotonic()
    try:
        yield
    finally:
        summary = folder.read_summary()
        folder.write_summary({**summary, "wall_s": summary.get("wall_s", 0.0) + time.monotonic() - started})


def _check_installed() -> None:
    missing = [name for name in ("openrlhf", "ray", "vllm", "deepspeed") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"--backend openrlhf needs {', '.join(missing)}, which this Python does not have. Install them {INSTALL}."
        )


def starting_model(config: Config, folder: Path) -> Path:
    """The folder of the model that reinforcement starts from: the one given, or what its warm start leaves."""
    if pretrained(config.model) and not config.warm_start.epochs:
        return Path(config.model).resolve()
    return folder.resolve() / "warm"


def suppressed_ids(model: Path) -> tuple[tuple[int, ...], int]:
    """Ids that must not be sampled (suppressed ones, pictures', padding), and the output layer's width."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    width = int(config.get_text_config().vocab_size)
    known = len(AutoTokenizer.from_pretrained(model, trust_remote_code=False))
    suppressed: Sequence[int] = ()
    if (model / "generation_config.json").is_file():
        suppressed = GenerationConfig.from_pretrained(model).suppress_tokens or ()
    return tuple(sorted({*suppressed, *reserved_ids(config), *range(known, width)})), width


def _model(config: Config, folder: RunFolder, display: Display) -> Path:
    """``starting_model``, after the warm start in this process if there is one to do."""
    model = starting_model(config, folder.path)
    folder.add_seen(demonstrated_families(config))
    if model == folder.warm.resolve() and not model.is_dir():
        warm_start(config, Policy.build(config), folder.warm, display, folder)
        folder.copy_seen(folder.warm)
        gc.collect()  # its weights and moments; their memory is needed by the processes of the run
        torch.cuda.empty_cache()  # which torch would keep for this process
    return model


def _environment(context: RunContext, on_cpu: bool) -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)  # ninja, with which DeepSpeed builds its extensions
    return {
        VARIABLE: context.to_json(),
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
        "TORCH_EXTENSIONS_DIR": str(extensions_folder()),  # the Makefile builds there too
        "HF_HUB_OFFLINE": "1",  # models are folders
        "PYTHONSAFEPATH": "1",  # vLLM's engine is a child of Ray's process and would import from the current folder
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # DeepSpeed would unpickle, and so run, whatever a saved state holds
        "OMP_NUM_THREADS": str(cpu_threads(context.config)),
        **{name: value for name, value in os.environ.items() if _is_passed(name)},
        **(CPU_ENVIRONMENT if on_cpu else {}),
    }


def _is_passed(name: str) -> bool:
    return (name.startswith(PASSED_PREFIXES) and name not in OF_ONE_NODE) or name in WAITING


def _run(
    folder: RunFolder, config: Config, settings: OpenRLHF, done: int, display: Display, trackers: Sequence[Tracker]
) -> None:
    """Starts the driver, shows its metrics until it ends, and gives them to the trackers.

    OpenRLHF, vLLM and Ray choose free ports before they use them. If another program takes one in between, and no
    iteration was done, the driver is started again.
    """
    history, log = History(read_json_lines(folder.metrics), config.stops), folder.path / "openrlhf.log"
    for start in range(1, STARTS + 1):
        before = len(history.records)
        (folder.path / "stopped.json").unlink(missing_ok=True)
        display.say(f"starting OpenRLHF; its output goes to {log}")
        with log.open("ab") as output:
            printed = output.tell()
            process = subprocess.Popen(
                [*DRIVER, str(folder.path / START)],
                env=child_environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                with display.progress("reinforcement", config.training.iterations, done):
                    while process.poll() is None:
                        time.sleep(POLL_INTERVAL)
                        _show(folder, history, display, trackers)
                    _show(folder, history, display, trackers)
            finally:
                stop_process(process)
        if not process.returncode:
            return
        if start == STARTS or len(history.records) > before or not PORT_TAKEN.search(log.read_bytes()[printed:]):
            raise RunStoppedError(_stop_reason(folder, log, process.returncode) + run_code_flag(config, settings))
        display.say("another program took a port that OpenRLHF had chosen; starting again")


def _show(folder: RunFolder, history: History, display: Display, trackers: Sequence[Tracker]) -> None:
    """Shows the iterations that are not in the history, and the signs that they recorded; adds them to it."""
    try:
        records = read_json_lines(folder.metrics)
    except ValueError:  # a line is being written
        return
    for record in records[len(history.records) :]:
        for tracker in trackers:
            tracker.add(record)
        display.advance(record)
        for sign in history.new_signs(record):
            if sign.name in record.get("alarm", ()):
                display.say(str(sign))
        history.add(record, stagnant=False)


def _stop_reason(folder: RunFolder, log: Path, code: int) -> str:
    stopped = folder.path / "stopped.json"
    if stopped.is_file():
        reason = json.loads(stopped.read_text(encoding="utf-8"))["reason"]
    else:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        reason = f"its process ended with code {code}; its last line was: {lines[-1] if lines else ''}"
    return f"the run stopped: {reason} Go on with: ragen-agent train --resume {shell_word(folder.path)}"


def _send_stderr_to(log: Path) -> None:
    """Sends what libraries print when the interpreter ends, such as reports of leaked objects, to the run's log."""
    with suppress(OSError), log.open("ab") as output:
        sys.stderr.flush()
        os.dup2(output.fileno(), 2)
