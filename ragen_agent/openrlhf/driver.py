"""The driver process of a run: starts Ray, installs our classes in OpenRLHF, and runs OpenRLHF's command line.

``python -m ragen_agent.openrlhf.driver FILE``, where FILE is the ``openrlhf.json`` that ``launch`` wrote into the run's
folder. It is a process of its own because OpenRLHF reads ``sys.argv`` and, on a CPU, because torch.cuda is patched.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ragen_agent.config.consent import load_problem
from ragen_agent.openrlhf import patches
from ragen_agent.openrlhf.cli_flags import MODULE
from ragen_agent.openrlhf.processes import RunContext, stop_without_parent
from ragen_agent.preflight.plan import check_devices
from ragen_gym.core.storage import write_atomic

OBJECT_STORE = 400 * 2**20  # bytes of Ray's object store on a CPU, whose models are small


def main(path: Path) -> None:
    """Runs what the file says; an error is written to ``stopped.json`` next to it before it is raised."""
    start = json.loads(path.read_text(encoding="utf-8"))
    datasets = path.with_name("datasets")  # a copy of the prompt dataset, of no use later
    start["environment"]["HF_DATASETS_CACHE"] = str(datasets)
    os.environ.update(start["environment"])
    context = RunContext.from_environment()
    stop_without_parent()
    import ray

    try:
        (patches.prepare if start["cpu"] else patches.stand_in)()
        _start_ray(context.settings.ray_address, start)
        if context.settings.ray_address:
            there = ray.cluster_resources().get("GPU", 0.0)
            check_devices(context.config, context.settings, there, "the cluster")
        _install_classes(start["cpu"])
        sys.argv = [MODULE, *start["flags"]]
        runpy.run_module(MODULE, run_name="__main__")
    except Exception as error:
        with suppress(OSError):  # on a full disk the launcher sees for itself why
            write_atomic(path.with_name("stopped.json"), json.dumps({"reason": explanation(error)}))
        raise
    finally:
        shutil.rmtree(datasets, ignore_errors=True)


def explanation(error: BaseException) -> str:
    """The first error, wherever in the cluster it was raised: Ray wraps it once for each process it passes through."""
    from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError

    while isinstance(error, RayTaskError) and error.cause is not None:
        error = error.cause
    if isinstance(error, OutOfMemoryError):
        return _memory_ran_out(str(error))
    if isinstance(error, ActorUnavailableError) or (
        isinstance(error, ActorDiedError) and re.search("node has (died|crashed)", str(error))
    ):
        where = re.search(r"ip: (\S+)", str(error))
        return (
            f"a process of the run is out of reach, most likely with its node{f' ({where[1]})' if where else ''}: ray "
            "status shows which nodes are left; start Ray on the lost one again, or join another."
        )
    return f"{type(error).__name__}: {load_problem(error)}" if str(error) else type(error).__name__


def _memory_ran_out(text: str) -> str:
    """What to do, in place of Ray's page about it: who took the memory is at its end, a program between two commas."""
    used = re.search(r"was ([\d.]+GB / [\d.]+GB)", text)
    programs = re.findall(r", (\d+)\t([\d.]+)\t([^,]+)", text)[:3]
    largest = ", ".join(f"process {pid} has {gib} GB ({name[:60].strip()})" for pid, gib, name in programs)
    return (
        f"the machine's memory ran out ({used[1] if used else 'nearly all'} in use), so Ray ended a process of the run"
        f"{f'; {largest}' if largest else ''}: end other programs, lower openrlhf.micro_batch or "
        "turns.max_tokens_per_episode, or use a smaller model; ragen-agent train --dry-run shows what a run needs."
    )


def _start_ray(address: str, start: dict[str, Any]) -> None:
    import ray
    from ray.job_config import JobConfig

    class Job(JobConfig):  # type: ignore[misc]
        """A job whose workers import nothing from the current folder, which Ray puts first on their path."""

        def _runtime_env_has_working_dir(self) -> bool:
            return True

    hook = f"{patches.__name__}.{'prepare' if start['cpu'] else 'stand_in'}"
    environment: dict[str, Any] = {"env_vars": start["environment"], "worker_process_setup_hook": hook}
    if start["modules"]:
        sys.path.append(os.getcwd())  # last, as where the game was first imported
        environment["py_modules"] = [import_module(name) for name in start["modules"]]
    if address:
        ray.init(address=address, job_config=Job(), runtime_env=environment)
        return
    here: dict[str, Any] = {"address": "local", "include_dashboard": False}  # never a cluster that happens to run here
    if start["cpu"]:  # OpenRLHF asks for a GPU for each model; these are pretended
        here |= {"num_gpus": start["devices"], "num_cpus": start["devices"] + 2, "object_store_memory": OBJECT_STORE}
    ray.init(job_config=Job(), runtime_env=environment, **here)


def _install_classes(on_cpu: bool) -> None:
    import openrlhf.trainer.ppo_trainer
    import openrlhf.trainer.ppo_trainer_async
    import openrlhf.trainer.ray.launcher
    import openrlhf.trainer.ray.ppo_actor
    import openrlhf.trainer.ray.ppo_critic
    import openrlhf.trainer.ray.vllm_engine
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from ragen_agent.openrlhf import ray_actors, trainer

    # The trainer writes the run's folder, so it stays on the node where that is.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    ours = trainer.StarPO.options(scheduling_strategy=here)
    openrlhf.trainer.ppo_trainer.PPOTrainer = openrlhf.trainer.ppo_trainer_async.PPOTrainerAsync = ours
    openrlhf.trainer.ray.ppo_actor.PolicyModelActor = ray_actors.PolicyActor
    openrlhf.trainer.ray.ppo_critic.CriticModelActor = ray_actors.CriticActor
    openrlhf.trainer.ray.launcher.ReferenceModelActor = ray_actors.ReferenceActor
    openrlhf.trainer.ray.vllm_engine.RolloutRayActor = ray_actors.CpuVllmActor if on_cpu else ray_actors.VllmActor


if __name__ == "__main__":
    main(Path(sys.argv[1]))
