"""Other programs that do the work of the local trainer, each in a process and an interpreter of its own.

``Peer`` starts one and asks for one measurement at a time; in between the process waits and takes no time. ``python -m
benchmarks.peers NAME SETTINGS`` is that process. It imports nothing but the peer's packages, except that TRL plays this
repository's games.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[1]
LOG_LINES = 5


class PeerError(RuntimeError):
    """A peer that ended without an answer; the message holds the end of its log."""


class Peer:
    """One of ``PEERS`` in a process of its own; use it as a context.

    Args:
        python: the interpreter that has the peer's packages.
        name: one of ``PEERS``.
        settings: what the peer needs to begin, as JSON can write it.
        log: the file that gets everything the process prints.
        threads: of the CPU.

    Attributes:
        version: of the peer's library.

    Raises:
        PeerError: it did not begin.
    """

    def __init__(self, python: Path, name: str, settings: Mapping[str, Any], log: Path, threads: int) -> None:
        self.name, self.log = name, log
        threaded = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [python, "-P", "-m", "benchmarks.peers", name, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **threaded},
            )
        self.version: str = self._answer()["version"]

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One measurement; raises a PeerError if the process ends before it answers."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer says why
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()  # ends its input, and so the process

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            said = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            raise PeerError(f"{self.name} ended: {' / '.join(said[-LOG_LINES:])} (all of it is in {self.log})")
        return dict(json.loads(line))


Answer = Callable[[Mapping[str, Any]], None]
Requests = TextIO


def vllm(settings: Mapping[str, Any], requests: Requests, answer: Answer) -> None:
    """VLLM's offline engine. A request: ``prompts`` (ids), ``samples`` of each, ``tokens`` at most, ``stop`` ids.

    Its cache of prefixes is emptied before each request, as it is after an update of the weights; within a request the
    samples of a prompt share it. Each token's log-prob is asked for, which training needs.
    """
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
    )
    library = import_module("vllm")
    engine = library.LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        max_num_seqs=settings["rows"],
        max_model_len=settings["length"],
        enforce_eager=True,
        seed=0,
    )
    answer({"version": library.__version__})
    for line in requests:
        request = json.loads(line)
        engine.reset_prefix_cache()
        how = library.SamplingParams(
            n=request["samples"],
            temperature=1.0,
            max_tokens=request["tokens"],
            stop_token_ids=request["stop"],
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
        )
        prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
        started = time.perf_counter()
        outputs = engine.generate(prompts, how, use_tqdm=False)
        seconds = time.perf_counter() - started
        answer({"seconds": seconds, "tokens": sum(len(one.token_ids) for some in outputs for one in some.outputs)})


def trl(settings: Mapping[str, Any], requests: Requests, answer: Answer) -> None:
    """TRL's ``GRPOTrainer``, whose weights, gradients and optimiser are of one dtype. A request is one step.

    It plays the levels of the run in ``settings["run"]``, in their order, as whole conversations with the game's own
    messages and rewards. Gradient checkpointing, its default, is off: there is enough memory without it.
    """
    import torch
    from transformers import TrainerCallback

    from ragen_agent.run.run_folder import RunFolder
    from ragen_agent.tasks.tasks import level_seeds
    from ragen_gym.integrations import Rollout
    from ragen_gym.integrations.trl_rollout import game_return, rollout_func

    library, datasets = import_module("trl"), import_module("datasets")
    _, config = RunFolder.reopen(Path(settings["run"]))
    training, options = config.training, asdict(config.turns.of_environment(states_limit=True)) | config.env_options
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rollout, rows, sampled = Rollout(config.game, **options), list[dict[str, Any]](), list[int]()
    for iteration in range(settings["steps"]):
        for seed in level_seeds(config.seed, iteration, training.groups):
            rollout.begin(seed)
            rows.append({"prompt": rollout.messages, "game": config.game, "split": "train", "seed": seed})
    play = rollout_func(rows, **options)

    def counted(prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        played: dict[str, Any] = play(prompts, trainer)
        sampled.append(sum(map(sum, played["env_mask"])))
        return played

    episodes = training.groups * training.group_size
    how = library.GRPOConfig(
        output_dir=settings["out"],
        model_init_kwargs={"dtype": settings["dtype"]},
        bf16=False,  # no autocast: the weights themselves are of that dtype
        use_cpu=True,
        gradient_checkpointing=False,
        per_device_train_batch_size=settings["micro_batch"],
        gradient_accumulation_steps=episodes // settings["micro_batch"],
        num_generations=training.group_size,
        max_completion_length=config.turns.max_tokens_per_turn,
        temperature=training.temperature,
        learning_rate=training.learning_rate,
        lr_scheduler_type="constant",
        max_steps=settings["steps"],
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        logging_steps=10**6,
        disable_tqdm=True,
    )

    class Turns(TrainerCallback):
        started = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            answer({"version": library.__version__})

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not requests.readline():
                os._exit(0)
            sampled.clear()
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            answer({"seconds": time.perf_counter() - self.started, "tokens": sum(sampled)})

    trainer = library.GRPOTrainer(
        settings["model"],
        reward_funcs=game_return,
        args=how,
        train_dataset=datasets.Dataset.from_list(rows),
        rollout_func=counted,
        callbacks=[Turns()],
    )
    trainer.train()


PEERS: dict[str, Callable[[Mapping[str, Any], Requests, Answer], None]] = {"vllm": vllm, "trl": trl}
"""What can be compared with; each is called with its settings, the lines of requests, and how to answer."""


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print goes to standard error
    told = partial(print, file=answers, flush=True)
    PEERS[sys.argv[1]](json.loads(sys.argv[2]), sys.stdin, lambda found: told(json.dumps(found)))
