"""Dashboards of others: a run is there with every iteration once, a resumed one goes on, a missing library is named."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_agent.cli import main
from ragen_agent.config import merged
from ragen_agent.local import run as training
from ragen_agent.run import tracking
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import append_json_lines, read_json_lines
from tests.ragen_agent.displays import Interrupting, quiet
from tests.ragen_agent.local.test_run import TINY, configure

needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="needs the extra tracking")


@needs_wandb
def test_a_resumed_run_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr(sys, "argv", ["ragen-agent", "train", "--set", "program.command=agent --key aKey"])
    begin, sent = import_module("wandb").init, list[tuple[str, int, dict[str, float]]]()

    def spied(**options: Any) -> Any:
        run = begin(**options)
        log = run.log

        def noted(figures: dict[str, float], step: int) -> None:
            sent.append((run.id, step, figures))
            log(figures, step)

        monkeypatch.setattr(run, "log", noted)
        return run

    monkeypatch.setattr("wandb.init", spied)
    config = configure(merged(TINY, {"diagnostics": {"wandb": "games"}}))
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(KeyboardInterrupt):
        training.train(config, folder, Interrupting(1))
    assert [step for _, step, _ in sent] == [1, 2]
    name = json.loads((folder.path / "wandb.json").read_text())["id"]
    sent.clear()
    training.train(config, folder, quiet())
    metrics = read_json_lines(folder.metrics)
    assert [(run, step) for run, step, _ in sent] == [(name, record["iteration"] + 1) for record in metrics], "once"
    for key in ("success", "return", "return_std", "train_tokens"):
        assert [figures[key] for _, _, figures in sent] == [pytest.approx(record[key]) for record in metrics]
    files = [each.read_bytes() for each in (folder.path / "wandb").glob("offline-run-*/*.wandb")]
    assert [b"aKey" in each for each in files] == [False, False]


@needs_wandb
def test_without_a_login_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("wandb").teardown()  # the mode of an earlier test
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    config = configure(merged(TINY, {"diagnostics": {"wandb": "games"}}))
    with pytest.raises(ValueError, match=r"diagnostics.wandb: .*wandb login, or set WANDB_MODE=offline"):
        training.train(config, RunFolder.create(tmp_path / "run", config), quiet())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_event_files_hold_each_iteration_once_also_of_a_resumed_run(tmp_path: Path) -> None:
    config = configure(merged(TINY, {"diagnostics": {"tensorboard": True}}))
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(KeyboardInterrupt):
        training.train(config, folder, Interrupting(1))
    training.TrainingRun(config, folder, quiet()).reinforce()
    events = import_module("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(folder.path / "tensorboard"))
    found.Reload()
    metrics = read_json_lines(folder.metrics)
    for name in ("success", "return_std", "return"):
        written = [(event.step, event.value) for event in found.Scalars(name)]
        assert written == [(r["iteration"] + 1, pytest.approx(r[name], rel=1e-5)) for r in metrics]


@pytest.mark.parametrize(("name", "value"), [("wandb", "games"), ("tensorboard", "true")])
def test_a_missing_library_is_named_before_the_run_begins(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda library: None)
    out = tmp_path / "run"
    assert main(["train", "--game", "Bandit", "--set", f"diagnostics.{name}={value}", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said == f"ragen-agent: error: diagnostics.{name} needs {name}: run pip install 'ragen-gym[tracking]'.\n"
    assert not out.exists()


@needs_wandb
def test_a_resumed_run_sends_all_that_the_server_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    class Server:
        step = 2  # of the next log(): it has the first iteration, whose step is 1

        def log(self, figures: dict[str, float], step: int) -> None:
            sent.append(step)

    monkeypatch.setattr("wandb.init", lambda **options: Server())
    folder = RunFolder.create(tmp_path / "run", config := configure(merged(TINY, {"diagnostics": {"wandb": "games"}})))
    append_json_lines(folder.metrics, [{"iteration": iteration, "success": 0.5} for iteration in range(3)])
    tracking.WeightsAndBiases(config, folder)
    assert sent == [2, 3]


@needs_wandb
def test_the_settings_go_without_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[dict[str, Any]] = []

    def init(**options: Any) -> SimpleNamespace:
        begun.append(options)
        return SimpleNamespace(step=0)

    monkeypatch.setattr("wandb.init", init)
    config = configure(merged(TINY, {"diagnostics": {"wandb": "games"}, "program": {"command": "agent --key aKey"}}))
    tracking.WeightsAndBiases(config, RunFolder.create(tmp_path / "run", config))
    assert "agent --key aKey" not in json.dumps(begun[0]["config"])


@needs_wandb
def test_a_run_that_broke_is_not_shown_as_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    server = SimpleNamespace(step=0, finish=lambda **ending: ended.append(ending["exit_code"]))
    monkeypatch.setattr("wandb.init", lambda **options: server)
    folder = RunFolder.create(tmp_path / "run", config := configure(merged(TINY, {"diagnostics": {"wandb": "games"}})))
    with tracking.track(config, folder):
        pass
    with pytest.raises(KeyboardInterrupt), tracking.track(config, folder):
        raise KeyboardInterrupt
    assert ended == [0, 1]


@needs_wandb
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tables_of_texts_and_groups_reach_both_dashboards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second of three iterations, read back by TensorBoard's own reader, and from the offline folder of W&B.

    W&B is that of a resumed run, which sends all iterations again.
    """
    import_module("wandb").teardown()  # the mode of an earlier test
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    dashboards = {"wandb": "games", "tensorboard": True, "tables_every": 2}
    config = configure(merged(TINY, {"diagnostics": dashboards, "training": {"iterations": 3}}))
    folder = RunFolder.create(tmp_path / "run", config)
    training.TrainingRun(config, folder, quiet()).reinforce()
    shutil.rmtree(folder.path / "wandb")
    with tracking.track(config, folder):
        pass
    metrics, recorded = read_json_lines(folder.metrics), read_json_lines(folder.episodes)
    media = (folder.path / "wandb").glob("offline-run-*/files/media/table/*.table.json")
    tables = {}
    for path in media:
        table = json.loads(path.read_text(encoding="utf-8"))
        tables[path.name.partition("_")[0], table["data"][0][0]] = table
    assert set(tables) == {(name, step) for name in ("generations", "groups") for step in (1, 3)}
    events = import_module("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(folder.path / "tensorboard"), size_guidance={"tensors": 0})
    found.Reload()
    shown = {
        (name, event.step): event.tensor_proto.string_val[0].decode()
        for name in ("generations", "groups")
        for event in found.Tensors(f"{name}/text_summary")
    }
    assert set(shown) == {(name, step) for name in ("generations", "groups") for step in (1, 3)}
    for number in (0, 2):
        own = [episode for episode in recorded if episode.get("iteration") == number]
        texts = tables["generations", number + 1]
        assert [row[:2] for row in texts["data"]] == [[number + 1, episode["level_id"]] for episode in own]
        assert all(own[0]["messages"][2]["content"] in row[-1] for row in texts["data"][:1])
        stds = tables["groups", number + 1]
        assert [row[2:] for row in stds["data"]] == [[std, bool(kept)] for std, kept in metrics[number]["groups"]]
        assert len(stds["data"]) == config.training.groups
        mean = sum(std for std, _ in metrics[number]["groups"]) / config.training.groups
        assert mean == pytest.approx(metrics[number]["return_std"], abs=1e-5)
        assert len(shown["groups", number + 1].splitlines()) == 2 + config.training.groups
        assert len(shown["generations", number + 1].splitlines()) == 2 + len(own)


def test_tables_without_a_dashboard_are_refused() -> None:
    with pytest.raises(ValueError, match="no dashboard gets the tables"):
        configure({"diagnostics": {"tables_every": 1}})
