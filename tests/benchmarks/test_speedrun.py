"""The speedrun's refusals, its replay and its page."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import io
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

import benchmarks
from benchmarks.speedrun import continued, held_out, ledger, main, make_env, played, submitted, verify
from benchmarks.speedrun_checks import check_replies, check_spellings
from benchmarks.speedrun_page import page, records
from ragen_agent import Trajectory
from ragen_gym.core.child_python import child_environment
from ragen_gym.core.storage import locked_folder

HERE = Path(benchmarks.__file__).parent
RECORD = HERE.parent / "examples" / "speedrun.py"
RESULTS = json.loads((HERE / "speedrun.json").read_text(encoding="utf-8"))
TOKENS = {"sampled_tokens": 0, "shown_tokens": 12}
SMALL = ["--", "--steps", "2", "--lakes", "200"]


def write(folder: Path, split: str = "train", tokens: object = TOKENS, count: int = 64) -> Path:
    """What a submission says of its training on lakes of a split."""
    keys = np.arange(count, dtype=np.uint64) * np.uint64(2**40 + 1)
    np.save(folder / "lakes.npy", make_env(split).game.generate(keys, split))
    (folder / "ledger.json").write_text(json.dumps(tokens))
    return folder


def test_a_ledger_of_training_lakes_is_read(tmp_path: Path) -> None:
    assert ledger(write(tmp_path)) == {**TOKENS, "lakes": 64}


@pytest.mark.parametrize("split", ["test", "validation"])
def test_lakes_that_are_held_out_are_found_by_their_hashes(split: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="64 of the 64 lakes that it trained on are held out"):
        ledger(write(tmp_path, split))


def test_one_lake_that_it_is_played_on_among_its_own_is_enough(tmp_path: Path) -> None:
    write(tmp_path)
    env, (instance, *_) = held_out(7, 4)
    env.reset(seed=instance.seed)
    lake = np.frombuffer(bytes(env.env.state[0]), np.uint8)
    np.save(tmp_path / "lakes.npy", np.concatenate([np.load(tmp_path / "lakes.npy"), lake[None]]))
    with pytest.raises(ValueError, match="1 of the 65 lakes"):
        ledger(tmp_path)


@pytest.mark.parametrize(
    "tokens", [{"sampled_tokens": 3}, {**TOKENS, "shown_tokens": -1}, {**TOKENS, "lakes": 1}, list(TOKENS)]
)
def test_a_ledger_of_another_form_is_refused(tokens: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give the counts sampled_tokens and shown_tokens"):
        ledger(write(tmp_path, tokens=tokens))


def test_a_submission_without_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a submission writes ledger.json and lakes.npy"):
        ledger(tmp_path)


def archive() -> bytes:
    np.savez(written := io.BytesIO(), lakes=np.zeros(3))
    return written.getvalue()


@pytest.mark.parametrize(
    ("lakes", "said"), [(b"", "EOFError"), (b"no array", "a submission writes"), (archive(), "several arrays")]
)
def test_a_file_of_lakes_that_cannot_be_read_is_refused(lakes: bytes, said: str, tmp_path: Path) -> None:
    (write(tmp_path) / "lakes.npy").write_bytes(lakes)
    with pytest.raises(ValueError, match=said):
        ledger(tmp_path)


def test_a_submission_that_fails_is_refused_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("raise SystemExit('no lakes today')")
    with pytest.raises(ValueError, match="exit code 1, where 0 is needed:\nno lakes today"):
        submitted(tmp_path / "file.py", 0, tmp_path)


def test_the_time_of_a_submission_holds_that_of_its_children(tmp_path: Path) -> None:
    loop = "import resource\nwhile resource.getrusage(resource.RUSAGE_SELF).ru_utime < 0.5: pass"
    (tmp_path / "file.py").write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {loop!r}])")
    assert submitted(tmp_path / "file.py", 0, tmp_path) >= 0.5


def test_an_id_spells_one_move() -> None:
    check_spellings({1: " || Up", 2: "</answer>"}, ["Left", "Up"])
    for text in ("Up || Left", "up || left"):  # the environment reads both
        with pytest.raises(ValueError, match=f"the id 7 spells {re.escape(repr(text))}"):
            check_spellings({7: text}, ["Left", "Up"])


@pytest.mark.parametrize("text", ["<answer>Up || Left</answer>", "<answer>up || left</answer>"])
def test_a_reply_has_an_id_for_each_move(text: str) -> None:
    def episode(ids: int) -> Trajectory:
        sampled = np.array([False] + [True] * (ids + 2))
        messages = [{"role": role, "content": text} for role in ("user", "assistant", "user", "assistant")]
        zeros = np.zeros(len(sampled), np.float32)
        return Trajectory(zeros.astype(int), sampled, zeros, (2, ids + 2), (0.0, 0.0), True, messages=tuple(messages))

    check_replies(episode(2), ["Left", "Up"])
    with pytest.raises(ValueError, match="a reply of 1 ids spells 2 moves"):
        check_replies(episode(1), ["Left", "Up"])


@pytest.mark.parametrize(
    ("part", "other", "refused"),
    [
        ("normalizer", normalizers.Replace(Regex("_(?=P)"), "a"), "has a normalizer, Replace"),
        ("pre_tokenizer", pre_tokenizers.Split("_", "removed"), "pre-tokenizer is Split"),
        ("decoder", decoders.Sequence([decoders.ByteLevel(), decoders.Replace("QZ", "Up || Up")]), "decoder is Seq"),
        ("decoder", None, "decoder is missing"),
        (None, None, None),
    ],
)
def test_a_tokenizer_that_rewrites_texts_is_refused(
    part: str | None, other: Any, refused: str | None, tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("speedrun_example", RECORD)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    tokenizer = example.build_tokenizer(make_env("train"))
    if part:
        setattr(tokenizer, part, other)
    example.save(example.weights(tokenizer.get_vocab_size(), 0), tokenizer, tmp_path)
    with pytest.raises(ValueError, match=refused) if refused else nullcontext():
        assert len(played(tmp_path, *held_out(7, 2), 0)[0]) == 2


@pytest.mark.slow
def test_a_submission_that_solves_too_few_lakes_is_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(RECORD), "--number", "1", "--out", str(tmp_path), "--record", "Two steps"]
    for _ in range(2):  # the second time it goes on with the run
        assert main([*words, *SMALL]) == 1
        assert "solved on average, 60% needed" in capsys.readouterr().out
    (run,) = json.loads((tmp_path / "speedrun.json").read_text())["runs"]
    assert [each["seed"] for each in run["seeds"]] == run["drawn"][:2]
    assert run["seeds"][0]["shown_tokens"] > 0
    verify(run)
    assert "| no: 2 of 5 seeds | Two steps |" in (tmp_path / "speedrun.md").read_text()
    with pytest.raises(SystemExit):
        main([*words, "--split", "validation", *SMALL])
    assert "a record is played on lakes of the split test" in capsys.readouterr().err


def test_a_record_has_five_seeds_solves_enough_and_is_faster_or_shows_less() -> None:
    def run(seconds: float, shown: int, solved: float = 0.6, seeds: int = 5) -> dict[str, Any]:
        figures = {"seconds": seconds, "solved": solved, "product": 0.5, "loop": 0.5, "lakes": 9}
        return {"seeds": [figures | {"sampled_tokens": 0, "shown_tokens": shown}] * seeds}

    first, faster, fewer = run(20, 100), run(10, 200), run(30, 50)
    tenth, hair = run(18, 100), run(18.1, 91)
    assert records([first, hair, tenth]) == [first, tenth], "a tenth less time, and not quite"
    assert records([first, run(20, 91), run(20, 90)]) == [first, run(20, 90)], "a tenth fewer tokens, and not quite"
    loaded = run(18.1, 100)
    for seed in loaded["seeds"]:
        seed["loop"] = 0.8
    assert records([first, loaded]) == [first], "faster by the loop, which was slowed, and not by the product"
    others = [run(5, 5, solved=0.59), run(5, 5, seeds=4), run(12, 150, 0.9)]
    shares = (1.0, 0.7, 0.7, 0.5, 0.5)
    unsure = {"seeds": [{**seed, "solved": share} for seed in run(5, 5, seeds=1)["seeds"] for share in shares]}
    assert records([first, unsure]) == [first], "0.68 on average, from 0.43 on"
    assert records([others[0], first, others[1], faster, fewer, run(10, 200)]) == [first, faster, fewer]
    assert records([first, others[2]]) == [first, others[2]], "faster than the first"
    assert records([faster, fewer, others[2]]) == [faster, fewer], "one is faster, another takes fewer tokens"


def test_a_seed_that_fails_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "file.py").write_text("raise SystemExit('bad luck')")
    runs: list[dict[str, Any]] = []
    for number in (1, 2):  # the same words begin a new row
        assert main([str(file), "--record", "Luck", "--out", str(tmp_path)]) == 1
        assert "refused: " in capsys.readouterr().err
        runs = json.loads((tmp_path / "speedrun.json").read_text())["runs"]
        assert [run["refused"].splitlines()[-1] for run in runs] == ["bad luck"] * number
    assert records([{**RESULTS["runs"][-1], "refused": "seed 1"}]) == []
    assert "| no: a seed was refused | Luck |" in page({"runs": [*RESULTS["runs"], *runs]})


def test_a_model_that_breaks_the_runner_is_refused(tmp_path: Path) -> None:
    breaking = "import sys\nPath(sys.argv[4], 'model', 'generation_config.json').write_text('[]')"
    (file := tmp_path / "file.py").write_text(f"{RECORD.read_text(encoding='utf-8')}\n{breaking}\n")
    assert main([str(file), "--record", "Broken", "--out", str(tmp_path), *SMALL]) == 1
    (run,) = json.loads((tmp_path / "speedrun.json").read_text())["runs"]
    assert run["refused"].startswith(f"seed {run['drawn'][0]}: TypeError(")
    assert not run["seeds"]


def test_a_seed_that_kills_its_runner_is_not_tried_again(tmp_path: Path) -> None:
    (file := tmp_path / "file.py").write_text("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)")
    words = [sys.executable, "-m", "benchmarks.speedrun", str(file), "--record", "Luck", "--out", str(tmp_path)]
    assert subprocess.run(words, env=child_environment(), capture_output=True, check=False).returncode == -9
    (run,) = json.loads((tmp_path / "speedrun.json").read_text())["runs"]
    assert run["refused"] == f"seed {run['drawn'][0]}: begun and not ended"
    assert continued([run], {"what": "Luck"}) is None


def test_one_process_writes_a_page_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    locking = (
        f"from pathlib import Path\nfrom ragen_gym.core.storage import locked_folder\nfolder = Path({str(tmp_path)!r})"
    )
    (file := tmp_path / "file.py").write_text(f"{locking}\nwith locked_folder(folder): print('free')")
    assert main([str(file), "--record", "Words", "--out", str(tmp_path)]) == 1
    assert "another process is working in" in capsys.readouterr().err, "while a seed trains"
    for words in ([str(file), "--record", "Words"], ["--verify"]):
        with locked_folder(tmp_path), pytest.raises(SystemExit):
            main([*words, "--out", str(tmp_path)])
        assert "another process is working in" in capsys.readouterr().err


@pytest.mark.slow
def test_each_seed_runs_what_was_hashed(tmp_path: Path) -> None:
    file, ends = tmp_path / "file.py", "raise SystemExit('another file')"
    lines = f"import pathlib\nfor name in (__file__, {str(file)!r}): pathlib.Path(name).write_text({ends!r})\n"
    text = RECORD.read_text(encoding="utf-8").replace("import argparse\n", f"import argparse\n{lines}")
    file.write_text(text)
    words = [str(file), "--number", "2", "--out", str(tmp_path), "--record", "Changed"]
    main([*words, *SMALL])
    (run,) = json.loads((tmp_path / "speedrun.json").read_text())["runs"]
    assert run.get("refused") is None
    assert len(run["seeds"]) == 2
    assert run["file"] == hashlib.sha256(text.encode()).hexdigest()


def test_a_run_goes_on_with_its_own_file_and_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = {"what": "Words", "arguments": [], "machine": "one", "file": "5f"}
    begun = {**run, "drawn": [1, 2], "seeds": [{}]}
    assert continued([begun], run) is begun
    assert continued([{**begun, "refused": "seed 2"}, {**begun, "what": "Others"}], run) is None
    with pytest.raises(ValueError, match=r"1 of 5 seeds and was begun with another machine and file; go on"):
        continued([begun], {**run, "machine": "two", "file": "60"})
    (tmp_path / "speedrun.json").write_text(json.dumps({"runs": [begun]}))
    with pytest.raises(SystemExit):
        main([str(RECORD), "--record", "Words", "--out", str(tmp_path)])
    assert "was begun with another machine and file" in capsys.readouterr().err


def test_a_replay_with_another_result_is_refused() -> None:
    run = copy.deepcopy(RESULTS["runs"][-1])
    run["seeds"] = run["seeds"][:1]
    verify(run)
    moves = run["seeds"][0]["moves"]
    moves[:] = [moves[-1]] * len(moves)
    with pytest.raises(ValueError, match="claimed"):
        verify(run)


def test_the_page_is_made_of_its_records() -> None:
    assert page(RESULTS) == (HERE / "speedrun.md").read_text(encoding="utf-8")
