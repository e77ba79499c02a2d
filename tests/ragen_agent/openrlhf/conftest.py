"""What needs the distributed stack is collected only where it is installed: `make test-openrlhf`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

import tests

if getattr(tests, "__file__", None):  # OpenRLHF's wheel brings a package of this name: ours come first
    tests.__path__.insert(0, str(Path(__file__).parents[2]))
if find_spec("openrlhf") is None:
    collect_ignore = [
        "test_advantages.py",
        "test_ahead_training.py",
        "test_cluster.py",
        "test_driver.py",
        "test_executor.py",
        "test_ray_actors.py",
        "test_loss.py",
        "test_network.py",
        "test_parity.py",
        "test_pictures.py",
        "test_real_model.py",
        "test_share_node.py",
        "test_stops.py",
        "test_trainer.py",
        "test_training.py",
        "test_visual_training.py",
    ]
else:
    from ragen_agent.openrlhf import patches

    if patches.needed("auto"):
        patches.prepare()

from tests.ragen_agent.conftest import make_tokenizer

__all__ = ["make_tokenizer", "pytest_collection_modifyitems", "warm"]

HERE = Path(__file__).parent
LONGEST = ("test_training", "test_stops")
SHARING_PORTS = ("test_cluster", "test_recipes")
"""The first starts a cluster at ports that the others check, so they may not run at the same time."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order in which two processes take the files.

    First the run that needs most memory, at the same time as the files that do not start Ray; then the longest files.
    The cluster comes last: Ray's threads stay in the process that started its nodes, next to tests that capture output.
    """
    places = [place for place, item in enumerate(items) if item.path.parent == HERE]
    ours = [items[place] for place in places]
    slow = {item.path for item in ours if item.get_closest_marker("slow")}

    def rank(item: pytest.Item) -> tuple[bool, bool, bool, bool]:
        name = item.path.stem
        return name == "test_cluster", name != "test_real_model", item.path in slow, name not in LONGEST

    for place, item in zip(places, sorted(ours, key=rank), strict=True):
        items[place] = item
        if config.pluginmanager.hasplugin("xdist"):
            name = item.path.stem
            item.add_marker(pytest.mark.xdist_group("ports" if name in SHARING_PORTS else name))


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model after a short warm start, with which every real run begins."""
    from ragen_agent.config import Config, merged, with_settings
    from ragen_agent.config.presets import default_settings
    from ragen_agent.run.policy import Policy
    from ragen_agent.sft.trainer import warm_start
    from tests.ragen_agent.displays import quiet
    from tests.ragen_agent.openrlhf.small_runs import BASE

    config = with_settings(Config(), merged(default_settings("FrozenLake"), BASE))
    folder = tmp_path_factory.mktemp("warm") / "model"
    warm_start(config, Policy.build(config), folder, quiet())
    return folder
