"""Submissions to a leaderboard: which are accepted and why others are not, and the page."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.report.leaderboard import SUBMISSION_FILE, find_submissions, judge, page
from ragen_gym.bench.results import ResultsFolder, load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import load_suite
from ragen_gym.bench.verify import verify
from ragen_gym.cli import main
from ragen_gym.core.seen import SEEN_FILE, read_seen, write_seen

SMOKE = load_suite("smoke")
TEXT = 'who = "Ada"\nmodel = "{model}"\nsettings = "one rollout a level"\n'


def submit(folder: Path, agent: str, options: RunOptions, model: str = "") -> Path:
    run_suite(SMOKE, make_agent(agent), folder, options)
    ResultsFolder(folder).write_summary(score_results(load_results(folder)))
    (folder / SUBMISSION_FILE).write_text(TEXT.format(model=model or agent), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def submissions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four submissions that hold."""
    folder = tmp_path_factory.mktemp("submissions")
    submit(folder / "a-random", "random", RunOptions(), "a | model of *mine*")
    submit(folder / "b-oracle", "oracle", RunOptions())
    submit(folder / "c-lake", "greedy", RunOptions(splits=("frozen_lake",)))
    (folder / "b-oracle" / SUBMISSION_FILE).write_text(
        TEXT.format(model="oracle") + 'link = "https://example.org"\n', encoding="utf-8"
    )
    return folder


def test_submissions_are_sorted_by_suite_and_score_beside_random_and_optimal_play(
    submissions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.md"
    assert main(["bench", "leaderboard", str(submissions), "--out", str(out)]) == 0
    assert "3 accepted, 0 refused" in capsys.readouterr().out
    text = out.read_text(encoding="utf-8")
    assert "Refused" not in text
    assert f"## smoke\n\n{SMOKE.about} `{SMOKE.hash}`" in text
    places = [text.index(name) for name in ("| 1 | oracle (https://example.org) |", r"| 2 | a \| model of \*mine\* |")]
    assert places == sorted(places)
    assert text.index("| 3 | greedy | greedy |") > places[1], "a part of the suite comes after the whole of it"
    rates = [line for line in text.splitlines() if line.startswith(("| random play |", "| optimal play |"))]
    expected = _summary(submissions / "b-oracle")
    for line, value in zip(rates, ("random", "optimal"), strict=True):
        shares = [
            split["random"]["rate"] if value == "random" else split["optimal_expected"] for split in expected.values()
        ]
        assert line == f"| {value} play | {' | '.join(f'{100 * share:.1f}' for share in shares)} |"
    assert main(["bench", "leaderboard", str(submissions), "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err


def _summary(folder: Path) -> dict[str, Any]:
    splits: dict[str, Any] = score_results(load_results(folder))["splits"]
    return splits


def lacking(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def better(folder: Path) -> None:
    text = (folder / "episodes.jsonl").read_text(encoding="utf-8")
    assert '"success":false' in text.replace(" ", "")
    changed = text.replace('"success": false', '"success": true', 1).replace('"success":false', '"success":true', 1)
    (folder / "episodes.jsonl").write_text(changed, encoding="utf-8")


def shorter(folder: Path) -> None:
    lines = (folder / "episodes.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "episodes.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")


def text_of(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / SUBMISSION_FILE).write_text(text, encoding="utf-8")


def own_suite(folder: Path) -> None:
    info = json.loads((folder / "run.json").read_text(encoding="utf-8")) | {"suite": "mine"}
    (folder / "run.json").write_text(json.dumps(info), encoding="utf-8")
    with pytest.raises(ValueError, match="played mine, no suite of this package: give its folder with --suite"):
        load_results(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lacking(SUBMISSION_FILE), "there is no submission.toml"),
        (
            lacking("summary.json"),
            "incomplete: there is no summary.json (ragen-gym bench score RUN --write",
        ),
        (better, "false: "),
        (shorter, "false: "),
        (lacking("run.json"), "no run.json"),
        (own_suite, "its suite, mine, is not one of this package."),
        (text_of("who = 3"), "who must be a text of 1 to 300 characters"),
        (text_of('who = "x"\nmodel = "y"'), "lacks 'settings'"),
        (text_of(TEXT + 'price = "3"'), "has no field 'price'"),
        (text_of("who = "), "cannot be read"),
        (text_of("who = " + "[" * 10_000), "maximum recursion depth"),
        (text_of(TEXT.replace("Ada", "A" * 301)), "who must be a text"),
        (text_of(TEXT.replace("Ada", r"\u001b[2J")), "who has a character that is not printable"),
    ],
)
def test_what_is_refused_is_listed_with_the_reason(
    submissions: Path, tmp_path: Path, change: Callable[[Path], object], reason: str
) -> None:
    shutil.copytree(submissions / "a-random", tmp_path / "bad")
    shutil.copytree(submissions / "b-oracle", tmp_path / "good")
    change(tmp_path / "bad")
    entries, refusals = judge(find_submissions([tmp_path]))
    assert [entry.path.name for entry in entries] == ["good"]
    [refusal] = refusals
    assert reason in refusal.reason
    text = page(entries, refusals)
    assert "## Refused" in text
    assert str(tmp_path / "bad") in text


@pytest.mark.parametrize("name", ["\x1b[2J", "\ud800"])
def test_nothing_in_a_submission_reaches_the_terminal_or_ends_the_page(
    name: str, submissions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, worse = (shutil.copytree(submissions / "c-lake", tmp_path / "all" / which) for which in ("bad", "worse"))
    info = json.loads((bad / "run.json").read_text(encoding="utf-8"))
    (bad / "run.json").write_text(json.dumps(info | {"suite": name}), encoding="utf-8")
    lines = (worse / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"split": name})
    (worse / "episodes.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "all" / os.fsdecode(b"\xff\x1b[2J")).mkdir()
    (tmp_path / "all" / os.fsdecode(b"\xff\x1b[2J") / SUBMISSION_FILE).touch()
    out = tmp_path / "page.md"
    assert main(["bench", "leaderboard", str(tmp_path / "all"), "--out", str(out)]) == 1
    said, text = capsys.readouterr().out, out.read_text(encoding="utf-8")
    assert "0 accepted, 3 refused" in said
    for shown in (said, text):
        assert "\x1b" not in shown
        assert "\N{REPLACEMENT CHARACTER}" in shown


def test_another_temperature_than_the_suites_stands_next_to_the_score(submissions: Path, tmp_path: Path) -> None:
    submit(tmp_path / "cold", "greedy", RunOptions(splits=("frozen_lake",), temperature=0.0))
    rows = [
        line for line in page(*judge([tmp_path / "cold", submissions / "c-lake"])).splitlines() if "greedy |" in line
    ]
    assert len([row for row in rows if row.endswith("| temperature 0, where the suite has 0.5 |")]) == 1


def test_what_to_ask_of_a_verified_run_stands_next_to_its_score(submissions: Path, tmp_path: Path) -> None:
    trained = shutil.copytree(submissions / "c-lake", tmp_path / "trained")
    [split] = [split for split in SMOKE.splits if split.name == "frozen_lake"]
    ResultsFolder(trained).add_seen([split.families[0]])
    ResultsFolder(trained).write_summary(score_results(load_results(trained)))
    [seen] = [line for line in page(*judge([trained])).splitlines() if line.startswith("| 1 |")]
    assert seen.endswith("| 1 of 8 of frozen_lake |  |")
    [unknown] = [line for line in page(*judge([submissions / "b-oracle"])).splitlines() if line.startswith("| 1 |")]
    assert unknown.endswith("| not known |  |"), "no record is not a record of nothing"


def test_a_part_of_a_split_a_copy_and_a_rescored_run_are_refused(
    submissions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(submissions / "a-random", tmp_path / "1")
    shutil.copytree(submissions / "a-random", tmp_path / "2")
    submit(tmp_path / "3", "random", RunOptions(limit=2))
    shutil.copytree(submissions / "a-random", tmp_path / "5")
    submit(tmp_path / "5", "random", RunOptions(limit=1, rollouts=3))
    assert main(["bench", "rescore", str(tmp_path / "1"), "--lenient", "--out", str(tmp_path / "4")]) == 0
    shutil.copy(tmp_path / "1" / SUBMISSION_FILE, tmp_path / "4")
    capsys.readouterr()
    assert main(["bench", "leaderboard", str(tmp_path), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert [Path(each["path"]).name for each in record["accepted"]] == ["1"]
    reasons = {Path(each["path"]).name: each["reason"] for each in record["refused"]}
    assert reasons["2"] == f"it is the run of {tmp_path / '1'} again."
    assert reasons["3"] == f"it played 2 of the 8 instances of {SMOKE.splits[0].name}."
    assert reasons["4"] == "it was rescored: submit the run as it was played."
    assert reasons["5"].startswith(f"it played some instances of {SMOKE.splits[0].name} more often than others")


def test_folders_without_a_submission_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "leaderboard", str(tmp_path)]) == 2
    assert "holds no submission" in capsys.readouterr().err
    assert main(["bench", "leaderboard", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def claims(families: int) -> Callable[[Path], None]:
    """A record of levels seen in training whose header claims so many, and that ends after one."""

    def change(folder: Path) -> None:
        with (folder / SEEN_FILE).open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<u8", "fortran_order": False, "shape": (families,)})
            file.write(bytes(8))

    return change


def sparse(name: str) -> Callable[[Path], None]:
    """A file that claims 745 GiB and takes none."""

    def change(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.truncate(800_000_000_000)

    return change


def cut(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return change


def info_of(**entries: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        (folder / "run.json").write_text(json.dumps(info | entries), encoding="utf-8")

    return change


def pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


@pytest.mark.parametrize(
    "change",
    [
        *map(claims, [10**11, 2**62, 0]),
        cut(SEEN_FILE),
        lambda folder: np.save(folder / SEEN_FILE, np.zeros(3, "O")),
        *map(sparse, [SEEN_FILE, "run.json", "episodes.jsonl", "summary.json", SUBMISSION_FILE]),
        *map(pipe, ["episodes.jsonl", "summary.json", SUBMISSION_FILE]),
        *map(cut, ["run.json", "summary.json"]),
        info_of(settings={"rescored": 7}),
        info_of(seen={}),
        info_of(prompts={}),
        info_of(sessions=[{"versions": {"ragen_gym": {}}, "prices": {"prompt": "x", "completion": 1}}]),
        lambda folder: (folder / "summary.json").write_text("[" * 100_000),
        lambda folder: shutil.rmtree(folder) or folder.mkdir(),  # type: ignore[func-returns-value]
    ],
)
def test_a_damaged_submission_is_named_and_ends_nothing(
    change: Callable[[Path], None], submissions: Path, tmp_path: Path
) -> None:
    bad = shutil.copytree(submissions / "a-random", tmp_path / "bad")
    ResultsFolder(bad).add_seen([1, 2, 3])
    change(bad)
    entries, refusals = judge(find_submissions([bad, submissions / "b-oracle"]))
    assert [entry.path.name for entry in entries] == ["b-oracle"]
    assert [refusal.path.name for refusal in refusals] == ["bad"]
    assert "a-random" not in refusals[0].reason
    assert refusals[0].reason


def test_a_record_of_levels_seen_in_training_cannot_be_emptied_unseen(
    submissions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = shutil.copytree(submissions / "c-lake", tmp_path / "trained")
    [split] = [split for split in SMOKE.splits if split.name == "frozen_lake"]
    assert main(["bench", "score", str(trained)]) == 0
    assert "Whether the agent saw these levels in training is not known" in " ".join(capsys.readouterr().out.split())
    write_seen(tmp_path / "seen.npy", [split.families[0]])
    assert main(["bench", "score", str(trained), "--seen", str(tmp_path / "seen.npy"), "--write"]) == 0
    assert "1 of 8 of frozen_lake" in capsys.readouterr().out
    assert verify(load_results(trained)).holds
    whole = (trained / SEEN_FILE).read_bytes()
    for forge in (
        (trained / SEEN_FILE).unlink,
        lambda: write_seen(trained / SEEN_FILE, []),
        lambda: write_seen(trained / SEEN_FILE, [7]),
        lambda: (trained / SEEN_FILE).write_bytes(whole[:-4]),
    ):
        forge()
        run = load_results(trained)
        assert run.seen is None, "not known, which is not nothing"
        ResultsFolder(trained).write_summary(score_results(run))
        verdict = verify(run)
        assert verdict.verdict == "false"
        assert "seen.npy: the record of levels seen in training is" in str(verdict.differences[0])
        assert main(["bench", "score", str(trained)]) == 0
        assert "is not known" in " ".join(capsys.readouterr().out.split())
        [refusal] = judge([trained])[1]
        assert "seen.npy" in refusal.reason
        (trained / SEEN_FILE).write_bytes(whole)
    assert read_seen(trained) == {split.families[0]}
