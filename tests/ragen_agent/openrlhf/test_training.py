"""Real runs: OpenRLHF's command line on Ray, vLLM and DeepSpeed, with a small model on the CPU.

A start takes a minute, so each run shows several things.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_agent.cli import main
from ragen_agent.config import Config, merged, to_toml, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.models.checkpoint import load_checkpoint
from ragen_agent.openrlhf.processes import read_state
from ragen_agent.openrlhf.prompt_dataset import train_rows
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.storage import read_json_lines
from tests.pages import ROOT, script_of
from tests.ragen_agent.openrlhf.small_runs import BASE, Family, begin, configure, lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

ITERATIONS = BASE["training"]["iterations"]
FAULTY = str(Path(__file__).with_name("faulty_executor.py"))


def moved(before: Path, after: Path) -> float:
    """How far the weights went, as a share of their norm."""
    one, two = (load_checkpoint(path)[0].state_dict() for path in (before, after))
    gap = sum(float((one[name] - two[name]).double().square().sum()) for name in one)
    return float((gap / sum(float(value.double().square().sum()) for value in one.values())) ** 0.5)


def check_learning(records: list[dict[str, Any]]) -> None:
    """The weights arrived at vLLM although they moved, and the filter kept the groups that differ."""
    trained = [record for record in records if record["train_tokens"]]
    assert len(trained) >= 0.8 * len(records)
    assert abs(np.mean([record["vllm_kl"] for record in trained])) < 1e-3
    assert max(record["vllm_gap"] for record in trained) < 0.02
    assert all(record["grad_norm"] > 0 for record in trained)
    assert all(record["return_std_kept"] > record["return_std_dropped"] for record in trained)
    assert all(0 < record["kept_share"] <= 0.5 for record in trained)


@pytest.fixture(scope="module")
def grpo(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Any]]:
    """GRPO and StarPO-S, while one group's environment raises and another's hangs."""
    settings = {"environment_timeout": 5.0, "evaluate_every": 10, "flags": f"--train.agent_func_path {FAULTY}"}
    run = tmp_path_factory.mktemp("grpo") / "run"
    return begin(run, configure(warm, {"diagnostics": {"tensorboard": True}}), settings)


def test_grpo_with_starpo_s(grpo: tuple[RunFolder, dict[str, Any]], warm: Path) -> None:
    folder, summary = grpo
    records = read_json_lines(folder.metrics)
    assert [record["iteration"] for record in records] == list(range(ITERATIONS))
    check_learning(records)
    assert moved(warm, folder.checkpoint) > 0.01
    assert {"before", "after", "random", "blind", "optimal"} <= set(summary)
    assert [i for i, record in enumerate(records, 1) if "eval_success" in record] == [10]
    assert records[9]["eval_random"] == summary["random"]["rate"] < records[9]["eval_optimal"] == 1.0
    names = {"entropy", "entropy_sampled", "reply_tokens", "invalid_rate", "effective_rate", "return_std", "kept_share"}
    assert all(names <= set(record) for record in records if record["train_tokens"])
    assert all(names - {"entropy"} <= set(record) for record in records), "an iteration may have nothing to learn"
    evaluated = {"eval_success", "eval_random", "eval_blind", "eval_optimal"}
    assert shown(folder.path / "tensorboard") >= names | evaluated | {"vllm_kl", "grad_norm", "failed"}
    assert all(abs(record["learning_rate"] - 1e-3) < 1e-9 for record in records)


def shown(tensorboard: Path) -> set[str]:
    events = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(str(tensorboard))
    events.Reload()
    return set(events.Tags()["scalars"])


def test_failures_are_counted_and_end_nothing(grpo: tuple[RunFolder, dict[str, Any]]) -> None:
    failures = {r["iteration"]: r["failures"] for r in read_json_lines(grpo[0].metrics) if r["failed"]}
    assert failures == {2: {"environment_error": 8}, 4: {"environment_timeout": 8}}


def test_the_final_model_is_one_that_eval_reads(
    grpo: tuple[RunFolder, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, summary = grpo
    results = ["--out", str(tmp_path / "results"), "--json", str(tmp_path / "rates.json")]
    assert main(["eval", str(folder.path), "--levels", "32", *results]) == 0
    (split,) = json.loads((tmp_path / "rates.json").read_text())["splits"].values()
    assert split["success"]["low"] < summary["after"]["high"]
    assert summary["after"]["low"] < split["success"]["high"]


def test_ppo_with_a_critic_and_bi_level_gae_survives_being_killed(warm: Path, tmp_path: Path) -> None:
    training = {"algo": "ppo", "credit": "bi_level", "gamma_turn": 0.95, "save_every": 2}
    training |= {"schedule": "linear", "warm_up": 0.2}
    config = configure(warm, {"training": training})
    (tmp_path / "config.toml").write_text(to_toml(config))
    run = tmp_path / "run"
    command = [sys.executable, "-m", "ragen_agent.cli", "train", "--backend", "openrlhf", "--out", str(run)]
    with Family() as family:
        process = subprocess.Popen([*command, "--config", str(tmp_path / "config.toml")], start_new_session=True)
        limit = time.monotonic() + 600
        while len(lines(run)) < 7:
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.1)
        family.look()
        assert {"VLLM::EngineCor", "raylet"} <= family.names
        kill(process.pid)
        process.wait()
    assert not family.left()
    saved = read_state(run)
    assert saved.iteration >= 6
    assert saved.iteration % 2 == 0
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 99, "succ')
    before = lines(run)[: saved.iteration]
    assert [record["iteration"] for record in before] == list(range(saved.iteration))
    assert main(["train", "--resume", str(run)]) == 0
    records = lines(run)
    assert records[: saved.iteration] == before
    assert [record["iteration"] for record in records] == list(range(ITERATIONS))
    check_learning(records)
    rates = [config.training.learning_rate * config.training.rate_factor(number) for number in range(ITERATIONS)]
    assert all(r["updates"] == -(-r["kept"] // 16) for r in records if r["train_tokens"])
    assert all(r["learning_rate"] == pytest.approx(rates[r["iteration"]]) for r in records if r["train_tokens"])
    assert all(record["value_loss"] >= 0 and record["critic_grad_norm"] > 0 for record in records)
    assert moved(warm, run / "checkpoint") > 0.01
    check_seeds(run, config)


def check_seeds(run: Path, config: Config) -> None:
    """The prompt dataset was continued: every iteration played its own rows, and none twice."""
    groups = config.training.groups
    played = [e for e in read_json_lines(run / "episodes.jsonl") if e["phase"] == "train"]
    rows = list(train_rows(config))
    for iteration in range(ITERATIONS):
        seeds = [e["seed"] for e in played if e["iteration"] == iteration]
        own = [row.seed for row in rows[iteration * groups : (iteration + 1) * groups]]
        assert seeds[:2] == [own[0]] * 2, "the first episodes are recorded"
        assert len(seeds) <= 4, "and the best and the worst of the group that teaches most"
        assert set(seeds) <= set(own)


def kill(launcher: int) -> None:
    """Ends the launcher and the process that it started, as a crash of the machine would: at once."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for pid in (launcher, *map(int, children)):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.nightly
def test_everything_at_once_with_prompts_that_forget(tmp_path: Path) -> None:
    """Only the current turn in the prompt: every turn is a row, which vLLM and the trainer score alike.

    A critic values whole episodes, and everything is measured.
    """
    told = {
        "turns": {"history": 0},
        "demonstrations": {"episodes": 1000},
        "training": {"iterations": 4, "groups": 2, "keep": 1.0, "algo": "ppo", "aggregation": "constant"},
        "diagnostics": {"information_every": 1},
        "stops": {"validate_every": 1, "validation_levels": 4},
        "evaluation": {"levels": 4},
    }
    config = with_settings(Config(), merged(merged(default_settings("FrozenLake"), BASE), told))
    folder, summary = begin(tmp_path / "run", config, {})
    records = read_json_lines(folder.metrics)
    trained = [record for record in records if record["kept"]]
    assert trained
    assert all(record["updates"] * 16 >= record["kept"] and record["grad_norm"] > 0 for record in trained)
    assert max(record["vllm_gap"] for record in trained) < 0.02
    assert all(record["grad_norm"] > 0 and record["value_loss"] >= 0 for record in trained)
    for record in records:
        assert 0 <= record["retrieval_accuracy"] <= 1
        assert 0 <= record["validation"] <= 1
        assert {"information", "validation"} <= set(record["diagnostics_s"])
    assert len(records) == 4 or "stopped" in summary
    episodes = [Trajectory.from_dict(e) for e in read_json_lines(folder.episodes) if e["phase"] == "train"]
    assert any(len(t.turn_ends) > 1 for t in episodes)
    assert all(len(t.split_contexts()) == len(t.turn_ends) for t in episodes)
    assert "after" in summary


@pytest.mark.nightly
def test_a_mixture_that_a_program_plays_online_k_and_selective_masks(tmp_path: Path) -> None:
    """Two games by weight, two passes over the kept episodes, a KL term, turn-wise GAE on the answers alone.

    The guide's program plays the episodes, as it stands.
    """
    script_of(ROOT / "docs" / "guides" / "your_own_agent.md", "python", tmp_path)
    training = {
        **{"algo": "ppo", "credit": "turn", "updates": 2, "iterations": 2, "groups": 4, "save_every": 2},
        **{"kl_kind": "k3", "kl_place": "loss", "advantage_tokens": "answer", "loss_tokens": "answer"},
    }
    told = {
        "games": [{"game": "FrozenLake", "weight": 2.0}, {"game": "Bandit", "thought": "choose"}],
        "program": {"command": shlex.join([sys.executable, str(tmp_path / "my_agent.py")]), "workers": 2},
        "training": training,
        "evaluation": {"levels": 8, "split": "train"},
    }
    config = with_settings(Config(), merged(merged(default_settings("FrozenLake"), BASE), told))
    folder, summary = begin(tmp_path / "run", config, {})
    records = read_json_lines(folder.metrics)
    assert all(record["updates"] >= 2 * record["kept"] // 16 > 0 for record in records), "each turn is a row"
    assert all(record["grad_norm"] > 0 and record["kl"] >= 0 for record in records)
    assert max(record["vllm_gap"] for record in records) < 0.02
    assert sum(record["failed"] for record in records) == 0
    assert set(summary["games"]) == {"Bandit"}
    assert set(summary["games"]["Bandit"]) == {"random", "blind", "optimal", "before", "after"}
    levels = {(e["seed"], e["noise_seed"]) for e in read_json_lines(folder.episodes) if e["phase"] == "before"}
    assert len(levels) == 8
