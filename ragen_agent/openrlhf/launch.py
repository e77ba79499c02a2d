"""A distributed run from top to bottom: prepare the folder, start OpenRLHF, show its progress, finish.

The folder is that of the local trainer (`ragen_agent.training.run_folder`), and beside it:

openrlhf.toml    the settings of this backend
prompts.jsonl    the seed list
openrlhf.json    the exact command line and environment of the last start
openrlhf.log     what OpenRLHF, Ray, vLLM and DeepSpeed print
state.json       the last iteration that was saved whole; deepspeed/ its weights and optimiser states
stopped.json     why a run stopped, if it did not finish
tensorboard/     the figures of metrics.jsonl for TensorBoard
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from ragen_agent.config import Config
from ragen_agent.config.openrlhf import VARIABLE, OpenRLHF, Workers
from ragen_agent.openrlhf import cpu
from ragen_agent.openrlhf.cli_flags import check_layout, flags
from ragen_agent.openrlhf.prompt_dataset import adopt_rows, train_rows, write_rows
from ragen_agent.openrlhf.reserved_flags import refuse
from ragen_agent.openrlhf.state import check_possible, mend
from ragen_agent.training.console import Display
from ragen_agent.training.evaluation import baselines, fixed_instances
from ragen_agent.training.run_folder import RunFolder
from ragen_agent.training.tasks import make_env
from ragen_gym.core.storage import read_json_lines, write_atomic

__all__ = ["RunStoppedError", "train_distributed"]

LOOK_EVERY = 0.5  # seconds between looks at a run's metrics
PATIENCE = 30.0  # seconds that a run is given to stop when asked to
PASSED = ("NCCL_", "GLOO_", "TORCH_NCCL_")
"""How the names of variables begin that reach every process of a cluster as they are here."""
CPU_ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


class RunStoppedError(ValueError):
    """The run ended before its last iteration; the message says why and how to go on."""


def train_distributed(
    config: Config, settings: OpenRLHF, folder: RunFolder, display: Display, extra: Sequence[str] = ()
) -> dict[str, Any]:
    """Runs or goes on with the run of `folder`.

    Args:
        config: the settings that both trainers share.
        settings: those of this one.
        folder: new, or of a run that was interrupted.
        display: shows the progress.
        extra: flags passed on to OpenRLHF as they are.

    Returns:
        the run's summary.

    Raises:
        ValueError: settings that do not fit one another or this machine; `RunStoppedError` if the run broke off.
    """
    _check_installed()
    refuse(extra)
    on_cpu = cpu.needed(settings.accelerator)
    if on_cpu:
        cpu.refuse(extra)
    started = time.monotonic()
    write_atomic(folder.path / "openrlhf.toml", tomli_w.dumps(dataclasses.asdict(settings)))
    state = mend(folder)
    model = _model(config, folder, display)
    run = Workers(config, settings, str(folder.path.resolve()), *_forbidden(model))
    check_possible(run)
    check_layout(run)
    if not (folder.path / "prompts.jsonl").is_file():
        given = settings.prompts
        write_rows(folder.path / "prompts.jsonl", adopt_rows(Path(given), config) if given else train_rows(config))
    _measure_baselines(run, folder, display)
    environment = _environment(run, on_cpu)
    told = {
        "cpu": on_cpu,
        "devices": _devices(run),
        "environment": environment,
        "flags": flags(run, model, on_cpu, bool(state.iteration), extra),
    }
    if state.iteration < config.training.iterations or "after" not in folder.read_summary():
        write_atomic(folder.path / "openrlhf.json", json.dumps(told, indent=2) + "\n")
        _run(folder, config.training.iterations, state.iteration, display)
    _adopt_checkpoint(folder)
    summary = folder.read_summary()
    summary["wall_s"] = summary.get("wall_s", 0.0) + time.monotonic() - started
    folder.write_summary(summary)
    for name in ("before", "after"):
        display.rate(name, summary.get(name))
    _finish(config, folder, summary, display)
    return summary


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("openrlhf", "ray", "vllm", "deepspeed") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"--backend openrlhf needs {', '.join(missing)}, which this Python does not have. From the repository, "
            "`make test-openrlhf` makes .venv-openrlhf with all of it for a CPU; on GPUs: pip install 'openrlhf[vllm]'."
        )


def _model(config: Config, folder: RunFolder, display: Display) -> Path:
    """The folder of the model to start from: the one given, or the small model after its warm start."""
    from ragen_agent.config.game_defaults import pretrained
    from ragen_agent.local.run import TrainingRun

    if pretrained(config.model):
        return Path(config.model).resolve()
    if not folder.warm.is_dir():
        local = TrainingRun(config, folder, display)
        local.warm_start()
        local.baselines()
    return folder.warm.resolve()


def _forbidden(model: Path) -> tuple[tuple[int, ...], int]:
    """Ids that no reply may hold, and the width of the output layer: what the model suppresses, and padding."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    width = int(AutoConfig.from_pretrained(model).vocab_size)
    known = len(AutoTokenizer.from_pretrained(model))
    suppressed: Sequence[int] = ()
    if (model / "generation_config.json").is_file():
        suppressed = GenerationConfig.from_pretrained(model).suppress_tokens or ()
    return tuple(sorted({*suppressed, *range(known, width)})), width


def _measure_baselines(run: Workers, folder: RunFolder, display: Display) -> None:
    """Random and optimal play on the fixed levels."""
    summary = folder.read_summary()
    if "optimal" in summary:
        return
    env = make_env(run.config, run.config.evaluation.split)
    for name, rate in baselines(env, fixed_instances(env, run.config.evaluation.levels)).items():
        summary[name] = rate.to_dict()
        display.rate(name, rate.to_dict())
    folder.write_summary(summary)


def _devices(run: Workers) -> int:
    """How many devices the models of a run take when they do not share them."""
    settings, training = run.settings, run.config.training
    actor = settings.actor_nodes * settings.actor_gpus
    critic = settings.critic_nodes * settings.critic_gpus if training.critic else 0
    reference = 0 if training.kl_estimate == "none" else actor
    return actor + reference + critic + settings.vllm_engines * settings.vllm_tensor_parallel


def _environment(run: Workers, on_cpu: bool) -> dict[str, str]:
    """Variables of every process of the run."""
    extensions = Path(sys.prefix) / "torch_extensions"  # one for each environment, built ahead: see the Makefile
    scripts = str(Path(sys.executable).parent)  # ninja, with which DeepSpeed looks after its extensions
    return {
        VARIABLE: run.to_json(),
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
        "TORCH_EXTENSIONS_DIR": os.environ.get("TORCH_EXTENSIONS_DIR", str(extensions)),
        "HF_HUB_OFFLINE": "1",  # models are folders
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(run.config.threads),
        **{name: value for name, value in os.environ.items() if name.startswith(PASSED)},
        **(CPU_ENVIRONMENT if on_cpu else {}),
    }


def _run(folder: RunFolder, iterations: int, done: int, display: Display) -> None:
    """Starts the process of the run and shows its metrics until it ends."""
    stopped = folder.path / "stopped.json"
    stopped.unlink(missing_ok=True)
    display.say(f"starting OpenRLHF; what it prints is in {folder.path / 'openrlhf.log'}")
    command = [sys.executable, "-m", "ragen_agent.openrlhf.driver", str(folder.path / "openrlhf.json")]
    with (folder.path / "openrlhf.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        display.begin("reinforcement", iterations, done)
        try:
            while process.poll() is None:
                time.sleep(LOOK_EVERY)
                done = _show(folder, done, display)
            _show(folder, done, display)
        finally:
            display.end()
            _stop(process)
    if process.returncode:
        raise RunStoppedError(_why(folder, process.returncode))


def _show(folder: RunFolder, done: int, display: Display) -> int:
    """Shows the iterations from `done` on; returns how many there are now."""
    try:
        records = read_json_lines(folder.metrics)
    except ValueError:  # a line is being written
        return done
    for record in records[done:]:
        display.advance(record)
    return max(done, len(records))


def _stop(process: subprocess.Popen[bytes]) -> None:
    for word in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(word)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            continue


def _why(folder: RunFolder, code: int) -> str:
    stopped = folder.path / "stopped.json"
    if stopped.is_file():
        reason = json.loads(stopped.read_text(encoding="utf-8"))["reason"]
    else:
        lines = (folder.path / "openrlhf.log").read_text(encoding="utf-8", errors="replace").splitlines()
        reason = f"its process ended with code {code}; its last line was: {lines[-1] if lines else ''}"
    return f"the run stopped: {reason} Go on with: ragen-agent train --resume {folder.path}"


def _adopt_checkpoint(folder: RunFolder) -> None:
    """Gives the final model its name once it is complete."""
    new = folder.path / "checkpoint.new"
    if new.is_dir():
        shutil.rmtree(folder.checkpoint, ignore_errors=True)
        new.rename(folder.checkpoint)


def _finish(config: Config, folder: RunFolder, summary: dict[str, Any], display: Display) -> None:
    from ragen_agent.training.curves import plot_curve

    plot_curve(read_json_lines(folder.metrics), summary, folder.path / "curve.png", config)
    display.report(config, summary, folder)
