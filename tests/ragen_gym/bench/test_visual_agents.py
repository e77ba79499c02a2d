"""Agents that are shown pictures: what each kind receives, and that runs, replays and reports go on as with text."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_gym.bench.agent import AgentFailure, Task, refuse_pictures
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.agents.openai import OpenAIAgent
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.replay import Replayer
from ragen_gym.bench.report.viewer_data import details
from ragen_gym.bench.results import load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import Suite, load_suite
from ragen_gym.cli import main
from ragen_gym.core.failures import Failure
from ragen_gym.envs.messages import IMAGE
from ragen_gym.envs.policies import plan_moves
from ragen_gym.envs.reply import write_reply
from ragen_gym.render.images import BoardImages
from ragen_gym.render.png import decode_png, encode_png
from tests.ragen_gym.bench.bad_server import BadServer

BOARD = "######\n######\n#PXO_#\n######\n######\n######"
LAKE = "P__O\n____\n_O__\n___G"
TABLE = """
name = "pictures"
[budgets]
observation = "image"
image_tile_size = 14
max_turns = 3
[[splits]]
name = "push"
env = "Sokoban"
levels = "push.txt"
[[splits]]
name = "lake"
env = "FrozenLake"
levels = "lake.txt"
env_options = { success_rate = 1.0 }
budgets = { observation = "both", image_coordinates = true }
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "suite.toml").write_text(TABLE, encoding="utf-8")
    (tmp_path / "push.txt").write_text(BOARD + "\n", encoding="utf-8")
    (tmp_path / "lake.txt").write_text(LAKE + "\n", encoding="utf-8")
    return tmp_path


def play(folder: Path, agent: Any) -> dict[str, EpisodeRecord]:
    suite = load_suite(folder)
    run_suite(suite, agent, folder / "run")
    return {record.split: record for record in load_results(folder / "run", folder).records}


def first_pictures(suite: Suite) -> dict[str, Any]:
    """The picture of the first board of each split."""
    found = {}
    for split in suite.splits:
        env = split.make_game()
        found[split.name] = env.reset(options={"level": split.levels[0], "noise_seed": 0})[0]["image"]
    return found


class Reads:
    """Reads the board from the newest picture by comparing its tiles, and plays the oracle's moves on what it reads."""

    name = "reads"

    def __init__(self) -> None:
        self.read: list[str] = []

    def reply(self, messages: Sequence[Any], task: Task) -> str:
        env = task.env
        newest = [part["image"] for part in messages[-1]["content"] if part["type"] == "image"]
        assert len(newest) == 1
        assert sum(part["type"] == "image" for m in messages for part in m["content"]) == len(env.images)
        game, edge = env.game, 14 * env.config.image_coordinates
        images = BoardImages(game, replace(env.config.image_style, coordinates=False))
        codes = np.arange(game.codes, dtype=np.uint8)
        tiles = images.images(np.broadcast_to(codes[:, None, None], (game.codes, game.height, game.width)))[:, :14, :14]
        rows = []
        for row in range(game.height):
            cells = [newest[0][edge + 14 * row :, edge + 14 * column :][:14, :14] for column in range(game.width)]
            rows.append("".join(env.env.vocabulary.symbols[int((tiles == c).all((1, 2, 3)).argmax())] for c in cells))
        self.read.append("\n".join(rows))
        assert self.read[-1] == env.board
        return write_reply([env.action_names[action] for action in plan_moves(env, 2)], "I see.")


def test_an_agent_that_reads_pictures_solves_what_it_sees(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = Reads()
    records = play(suite, agent)
    assert [records[name].success for name in ("push", "lake")] == [True, True]
    assert BOARD in agent.read
    assert records["push"].turns[0].message.startswith(f"Turn 1 of 3, actions left: 10.\n{IMAGE}\nReply with")
    assert f"{LAKE}\n{IMAGE}\n" in records["lake"].turns[0].message
    for command in (["score", "--write"], ["verify"], ["report"]):
        assert main(["bench", *command, str(suite / "run"), "--suite", str(suite)]) == 0, capsys.readouterr().err


PROGRAM = """
import base64, hashlib, json, sys
for line in sys.stdin:
    question = json.loads(line)
    parts = [part for message in question["messages"] for part in message["content"]]
    seen = [base64.b64decode(part["png"]) for part in parts if part["type"] == "image"]
    thought = " ".join(hashlib.sha256(png).hexdigest() for png in seen)
    reply = f"<think>{thought}</think><answer>Up</answer>"
    print(json.dumps({"id": question["id"], "reply": reply}), flush=True)
"""


def test_a_program_gets_png_files(suite: Path) -> None:
    from hashlib import sha256

    (suite / "program.py").write_text(PROGRAM, encoding="utf-8")
    records = play(suite, make_agent(f"cmd:{sys.executable} {suite / 'program.py'}"))
    for name, picture in first_pictures(load_suite(suite)).items():
        digest = sha256(encode_png(picture)).hexdigest()
        assert records[name].failure is None, records[name].detail
        assert f"<think>{digest}</think>" in str(records[name].turns[0].reply)
        assert str(records[name].turns[2].reply).count(digest) == 3, "Up changes neither board: three times the same"


def test_a_server_gets_image_parts(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    pictures = first_pictures(load_suite(suite))
    with BadServer("good") as server:
        records = play(suite, OpenAIAgent("m", base_url=server.url, timeout=5.0, retries=0))
    assert all(record.failure is None for record in records.values())
    seen: dict[int, list[Any]] = {len(body["messages"]): body["messages"] for body in server.bodies}
    assert sorted(seen) == [2, 4, 6]
    for body in server.bodies:
        for message in body["messages"]:
            assert {part["type"] for part in message["content"]} <= {"text", "image_url"}
        urls = [
            part["image_url"]["url"] for m in body["messages"] for part in m["content"] if part["type"] == "image_url"
        ]
        assert len(urls) == len(body["messages"]) // 2
        head, _, data = urls[0].partition(",")
        assert head == "data:image/png;base64"
        assert any(encode_png(picture) == base64.b64decode(data) for picture in pictures.values())
        name = next(n for n, picture in pictures.items() if encode_png(picture) == base64.b64decode(data))
        np.testing.assert_array_equal(decode_png(base64.b64decode(data), pictures[name].shape), pictures[name])


def test_a_model_that_reads_text_only_says_so() -> None:
    plain = [{"role": "user", "content": "Up?"}]
    refuse_pictures(plain, "hf:m")
    with pytest.raises(AgentFailure, match="hf:m reads text only, and the split shows pictures") as raised:
        refuse_pictures([{"role": "user", "content": [{"type": "text", "text": "Up?"}]}], "hf:m")
    assert raised.value.failure is Failure.MODEL_ERROR


def test_the_viewer_shows_what_the_agent_saw(suite: Path) -> None:
    play(suite, Reads())
    run = load_results(suite / "run", suite)
    pictures = first_pictures(run.suite)
    for record in run.records:
        split = next(split for split in run.suite.splits if split.name == record.split)
        turns = details(Replayer(split), record, "")["turns"]
        assert len({turn["image"] for turn in turns}) == len(turns), "every turn has moved something"
        head, _, data = turns[0]["image"].partition(",")
        picture = pictures[record.split]
        assert head == "data:image/png;base64"
        np.testing.assert_array_equal(decode_png(base64.b64decode(data), picture.shape), picture)
