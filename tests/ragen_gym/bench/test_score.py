"""The score of a run, on episodes that were really played, and the commands that print it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_gym.bench.baselines import baseline
from ragen_gym.bench.records import EpisodeRecord, TurnRecord
from ragen_gym.bench.report import tables
from ragen_gym.bench.results import EpisodeLog, ResultsFolder, load_results
from ragen_gym.bench.score import score
from ragen_gym.bench.suites import SUITES, Split, Suite, load_suite, noise_seed
from ragen_gym.cli import bench_results, main
from ragen_gym.core.failures import INFRASTRUCTURE, Failure
from ragen_gym.core.levels import Level
from ragen_gym.core.seen import write_seen
from ragen_gym.core.stats import wilson
from ragen_gym.core.storage import locked_folder
from ragen_gym.envs.policies import blind_policy, reply_for
from ragen_gym.envs.turn import TurnEnv

SMOKE = load_suite("smoke")
Player = Callable[[TurnEnv, np.random.Generator], str]


def by_oracle(env: TurnEnv, rng: np.random.Generator) -> str:
    return f"<think>I know.</think><answer>{env.action_names[env.oracle_action()]}</answer>"


def by_script(env: TurnEnv, rng: np.random.Generator) -> str:
    return reply_for(env, [blind_policy(env.env, env.actions_left)], "Straight on.")


def by_chance(env: TurnEnv, rng: np.random.Generator) -> str:
    names = rng.choice(env.action_names, env.max_actions_per_turn)
    return f"<think>Who knows?</think><answer>{' || '.join(names)}</answer>"


def by_shouting(env: TurnEnv, rng: np.random.Generator) -> str:
    return "UP!"


def play(suite: Suite, player: Player, rollouts: int = 1) -> list[EpisodeRecord]:
    """Every instance of a suite, played one after the other."""
    rng = np.random.default_rng(0)
    records = []
    for split in suite.splits:
        env = split.make_game()
        for index, level in enumerate(split.boards):
            for rollout in range(rollouts):
                records.append(_episode(suite, split, env, index, rollout, level.id, player, rng))
    return records


def _episode(
    suite: Suite,
    split: Split,
    env: TurnEnv,
    index: int,
    rollout: int,
    level_id: str,
    player: Player,
    rng: np.random.Generator,
) -> EpisodeRecord:
    seed = noise_seed(suite, split, index, rollout)
    message, info = env.reset(options={"level": split.levels[index], "noise_seed": seed})
    turns, terminated, truncated = [], False, False
    while not env.over:
        reply = player(env, rng)
        asked = message
        message, reward, terminated, truncated, info = env.step(reply)
        turns.append(TurnRecord(asked, reply, info["actions"], reward, info["reply"].problem, seconds=0.5))
    return EpisodeRecord(
        key=f"{split.name}/{index}/{rollout}",
        split=split.name,
        index=index,
        rollout=rollout,
        level_id=level_id,
        noise_seed=seed,
        turns=tuple(turns),
        success=info["success"],
        total_reward=sum(turn.reward for turn in turns),
        terminated=terminated,
        truncated=truncated,
        last_board=env.board,
        seconds=1.0,
    )


def ten_turns(suite: Suite) -> Suite:
    """The suite with a turn for each action, which an oracle that plays a move a turn needs."""
    splits = (replace(split, turn_config=replace(split.turn_config, max_turns=10)) for split in suite.splits)
    return replace(suite, splits=tuple(splits))


CALM = ten_turns(SMOKE)


@pytest.fixture(scope="module")
def oracle_run() -> list[EpisodeRecord]:
    return play(CALM, by_oracle)


@pytest.fixture(scope="module")
def random_run() -> list[EpisodeRecord]:
    return play(CALM, by_chance)


def test_the_oracle_scores_as_the_oracle(oracle_run: list[EpisodeRecord]) -> None:
    summary = score(CALM, oracle_run, "oracle")
    assert (summary["suite"], summary["hash"], summary["agent"]) == ("smoke", CALM.hash, "oracle")
    assert list(summary["splits"]) == [split.name for split in CALM.splits]
    for name, split in summary["splits"].items():
        assert split["success"] == split["optimal"], name
        assert split["normalised"]["value"] == 1
        assert split["success"]["n"] == split["instances"] == split["played"] == 8
        assert split["malformed"] == {"rate": 0, "n": split["malformed"]["n"], "problems": {}}
        if name != "frozen_lake" and "bandit" not in name:
            assert split["regret"]["mean"] == pytest.approx(0)
    assert summary["overall"]["normalised"] == 1
    assert summary["overall"]["episodes"] == 48


def test_the_blind_script_scores_as_the_blind_script(random_run: list[EpisodeRecord]) -> None:
    records = play(CALM, by_script)
    splits, by_chance = score(CALM, records, "blind")["splits"], score(CALM, random_run, "random")
    for name, split in splits.items():
        if name != "frozen_lake":  # whose rate is over the noise
            assert split["success"]["rate"] == pytest.approx(split["blind"]["rate"]), name
        assert split["blind"] == by_chance["splits"][name]["blind"]
    assert splits["sokoban"]["above_blind"] == pytest.approx({**splits["sokoban"]["above_blind"], "value": 0})
    assert splits["bandit"]["above_blind"] is None, "the names alone win it"
    assert splits["bandit"]["blind"]["rate"] == splits["bandit"]["optimal"]["rate"] == 1
    (said,) = tables.at_most_blind(by_chance)
    assert "sokoban (" in said
    assert "bandit (" not in said
    (said,) = tables.at_most_blind(score(CALM, play(CALM, by_oracle), "oracle"))
    assert "bandit_rev" not in said, "the script never wins it"
    assert "sokoban (100.0 %, blind 87.5 %)" in said
    assert "too few to tell" in said
    assert "planning" not in said


def test_random_play_cannot_be_differs_from_random_play(random_run: list[EpisodeRecord]) -> None:
    summary = score(CALM, random_run, "random")
    for split in summary["splits"].values():
        assert not split["differs_from_random"]
        assert "does not differ significantly from random play" in split["sentence"]
        assert split["clustered"]["low"] <= split["random"]["rate"] <= split["clustered"]["high"]
        assert split["regret"]["mean"] == pytest.approx(split["optimal_return"] - split["return"]["mean"])
        assert abs(split["normalised"]["value"]) < 0.7
        for estimate in ("success", "random", "optimal"):
            entry = split[estimate]
            expected = wilson(round(entry["rate"] * entry["n"]), entry["n"])
            assert entry == expected.to_dict("rate")


def test_a_problem_that_most_replies_share_is_named_with_an_example() -> None:
    one = replace(SMOKE, splits=SMOKE.splits[:1])
    records = play(one, by_shouting)
    (said,) = tables.common_problems(score(one, records, "shouting"))
    name, replies = one.splits[0].name, sum(len(record.turns) for record in records)
    assert said == (
        "More than half of the replies share one problem, no_answer (not of the form that was asked for): "
        f"{replies} of {replies} in {name}. An example ({name}/0/0, turn 1): 'UP!'"
    )
    summary = score(one, records, "shouting")
    assert said in bench_results.score_lines(summary)
    assert said in tables.sentences(summary)
    cut = [
        replace(record, turns=tuple(replace(turn, finish_reason="length", reply="x" * 999) for turn in record.turns))
        for record in records
    ]
    (said,) = tables.common_problems(score(one, cut, "shouting"))
    assert len(said) < 600
    few = [*cut[:1], *play(one, by_oracle)[1:]]
    replies, lost = sum(len(record.turns) for record in few), len(cut[0].turns)
    summary = score(one, few, "now and then")
    assert tables.common_problems(summary) == [], "too few to be named"
    limit = f"A limit of tokens cut {lost} of {replies} replies, which are malformed: raise it."
    assert limit in tables.sentences(summary)


def test_malformed_replies_are_counted_and_cost_what_they_cost() -> None:
    summary = score(SMOKE, play(SMOKE, by_shouting), "shouting")
    for name, split in summary["splits"].items():
        turns = 1 if "bandit" in name else 5
        assert split["success"]["rate"] == 0
        assert split["malformed"] == {"rate": 1, "n": 8 * turns, "problems": {"no_answer": 8 * turns}}
        assert split["common_problem"] == {
            "problem": "no_answer", "n": 8 * turns, "cut": 0, "episode": f"{name}/0/0", "turn": 0, "reply": "UP!"
        }  # fmt: skip
        assert split["turns"] == turns
        assert split["actions"] == 0
        assert split["return"]["mean"] == pytest.approx(-0.1 * turns)
        assert split["seconds"] == {"median": 0.5, "total": 8}


def test_failures_of_the_infrastructure_are_excluded_from_the_score(oracle_run: list[EpisodeRecord]) -> None:
    sokoban = [record for record in oracle_run if record.split == "sokoban"]
    broken = [
        replace(record, failure=failure, success=False, turns=())
        for record, failure in zip(
            [*sokoban, *(replace(r, rollout=1) for r in sokoban)], [*Failure] + [None] * 7, strict=True
        )
    ]
    split = score(CALM, broken, "oracle")["splits"]["sokoban"]
    assert split["failures"] == {str(failure): 1 for failure in sorted(Failure)}
    assert split["excluded"] == len(INFRASTRUCTURE)
    assert split["success"]["n"] == 16 - len(INFRASTRUCTURE)
    assert split["optimal"]["rate"] == 1


def test_a_split_of_which_nothing_counts_says_so(oracle_run: list[EpisodeRecord]) -> None:
    lost = [replace(record, failure=Failure.TIMEOUT) for record in oracle_run if record.split == "bandit"]
    summary = score(CALM, lost, "oracle")
    assert list(summary["splits"]) == ["bandit"]
    assert summary["splits"]["bandit"]["success"] == {"rate": None, "low": 0.0, "high": 1.0, "n": 0}
    assert summary["overall"]["success"] is None
    assert "0 of 8 episodes asked for, 8 excluded" in "\n".join(bench_results.score_lines(summary))


def test_the_lines_are_those_of_the_instances_played() -> None:
    split = load_suite("ragen-v1").splits[2]
    suite = Suite("large", (split,))
    hopeless = np.flatnonzero(baseline(split).optimal_success == 0).tolist()
    assert len(hopeless) == 3
    records = [record for record in play(suite, by_chance) if record.index in hopeless]
    entry = score(suite, records, "random")["splits"]["large_sokoban"]
    assert entry["optimal"]["rate"] == entry["optimal_expected"] == 0
    assert entry["random"]["rate"] == 0
    assert entry["normalised"] is None
    assert entry["differs_from_random"] is False


def rolled_out(successes: Iterable[int], rollouts: int) -> list[EpisodeRecord]:
    """Records of the split ``sokoban`` of `SMOKE` with so many successes of each instance."""
    levels = SMOKE.splits[0].levels
    return [
        EpisodeRecord(
            key=f"{index}/{rollout}",
            split="sokoban",
            index=index,
            rollout=rollout,
            level_id=levels[index].id,
            noise_seed=0,
            turns=(TurnRecord("?", "!", (0,), 0.0, prompt_tokens=7, completion_tokens=3, seconds=float(rollout)),),
            success=rollout < c,
            total_reward=float(rollout < c),
            terminated=rollout < c,
            truncated=rollout >= c,
            last_board="",
        )
        for index, c in enumerate(successes)
        for rollout in range(rollouts)
    ]


def test_several_rollouts() -> None:
    summary = score(SMOKE, rolled_out([0, 0, 0, 0, 1, 2, 3, 4], 4), "some")
    split = summary["splits"]["sokoban"]
    assert split["rollouts"] == 4
    assert split["success"]["n"] == 32
    assert split["success"]["rate"] == split["clustered"]["rate"] == split["pass_at"]["1"]["rate"] == 10 / 32
    assert list(split["pass_at"]) == ["1", "2", "4"]
    assert split["pass_at"]["4"]["rate"] == 4 / 8
    assert split["pass_at"]["2"]["rate"] == pytest.approx((1 / 2 + 5 / 6 + 1 + 1) / 8)
    assert split["clustered"]["low"] < split["success"]["low"]
    assert split["clustered"]["high"] > split["success"]["high"]
    shown = {**split["success"], "low": split["clustered"]["low"], "high": split["clustered"]["high"]}
    assert tables.success(split) == shown, "the interval to read"
    assert f"| 31.2 % | {tables.interval(shown)} |" in tables.markdown_tables([summary])
    once = score(SMOKE, rolled_out([0, 1, 1], 1), "some")["splits"]["sokoban"]
    assert tables.success(once) == once["success"]
    assert split["tokens"] == {"prompt": 7 * 32, "completion": 3 * 32}
    assert split["seconds"]["median"] == 1.5


def test_an_instance_with_too_few_rollouts_is_left_out_of_pass_at_k() -> None:
    records = [record for record in rolled_out([2, 2, 0], 2) if (record.index, record.rollout) != (2, 1)]
    split = score(SMOKE, records, "some")["splits"]["sokoban"]
    assert split["pass_at"]["1"]["n"] == 3
    assert split["pass_at"]["2"] == {**split["pass_at"]["2"], "rate": 1, "n": 2}


ROOM = "######\n#P___#\n#____#\n#_X__#\n#_O__#\n######"


def one_room() -> Suite:
    """Eight levels of two rooms, in which the player begins in different places."""
    other = ROOM.replace("#____#\n#_X__#", "#__X_#\n#____#")
    places = [("#P___#", "#P___#"), ("#P___#", "#_P__#"), ("#P___#", "#__P_#"), ("#P___#", "#___P#")]
    levels = tuple(Level("Sokoban", room.replace(*place)) for room in (ROOM, other) for place in places)
    return Suite("rooms", (Split("sokoban", "Sokoban", {}, levels),))


def test_the_levels_of_a_family_count_as_one() -> None:
    suite = one_room()
    split = suite.splits[0]
    assert (len(set(split.levels)), len(set(split.families))) == (8, 2)
    records = [replace(record, success=record.index < 4) for record in play(suite, by_shouting)]
    entry = score(suite, records, "some")["splits"]["sokoban"]
    assert (entry["levels"], entry["families"], entry["seen"]) == (8, 2, None)
    assert entry["clustered"]["rate"] == entry["success"]["rate"] == 0.5
    assert entry["clustered"]["low"] < entry["success"]["low"], "two families say less than eight episodes"
    assert entry["clustered"]["high"] > entry["success"]["high"]
    lines = "\n".join(bench_results.score_lines(score(suite, records, "some")))
    assert f"({100 * entry['clustered']['low']:.1f} to {100 * entry['clustered']['high']:.1f})" in lines


def test_levels_seen_in_training_are_counted() -> None:
    suite = one_room()
    split, records = suite.splits[0], play(one_room(), by_shouting)
    for seen, met in ((frozenset(split.families[:1]), 4), (frozenset(split.families), 8), (frozenset({1}), 0)):
        summary = score(suite, records, "some", seen=seen)
        assert summary["splits"]["sokoban"]["seen"] == met
        lines = "\n".join(bench_results.score_lines(summary))
        assert (f"{met} of 8 of sokoban" in lines) == (met > 0)
        assert ("none of these levels" in lines) == (met == 0)
    lines = "\n".join(bench_results.score_lines(score(suite, records, "some")))
    assert "Whether the agent saw these levels in training is not known" in lines


def test_the_command_takes_a_record_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [record for record in play(SMOKE, by_shouting) if record.split == "sokoban"]
    folder = write_run(tmp_path / "run", records, "shouting")
    met = SMOKE.splits[0].families[:3]
    (tmp_path / "trained").mkdir()
    write_seen(tmp_path / "trained" / "seen.npy", met)
    assert run_command("score", folder, "--seen", tmp_path / "trained") == 0
    assert "3 of 8" in capsys.readouterr().out
    assert not (folder / "seen.npy").exists()
    assert run_command("score", folder, "--seen", tmp_path / "trained" / "seen.npy", "--write", "--json") == 0
    assert json.loads(capsys.readouterr().out)["splits"]["sokoban"]["seen"] == 3
    assert json.loads((folder / "summary.json").read_text())["splits"]["sokoban"]["seen"] == 3
    assert load_results(folder).seen == frozenset(met)
    with pytest.raises(ValueError, match="holds no record of the levels seen"):
        run_command("score", folder, "--seen", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"split": "other"},
        {"index": 8},
        {"level_id": "0" * 16},
    ],
)
def test_episodes_of_another_suite_are_refused(change: dict[str, Any], random_run: list[EpisodeRecord]) -> None:
    with pytest.raises(ValueError, match="another"):
        score(CALM, [replace(random_run[0], **change)], "random")


# The commands


def run_command(*argv: object) -> int:
    parser = argparse.ArgumentParser()
    bench_results.add(parser.add_subparsers())
    arguments = parser.parse_args([str(word) for word in argv])
    code: int = arguments.run(arguments)
    return code


def write_run(folder: Path, records: Iterable[EpisodeRecord], agent: str, suite: Suite = SMOKE) -> Path:
    run = ResultsFolder(folder)
    asked = {"settings": {}, "temperature": suite.temperature, "prompts": {}}
    run.begin({"suite": suite.name, "hash": suite.hash, "agent": agent, **asked}, {})
    with EpisodeLog(run) as log:
        for record in records:
            log.append(record)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("runs")
    first = write_run(root / "chance", play(SMOKE, by_chance), "chance")
    return first, write_run(root / "shouting", play(SMOKE, by_shouting), "shouting")


def test_bench_score_prints_and_writes(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("score", folders[0]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"smoke {SMOKE.hash}: chance, 48 of 48 episodes asked for, 0 excluded\n")
    assert "sokoban: " in printed
    assert "does not differ significantly from random play" in printed
    assert not (folders[0] / "summary.json").exists()
    assert run_command("score", folders[0], "--json", "--write") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((folders[0] / "summary.json").read_text(encoding="utf-8"))
    assert summary["splits"]["sokoban"]["success"]["n"] == 8


def test_no_summary_is_written_while_the_run_is_played(folders: tuple[Path, Path]) -> None:
    with locked_folder(folders[0]):
        with pytest.raises(ValueError, match="another process is working in"):
            run_command("score", folders[0], "--write")
        assert run_command("score", folders[0]) == 0


def test_a_run_that_is_narrower_than_its_suite_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["bench", "run", "--suite", "smoke", "--agent", "random", "--limit", "2", "--out", str(run)]) == 0
    sentence = "36 of the suite's 48 instances were not asked for"
    assert sentence in capsys.readouterr().out
    for command in (["verify", run], ["report", run, "--markdown"]):
        assert main(["bench", *map(str, command)]) == 0
        assert sentence in capsys.readouterr().out


def test_bench_suites_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "suites"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}  {load_suite(name).hash}" in printed for name in SUITES)
    assert " 1 split, " in printed
    assert main(["bench", "suites", "generalization"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert rows["in_distribution"][2:5] == ["256", "256", "(256)"]
    assert rows["unseen_arms"][2:5] == ["256", "16", "(8)"]
    assert rows["in_distribution"][9:11] == ["98.8", "%"], "three rooms take more than ten moves"
