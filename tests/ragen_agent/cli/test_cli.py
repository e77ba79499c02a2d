from __future__ import annotations

import json
import shutil
import signal
import tomllib
from pathlib import Path

import pytest

from ragen_agent.cli import build_parser, main
from ragen_agent.cli import eval as eval_command
from ragen_agent.cli.settings import catalog, configure, settings_of_pairs
from ragen_agent.config import Config, with_settings
from ragen_agent.local import run as training
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.stats import Rate
from tests.ragen_gym.core.test_storage import limited_files

ROOT = Path(__file__).parents[3]
TINY = [
    *("--game", "Bandit", "--iterations", "2"),
    *("--set", "demonstrations.episodes=64", "--set", "training.groups=2", "--set", "training.group_size=2"),
    *("--set", "evaluation.levels=8", "--set", "small_model.hidden=32", "--set", "small_model.layers=1"),
]


def test_train_then_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", *TINY, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "optimal" in printed
    assert printed.count("training.algo=grpo divides by the std of each group's returns") == 1
    summary = json.loads((out / "summary.json").read_text())
    rows = {"before", "after", "random", "blind", "optimal", "demonstrator"}
    compared = {"more_imitation", "clean_warm_start"}
    assert rows < set(summary)
    assert not compared & set(summary)
    command = printed.partition("Compare it with imitation at the same cost: ragen-agent ")[2].split()
    assert main(command) == 0
    assert all((out / row / "model.safetensors").is_file() for row in compared)
    with_comparisons = json.loads((out / "summary.json").read_text())
    assert {row: with_comparisons[row] for row in rows} == {row: summary[row] for row in rows}
    assert compared < set(with_comparisons)
    card = (out / "checkpoint" / "README.md").read_text(encoding="utf-8")
    for row in rows | compared:
        rate = Rate.from_dict(with_comparisons[row])
        interval = f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"
        assert f"\n| {row.replace('_', ' ')} | {100 * rate.rate:.1f} | {interval} | 8 | " in card
    assert RunFolder.reopen(out)[1].evaluation.imitation, "an interrupted comparison goes on by --resume alone"
    assert summary["wall_s"] > 0
    assert {"config.toml", "metrics.jsonl", "episodes.jsonl", "curve.png", "checkpoint"} <= {
        p.name for p in out.iterdir()
    }
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(out), "--json", str(tmp_path / "rates.json")]) == 0
    rates = json.loads((tmp_path / "rates.json").read_text())["splits"]["Bandit"]
    assert rates["success"] == summary["after"]
    assert rates["optimal_expected"] == summary["optimal"]["rate"]
    assert rates["blind"] == summary["blind"]
    assert (rates["seen"], rates["levels"]) == (8, 8)
    assert "8 of 8 levels were seen in training" in capsys.readouterr().out
    assert main(["eval", str(out / "checkpoint"), "--game", "Bandit", "--split", "test", "--levels", "8"]) == 0
    assert "0 of 8 levels were seen in training" in capsys.readouterr().out
    assert main(["eval", str(out / "warm"), "--game", "Bandit", "--levels", "4", "--split", "validation"]) == 0
    assert "4 fixed validation levels" in capsys.readouterr().out
    kept = (out / "metrics.jsonl").read_bytes()
    assert main(["eval", str(out), "--game", "NewVocab", "--levels", "4", "--json", str(tmp_path / "other.json")]) == 0
    assert json.loads((tmp_path / "other.json").read_text())["splits"]["NewVocab"]["success"]["n"] == 4
    assert main(["train", *TINY, "--out", str(out)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert (out / "metrics.jsonl").read_bytes() == kept
    assert main(["train", "--resume", str(out)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--game", "FrozenLaek"], "Did you mean FrozenLake"),
        (["train", "--set", "env_options.sise=4"], "Did you mean size"),
        (["train", "--set", "env_options.size"], "write it as name=value"),
        (["train", "--set", "training.lr=1"], "unknown setting 'training.lr'"),
        (["train", "--set", "training.gruops=3"], "unknown setting 'training.gruops'. Did you mean training.groups?"),
        (["eval", "x", "--set", "evalution.levels=3"], "ragen-agent settings lists all."),
        (["train", "--training.gruops", "3"], "unknown setting 'training.gruops'. Did you mean training.groups?"),
        (["train", "--training.groups", "3"], "--training.groups is not a flag: give --set training.groups=VALUE."),
        (["train", "--set", "training.groups=0"], "training.groups is 0; it must be at least 1."),
        (["train", "--set", "demonstrations.thought=deep"], "choose one of"),
        (["train", "--config", "no-such-file.toml"], "cannot read no-such-file.toml: no such file or directory"),
        (["train", "--model", "no-such-folder"], "model no-such-folder: there is no such folder"),
        (["train", "--device", "quantum"], "cannot be used"),
        (["train", "--resume", "no-such-run"], "holds no run"),
        (["train", "--resume", ".", "--seed", "3"], "leave out --seed"),
        (["train", "--out", "/proc/nope/x"], "/proc/nope"),
        (["train", "--set", "openrlhf.micro_batch=4"], "openrlhf.micro_batch is a setting of the distributed trainer"),
        (["train", "--backend", "openrlhf", "--set", "openrlhf=3"], "openrlhf is 3; it must be a table"),
        (["train", "--backend", "openrlhf", "--device", "cuda:1"], "--device has no effect with --backend openrlhf"),
        (["train", "--backend", "openrlhf", "--compare"], "--compare has no effect with --backend openrlhf"),
        (
            ["train", "--compare", "--set", "warm_start.epochs=0"],
            "--compare trains further imitation, but warm_start.epochs is 0",
        ),
        (["eval", "x", "--set", "openrlhf.micro_batch=4"], "openrlhf.micro_batch is a setting of the distributed"),
        (["report", "nope"], "nope holds no run"),
        (["sft", "data", "--out", "nope/demos.jsonl"], "there is no folder nope: make it, or choose another path."),
        (["train", "--out", f"{__file__}/x"], "not a directory"),
        (["eval", "no-such-run"], "ragen-agent: error: model no-such-run: there is no such folder"),
        (["eval", "no-such-run", "--json", "/nonexistent/x.json"], "there is no folder /nonexistent"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    said = captured.err.removeprefix("loading torch and transformers ...\n")
    assert message in said
    assert said.count("\n") == 1
    assert "[Errno" not in captured.err
    assert ".tmp" not in captured.err
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.mark.parametrize(("own", "other"), [("local", "openrlhf"), ("openrlhf", "local")])
def test_a_run_goes_on_with_its_own_trainer(
    own: str, other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(tmp_path / "run", Config()).path
    if own == "openrlhf":
        (folder / "openrlhf.toml").write_text("")
    assert main(["train", "--resume", str(folder), "--backend", other]) == 2
    assert f"--backend {other}: {folder} is a run of the trainer {own}" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run, to be copied."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", *TINY, "--out", str(out)]) == 0
    return out


def test_damaged_files_are_one_line(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    for name, arguments in (
        ("state.pt", ["train", "--resume", str(out)]),
        ("checkpoint/model.safetensors", ["eval", str(out)]),
    ):
        whole = (out / name).read_bytes()
        for length in (0, 5, len(whole) // 2):
            (out / name).write_bytes(whole[:length])
            capsys.readouterr()
            assert main(arguments) == 2
            error = capsys.readouterr().err
            assert str(out) in error
            assert error.count("\n") == 1
        (out / name).write_bytes(whole)


def test_eval_of_a_run_that_was_cut_short(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out, rates = Path(shutil.copytree(trained, tmp_path / "run")), tmp_path / "rates.json"
    summary = json.loads((out / "summary.json").read_text())
    shutil.rmtree(out / "checkpoint")
    (out / "summary.json").unlink()
    assert main(["eval", str(out), "--json", str(rates)]) == 0
    assert json.loads(rates.read_text())["splits"]["Bandit"]["success"] == summary["after"]
    assert "after iteration 2 of reinforcement" in capsys.readouterr().out
    (out / "state.pt").unlink()
    assert main(["eval", str(out), "--json", str(rates)]) == 0
    assert json.loads(rates.read_text())["splits"]["Bandit"]["success"] == summary["before"]
    assert "before reinforcement" in capsys.readouterr().out
    shutil.rmtree(out / "warm")
    assert main(["eval", str(out)]) == 2
    assert f"--resume {out}" in capsys.readouterr().err


def test_eval_measures_every_game_of_a_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out, rates = tmp_path / "run", tmp_path / "rates.json"
    mixture = tmp_path / "mixture.toml"
    mixture.write_text('[[games]]\ngame = "Bandit"\n[[games]]\ngame = "FrozenLake"\nenv_options = {size = 3}\n')
    assert main(["train", *TINY, "--config", str(mixture), "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary["games"]["FrozenLake"]) == {"random", "blind", "optimal", "before", "after"}
    titles = [f"{game}: success on 8 fixed train levels" for game in ("Bandit", "FrozenLake")]
    shown = " ".join(capsys.readouterr().out.split())  # a long title is wrapped
    assert all(title in shown for title in titles)
    assert main(["eval", str(out), "--json", str(rates)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert [shown.count(title) for title in titles] == [1, 1]
    assert shown.count("levels were seen in training") == 2
    measured = json.loads(rates.read_text())["splits"]
    assert [*measured] == ["Bandit", "FrozenLake"]
    for found, trained in ((measured["Bandit"], summary), (measured["FrozenLake"], summary["games"]["FrozenLake"])):
        assert found["success"] == trained["after"]
        assert found["optimal_expected"] == pytest.approx(trained["optimal"]["rate"])
        assert found["blind"]["rate"] == pytest.approx(trained["blind"]["rate"])
    assert main(["eval", str(out), "--game", "FrozenLake", "--json", str(rates)]) == 0
    assert [*json.loads(rates.read_text())["splits"]] == ["FrozenLake"]
    assert titles[0] not in capsys.readouterr().out


def test_options_of_a_game_are_laid_over_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"size": 4, "success_rate": 1.0}
    trained = with_settings(Config(), {"env_options": options, "small_model": {"hidden": 32, "layers": 1}})
    policy, played = Policy.build(trained), list[dict[str, object]]()
    save_checkpoint(policy.model, policy.tokenizer, RunFolder.create(tmp_path / "run", trained).warm)

    def play(options: object, policy: Policy, *others: object) -> int:
        played.append(dict(policy.config.env_options))
        return 0

    monkeypatch.setattr(eval_command, "_play", play)
    for flags in (["--set", "env_options.size=5"], ["--set", "threads=1"]):
        assert main(["eval", str(tmp_path / "run"), *flags]) == 0
    assert played == [{**options, "size": 5}, options]


def test_the_game_is_a_setting_too() -> None:
    parser = build_parser()
    assert configure(parser.parse_args(["train", "--set", "game=Sokoban"]), {}).game == "Sokoban"
    assert configure(parser.parse_args(["train", "--set", "game=Bandit", "--game", "Bandit"]), {}).game == "Bandit"
    with pytest.raises(ValueError, match="game is given as 'Bandit' and as 'Sokoban': give one of them"):
        configure(parser.parse_args(["train", "--set", "game=Sokoban", "--game", "Bandit"]), {})
    with pytest.raises(ValueError, match="Sokobann"):
        configure(parser.parse_args(["train", "--set", "game=Sokobann"]), {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --seed 2 --set seed=1", "seed is given as 2 and as 1"),
        ("train --model a --set model=b", "model is given as 'a' and as 'b'"),
        ("train --set training.group_size=4 --set training.group_size=6", "training.group_size is given as 4 and as 6"),
        ("eval {model} --levels 4 --set evaluation.levels=5", "evaluation.levels is given as 4 and as 5"),
        ("sft data --episodes 5 --set demonstrations.episodes=6 --out {out}", "episodes is given as 5 and as 6"),
    ],
)
def test_two_values_of_one_setting_are_refused(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(words.format(model=tmp_path, out=tmp_path / "out").split()))
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_what_a_flag_implies_is_no_second_value() -> None:
    options = build_parser().parse_args(["train", "--model", "m", "--set", "warm_start.epochs=3", "--set", "seed=1"])
    config = configure(options, {"model": "m", "seed": 1}, assumed={"warm_start": {"epochs": 0}})
    assert (config.warm_start.epochs, config.seed) == (3, 1)


def test_a_file_says_what_its_table_recipe_may_hold(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[recipe]\nbas = "small-sokoban"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"with base = NAME\. Did you mean base"):
        configure(build_parser().parse_args(["train", "--config", str(tmp_path / "mine.toml")]), {})


def test_settings_lists_all_or_those_that_begin_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{name}  " in text for name in catalog())
    assert main(["settings", "training.filter"]) == 0
    few = capsys.readouterr().out
    assert few.startswith("training.filter  text, default")
    assert "top_p" in few
    assert "training.groups" not in few
    assert main(["settings", "warm_start.batch"]) == 0
    assert "default 32 episodes (a pretrained model: 8); at least 1" in capsys.readouterr().out


def test_an_entry_of_a_setting_that_is_a_table_can_be_set() -> None:
    pairs = [
        "env_options.size=5",
        "env_options.holes=2",
        "turns.template_options.enable_thinking=false",
        'turns={"history": 0}',
    ]
    assert settings_of_pairs(pairs) == {
        "env_options": {"size": 5, "holes": 2},
        "turns": {"template_options": {"enable_thinking": False}, "history": 0},
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_says_how_to_go_on(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(training, "train", interrupted)
    assert main(["train", *TINY, "--out", str(tmp_path / "run")]) == 130
    assert f"--resume {tmp_path / 'run'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("library", "extra"),
    [("rich", "agent"), ("torch", "agent"), ("peft.utils", "sft"), ("wandb", "tracking"), ("ray", "openrlhf")],
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    library: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)

    name = library.partition(".")[0]
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(requirement.startswith(name) for requirement in listed[extra])
    monkeypatch.setattr("ragen_agent.cli.build_parser", missing)
    assert main(["settings"]) == 2
    assert f"the library {name} is missing: run pip install 'ragen-gym[{extra}]'" in capsys.readouterr().err


def test_a_full_disk_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    options = ["--game", "Bandit", "--set", "small_model.hidden=32", "--set", "demonstrations.episodes=96"]
    with limited_files(20_000):
        assert main(["train", *options, "--out", str(out)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"ragen-agent: error: {out / 'warm'} cannot be written: file too large;")
    assert said[0].endswith(f"ragen-agent train --resume {out}")
