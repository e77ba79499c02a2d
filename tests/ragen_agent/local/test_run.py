"""The embedded trainer: it learns, it is repeatable, and a resumed run is the unbroken one."""

from __future__ import annotations

import io
import json
import math
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.local import run as training
from ragen_agent.run.alarm import STAGNANT_ITERATIONS
from ragen_agent.run.console import ROWS, Display, rates_table
from ragen_agent.run.evaluation import (
    baseline_notices,
    fixed_instances,
    optimal_rate,
    play_fixed,
    rate_of_played,
    scripted_rate,
)
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import IMITATION, RunFolder
from ragen_agent.sft import trainer as imitation
from ragen_agent.sft.demonstrations import demonstrated_families
from ragen_agent.tasks.tasks import draw_games, games_at, level_seeds, make_env, make_game_env
from ragen_agent.tokens.rollout import group
from ragen_agent.update.iteration import score
from ragen_gym.core.seen import read_seen
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import append_json_lines, locked_folder, read_json_lines
from ragen_gym.envs.policies import random_reply
from tests.ragen_agent.displays import Interrupting, quiet

TINY = {
    "game": "Bandit",
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "demonstrations": {"episodes": 96},
    "training": {"iterations": 4, "groups": 4, "group_size": 4, "minibatch": 8},
    "evaluation": {"levels": 12, "imitation": True},
}


def configure(settings: Mapping[str, Any]) -> Config:
    return with_settings(Config(), merged(default_settings("Bandit"), settings))


def test_a_measurement_in_which_all_failed_leaves_no_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run measures again: the episodes of the phase would be there twice."""
    run = training.TrainingRun(configure(TINY), RunFolder.create(tmp_path / "run", configure(TINY)), quiet())

    def broken(*arguments: Any, **options: Any) -> Any:
        raise OSError("device lost")

    monkeypatch.setattr(run.policy.engine, "start", broken)
    with pytest.raises(ValueError, match=r"all 12 episodes failed, .*engine_error: OSError: device lost$"):
        run.measure("before")
    assert not read_json_lines(run.folder.episodes)

    def full(*arguments: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(run.policy.engine, "start", full)
    with pytest.raises(ValueError, match=r"OutOfMemoryError: CUDA out of memory\.+ Lower evaluation\.batch"):
        run.measure("before")


def gpu_full(*arguments: Any, **options: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. 16.38 MiB is free. Including this process, 8 GiB are used.")


def cpu_full(*arguments: Any, **options: Any) -> None:
    torch.empty(2**60)


@pytest.mark.parametrize(
    ("full", "begin", "end"),
    [(gpu_full, "CUDA out of memory", "16.38 MiB is free"), (cpu_full, "[enforce fail", "(Cannot allocate memory)")],
)
def test_a_full_memory_is_said_with_what_to_lower_and_how_to_go_on(
    full: Callable[..., None], begin: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imitation, "fit", full)
    config = configure(TINY)
    with pytest.raises(MemoryError) as error:
        training.train(config, RunFolder.create(tmp_path / "run", config), quiet())
    said = str(error.value)
    assert said.startswith(begin)
    assert f"{end}. End what else uses that memory, or let fewer rows learn at once: lower" in said
    assert "lower training.minibatch and warm_start.batch in its config.toml" in said
    assert said.endswith(f"ragen-agent train --resume {tmp_path / 'run'}")


def complete(config: Config, path: Path) -> dict[str, Any]:
    return training.train(config, RunFolder.create(path, config), quiet())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the summary of an unbroken run."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    return path, complete(configure(TINY), path)


def weights(path: Path) -> dict[str, torch.Tensor]:
    state = RunFolder(path).load_state()
    assert state is not None
    model: dict[str, torch.Tensor] = state["model"]
    return model


def without_clock(path: Path) -> list[dict[str, Any]]:
    clock = ("seconds", "seconds_rollout", "tokens_per_s", "diagnostics_s")
    return [{k: v for k, v in record.items() if k not in clock} for record in read_json_lines(path / "metrics.jsonl")]


def files(path: Path) -> dict[str, bytes]:
    """Every file without a clock in it; episodes that were played again stand elsewhere in theirs."""
    timed = ("metrics.jsonl", "summary.json", "versions.json", "episodes.jsonl", "curve.png")
    found = (file for file in sorted(path.rglob("*")) if file.is_file() and file.name not in timed)
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_reinforcement_learns_what_no_demonstration_says(algo: str, tmp_path: Path) -> None:
    config = configure(
        {
            "game": "Bandit",
            "demonstrations": {"episodes": 5000},
            "training": {"algo": algo, "iterations": 12},
            "evaluation": {"levels": 100},
        }
    )
    run = training.TrainingRun(config, RunFolder.create(tmp_path / "run", config), quiet())
    run.warm_start()
    run.measure("before")
    run.baselines()
    run.reinforce()
    run.measure("after")
    rates = run.summary
    assert 0.3 < rates["before"]["rate"] < 0.7, "the demonstrator chooses at random, and so does whoever imitates it"
    assert rates["after"]["low"] > max(rates[row]["high"] for row in ("before", "random", "demonstrator"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"algo": "ppo", "credit": "bi_level"},
        {"starpo_s": False},
        {"algo": "arpo", "filter": "random", "keep": 0.5},
    ],
)
def test_a_resumed_run_equals_an_unbroken_one(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(merged(TINY, {"training": settings}))
    whole = complete(config, tmp_path / "whole")

    folder = RunFolder.create(tmp_path / "broken", config)
    with pytest.raises(KeyboardInterrupt):
        training.train(config, folder, Interrupting(2))
    assert (folder.checkpoint / "model.safetensors").is_file()
    with folder.metrics.open("a") as file:
        file.write('{"iteration": 3, "succ')
    reopened, again = RunFolder.reopen(tmp_path / "broken")
    assert again == config
    resumed = training.train(again, reopened, quiet())

    assert without_clock(tmp_path / "whole") == without_clock(tmp_path / "broken")
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(torch.equal(one[name], two[name]) for name in one)
    spent = ("wall_s", "trained_s", "memory_gib")
    assert {k: v for k, v in whole.items() if k not in spent} == {k: v for k, v in resumed.items() if k not in spent}
    assert 0.1 < whole["memory_gib"] < 100
    episodes = [read_json_lines(path / "episodes.jsonl") for path in (tmp_path / "whole", tmp_path / "broken")]
    assert sorted(map(json.dumps, episodes[0])) == sorted(map(json.dumps, episodes[1]))
    assert files(tmp_path / "whole") == files(tmp_path / "broken")
    training.train(again, reopened, quiet())
    assert files(tmp_path / "whole") == files(tmp_path / "broken"), "a finished run that is resumed stays as it is"


@pytest.mark.parametrize(
    "games",
    [
        {"game": "FrozenLake", "env_options": {"size": 3}},
        {"games": [{"game": "Bandit"}, {"game": "FrozenLake", "env_options": {"size": 3}}]},
        {
            "game": "FrozenLake",
            "curriculum": [{"iteration": 2, "env_options": {"size": 5}}],
        },
    ],
    ids=["lake", "mixture", "curriculum"],
)
def test_a_run_records_the_levels_it_was_trained_on(games: dict[str, Any], tmp_path: Path) -> None:
    few = merged(TINY, {"demonstrations": {"episodes": 20}, "evaluation": {"split": "test"}})
    config = configure(merged(few, games))
    folder = RunFolder.create(tmp_path / "run", config)
    run = training.TrainingRun(config, folder, quiet())
    run.warm_start()
    shown = read_seen(folder.seen)
    assert shown == set(demonstrated_families(config))
    assert len(shown) > 10
    run.measure("before")
    assert read_seen(folder.seen) == shown, "what is measured is not trained on"
    run.reinforce()
    played = set()
    for number in range(len(read_json_lines(folder.metrics))):
        shares = games_at(config, number)
        seeds = level_seeds(config.seed, number, config.training.groups)
        chosen = draw_games(shares, config.seed, number, config.training.groups)
        for seed, game in zip(seeds, chosen, strict=True):
            env = make_game_env(shares[game].config, "train")
            env.reset(seed=seed)
            board = env.env.game.board(env.env.level)
            assert env.env.game.owns("train", board)
            played.add(env.env.game.family(board))
    assert read_seen(folder.seen) == shown | played
    for model, met in ((folder.warm, shown), (folder.checkpoint, shown | played)):
        moved = Path(shutil.copytree(model, tmp_path / "elsewhere" / model.name))
        again = RunFolder.create(tmp_path / f"from {model.name}", Config(model=str(moved)))
        assert read_seen(again.seen) == met, "the record moves with the model"
    measured = run.env.level_families(i.seed for i in run.instances)
    assert not read_seen(folder.seen) & {*measured}


def test_torn_and_unfinished_records_are_dropped_before_any_phase(
    whole: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(TINY)
    folder = RunFolder.create(tmp_path / "broken", config)
    run = training.TrainingRun(config, folder, quiet())
    run.warm_start()
    with monkeypatch.context() as patch:
        patch.setattr(training.TrainingRun, "_note", lambda *_: None)  # cut after the episodes, before the summary
        run.measure("before")
    for path in (folder.metrics, folder.episodes):
        with path.open("a") as file:
            file.write('{"phase": "before", "iteration": 0, "succ')
    training.train(config, RunFolder.reopen(folder.path)[0], quiet())
    assert without_clock(whole[0]) == without_clock(folder.path)
    assert (whole[0] / "episodes.jsonl").read_text() == folder.episodes.read_text()


def test_a_second_process_does_not_touch_the_run(tmp_path: Path) -> None:
    """Such as ``--resume`` of a run that goes on: it would drop the records that the first has not saved yet."""
    folder = RunFolder.create(tmp_path / "run", configure(TINY))
    append_json_lines(folder.metrics, [{"iteration": 0}])
    with locked_folder(folder.path), pytest.raises(ValueError, match="another process is working in"):
        training.train(configure(TINY), folder, quiet())
    assert read_json_lines(folder.metrics) == [{"iteration": 0}]


def test_ppo_goes_on_without_spread_unless_its_filter_keeps_nothing(tmp_path: Path) -> None:
    settings = {"warm_start": {"epochs": 0}, "training": {"iterations": 5, "algo": "ppo", "starpo_s": False}}
    complete(configure(merged(TINY, settings)), tmp_path / "run")
    records = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [record["return_std"] for record in records] == [0.0] * 5
    assert all(record["train_tokens"] > 0 for record in records)
    complete(configure(merged(TINY, merged(settings, {"training": {"starpo_s": True}}))), tmp_path / "filtered")
    records = read_json_lines(tmp_path / "filtered" / "metrics.jsonl")
    assert [(record["kept"], record["train_tokens"]) for record in records] == [(0, 0)] * STAGNANT_ITERATIONS


def test_failed_episodes_are_not_losses() -> None:
    config = configure(TINY)
    agent = Policy.build(config)
    played = agent.play(agent.processes("train", 4), group([1], 4), 1.0, 0)
    played = [replace(t, success=True) for t in played]
    assert "failed" not in rate_of_played(played).to_dict()
    played[0] = replace(played[0], success=False, failure="environment_error: x")
    rate = rate_of_played(played).to_dict()
    assert (rate["rate"], rate["n"], rate["failed"]) == (1.0, 3, 1)
    console = Console(file=io.StringIO(), width=200)
    console.print(rates_table(config.game, config.evaluation, {"after": rate}))
    assert "1 failed episodes left out" in console.file.getvalue()  # type: ignore[attr-defined]
    played[1] = replace(played[1], overflowed=True)
    rate = rate_of_played(played).to_dict()
    assert Rate.from_dict(rate).overflowed == rate["overflowed"] == 1
    console.print(rates_table(config.game, config.evaluation, {"after": rate}))
    assert "1 episodes cut at turns.max_tokens_per_episode" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"all 1 episodes failed.*environment_error: x"):
        rate_of_played(played[:1])


class InterruptingPhase(Display):
    """Ctrl-C in the third step of a phase, or, where it is ``killed``, an end at once; and how far phases had been."""

    def __init__(self, phase: str, *, killed: bool = False) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.phase, self.killed, self.steps = phase, killed, 0
        self.begun: dict[str, int] = {}

    @contextmanager
    def progress(self, phase: str, total: int, done: int = 0) -> Iterator[None]:
        self.begun[phase] = done
        with super().progress(phase, total, done):
            yield

    def advance(self, record: Mapping[str, float], steps: int = 1) -> None:
        super().advance(record, steps)
        self.steps += next(reversed(self.begun)) == self.phase
        if self.steps == 3:
            if self.killed:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_finishes_the_iteration_and_saves_it(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    config = configure(merged(TINY, {"training": {"save_every": 100}}))
    folder = RunFolder.create(tmp_path / "broken", config)
    with pytest.raises(KeyboardInterrupt):
        training.train(config, folder, InterruptingPhase("reinforcement"))
    state = folder.load_state()
    assert state is not None
    assert state["iteration"] in (3, 4), "the iteration is finished, or the next"
    assert (folder.checkpoint / "model.safetensors").is_file()
    assert training.train(config, folder, quiet())["after"] == whole[1]["after"]
    assert without_clock(whole[0]) == without_clock(tmp_path / "broken")


IMITATED = merged(TINY, {"training": {"iterations": 1}, "warm_start": {"batch": 8}})


@pytest.fixture(scope="module")
def imitated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """An unbroken run of one iteration, whose time is imitation's."""
    path = tmp_path_factory.mktemp("runs") / "imitated"
    return path, complete(configure(IMITATED), path)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("phase", ["warm start", "more imitation", "clean warm start"])
def test_an_imitation_goes_on_where_it_was_interrupted(
    phase: str, killed: bool, imitated: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken, whole = imitated
    config = configure(IMITATED)
    monkeypatch.setattr(imitation, "SAVE_SECONDS", 0.0 if killed else math.inf)
    folder = RunFolder.create(tmp_path / "broken", config)
    with pytest.raises(KeyboardInterrupt):
        training.train(config, folder, InterruptingPhase(phase, killed=killed))
    assert (folder.path / IMITATION).is_file()

    display = InterruptingPhase("none")
    resumed = training.train(config, folder, display)
    assert display.begun[phase] in ((2,) if killed else (3, 4)), "the step is finished, or the next"
    assert [resumed[row] for row in ROWS if row in whole] == [whole[row] for row in ROWS if row in whole]
    assert files(unbroken) == files(folder.path)
    episodes = [read_json_lines(path / "episodes.jsonl") for path in (unbroken, folder.path)]
    assert sorted(map(json.dumps, episodes[0])) == sorted(map(json.dumps, episodes[1]))


def test_policies_are_measured_within_the_reinforcement_and_it_does_not_change(tmp_path: Path) -> None:
    config = configure(merged(TINY, {"training": {"algo": "ppo", "filter": "none"}}))

    def reinforced(name: str, last: int) -> tuple[training.TrainingRun, list[int]]:
        run = training.TrainingRun(config, RunFolder.create(tmp_path / name, config), quiet())
        run.warm_start()
        counts: list[int] = []

        def iterated(iterations: int) -> None:
            counts.append(iterations)
            if 0 < (left := 4 - iterations) < last:
                run.measure_meanwhile(f"end_{left}", left)

        run.reinforce(iterated)
        return run, counts

    run, counts = reinforced("measured", 3)
    assert counts == [1, 2, 3, 4]
    assert run.folder.read_summary()["end_1"] == run.summary["end_1"]
    assert "end_3" not in run.summary
    assert run.summary["end_2"]["n"] == 12
    reinforced("plain", 1)
    assert without_clock(tmp_path / "measured") == without_clock(tmp_path / "plain")
    processes = run.policy.processes("train", 12)
    first, again, other = (
        play_fixed(run.policy, run.instances, repetition=number, processes=processes) for number in (0, 0, 1)
    )
    assert [t.ids.tolist() for t in first] == [t.ids.tolist() for t in play_fixed(run.policy, run.instances)]
    assert [t.ids.tolist() for t in first] == [t.ids.tolist() for t in again]
    assert [t.level_id for t in first] == [t.level_id for t in other]
    assert [t.log_probs.tolist() for t in first] != [t.log_probs.tolist() for t in other]


def test_a_dead_run_stops_and_says_so(tmp_path: Path) -> None:
    config = configure(merged(TINY, {"warm_start": {"epochs": 0}, "training": {"iterations": 50}}))
    out = io.StringIO()
    training.train(config, RunFolder.create(tmp_path / "run", config), Display(Console(file=out)))
    assert len(read_json_lines(tmp_path / "run" / "metrics.jsonl")) == STAGNANT_ITERATIONS
    said = " ".join(out.getvalue().split())
    assert "The model does not know the reply format" in said
    assert "--recipe smollm2-135m-bandit" in said
    assert "learning_rate" not in said, "a rate is not what it lacks"


def test_failed_episodes_are_never_learned_from() -> None:
    config = configure(TINY)
    agent = Policy.build(config)
    played = agent.play(agent.processes("train", 8), group([1, 2], 4), 1.0, 0)
    rewards = [0.0, 1.0, 0.0, 9.0, 0.5, 0.5, 0.5, 0.5]
    played = [replace(t, turn_rewards=(r,)) for t, r in zip(played, rewards, strict=True)]
    played[3] = replace(played[3], failure="environment_error: x")
    advantages, kept, spread = score(played, replace(config.training, group_size=4, keep=1.0))
    assert kept.tolist() == [[True, True, True, False], [False] * 4]
    assert advantages[0, 3] == 0
    assert spread[0].item() == pytest.approx(math.sqrt(1 / 3))
    assert score(played, replace(config.training, group_size=4, starpo_s=False))[1].sum() == 7


def test_the_fixed_levels_are_distinct_and_of_their_split() -> None:
    config = with_settings(Config(), {**default_settings("FrozenLake"), "game": "FrozenLake"})
    env, train_env = make_env(config, "test"), make_env(config, "train")
    instances = fixed_instances(env, 64)
    ids = {env.reset(seed=i.seed)[1]["level_id"] for i in instances}
    assert len(ids) == 64
    assert baseline_notices(env, instances) == []
    more = baseline_notices(env, [*instances, instances[0]])
    assert more == ["Only 64 different levels were found for these 65 episodes."]
    assert not ids & {train_env.reset(seed=s)[1]["level_id"] for s in range(500)}
    assert instances == fixed_instances(make_env(config, "test"), 64)
    assert optimal_rate(env, instances).rate == 1.0
    assert scripted_rate(env, instances, random_reply, 0).high < 0.35
