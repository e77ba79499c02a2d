"""The page in a real browser, from a file: numbers, curves, filters, steps, tokens; nothing that a text says runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.cli import main
from ragen_agent.config import with_settings
from ragen_agent.report.episodes import EpisodeViews
from ragen_agent.report.run_page import _lede, page
from ragen_agent.report.runs import group_by_settings, load_runs
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.bench.report import html_page
from ragen_gym.core.storage import read_json_lines
from tests.browser import Sheet, open_page

EVIL = "</script><img src=x onerror=\"window.hacked=1\"><b onclick='x'>&amp; \ud800"


@pytest.fixture(scope="module")
def report(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    folders = [str(runs[name]) for name in ("seed0", "seed1", "vanilla", "broken")]
    assert main(["report", *folders, "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def lake(runs: dict[str, Path]) -> Path:
    assert main(["report", str(runs["lake"])]) == 0
    return runs["lake"] / "report.html"


@pytest.fixture
def sheet(chromium: Any, report: Path) -> Iterator[Sheet]:
    opened = open_page(chromium, report.as_uri())
    yield opened
    opened.close()


def records(runs: dict[str, Path], *names: str) -> list[dict[str, Any]]:
    return [record for name in names for record in read_json_lines(runs[name] / "episodes.jsonl")]


def test_a_report_is_written_without_importing_torch(runs: dict[str, Path], tmp_path: Path) -> None:
    """Their imports take several times as long as the rest."""
    arguments = ["report", str(runs["lake"]), "--out", str(tmp_path / "report.html")]
    imports = "{'torch', 'transformers'} & {*sys.modules}"
    code = f"import sys; from ragen_agent.cli import main; main(sys.argv[1:]); print({imports})"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.slow
def test_it_opens_from_a_file_and_says_what_was_measured(sheet: Sheet, runs: dict[str, Path], report: Path) -> None:
    assert [address for address in sheet.asked if not address.startswith("data:")] == [report.as_uri()]
    text = sheet.page.inner_text("main")
    for name in ("seed0", "seed1", "vanilla"):
        after = json.loads((runs[name] / "summary.json").read_text())["after"]
        assert f"{100 * after['rate']:.1f} %" in text
        assert f"{100 * after['low']:.1f} to {100 * after['high']:.1f}" in text
    assert "broken is not finished: 2 of 4 iterations of reinforcement." in text
    assert "random replies" in text
    assert "random play" not in text, "which is of moves, with another rate"
    assert re.search(r"StarPO-S: success went from .* over 2 seeds\), (not )?significant\.", text)
    table = sheet.page.locator("section:has(#settings) table").first
    assert table.locator("tbody th").all_inner_texts() == ["training.starpo_s"], "what differs stands first"
    assert table.locator("tbody td").all_inner_texts() == ["true", "false"]
    versions = RunFolder(runs["seed0"]).read_versions()[0]
    made = sheet.page.locator("section:has(#made)").inner_text()
    assert "local trainer on a CPU, 4 of 4 iterations" in made, "the setting is auto"
    assert f"torch {versions['packages']['torch']}" in made
    if versions["git"]:
        assert versions["git"] in made


def test_the_curves(sheet: Sheet, runs: dict[str, Path]) -> None:
    chart = sheet.page.locator(".chart[data-name=success]")
    assert chart.locator(".mean").count() == 2
    assert chart.locator(".raw").count() == 4
    assert chart.locator(".spread").count() == 1, "one configuration has several seeds"
    assert chart.locator(".random, .optimal").count() == 2
    shown = sheet.page.locator(".chart").evaluate_all("nodes => nodes.map(node => node.dataset.name)")
    assert {"success", "return", "return_std", "entropy", "grad_norm", "reply_tokens", "invalid_rate"} <= set(shown)
    assert len(set(shown)) == len(shown)
    chart.locator("> svg").hover(position={"x": 200, "y": 90})
    said = chart.locator(".readout").inner_text()
    assert re.fullmatch(r"iteration \d\s+\d+ %\s+\d+ %", said)
    other = sheet.page.locator(".chart[data-name=entropy] .readout").inner_text()
    assert other.split()[:2] == said.split()[:2], "all charts show the same iteration"
    sheet.page.mouse.move(0, 0)
    assert chart.locator(".readout").inner_text() == ""


def test_filters(sheet: Sheet, runs: dict[str, Path]) -> None:
    played = records(runs, "seed0", "seed1", "vanilla", "broken")
    assert sheet.filter("All") == len(played)
    assert sheet.filter("Solved") == sum(bool(e["success"]) for e in played)
    assert sheet.filter("Failed") == sum(not e["success"] for e in played)
    assert sheet.filter("Malformed") == sum(any(f["problem"] for f in e["turn_infos"]) for e in played)
    assert sheet.filter("Trained on") == sum(bool(e.get("kept")) for e in played)
    assert sheet.filter("Largest advantage") == sum("advantages" in e for e in played) > 2
    sheet.filter("All")
    sheet.page.locator("select[data-field=run]").select_option("vanilla")
    sheet.page.locator("select[data-field=phase]").select_option("after")
    assert sheet.filter("All") == 12


def test_tokens_are_coloured_by_what_they_were_worth(sheet: Sheet, runs: dict[str, Path]) -> None:
    trained = [e for e in records(runs, "seed0") if e["phase"] == "train"]
    at, episode = next((k, e) for k, e in enumerate(trained) if "advantages" in e)
    place = sum(e["iteration"] == episode["iteration"] for e in trained[:at])
    sheet.open(f"seed0.train.{episode['iteration'] + 1}.{place + 1}")
    tokens = sheet.page.locator(".rv-tokens span")
    (reply,) = [m["content"] for m in episode["messages"] if m["role"] == "assistant"]
    assert "".join(tokens.all_text_contents()).startswith(reply)
    assert tokens.count() == len(episode["advantages"]) == sum(episode["sampled"])
    classes = tokens.evaluate_all("nodes => nodes.map(node => node.className)")
    assert classes == ["low" if a < 0 else "high" for a in episode["advantages"]]
    sheet.page.locator(".rv-reply select").select_option("log-prob")
    largest = min(episode["log_probs"])
    shares = tokens.evaluate_all("nodes => nodes.map(node => parseInt(node.style.getPropertyValue('--share')))")
    assert max(shares) == round(55 * min(1.0, -largest / 5.0))
    sheet.press("j")
    assert sheet.page.locator(".rv-reply select, .rv-scale").last.inner_text().find("log-prob") >= 0, "the choice stays"


def test_it_opens_on_the_largest_advantage_coloured_by_it(sheet: Sheet, runs: dict[str, Path]) -> None:
    played = records(runs, "seed0", "seed1", "vanilla", "broken")
    largest = max(abs(a) for e in played for a in e.get("advantages", ()))
    assert sheet.page.locator(".rv-reply select").first.input_value() == "advantage"
    shares = sheet.page.locator(".rv-tokens span").evaluate_all("nodes => nodes.map(n => n.style.cssText)")
    assert any("55%" in text for text in shares), "the colour is full"
    note = sheet.page.locator(".viewer .note").inner_text()
    assert re.search(rf"the largest advantage in size, {largest:.2f}\.$", note)
    headings = sheet.page.locator("h2").all_inner_texts()
    assert headings[:3] == ["Findings", "Replay", "Curves"]
    assert headings[-1] == "Terms"


def test_steps_show_the_boards(chromium: Any, lake: Path, runs: dict[str, Path]) -> None:
    sheet = open_page(chromium, lake.as_uri())
    after = [e for e in records(runs, "lake") if e["phase"] == "after"]
    place, episode = max(enumerate(after), key=lambda pair: sum(f["played"] for f in pair[1]["turn_infos"]))
    sheet.open(f"lake.after.0.{place + 1}")
    sheet.press()
    board = sheet.page.locator(".rv-grid")
    first = board.get_attribute("aria-label").partition(":\n")[2]
    assert first in episode["messages"][1]["content"]
    moves = sum(facts["played"] for facts in episode["turn_infos"])
    seen = [first]
    for _ in range(int(sheet.page.locator(".rv-controls input").get_attribute("max"))):
        sheet.page.keyboard.press("ArrowRight")
        seen.append(board.get_attribute("aria-label").partition(":\n")[2])
    assert len(seen) >= moves + 1
    asked = [m["content"] for m in episode["messages"] if m["role"] == "user"]
    for message in asked[1 : len(episode["turn_ends"])]:
        assert any(text in message for text in seen), "what a later turn showed was on the board"
    assert sheet.page.locator(".rv-piece use[href*=penguin]").count() == 1
    assert "not replayed" not in sheet.page.locator(".rv-facts").first.inner_text()
    sheet.page.locator("select[data-field=compare]").select_option("before")
    sheet.page.wait_for_selector(".rv-panes.two")
    sheet.press("Home")
    boards = sheet.page.locator(".rv-grid").evaluate_all("nodes => nodes.map(node => node.ariaLabel)")
    assert boards[0] == boards[1], "one level, before and after"
    sheet.close()


def test_without_scripts_the_curves_and_numbers_are_there(chromium: Any, report: Path) -> None:
    plain = open_page(chromium, report.as_uri(), java_script_enabled=False)
    assert plain.page.locator(".chart .mean").count() > 10
    assert "The viewer needs JavaScript" in plain.page.inner_text("#viewer")
    assert plain.page.locator("section:has(#numbers) tbody tr").count() > 10
    plain.close()


def test_every_control_has_a_name(sheet: Sheet) -> None:
    assert sheet.unnamed_controls() == []


def test_nothing_that_a_text_says_runs(chromium: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    """And an episode whose level the games no longer draw is shown as it was written."""
    run = tmp_path / EVIL.replace("/", "")[:12]
    shutil.copytree(runs["seed0"], run)
    lines = read_json_lines(run / "episodes.jsonl")
    for record in lines:
        record["level_id"] = "elsewhere"
        for message in record["messages"]:
            message["content"] = EVIL
        record["failure"] = f"environment_error: {EVIL}"
    (run / "episodes.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lines))
    path = tmp_path / "evil.html"
    assert main(["report", str(run), "--out", str(path)]) == 0
    sheet = open_page(chromium, path.as_uri())
    assert "<img src=x" in sheet.page.locator(".rv-message").first.inner_text()
    assert "not replayed" in sheet.page.locator(".rv-facts").first.inner_text()
    assert sheet.filter("Errors") == len(lines)
    assert sheet.page.evaluate("window.hacked") is None
    assert sheet.page.locator("main img, main b[onclick]").count() == 0
    policy = sheet.page.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    sheet.close()


def test_a_run_that_has_only_begun(chromium: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    RunFolder.create(begun, RunFolder.reopen(runs["seed0"])[1])
    path = tmp_path / "begun.html"
    assert main(["report", str(begun), "--out", str(path)]) == 0
    sheet = open_page(chromium, path.as_uri(), ".rv-bar")
    assert "begun is not finished: 0 of 4 iterations" in sheet.page.inner_text("main")
    assert "No episode is of this kind." in sheet.page.inner_text("#viewer")
    assert "No iteration is recorded yet." in sheet.page.inner_text("main")
    assert "begun: 0 iterations." in sheet.page.inner_text("footer")
    assert sheet.page.locator(".rv-controls:visible").count() == 0
    assert sheet.page.locator(".chart").count() == 0
    sheet.close()


def test_a_page_that_may_hold_little_holds_some_of_everything(
    chromium: Any, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_page, "_BLOCK", 8000)
    path = tmp_path / "small.html"
    path.write_text(page(load_runs([runs["seed0"], runs["seed1"]]), megabytes=0.012), encoding="utf-8")
    sheet = open_page(chromium, path.as_uri())
    total = len(records(runs, "seed0", "seed1"))
    shown = sheet.filter("All")
    assert shown < total
    assert sheet.page.locator(".viewer .note").inner_text().startswith(f"{shown} of {total} recorded episodes")
    for name in ("seed0", "seed1"):
        sheet.page.locator("select[data-field=run]").select_option(name)
        for phase in ("before", "after", "training"):
            sheet.page.locator("select[data-field=phase]").select_option(phase)
            assert sheet.filter("All") > 0
    sheet.close()


def test_what_cannot_be_written_is_refused(
    runs: dict[str, Path], report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(runs["seed0"])
    assert main(["report", run, "--out", str(report)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["report", run, run]) == 2
    assert "named twice" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_page_in_the_folder_of_a_run_is_replaced(
    runs: dict[str, Path], report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs["seed0"], tmp_path / "run")
    for earlier, code in (("<!doctype html>\nnotes", 2), (report.read_text(encoding="utf-8"), 0)):
        (run / "report.html").write_text(earlier, encoding="utf-8")
        assert main(["report", str(run)]) == code
        assert ((run / "report.html").read_text(encoding="utf-8") == earlier) is (code == 2)


def test_replays_take_every_option_of_the_turn(runs: dict[str, Path]) -> None:
    """Grounding and world modelling, too: a reply is read as the run read it."""
    [run] = load_runs([runs["lake"]])
    views = EpisodeViews(run, several=False)
    shown = [(entry.heading, entry.details()) for group in views.groups() for entry in group]
    assert len(shown) == len(records(runs, "lake"))
    for heading, details in shown:
        assert not any("than the rules allow" in fact or "not replayed" in fact for fact in details["facts"])
        problems = any(turn.get("problem") for turn in details["turns"])
        assert problems == ("malformed" in heading["tags"])


def test_the_first_sentence_names_the_model_without_its_folder_and_a_filter_of_its_own(runs: dict[str, Path]) -> None:
    [run] = load_runs([runs["seed0"]])
    model = "/cache/models--owner--name/snapshots/1"
    run = replace(run, config=with_settings(run.config, {"model": model, "training": {"filter": "none"}}))
    said = _lede(group_by_settings([run]), [run])
    assert " and the filter none on " in said
    assert ": owner/name, " in said
