"""Uploads to a local double of the Hub's HTTP API, which huggingface_hub itself talks to."""

from __future__ import annotations

import base64
import json
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.settings import shareable
from ragen_agent.local import run as training
from ragen_agent.run.hub import RECORDS, push
from ragen_agent.run.run_folder import RunFolder
from tests.ragen_agent.displays import quiet
from tests.ragen_agent.local.test_run import TINY, configure

TOKEN = "hf_aTokenThatNobodyMayRead"
HUB = {"model": "me/lake", "dataset": "me/lake-episodes"}


class Double(ThreadingHTTPServer):
    """Repositories by kind and name: privacy, and files with their contents. ``broken`` answers 500 to uploads."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.repositories = dict[str, dict[str, Any]]()
        self.tokens, self.broken = set[str](), False
        self.address = f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Double

    def do_GET(self) -> None:
        self._answer(200, {"sha": "0" * 40, "siblings": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(self.headers["Authorization"])
        name = self.path.removeprefix("/api/").partition("/preupload")[0].partition("/commit")[0]
        if self.path == "/api/validate-yaml":  # of a model card
            return self._answer(200, {"errors": [], "warnings": []})
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            key = f"{asked.get('type', 'model')}s/{asked['organization']}/{asked['name']}"
            if key in self.server.repositories:
                return self._answer(409, {"error": "You already created this repo", "url": key})
            self.server.repositories[key] = {"visibility": asked["visibility"]}
            return self._answer(200, {"url": self._address(key)})
        if self.server.broken:
            return self._answer(500, {"error": f"cannot store it for {self.headers['Authorization']}"})
        if "/preupload/" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self._answer(200, {"files": files})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.server.repositories[name][line["value"]["path"]] = content
        return self._answer(
            200, {"success": True, "commitOid": "1" * 40, "commitUrl": f"{self._address(name)}/commit/1"}
        )

    def _address(self, name: str) -> str:
        return f"http://{self.headers['Host']}/{name.removeprefix('models/')}"

    def _answer(self, code: int, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    server = Double()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def finished(path: Path, hub: dict[str, str]) -> tuple[Config, RunFolder]:
    """A run's folder with a checkpoint of a few bytes."""
    config = with_settings(Config(), {"hub": hub})
    folder = RunFolder.create(path, config)
    folder.checkpoint.mkdir()
    (folder.checkpoint / "model.safetensors").write_bytes(b"weights")
    return config, folder


def test_a_run_uploads_its_checkpoint_and_its_records_at_the_end(tmp_path: Path, hub: Double) -> None:
    config = configure(merged(TINY, {"hub": HUB}))
    folder = RunFolder.create(tmp_path / "run", config)
    summary = training.train(config, folder, quiet())
    model, records = hub.repositories["models/me/lake"], hub.repositories["datasets/me/lake-episodes"]
    assert model.pop("visibility") == records.pop("visibility") == "private"
    assert model == {each.name: each.read_bytes() for each in folder.checkpoint.iterdir()}
    assert {"model.safetensors", "config.json", "README.md"} <= model.keys()
    assert set(records) == {"config.toml", *RECORDS}
    assert records["episodes.jsonl"] == folder.episodes.read_bytes()
    assert summary["hub"] == {
        "model": f"{hub.address}/me/lake/commit/1",
        "dataset": f"{hub.address}/datasets/me/lake-episodes/commit/1",
    }
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert not [each for each in folder.path.rglob("*") if each.is_file() and TOKEN.encode() in each.read_bytes()]


def test_the_settings_go_without_the_program_and_the_folders_of_this_machine(tmp_path: Path, hub: Double) -> None:
    model = str(tmp_path / "models--me--big" / "snapshots" / "1")
    config, folder = finished(tmp_path / "run", {"dataset": HUB["dataset"]})
    config = with_settings(config, {"program": {"command": f"agent --key {TOKEN}", "workers": 2}, "model": model})
    options = {"levels": str(tmp_path / "hard.jsonl")}
    config = replace(config, env_options=options, curriculum=[{"iteration": 0, "env_options": options}])
    push(config, {}, folder, list[str]().append)
    sent = hub.repositories["datasets/me/lake-episodes"]["config.toml"].decode()
    read = with_settings(Config(), tomllib.loads(sent))
    assert (read.program, read.model, read.hub.dataset) == (Config().program, "me/big", HUB["dataset"])
    named = {"levels": "hard.jsonl"}
    assert (read.env_options, read.curriculum) == (named, [{"iteration": 0, "env_options": named}])
    assert TOKEN not in sent
    assert str(tmp_path) not in sent
    mixture = shareable(with_settings(Config(), {"games": [{"game": "FrozenLake", "env_options": options}]}))
    assert mixture.games == [{"game": "FrozenLake", "env_options": named}]


def test_a_failed_upload_is_said_without_the_token_and_tried_again(tmp_path: Path, hub: Double) -> None:
    config, folder = finished(tmp_path / "run", {"model": HUB["model"]})
    said, summary = list[str](), dict[str, Any]()
    hub.broken = True
    push(config, summary, folder, said.append)
    assert "hub.model: me/lake was not uploaded: HfHubHTTPError" in said[0]
    assert "--resume tries again" in said[0]
    assert TOKEN not in said[0]
    assert "hub" not in summary
    assert (folder.checkpoint / "model.safetensors").read_bytes() == b"weights"
    hub.broken = False
    push(config, summary, folder, said.append)  # the repository is there already
    push(config, summary, folder, said.append)
    assert said[1:] == [f"Uploaded to the Hub: {hub.address}/me/lake/commit/1"], "once"
    assert folder.read_summary() == summary
    assert set(hub.repositories) == {"models/me/lake"}, "no data set was named"


def test_an_unreachable_hub_does_not_end_a_run(tmp_path: Path, hub: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = finished(tmp_path / "run", HUB)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    said: list[str] = []
    push(config, {}, folder, said.append)
    assert [line.partition(" was")[0] for line in said] == ["hub.model: me/lake", "hub.dataset: me/lake-episodes"]


def test_files_that_cannot_be_made_do_not_end_a_run(
    tmp_path: Path, hub: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(config: Config) -> str:
        raise OSError("disk full")

    monkeypatch.setattr("ragen_agent.run.hub.to_toml", broken)
    config, folder = finished(tmp_path / "run", {"dataset": HUB["dataset"]})
    said: list[str] = []
    push(Config(), {}, folder, said.append)
    assert not said, "no repository is named"
    push(config, {}, folder, said.append)
    assert "hub.dataset: me/lake-episodes was not uploaded: OSError: disk full" in said[0]


@pytest.mark.parametrize("name", ["lake", "me/la ke", "a/b/c", "https://huggingface.co/me/lake"])
def test_a_name_that_the_hub_cannot_have_is_refused_before_the_run(name: str) -> None:
    with pytest.raises(ValueError, match="give OWNER/NAME"):
        with_settings(Config(), {"hub": {"model": name}})
