"""The evaluation through the benchmark's runner gives the episodes of the training loop's own, id for id."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.cli import main
from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.inference.torch_engine import TorchEngine
from ragen_agent.local.run import train
from ragen_agent.run.benchmark import PlayedAgent, evaluation_suite
from ragen_agent.run.evaluation import evaluated_levels, play_fixed
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.sft.demonstrations import generate_demonstrations
from ragen_agent.sft.trainer import imitate
from ragen_agent.tasks.tasks import measured_settings
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.bench.agents.builtin import OracleAgent
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.results import ResultsFolder, load_results
from ragen_gym.bench.runner import RunOutcome, run_suite
from ragen_gym.bench.score import score_results
from ragen_gym.bench.verify import verify
from ragen_gym.cli import main as gym_main
from ragen_gym.core.failures import Failure
from ragen_gym.envs.messages import plain_text
from tests.ragen_agent.displays import quiet
from tests.ragen_agent.programs.test_program_episodes import KEEPS, command, helpers

__all__ = ["helpers"]

SMALL: dict[str, Any] = {
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "demonstrations": {"episodes": 600, "moves": [0.5, 0.5], "thought": "none"},
    "evaluation": {"levels": 10, "batch": 4, "temperature": 0.8},
}
LAKE: dict[str, Any] = {"env_options": {"size": 4, "success_rate": 0.6}, "turns": {"max_tokens_per_turn": 16}}
SOKOBAN = {"game": "Sokoban", "env_options": {"max_moves": 4}}
COUNTDOWN = "ragen_gym.tasks:Countdown"

#: What differs from ``SMALL``, by what it tries.
RUNS: dict[str, dict[str, Any]] = {
    "slippery ice": LAKE,
    "bandit with fewer names than levels": {"game": "Bandit", "evaluation": {"levels": 30}},
    "no earlier turns in the prompt": merged(LAKE, {"turns": {"history": 0}}),
    "one earlier turn": merged(LAKE, {"turns": {"history": 1}}),
    "no thinking": merged(LAKE, {"turns": {"think": False}}),
    "ragen-v1": merged(LAKE, {"turns": {"prompt": "ragen-v1", "max_tokens_per_turn": 24}}),
    "an example": merged(LAKE, {"turns": {"example": True}}),
    "boards in the thinking": merged(
        SOKOBAN, {"turns": {"grounding": True, "state_reward": 0.5, "max_tokens_per_turn": 60}}
    ),
    "another vocabulary and format": merged(LAKE, {"env_options": {"vocabulary": "letters", "text_format": "coord"}}),
    "episodes that outgrow their limit": merged(LAKE, {"turns": {"max_tokens_per_episode": 240}}),
    "own penalty and budgets": merged(LAKE, {"turns": {"format_penalty": -0.5, "max_turns": 3, "max_actions": 4}}),
    "a text task": merged({"game": COUNTDOWN}, default_settings(COUNTDOWN) | {"demonstrations": {}, "warm_start": {}}),
    "training levels": merged(LAKE, {"evaluation": {"split": "train"}}),
    "pictures": merged(
        LAKE, {"small_model": {"kind": "vision"}, "turns": {"observation": "image"}, "demonstrations": {"episodes": 40}}
    ),
    "a mixture": {
        "game": "Bandit",
        "games": [
            {"game": "Bandit", "turns": {"max_turns": 1}},
            {"game": "FrozenLake", "env_options": {"size": 3, "success_rate": 0.6}, "turns": {"history": 0}},
        ],
    },
    "a curriculum": merged(LAKE, {"curriculum": [{"iteration": 0, "env_options": {"size": 3}}]}),
}


def trained(settings: dict[str, Any]) -> Policy:
    """A policy that has imitated a few demonstrations, so that it plays a little."""
    wanted = with_settings(Config(), merged(SMALL, settings))
    config = with_settings(wanted, {"turns": {"max_tokens_per_episode": 1024}})  # demonstrations are never cut
    policy = Policy.build(config)
    rows = generate_demonstrations(config, policy, config.demonstrations, quiet())
    imitate(config, policy, rows, "imitation", quiet(), epochs=1)
    return replace(policy, config=wanted)


def evaluate(policy: Policy, out: Path) -> RunOutcome:
    games = measured_settings(policy.config)
    suite = evaluation_suite(games, out / "suite")
    agent = PlayedAgent("hf:test", policy, games, {})
    for config in games:
        agent.play(config, quiet())
    return run_suite(suite, agent, out)


def replies_of(played: Trajectory) -> list[str]:
    return [plain_text(message["content"]) for message in played.messages if message["role"] == "assistant"]


def assert_same(record: EpisodeRecord, played: Trajectory) -> None:
    assert record.level_id == played.level_id
    assert [turn.reply for turn in record.turns] == replies_of(played)
    assert [turn.reward for turn in record.turns] == pytest.approx(played.turn_rewards)
    assert record.success == played.success
    assert (record.failure is Failure.CONTEXT_OVERFLOW) == (played.overflowed and not played.terminated)
    assert sum(turn.completion_tokens or 0 for turn in record.turns) == played.sampled.sum()


@pytest.mark.slow
@pytest.mark.parametrize("what", RUNS)
def test_the_runners_episodes_are_those_of_the_training_loop(what: str, tmp_path: Path) -> None:
    policy = trained(RUNS[what])
    outcome = evaluate(policy, tmp_path)
    assert (outcome.infrastructure, outcome.played) == ({}, outcome.wanted)
    results = load_results(tmp_path)
    overflowed = 0
    for config in measured_settings(policy.config):
        played = play_fixed(replace(policy, config=config), evaluated_levels(config)[1])
        records = {record.index: record for record in results.records if record.split == config.game}
        assert len(records) == len(played) == config.evaluation.levels
        for index, trajectory in enumerate(played):
            if not trajectory.overflowed:
                assert_same(records[index], trajectory)
            else:  # whose last reply was cut, or got no answer: it counts as one that did not succeed
                overflowed += 1
                assert not records[index].success
                assert records[index].counted
    assert (overflowed > 0) == (what == "episodes that outgrow their limit")
    ResultsFolder(tmp_path).write_summary(score_results(results))
    assert verify(load_results(tmp_path)).verdict == "verified"


def test_a_program_plays_through_the_runner(helpers: Path, tmp_path: Path) -> None:
    policy = trained(merged(LAKE, {"program": {"command": command(helpers, KEEPS), "workers": 2}}))
    outcome = evaluate(policy, tmp_path)
    assert (outcome.infrastructure, outcome.played) == ({}, outcome.wanted)
    played = play_fixed(policy, evaluated_levels(policy.config)[1])
    records = {record.index: record for record in load_results(tmp_path).records}
    # When requests arrive is up to the programs, so a batch may have another shape: rates, not ids.
    assert [records[i].level_id for i in range(len(played))] == [each.level_id for each in played]
    same = sum([turn.reply for turn in records[i].turns] == replies_of(each) for i, each in enumerate(played))
    assert same >= len(played) - 1


def test_a_program_that_gives_up_fails_its_episodes_and_ends_nothing(helpers: Path, tmp_path: Path) -> None:
    begins = 'session = post(URL + "/sessions", {"grain": "turn", "env": "FrozenLake"})\n'
    asks = 'ask([{"role": "user", "content": session["start"]["observation"]}])\n'
    policy = trained(merged(LAKE, {"program": {"command": command(helpers, begins + asks), "workers": 2}}))
    outcome = evaluate(policy, tmp_path)
    assert outcome.infrastructure == {"agent_error": 10}


RUN = merged(SMALL, {"game": "FrozenLake", "env_options": {"size": 3}, "turns": {"max_turns": 2}})
RUN = merged(RUN, {"training": {"iterations": 1, "groups": 2, "group_size": 2}})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = with_settings(Config(), RUN)
    folder = RunFolder.create(tmp_path_factory.mktemp("evaluated") / "run", config)
    train(config, folder, quiet())
    return folder.path


def test_eval_says_what_a_reader_must_know(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(run), "--json", "scores.json"]) == 0
    said = capsys.readouterr().out
    summary = json.loads((run / "summary.json").read_text())
    split = json.loads(Path("scores.json").read_text())["splits"]["FrozenLake"]
    assert split["success"] == summary["after"]
    malformed, common = split["malformed"], split["common_problem"]
    assert f"{sum(malformed['problems'].values())} of {malformed['n']}" in said
    assert common["reply"].splitlines()[0] in said
    for row in ("model", "random replies", "optimal"):
        assert row in said
    last = said.strip().splitlines()[-1]
    words = shlex.split(last[last.index("ragen-gym ") :])[1:]
    assert words == ["bench", "report", "runs/eval-run-FrozenLake-test"]
    assert gym_main(words) == 0
    assert Path(words[-1], "report.html").is_file()


def test_bench_reads_the_results_of_eval(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = "runs/eval-run-FrozenLake-test", "runs/eval-run-FrozenLake-test-2"
    assert main(["eval", str(run)]) == main(["eval", str(run)]) == 0
    for words in (["score", first], ["verify", first], ["compare", first, second]):
        capsys.readouterr()
        assert gym_main(["bench", *words]) == 0, capsys.readouterr().err
    assert main(["eval", str(run), "--out", first]) == 0, "there already"
    assert len(Path(first, "episodes.jsonl").read_text().splitlines()) == 10
    assert main(["eval", str(run), "--out", first, "--set", "evaluation.temperature=0.1"]) == 2
    assert first in capsys.readouterr().err


def test_an_interrupted_evaluation_keeps_what_was_played_and_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["eval", str(run), "--set", "evaluation.batch=3"]
    assert main([*words, "--out", "whole"]) == 0
    begin, begun = TokenMDP.begin, list[int]()

    def interrupted(process: TokenMDP, *, seed: int, options: dict[str, Any]) -> None:
        begun.append(options["noise_seed"])
        if len(begun) == 7:
            raise KeyboardInterrupt
        begin(process, seed=seed, options=options)

    monkeypatch.setattr(TokenMDP, "begin", interrupted)
    assert main(words) == 130
    said = capsys.readouterr().err
    [out] = re.findall(r"The same command with --out (\S+) plays the others", said)
    kept = {record.index for record in ResultsFolder(Path(out)).records()}
    assert 3 < len(kept) < 7
    assert f"{len(kept)} of 10 episodes are kept" in said
    begun[:] = [-1] * 7
    assert main([*words, "--out", out]) == 0
    assert {*begun[7:]} == {*range(10)} - kept, "what was there is not played again"
    whole, resumed = ({r.index: r for r in load_results(Path(each)).records} for each in ("whole", out))
    assert [[turn.reply for turn in resumed[i].turns] for i in range(10)] == [
        [turn.reply for turn in whole[i].turns] for i in range(10)
    ]
    assert verify(load_results(Path(out))).verdict == "verified"


def test_an_evaluation_that_measured_nothing_is_an_error(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TorchEngine, "start", broken)
    assert main(["eval", str(run)]) == 2
    said = capsys.readouterr().err
    assert "all 10 episodes failed, so nothing was measured" in said
    assert "Lower evaluation.batch" in said
    assert sys.exc_info() == (None, None, None)


LAKES = ["SFF\nFHF\nFFG", "SFFFF\nFHFHF\nFFFFG", "SFFFFF\nFFFFFF\nFFHFFF\nFFFFFF\nFFFFFF\nFFFFFG"]
ROOMS = ["#####\n#P__#\n#_XO#\n#___#\n#####", "########\n#P_X_O_#\n#______#\n########"]
OWN_LEVELS: dict[str, dict[str, Any]] = {
    "lakes of one size": {"env_options": {"success_rate": 1.0, "levels": [LAKES[1]]}},
    "lakes of several sizes": {"env_options": {"success_rate": 1.0, "levels": LAKES}},
    "Gymnasium's desc": {"env_options": {"success_rate": 1.0, "desc": LAKES[1].split("\n")}},
    "Gymnasium's map_name": {"env_options": {"success_rate": 1.0, "map_name": "8x8"}},
    "rooms of one size": {"game": "Sokoban", "env_options": {"levels": [ROOMS[1]]}},
    "rooms of several sizes": {"game": "Sokoban", "env_options": {"levels": ROOMS}},
}


@pytest.mark.parametrize("what", OWN_LEVELS)
def test_levels_of_ones_own_are_measured_at_their_own_sizes(what: str, tmp_path: Path) -> None:
    split = "test" if "rooms" in what else "train"  # to which these levels belong
    settings = merged(OWN_LEVELS[what], {"evaluation": {"levels": 4, "split": split}})
    settings = merged({"game": "FrozenLake", "turns": {"max_turns": 20, "max_actions": 30}}, settings)
    policy = Policy.build(with_settings(Config(), merged(SMALL, settings)))
    evaluate(policy, tmp_path / "model")
    records = {record.index: record for record in load_results(tmp_path / "model").records}
    for index, played in enumerate(play_fixed(policy, evaluated_levels(policy.config)[1])):
        assert_same(records[index], played)
    run_suite(evaluation_suite([policy.config], tmp_path / "oracle" / "suite"), OracleAgent(), tmp_path / "oracle")
    results = load_results(tmp_path / "oracle")
    assert all(record.success for record in results.records)
    summary = score_results(results)
    assert summary["splits"][policy.config.game]["levels"] == len(settings["env_options"].get("levels", [0]))
    ResultsFolder(tmp_path / "oracle").write_summary(summary)
    assert verify(load_results(tmp_path / "oracle")).verdict == "verified"
    assert gym_main(["bench", "report", str(tmp_path / "oracle"), str(tmp_path / "model")]) == 0
