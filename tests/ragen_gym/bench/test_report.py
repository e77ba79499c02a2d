"""The report in a real browser, from a file: numbers, filters, steps, links, and that nothing a reply says runs."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from ragen_gym.bench.agent import Answer, Task
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.replay import Replayer
from ragen_gym.bench.report import html_page, tables
from ragen_gym.bench.report.benchmark_page import context, page
from ragen_gym.bench.report.html_page import Entry, EpisodeViewer, pack, packed, render_page
from ragen_gym.bench.report.plots import strips
from ragen_gym.bench.report.viewer_data import details
from ragen_gym.bench.results import BenchResults, load_several
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import load_suite
from ragen_gym.cli import main
from ragen_gym.games.registry import TABLE
from tests.browser import Sheet, launched, open_page
from tests.ragen_gym.bench.imperfect_agent import ImperfectAgent

pytestmark = pytest.mark.slow  # two runs of a suite, and a real browser

SMALL = {"width": 1280, "height": 500}  # the viewer is below the first screen
SMOKE = load_suite("smoke")
EVIL = "</script><img src=x onerror=\"window.hacked=1\"><b onclick='x'>&amp; \ud800"


class Nasty(ImperfectAgent):
    """Replies with markup on the first level of sokoban, and breaks on the first bandit."""

    async def reply(self, messages: Sequence[Any], task: Task) -> Answer:
        if (task.split, task.index) == ("sokoban", 0):
            return Answer(f"<think>{EVIL}</think><answer>{EVIL}</answer>", reasoning=EVIL)
        if (task.split, task.index) == ("bandit", 0):
            raise RuntimeError(EVIL)
        return await super().reply(messages, task)


@dataclass
class Report:
    path: Path
    runs: list[BenchResults]
    summaries: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("runs")
    for player in (ImperfectAgent("careful", 0.9, 0.95), Nasty("<i>nasty</i>", 0.6, 0.8, seed=1)):
        run_suite(SMOKE, player, folder / str(player.settings["seed"]), RunOptions(rollouts=2))
    out = folder / "report.html"
    folders = [folder / "0", folder / "1"]
    assert main(["bench", "report", *map(str, folders), "--out", str(out)]) == 0
    runs = load_several(folders)
    return Report(out, runs, [score_results(run) for run in runs])


@pytest.fixture(scope="module")
def chromium(report: Report) -> Iterator[Any]:
    """A browser, after all that is played: Playwright keeps an event loop running, beside which no run can begin."""
    with launched() as browser:
        yield browser


@pytest.fixture
def sheet(chromium: Any, report: Report) -> Iterator[Sheet]:
    opened = open_page(chromium, report.path.as_uri())
    yield opened
    opened.close()


def count(report: Report, wanted: Any) -> int:
    return sum(bool(wanted(record)) for run in report.runs for record in run.records)


def test_it_opens_from_a_file_and_asks_for_nothing_else(sheet: Sheet, report: Report) -> None:
    assert [address for address in sheet.asked if not address.startswith("data:")] == [report.path.as_uri()]
    text = str(sheet.page.text_content("main"))  # the folded findings as well
    for summary in report.summaries:
        split = summary["splits"]["sokoban"]  # two rollouts a level
        assert f"{100 * split['success']['rate']:.1f} %" in text
        assert f"{100 * split['clustered']['low']:.1f} to {100 * split['clustered']['high']:.1f}" in text
    assert "is not significantly different from random play on" in text
    assert "Failed for reasons" not in text
    assert "94 of 96 episodes asked for, 2 excluded: success would be" in text
    assert sheet.page.locator(".lane svg .point").count() == 12
    labels = sheet.page.locator(".lane svg[role=img]").evaluate_all("nodes => nodes.map(n => n.ariaLabel)")
    assert all(re.search(r" on \w+: \d", label) for label in labels)


def test_filters(sheet: Sheet, report: Report) -> None:
    assert sheet.filter("All") == count(report, lambda record: True) == 192
    assert sheet.filter("Solved") == count(report, lambda record: record.success)
    assert sheet.page.locator(".rv-row .rv-mark.bad").count() == 0
    failed = sheet.filter("Failed")
    assert failed == count(report, lambda record: record.counted and not record.success)
    assert sheet.page.locator(".rv-row .rv-mark.good").count() == 0
    assert sheet.page.locator(".rv-head .rv-mark.bad").count() == 1  # the open one was replaced by one of the list
    malformed = sheet.filter("Malformed")
    assert malformed == count(report, lambda record: any(turn.problem for turn in record.turns))
    assert sheet.filter("Errors") == 2
    assert "not counted" in sheet.page.locator(".rv-talk .rv-problem").last.inner_text()
    sheet.filter("All")
    sheet.page.locator("select[data-field=split]").select_option("frozen_lake")
    sheet.page.locator("select[data-field=agent]").select_option("careful")
    assert sheet.filter("All") == 16
    assert set(sheet.rows()) >= {"frozen_lake 0", "frozen_lake 0, rollout 1"}
    assert sheet.title.startswith("frozen_lake 0 · careful")


def test_steps_show_the_boards_of_the_replay(sheet: Sheet, report: Report) -> None:
    record = next(r for r in report.runs[0].records if r.split == "new_vocab" and r.success and len(r.turns) > 1)
    split = next(split for split in SMOKE.splits if split.name == "new_vocab")
    replay = Replayer(split).replay(record)
    boards = [replay.board, *(move.board for turn in replay.turns for move in turn.moves)]
    sheet.page.goto(f"{report.path.as_uri()}#episode={record.key}-0")
    expect(sheet.page.locator(".rv-head h3")).to_contain_text("new_vocab")
    seen = []
    sheet.press()
    for _ in boards:
        seen.append(sheet.page.locator(".rv-grid").get_attribute("aria-label").partition(":\n")[2])
        sheet.page.keyboard.press("ArrowRight")
    assert seen == boards
    assert f"step={len(boards) - 1}" in sheet.page.url
    sheet.page.keyboard.press("Home")
    assert sheet.caption == "The start"
    sheet.page.keyboard.press("ArrowRight")
    assert sheet.caption.startswith("Turn 1")
    assert sheet.page.locator(".rv-turn.current h4").inner_text() == "Turn 1"
    assert sheet.page.locator(".rv-chip.current").count() == 1
    sheet.page.keyboard.press("t")
    assert sheet.page.locator(".rv-text").inner_text() == boards[1]
    sheet.page.keyboard.press("t")
    sheet.page.locator(".rv-chip").last.click()
    assert sheet.page.locator(".rv-grid").get_attribute("aria-label").endswith(boards[-1])
    pieces = sheet.page.locator(".rv-piece use").evaluate_all("nodes => nodes.map(n => n.getAttribute('href')).sort()")
    assert pieces == ["#tile-box-done", "#tile-worker"]


def first_episode(report: Report) -> str:
    """The id of the first episode in the list."""
    record = next(r for r in report.runs[0].records if (r.split, r.index, r.rollout) == ("sokoban", 0, 0))
    return f"{record.key}-0"


def test_it_opens_on_a_lost_game_beside_a_success_on_the_same_level(sheet: Sheet) -> None:
    assert sheet.page.locator(".rv-head .rv-mark").evaluate_all("nodes => nodes.map(node => node.ariaLabel)") == [
        "failed",
        "solved",
    ]
    level, other = (text.rpartition(" · ")[0] for text in sheet.page.locator(".rv-head h3").all_inner_texts())
    assert level == other
    assert sheet.page.locator(".rv-pane").first.locator(".rv-pivot").count() == 1
    assert "#" not in sheet.page.url
    assert sheet.caption == "The start", "readers who want no motion start it themselves"


def test_the_opening_episode_plays_once_it_is_in_sight(chromium: Any, report: Report) -> None:
    moving = open_page(chromium, report.path.as_uri(), reduced_motion="no-preference", viewport=SMALL)
    moving.page.wait_for_timeout(1200)
    assert moving.caption == "The start"
    moving.page.locator(".rv-controls").scroll_into_view_if_needed()
    moving.page.locator("#viewer").evaluate("node => node.scrollIntoView()")
    last = moving.page.locator(".rv-controls input").get_attribute("max")
    expect(moving.page.locator(".rv-place")).to_have_text(f"{last} / {last}", timeout=15_000)
    assert "#" not in moving.page.url, "only what a reader chose is in the address"
    moving.close()


def test_episodes_have_links_and_keys(sheet: Sheet, report: Report, chromium: Any) -> None:
    sheet.open(first_episode(report))
    expect(sheet.page.locator(".rv-pane")).to_have_count(1)
    first = sheet.title
    sheet.press("j", "j", "ArrowRight", "ArrowRight")
    third, caption, address = sheet.title, sheet.caption, sheet.page.url
    assert third != first
    other = open_page(chromium, address)
    assert (other.title, other.caption) == (third, caption)
    other.close()
    sheet.press("k", "k", "k")
    assert sheet.title == first
    sheet.page.goto(address)
    expect(sheet.page.locator(".rv-head h3")).to_have_text(third)
    assert sheet.page.get_by_role("link", name="Link").get_attribute("href") == address.partition(".html")[2]


def test_an_address_of_an_unknown_episode_is_said_to_be_unknown(chromium: Any, report: Report) -> None:
    opened = open_page(chromium, f"{report.path.as_uri()}#episode=nowhere")
    unknown = opened.page.get_by_text("No such episode: nowhere.")
    expect(unknown).to_be_visible()
    opened.press("j")
    expect(unknown).to_be_hidden()
    opened.close()


def test_two_agents_side_by_side(sheet: Sheet, report: Report) -> None:
    sheet.open(first_episode(report))
    expect(sheet.page.locator(".rv-pane")).to_have_count(1)
    sheet.page.locator("select[data-field=compare]").select_option("<i>nasty</i>")
    sheet.page.wait_for_selector(".rv-panes.two")
    titles = sheet.page.locator(".rv-head h3").all_inner_texts()
    assert titles == ["sokoban 0 · careful", "sokoban 0 · <i>nasty</i>"]
    first, second = sheet.page.locator(".rv-grid").all()
    assert first.get_attribute("aria-label") == second.get_attribute("aria-label")  # one level
    sheet.press("j")  # the other's episode: now the first stands beside it
    expect(sheet.page.locator(".rv-head h3").first).to_contain_text("nasty")
    expect(sheet.page.locator(".rv-head h3").last).to_contain_text("careful")
    sheet.press("ArrowRight")
    assert "compare=" in sheet.page.url
    sheet.page.locator("select[data-field=compare]").select_option("")
    expect(sheet.page.locator(".rv-pane")).to_have_count(1)


def test_nothing_that_a_reply_says_runs(sheet: Sheet, report: Report) -> None:
    record = next(r for r in report.runs[1].records if (r.split, r.index) == ("sokoban", 0))
    sheet.page.goto(f"{report.path.as_uri()}#episode={record.key}-1")
    expect(sheet.page.locator(".rv-head h3")).to_contain_text("nasty")
    sheet.page.locator(".rv-thinking summary").first.click()
    shown = sheet.page.locator(".rv-thinking > div").first.inner_text()
    assert shown == "\n\n".join([EVIL.replace("\ud800", "\ufffd")] * 2)
    assert "<img src=x" in sheet.page.locator(".rv-reply pre").first.inner_text()
    assert sheet.page.locator("main img, main b[onclick], main i").count() == 0
    assert sheet.page.evaluate("window.hacked") is None
    policy = sheet.page.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_hangs_over(chromium: Any, report: Report, scheme: str) -> None:
    phone = open_page(chromium, report.path.as_uri(), viewport={"width": 390, "height": 844}, color_scheme=scheme)
    assert phone.overflow() <= 0
    phone.page.locator("select[data-field=compare]").select_option(index=1)
    phone.page.wait_for_selector(".rv-panes.two")
    assert phone.overflow() <= 0
    for button in phone.page.locator(".rv-button").all():
        box = button.bounding_box()
        assert 0 <= box["x"] <= 390 - box["width"]
        assert min(box["width"], box["height"]) >= 36
    paper = phone.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(250, 249, 246)", "dark": "rgb(20, 23, 27)"}[scheme]
    phone.close()


def test_every_control_has_a_name(sheet: Sheet) -> None:
    assert sheet.unnamed_controls() == []
    levels = sheet.page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((node) => +node.tagName[1])")
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_a_page_holds_no_more_than_it_may(chromium: Any, report: Report, tmp_path: Path) -> None:
    path = tmp_path / "small.html"
    path.write_text(page(report.runs, report.summaries, [], megabytes=0.001), encoding="utf-8")
    small = open_page(chromium, path.as_uri())
    shown = small.filter("All")
    note = small.page.locator(".viewer .note").inner_text()
    assert shown < 192
    assert note.startswith(f"{shown} of 192 episodes")
    agents = small.page.locator("select[data-field=agent] option").count()
    assert agents == 3  # all, and both
    small.page.locator("select[data-field=agent]").select_option("careful")
    assert small.filter("All") == shown / 2
    small.close()


def test_a_viewer_of_hostile_episodes_and_of_none(chromium: Any, tmp_path: Path) -> None:
    """A choice with no episode hides what it has none to show of, and takes no keys; long words wrap."""
    long = "W" * 3000
    turn = {"message": "Go.", "frames": [1, 1]}
    replies = ["", " \n", "\u202e\u2028\x00</pre>", "x" * 10_000]
    turns: list[dict[str, Any]] = [
        {**turn, "reply": replies[0], "thinking": "Hm."},
        *({**turn, "reply": reply, "actions": [[long, "unknown"]], "problem": long} for reply in replies[1:]),
    ]
    one: dict[str, Any] = {"id": "one", "title": long, "tags": ["failed"], "fields": {"agent": "a"}}
    one |= {"board_style": "text", "frames": [{"board": long}], "turns": turns, "failure": long, "facts": [long]}
    filters = [{"label": "All"}, {"label": "Solved", "tag": "solved"}]
    data: dict[str, Any] = {"board_styles": {}, "filters": filters, "compare_by": "agent", "episodes": [one]}
    (tmp_path / "mine.html").write_text('{% extends "base.html" %}')
    words: dict[str, Any] = {"kind": "Report", "title": long, "lede": "\ud800", "counts": [], "findings": [long]}
    words |= {"terms": [(long, long)], "colophon": [long]}
    for name, shown in (("page", data), ("none", {**data, "episodes": []})):
        text = render_page("mine.html", EpisodeViewer(shown, [], long), folder=tmp_path, **words)
        (tmp_path / f"{name}.html").write_text(text)
    for size in ({"width": 1280, "height": 900}, {"width": 400, "height": 900}):
        address = f"{(tmp_path / 'page.html').as_uri()}#episode=one&step=x&compare=nobody"
        viewer = open_page(chromium, address, viewport=size)
        assert viewer.caption == "The start"
        assert viewer.page.locator("[data-field=compare]").count() == 0
        said = viewer.page.locator(".rv-reply pre").all_text_contents()
        assert said == ["(nothing after the thinking)", "(an empty reply)", *replies[2:]]
        assert viewer.overflow() == 0
        for part in (".rv-talk", ".rv-head"):
            assert viewer.page.locator(part).evaluate("node => node.scrollWidth - node.clientWidth") == 0
        body = viewer.page.locator(".rv-body").bounding_box()
        assert viewer.filter("Solved") == 0
        viewer.page.keyboard.press("End")
        for part in (".rv-controls", ".rv-panes", ".rv-list"):
            expect(viewer.page.locator(part)).to_be_hidden()
        assert viewer.page.locator(".rv-show").bounding_box()["width"] == body["width"]
        assert viewer.filter("All") == 1
        assert viewer.caption == "The start"
        viewer.close()
    none = open_page(
        chromium, (tmp_path / "none.html").as_uri(), ".rv-empty:not([hidden])", viewport={"width": 400, "height": 900}
    )
    none.page.locator(".rv").evaluate("node => node.scrollIntoView()")
    for key in ("ArrowRight", " ", "t", "j"):
        none.page.keyboard.press(key)
    expect(none.page.locator(".rv-controls")).to_be_hidden()
    assert none.overflow() == 0
    none.close()


def test_tables(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    markdown = tables.markdown_tables(report.summaries)
    assert r"\<i>nasty\</i>" in markdown
    assert "does not differ significantly from random play" in markdown
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({line.replace(r"\|", "").count("|") for line in lines}) == 1
    folder = report.path.parent
    assert main(["bench", "report", str(folder / "0"), str(folder / "1"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [run["agent"] for run in printed["runs"]] == ["careful", "<i>nasty</i>"]
    assert printed["comparisons"][0]["second"] == "<i>nasty</i>"
    assert {row["agent"] for row in printed["losses"]} <= {"careful", "<i>nasty</i>"}
    assert any(row["lost"] for row in printed["losses"])
    for row in printed["losses"]:
        [run] = [run for run in printed["runs"] if run["agent"] == row["agent"]]
        rate = run["splits"][row["split"]]["success"]
        assert row["lost"] == round((1 - rate["rate"]) * rate["n"])
        assert sum(row["kinds"].values()) == row["placed"] <= row["lost"]


def test_files_are_not_replaced_unasked(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(report.path.parent / "0")
    assert main(["bench", "report", run, "--out", str(report.path)]) == 2
    assert "add --force" in capsys.readouterr().err
    for form in ("--markdown", "--json"):
        assert main(["bench", "report", run, form, "--out", "scores"]) == 2
        assert "--out is for the page: leave it out" in capsys.readouterr().err
    default = report.path.parent / "0" / "report.html"
    for earlier, code in (("<!doctype html>\nnotes", 2), (report.path.read_text(), 0)):
        default.write_text(earlier)
        assert main(["bench", "report", run]) == code
        assert (default.read_text() == earlier) is (code == 2)


def test_a_bandits_success_without_a_return_is_explained(report: Report) -> None:
    run = report.runs[0]
    split = next(split for split in SMOKE.splits if split.name == "bandit")
    record = next(each for each in run.records if each.split == "bandit" and each.success and not each.total_reward)
    facts = details(Replayer(split), record, "")["facts"]
    assert facts[:2] == ["solved (the last pull was of an arm with the highest mean, whatever it paid)", "return 0.00"]


def test_the_lines_are_of_the_run_with_most_levels(report: Report) -> None:
    kinds = "random", "blind", "optimal"
    whole = report.runs[0]
    one = replace(whole, records=tuple(record for record in whole.records if record.index == 0))
    few, most = score_results(one), score_results(whole)
    shares = [[s["splits"]["frozen_lake"][kind]["rate"] for kind in kinds] for s in (few, most)]
    assert shares[0] != shares[1]
    said = " · ".join(f"{kind} {100 * share:.1f} %" for kind, share in zip(kinds, shares[1], strict=True))
    for summaries in ([few, most], [most, few]):
        (strip,) = strips(summaries, ["frozen_lake"])
        assert strip["bounds"] == said
        marks = [strip["marks"][kind] for kind in ("random", "optimal")]
        assert marks == [round(100 * share, 2) for share in shares[1][::2]]


def test_the_best_agents_stand_first_and_a_score_of_nothing_is_above_a_negative_one(report: Report) -> None:
    scores = {"worse": -0.4, "unknown": None, "random": 0.0, "good": 0.7}
    (summary, *_) = report.summaries
    summaries = [
        {**summary, "agent": agent, "overall": {**summary["overall"], "normalised": score}}
        for agent, score in scores.items()
    ]
    rows = context(SMOKE, summaries, [])["overview"]["rows"]
    assert [row["name"] for row in rows[1:-2]] == ["good", "random", "worse", "unknown"]
    assert [row["name"] for row in rows[-2:]] == ["blind play", "random play"]


def test_splits_that_differ_from_random_play_are_named_with_the_direction(report: Report) -> None:
    (summary, *_) = report.summaries
    rates = {"sokoban": 1.0, "frozen_lake": 0.9, "bandit": 0.0}
    splits = {
        name: {**summary["splits"][name], "differs_from_random": True, "clustered": {"rate": rate, "low": 0, "high": 1}}
        for name, rate in rates.items()
    }
    findings = context(SMOKE, [{**summary, "splits": splits}], [])["findings"]
    assert f"{summary['agent']} is significantly above random play on sokoban, frozen_lake." in findings
    assert f"{summary['agent']} is significantly below random play on bandit." in findings


def test_groups_are_packed_whole() -> None:
    groups = [[Entry({"id": f"{i}{j}"}, lambda: {"text": "x" * 300_000}) for j in range(2)] for i in range(4)]
    archive = pack(iter(groups), 0.0015)
    assert [heading["id"] for heading in archive.headings][::2] == [f"{i}0" for i in range(len(archive.blocks))]
    assert 1 <= len(archive.blocks) < 4
    assert all(len(block) < 2000 for block in archive.blocks)
    assert packed({"a": "</script>\ud800"}).isascii()


def test_every_sprite_that_a_look_names_is_drawn() -> None:
    drawn = set(
        re.findall(
            r'<symbol id="tile-([\w-]+)"',
            (Path(html_page.__file__).with_name("templates") / "tiles.svg").read_text(encoding="utf-8"),
        )
    )
    named = {
        name.lstrip("*").replace(":", "-")
        for spec in TABLE.values()
        for names in spec.game_class.sprites.values()
        for name in names
    }
    assert named == drawn


def test_what_is_packed_is_json_that_browsers_read() -> None:
    value = {"text": "\ud800", "numbers": [0.5, float("nan"), {"most": float("inf")}]}
    text = gzip.decompress(base64.b64decode(packed(value))).decode()
    assert text == json.dumps({"text": "\ud800", "numbers": [0.5, None, {"most": None}]}, separators=(",", ":"))
