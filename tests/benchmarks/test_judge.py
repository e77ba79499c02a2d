"""The table of a judge's errors: descriptions are what they claim to be, and a judge is counted as it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import judge
from benchmarks.served_model import ServedModel
from ragen_agent.config import Config, with_settings
from ragen_agent.programs.endpoint import Endpoint
from ragen_agent.training.policy import Policy


class Reader:
    """A judge that accepts what is written as the truth is and understands no sentences."""

    def __init__(self) -> None:
        self.asked, self.broken = 0, False

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.asked += 1
        if self.broken:
            raise RuntimeError("gone")
        question = body["messages"][-1]["content"]
        found = re.search(r"# True current state\n(.*?)\n\n# Description\n(.*?)\n\nThink", question, re.DOTALL)
        assert found is not None
        text = "hm" if "The player" in found[1] else f"<answer>{'YES' if found[1] == found[2] else 'NO'}</answer>"
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}

    def begin(self) -> dict[str, Any]:
        raise NotImplementedError

    reset = begin

    def turn(self, body: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


def test_descriptions_are_what_they_claim_to_be() -> None:
    found = judge.items(3 * 34)
    assert len(set(found)) == len(found)
    assert {item.kind for item in found} == judge.KINDS.keys()
    for item in found:
        description = judge.description_of(item)
        assert description == judge.description_of(item), "drawn from the item alone"
        assert description.right is judge.KINDS[item.kind], item
        assert (description.said == description.truth) == (item.kind == "the truth"), item


def test_verdicts_are_kept_counted_and_asked_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader()
    with Endpoint() as endpoint:
        command = ["--base-url", f"{endpoint.add(reader)}/v1", "--model", "reader", "--out", str(tmp_path)]
        assert judge.main([*command, "--judgements", "34", "--concurrency", "4"]) == 0
        assert reader.asked == 34
        assert judge.main([*command, "--judgements", "40"]) == 0
        assert reader.asked == 40
        assert judge.main([*command, "--judgements", "40", "--max-tokens", "9"]) == 1
    assert "holds verdicts of reader with --max-tokens 400: give that" in capsys.readouterr().err
    page = (tmp_path / "judge.md").read_text()
    assert page == judge._page(json.loads((tmp_path / "judge.json").read_text()))
    rows = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert rows["symbols"].startswith("| symbols | 12 | 0 | 100 ("), rows["symbols"]
    assert rows["sentences"].split(" | ")[1:5] == ["14", "14", "-", "-"], "no verdict is none"
    assert rows["the truth in another order"].split(" | ")[3].startswith("0 (")
    assert "None of its answers is a verdict" not in page


def test_a_judge_that_breaks_is_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader()
    reader.broken = True
    with Endpoint() as endpoint:
        command = ["--base-url", f"{endpoint.add(reader)}/v1", "--model", "reader", "--out", str(tmp_path)]
        command += ["--judgements", "2", "--retries", "0"]
        assert judge.main(command) == 1
        assert "reader answers nothing: model_error: HTTP 500" in capsys.readouterr().err
        reader.broken = False
        assert judge.main(command) == 0
    assert reader.asked == 4
    assert "2 judged" in capsys.readouterr().out


def test_a_model_is_served_in_batches() -> None:
    policy = Policy.build(with_settings(Config(), {"small_model": {"hidden": 32, "layers": 1, "feed_forward": 32}}))
    model = ServedModel(policy, max_tokens=5, rows=4)
    try:
        messages = [{"role": "user", "content": "Turn 1 of 5, actions left: 10."}]
        answer = model.complete({"messages": messages, "max_tokens": 3})
        assert answer["usage"]["completion_tokens"] <= 3
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")
        first, second = (model.complete({"messages": messages})["choices"] for _ in range(2))
        assert first == second, "the likeliest tokens"
        with pytest.raises(Exception, match="must be a list"):
            model.complete({"messages": []})
    finally:
        model.stop()


def test_what_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--base-url", "http://127.0.0.1:9/v1"], ["--serve", "x", "--base-url", "http://h/v1"]):
        with pytest.raises(SystemExit):
            judge.main([*arguments, "--out", str(tmp_path)])
        assert "give --base-url with --model, or --serve alone" in capsys.readouterr().err
    assert judge.main(["--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--out", str(tmp_path)]) == 1
    assert "cannot reach http://127.0.0.1:9/v1" in capsys.readouterr().err
