"""Runs that the trainer itself made, in seconds, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.local import run as training
from ragen_agent.run.run_folder import RunFolder
from tests.browser import launched
from tests.ragen_agent.displays import Interrupting, quiet

TINY = {
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "demonstrations": {"episodes": 1200},
    "warm_start": {"epochs": 3, "learning_rate": 1e-2},
    "training": {"iterations": 4, "groups": 4, "group_size": 4, "minibatch": 8},
    "evaluation": {"levels": 12},
}


#: Turns whose replies describe the board, as it is and as it will be.
GROUNDED = {"grounding": True, "world_modelling": True, "state_reward": 0.5, "max_tokens_per_turn": 160}


def settings(game: str, **more: Any) -> Config:
    return with_settings(Config(), merged(merged(default_settings(game), TINY), {"game": game, **more}))


def reinforced(run: training.TrainingRun) -> None:
    """The run without the imitation that it would be compared with."""
    run.warm_start()
    run.measure("before")
    run.baselines()
    run.reinforce()
    run.measure("after")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two seeds of one configuration, another configuration, another game, and a run that was interrupted."""
    folder = tmp_path_factory.mktemp("runs")
    wanted = {
        "seed0": settings("Bandit"),
        "seed1": settings("Bandit", seed=1),
        "vanilla": settings("Bandit", training={"starpo_s": False}),
        "lake": settings("FrozenLake", turns=GROUNDED),
        "broken": settings("Bandit", seed=2),
    }
    for name, config in wanted.items():
        display = Interrupting(1) if name == "broken" else quiet()
        run = RunFolder.create(folder / name, config)
        if config.game == "Bandit" and name != "seed0":  # one warm start is enough
            shutil.copytree(folder / "seed0" / "warm", run.warm)
        if name == "seed0":
            training.train(config, run, display)
        elif name == "broken":
            with pytest.raises(KeyboardInterrupt):
                training.train(config, run, display)
        else:
            reinforced(training.TrainingRun(config, run, display))
    return {name: folder / name for name in wanted}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for one module."""
    with launched() as browser:
        yield browser
