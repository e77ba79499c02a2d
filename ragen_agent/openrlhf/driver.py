"""The process of a run: starts Ray, puts our classes in OpenRLHF's places, and runs OpenRLHF's command line.

`python -m ragen_agent.openrlhf.driver FILE`, where FILE is the `openrlhf.json` that `launch` wrote into the run's
folder. It is a process of its own because OpenRLHF reads `sys.argv` and, on a CPU, because torch.cuda is changed in it.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ragen_agent.config.openrlhf import Workers
from ragen_agent.openrlhf import cpu
from ragen_agent.openrlhf.process_cleanup import stop_without_parent

__all__ = ["explanation", "main"]

COMMAND = "openrlhf.cli.train_ppo_ray"
STORE = 400 * 2**20  # bytes of Ray's object store on a CPU, whose models are small


def main(path: Path) -> None:
    """Runs what the file says; what went wrong is written to `stopped.json` beside it before it is raised."""
    told = json.loads(path.read_text(encoding="utf-8"))
    datasets = path.with_name("datasets")  # what the library keeps of the seed list, of no use later
    told["environment"]["HF_DATASETS_CACHE"] = str(datasets)
    os.environ.update(told["environment"])
    run = Workers.here()
    stop_without_parent()
    try:
        _check_wandb(run.settings.wandb)
        if told["cpu"]:
            cpu.refuse(told["flags"])
            cpu.prepare()
        _start_ray(run, told)
        _put_in_place(told["cpu"])
        sys.argv = [COMMAND, *told["flags"]]
        runpy.run_module(COMMAND, run_name="__main__")
    except Exception as error:
        path.with_name("stopped.json").write_text(json.dumps({"reason": explanation(error)}), encoding="utf-8")
        raise
    finally:
        shutil.rmtree(datasets, ignore_errors=True)


def explanation(error: BaseException) -> str:
    """What was raised first, wherever in the cluster it was: Ray wraps it once for each process it passes through."""
    from ray.exceptions import RayTaskError

    while isinstance(error, RayTaskError) and error.cause is not None:
        error = error.cause
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _check_wandb(project: str) -> None:
    """Raises a ValueError if the run is to be shown by wandb and that is not there: OpenRLHF would find out late."""
    if project and find_spec("wandb") is None:
        raise ValueError(f"openrlhf.wandb is {project!r}, but wandb is not installed here; run: pip install wandb")


def _start_ray(run: Workers, told: dict[str, Any]) -> None:
    import ray

    # The key of wandb reaches the trainer in its environment alone: a command line or a file would show it.
    private = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    environment: dict[str, Any] = {"env_vars": {**told["environment"], **private}}
    if told["cpu"]:
        environment["worker_process_setup_hook"] = cpu.HOOK
    address = run.settings.ray_address
    if address:
        ray.init(address=address, runtime_env=environment)
        return
    here: dict[str, Any] = {"address": "local", "include_dashboard": False}  # never one that happens to run here
    if told["cpu"]:  # OpenRLHF asks for a GPU for each model; these stand for a share of the CPU
        here |= {"num_gpus": told["devices"], "num_cpus": told["devices"] + 2, "object_store_memory": STORE}
    ray.init(runtime_env=environment, **here)


def _put_in_place(on_cpu: bool) -> None:
    """Rebinds the names that OpenRLHF's command line is about to import."""
    import openrlhf.trainer.ppo_trainer
    import openrlhf.trainer.ray.launcher
    import openrlhf.trainer.ray.ppo_actor
    import openrlhf.trainer.ray.ppo_critic
    import openrlhf.trainer.ray.vllm_engine
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from ragen_agent.openrlhf import trainer, workers

    # The trainer writes the run's folder, so it stays on the node that was told of it.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    openrlhf.trainer.ppo_trainer.PPOTrainer = trainer.StarPO.options(scheduling_strategy=here)
    openrlhf.trainer.ray.ppo_actor.PolicyModelActor = workers.Policy
    openrlhf.trainer.ray.ppo_critic.CriticModelActor = workers.Critic
    openrlhf.trainer.ray.launcher.ReferenceModelActor = workers.Reference
    openrlhf.trainer.ray.vllm_engine.RolloutRayActor = workers.CpuPlayers if on_cpu else workers.Players


if __name__ == "__main__":
    main(Path(sys.argv[1]))
