"""Estimators' gradients where theory gives the answer, and figures of known vectors."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.credit import MOMENTS, config_of, main
from benchmarks.credit_bench import ESTIMATORS, ROWS, Bench
from benchmarks.credit_page import TREE, TRUE, cosines, expected, paired
from benchmarks.experiments.risk import bandit, drift
from ragen_agent.exact.advantages import return_variance
from ragen_agent.exact.level import ExactLevel
from ragen_agent.inference.torch_engine import TorchEngine
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.tasks import make_game_env
from ragen_agent.tokens.rollout import Instance
from ragen_gym.core.storage import read_json_lines

GROUPS, BATCHES = 100, 4


def taught(game: str, *words: str, steps: int = 50) -> Policy:
    """A tiny policy that writes the tokens of these replies alone, and mostly these replies, in any state."""
    config = config_of(game, {"small_model": {"hidden": 32, "layers": 1, "feed_forward": 32}})
    policy = Policy.build(config)
    torch.set_num_threads(1)
    replies = [policy.chat.reply_ids(word) for word in words]
    written = {token for ids in replies for token in ids}
    assert policy.model.generation_config is not None
    policy.model.generation_config.suppress_tokens = [i for i in range(len(policy.tokenizer)) if i not in written]
    policy.engine = TorchEngine(policy.model, policy.chat.stop_ids, len(policy.tokenizer))
    env = make_game_env(config, "train")
    levels = [ExactLevel(env, policy.chat, config.turns, Instance(seed, 0)) for seed in range(4)]
    rows = [(level.prompt(level.start), ids) for level in levels for ids in replies]
    optimiser = torch.optim.Adam(policy.model.parameters(), 1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        for prompt, ids in rows:
            logits = policy.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
            torch.nn.functional.cross_entropy(logits, torch.tensor(ids)).div(len(rows)).backward()
        optimiser.step()
    policy.model.zero_grad()
    return policy


@pytest.fixture(scope="module")
def lake() -> Policy:
    return taught("lake", "<answer>Right || Right</answer>", "<answer>Down</answer>", "<answer>Down || Down</answer>")


@pytest.fixture(scope="module")
def arms() -> Policy:
    return taught("bandit", "<answer>Teacher</answer>", "<answer>Engineer</answer>")


def measured(bench: Bench) -> dict[str, dict[str, list[float]]]:
    bench.fit_critics(bench.play(16, 0))
    played = bench.play(GROUPS * BATCHES, 1)
    size = len(played) // BATCHES
    found: dict[str, dict[str, list[float]]] = bench.measure(
        [played[size * place : size * (place + 1)] for place in range(BATCHES)]
    )["estimators"]
    return found


def test_with_many_samples_unbiased_estimators_have_the_exact_gradient(lake: Policy) -> None:
    bench = Bench(lake, range(2), 1e-5)
    found = measured(bench)
    assert set(found) == set(ROWS)
    for name, scale in {"rloo": 1.0, "arpo": 1.0, "dr_grpo": 7 / 8, TREE: 1.0, TRUE: 1.0}.items():
        # A baseline of RLOO and of a tree is independent of its episode; Dr. GRPO is (n - 1) / n times RLOO.
        along = np.array(found[name]["along"])
        least = 0.9 if name == TREE else 0.98  # half as many first replies
        assert along.sum() > least * np.sqrt(np.sum(found[name]["with_sum"])), name  # of all batches together
        assert along.mean() == pytest.approx(scale, abs=5 * along.std(ddof=1) / BATCHES**0.5 + 0.01), name
    assert cosines(found["rloo"]) == pytest.approx(cosines(found["dr_grpo"]), abs=1e-4)
    assert np.mean(found[TRUE]["sign"]) == 1.0
    assert np.mean(found[TRUE]["rank"]) == pytest.approx(1.0)
    # Where a reply is over in the middle of an episode, its tokens earn what came after it: less is right.
    assert 0.5 < np.mean(found["dr_grpo"]["sign"]) < 1.0


def test_dividing_by_the_std_points_the_wrong_way_on_the_bandit(arms: Policy) -> None:
    """The exact drift, computed without a model, has the same signs; the exact gradient leads to the better arm."""

    def risky() -> float:
        start = Bench(arms, range(1), 1e-4).found[0].start
        chances = {
            transitions[0].reward: float(chance)
            for chance, transitions in zip(start.tree.chances, start.transitions, strict=True)
            if len(transitions) > 1 or transitions[0].reward == 0.15
        }
        safe = chances.pop(0.15)
        (high,) = chances.values()
        return high / (safe + high)

    bench = Bench(arms, range(4), 1e-4)
    q, choice = risky(), bandit(0.25)
    assert 0.2 < q < 0.8
    assert drift(choice, q, 8, "GRPO") < 0 < drift(choice, q, 8, "Dr. GRPO")
    parameters = list(arms.model.parameters())
    before = [each.detach().clone() for each in parameters]
    with torch.no_grad():
        parts = bench.truth.split([each.numel() for each in parameters])
        for each, part in zip(parameters, parts, strict=True):
            each.add_(part.view_as(each), alpha=0.01 / float(bench.truth.norm()))
    moved = risky()
    with torch.no_grad():
        for each, old in zip(parameters, before, strict=True):
            each.copy_(old)
    assert moved > q
    found = measured(bench)
    assert np.mean(found["dr_grpo"]["along"]) > 0
    assert np.mean(cosines(found["grpo"])) < np.mean(cosines(found["dr_grpo"])) - 0.5


def test_the_variance_of_the_arms_is_known(arms: Policy) -> None:
    """The risky arm pays 1 with chance 1/4, else 0: a pull of it adds 3/16. The rest of the variance is the choice."""
    (found,) = Bench(arms, range(1), 1e-6).found
    results = list(zip(found.start.tree.chances.tolist(), found.start.transitions, strict=True))
    risky = sum(chance for chance, pulled in results if len(pulled) > 1)
    assert 0.2 < risky < 0.8
    paid = [(chance * each.chance, each.reward) for chance, pulled in results for each in pulled]
    mean = sum(chance * reward for chance, reward in paid)
    replies, noise = return_variance(found)
    assert noise == pytest.approx(risky * 3 / 16, rel=1e-3)
    assert replies + noise == pytest.approx(sum(chance * (reward - mean) ** 2 for chance, reward in paid), rel=1e-3)


def test_figures_of_known_vectors() -> None:
    """A mean of length 2 at 60 degrees to the truth, with noise of variance 3 in each of 50 directions."""
    rng = np.random.default_rng(0)
    mean = np.zeros(50)
    mean[:2] = 1.0, 3**0.5
    rows = mean + rng.normal(0, 3**0.5, (4000, 50))
    each = {"along": rows[:, 0], "norm2": (rows**2).sum(1), "with_sum": rows @ rows.sum(0)}
    for name, known in {"bias": 0.5, "noise": 150 / 4}.items():
        value, half = expected(each)[name]
        assert abs(value - known) < 2 * half < 0.25 * known, name
    still = {"along": [0.0, 0.6], "norm2": [0.0, 1.0]}
    assert cosines(still) == pytest.approx([0.0, 0.6])


def test_rules_are_compared_over_the_same_batches_with_a_correction() -> None:
    """A difference much smaller than what batches differ by is found, and few of many without one are."""
    rng = np.random.default_rng(0)
    hard = rng.normal(0.5, 0.2, 20)

    def rule(gap: float, noise: float) -> dict[str, list[float]]:
        return {"along": (hard + gap + rng.normal(0, noise, 20)).tolist(), "norm2": [1.0] * 20}

    rules = {"dr_grpo": rule(0, 0), "rloo": rule(0, 1e-6), "better": rule(0.05, 0.02), TREE: rule(-1, 0.02)}
    (found,) = paired([{"estimators": rules | {f"same {n}": rule(0, 0.05) for n in range(100)}}])
    assert not {"dr_grpo", "rloo", TREE} & set(found)
    gap, p = found.pop("better")
    assert gap.low < 0.05 < gap.high < 0.07
    assert p < 0.05
    assert min(p for _, p in found.values()) > 0.05
    assert any(not each.low < 0 < each.high for each, _ in found.values()), "without the correction some would be"


def test_the_command_goes_on_and_writes_its_page(lake: Policy, tmp_path: Path) -> None:
    (tmp_path / "runs" / "quick" / "lake").mkdir(parents=True)
    for folder in ("warm", "middle", "checkpoint"):
        save_checkpoint(lake.model, lake.tokenizer, tmp_path / "runs" / "quick" / "lake" / folder)
    command = ["--quick", "--games", "lake", "--levels", "2", "--runs", f"{tmp_path}/runs", "--out", f"{tmp_path}/out"]
    assert main([*command, "--steps", "1"]) == 0
    records = tmp_path / "out" / "credit.jsonl"
    before = read_json_lines(records)
    assert [each["moment"] for each in before if "groups" in each] == [m for m in MOMENTS for _ in range(2)]
    assert {each["method"] for each in before if "method" in each} == {"exact gradient", "grpo", "dr_grpo"}
    page = (tmp_path / "out" / "credit.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in page for name in ESTIMATORS)
    assert "After 1 steps" in page
    data = records.read_bytes()
    records.write_bytes(data[: len(data) // 2])  # it was killed
    assert main(command) == 0
    again = [each for each in read_json_lines(records) if "groups" in each]
    assert len(again) == 2 * len(MOMENTS)
    shutil.rmtree(tmp_path / "runs")
    assert main(command) == 0
    assert not (tmp_path / "runs").exists(), "every record is there, so nothing is trained"
    with pytest.raises(SystemExit, match="has records with levels 2: give these, or another --out"):
        main([*command, "--levels", "1"])


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--levels", "0"])
    assert "--levels is 0 and --steps 0; give at least 1 level" in capsys.readouterr().err
