"""Where a run stands, and the arithmetic of its batches."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from ragen_agent.config import Turns
from ragen_agent.config.openrlhf import Workers
from ragen_agent.config.rules import FILTER_RULES
from ragen_agent.training.run_folder import RunFolder
from ragen_agent.training.tasks import all_settings
from ragen_gym.core.storage import write_atomic

__all__ = ["AGGREGATIONS", "State", "check_possible", "mend", "planned_episodes", "planned_rows", "planned_updates"]


AGGREGATIONS = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}
"""What OpenRLHF calls those aggregations of the loss that it has."""


@dataclass(frozen=True)
class State:
    """`iteration`: how many are done and saved, under the name `tag`; `still`: how many of the last had no spread."""

    iteration: int = 0
    tag: str = ""
    still: int = 0

    @classmethod
    def read(cls, folder: Path) -> State:
        """The state of a run; that of its start where nothing was saved."""
        path = folder / "state.json"
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else cls()

    def write(self, folder: Path) -> None:
        """Replaces the state; the iteration counts as saved from here on."""
        write_atomic(folder / "state.json", json.dumps(asdict(self)) + "\n")


def mend(folder: RunFolder) -> State:
    """Undoes what an interruption left behind: records and saved parts of iterations that were not saved whole.

    DeepSpeed reads from a file which of its checkpoints is the latest; actor and critic have one each, and a run that
    is killed between the two would go on with models of different iterations.
    """
    state = State.read(folder.path)
    summary = folder.read_summary()
    shutil.rmtree(folder.path / "checkpoint.new", ignore_errors=True)  # a final model that was not saved whole
    if "after" in summary and not folder.checkpoint.is_dir():  # measured, then killed before it was saved
        del summary["after"]
        folder.write_summary(summary)
    folder.keep(folder.metrics, lambda record: record["iteration"] < state.iteration)
    folder.keep(
        folder.episodes, lambda e: e["phase"] in summary or e.get("iteration", state.iteration) < state.iteration
    )
    for part in sorted((folder.path / "deepspeed").glob("_*")):
        if not state.tag:
            shutil.rmtree(part)
            continue
        for saved in part.iterdir():
            number = saved.name.removeprefix("iteration")
            if saved.is_dir() and number.isdigit() and int(number) > state.iteration:
                shutil.rmtree(saved)
        write_atomic(part / "latest", state.tag)
    return state


def planned_episodes(run: Workers) -> int:
    """Episodes that an iteration trains on when the filter keeps as many groups as its amount says."""
    training = run.config.training
    return FILTER_RULES[training.filter_rule].planned_groups(training.groups, training.keep) * training.group_size


def planned_rows(run: Workers) -> int:
    """The most rows of those episodes: one of each, or one of each turn where its prompt forgets."""
    return planned_episodes(run) * max(_rows_of_episode(config.turns) for config in all_settings(run.config))


def _rows_of_episode(turns: Turns) -> int:
    if turns.history >= 0:
        return max(1, turns.max_turns - turns.history)
    return 1 if turns.keep_thinking else turns.max_turns


def planned_updates(run: Workers) -> int:
    """Optimiser steps of the whole run, counted after the filter."""
    training = run.config.training
    return training.iterations * training.updates * math.ceil(planned_rows(run) / training.minibatch)


def check_possible(run: Workers) -> None:
    """Raises a ValueError for settings of the local trainer alone, and a minibatch that the GPUs cannot share."""
    training, settings, stops, watched = run.config.training, run.settings, run.config.stops, run.config.diagnostics
    only_local: list[tuple[str, object, tuple[object, ...]]] = [
        ("training.replay", training.replay, (0,)),
        ("training.aggregation", training.aggregation, tuple(AGGREGATIONS)),
        ("stops.return_std_patience", stops.return_std_patience, (0,)),
        ("stops.validate_every", stops.validate_every, (0,)),
        ("diagnostics.gradients_every", watched.gradients_every, (0,)),
        ("diagnostics.information_every", watched.information_every, (0,)),
    ]
    if training.critic:  # which values rows, and an episode that is read anew has several
        only_local += [("turns.history", config.turns.history, (-1,)) for config in all_settings(run.config)]
    for setting, value, possible in only_local:
        if value not in possible:
            raise ValueError(
                f"{setting} is {value!r}, which the distributed trainer does not have; use "
                f"{' or '.join(map(str, possible))}, or the local trainer."
            )
    for name, gpus in (
        ("actor", settings.actor_nodes * settings.actor_gpus),
        ("critic", settings.critic_nodes * settings.critic_gpus if training.critic else 1),
    ):
        if training.minibatch % (settings.micro_batch * gpus):
            raise ValueError(
                f"training.minibatch is {training.minibatch}; it must be a multiple of openrlhf.micro_batch="
                f"{settings.micro_batch} times the {gpus} GPUs of the {name}."
            )
