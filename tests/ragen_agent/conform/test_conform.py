import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import conform as conform_page
from ragen_agent.cli import main
from ragen_agent.conform import libraries
from ragen_agent.conform.batches import GAMMA, LAMBDA, Batch, loss_batches, value_batches
from ragen_agent.conform.compare import compare, findings, variants
from ragen_agent.conform.formulas import RULES
from ragen_agent.conform.libraries import Function, Library, load

MINE = Library("mine", "1", {})


def test_this_trainer_computes_every_published_formula() -> None:
    found = findings(load("ragen_agent"))
    assert {each.rule: each.verdict for each in found} == dict.fromkeys(RULES, "same")


@pytest.mark.parametrize("name", RULES)
def test_every_variant_is_told_from_every_other(name: str) -> None:
    rule = RULES[name]
    for changed, words in variants(rule):
        found = compare(MINE, name, Function("planted", partial(rule.formula, **changed)))
        assert (found.verdict, found.differences) == ("differs" if words else "same", words)


@pytest.mark.parametrize("name", RULES)
def test_a_formula_of_no_known_variant_is_unexplained(name: str) -> None:
    formula = RULES[name].formula
    assert compare(MINE, name, Function("doubled", lambda b: 2 * formula(b))).verdict == "unexplained"


def test_formulas_by_hand() -> None:
    """One row of two or three tokens each, worked out on paper."""
    batch = loss_batches()["ratios near 1"]
    first = torch.zeros_like(batch.mask)
    first[0, 0] = True

    def gradient(name: str, ratio: float, advantage: float) -> float:
        logs = batch.old + math.log(ratio)
        one = replace(batch, mask=first, log_probs=logs.requires_grad_(), advantages=torch.full_like(logs, advantage))
        return float(torch.autograd.grad(RULES[name].formula(one), one.log_probs)[0][0, 0])

    assert gradient("PPO, token mean", 1.1, 2.0) == pytest.approx(-2.2)
    assert gradient("PPO, token mean", 1.3, 2.0) == 0  # above 1.28
    assert gradient("PPO, token mean", 4.0, -1.0) == pytest.approx(4.0)  # no dual clip
    assert gradient("CISPO", 4.0, -1.0) == pytest.approx(1.28)
    assert gradient("CISPO", 0.5, 1.0) == pytest.approx(-0.5)
    assert gradient("SAPO", 1.0, 3.0) == pytest.approx(-3.0)

    two = value_batches()["two turns"]
    ends = torch.zeros_like(two.mask)
    ends[0, 2] = ends[0, 6] = True  # a token, observations, a token that earns 1
    two = replace(two, mask=ends, rewards=torch.ones(4).double())
    before, last = two.values[0, 2], two.values[0, 6]
    found = RULES["GAE"].formula(two)[0]
    assert found[6] == pytest.approx(float(1 - last))
    assert found[2] == pytest.approx(float(GAMMA * last - before + GAMMA * LAMBDA * (1 - last)))


def test_returns_by_hand() -> None:
    """(R - mean) / std of 0 and 1, and what is left of them without the other one."""
    batch = RULES["GRPO"].batches()["returns far apart"]
    pair = replace(
        batch,
        groups=torch.tensor([0, 0]),
        rewards=torch.tensor([0.0, 1.0]).double(),
        mask=batch.mask[:2],
    )
    assert RULES["GRPO"].formula(pair)[:, 0].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5], rel=1e-5)
    assert RULES["Dr. GRPO"].formula(pair)[:, 0].tolist() == [-0.5, 0.5]
    assert RULES["RLOO"].formula(pair)[:, 0].tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grpo", "module:attribute"),
        ("json:dumps", "has the type function; it must be a ragen_agent.conform.libraries.Library"),
    ],
)
def test_what_is_not_a_library_is_refused(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load(name)


def test_a_library_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from ragen_agent.conform.libraries import Library\nLIBRARY = Library('mine', '1', {})\n"
    (tmp_path / "trainer_of_this_folder.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert load("trainer_of_this_folder:LIBRARY") == MINE
    (tmp_path / "bare_functions.py").write_text(text.replace("{}", "{'GRPO': sum}"))
    with pytest.raises(ValueError, match=r"has a builtin_function_or_method for 'GRPO'; it must be a .*\.Function"):
        load("bare_functions:LIBRARY")


def test_a_library_of_another_version_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(libraries, "LIBRARIES", {"trl": lambda: libraries.nothing, "ragen_agent": lambda: MINE})  # type: ignore[attr-defined]
    assert main(["conform"]) == 0
    assert "trl is not looked at: AttributeError" in capsys.readouterr().out
    assert main(["conform", "trl"]) == 2
    assert "trl cannot be looked at here: AttributeError" in capsys.readouterr().err


def test_results_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one of 'GRPO', .* 'PPO, token mean'"):
        compare(MINE, "PPO", Function("none", lambda b: b.old))
    with pytest.raises(ValueError, match=r"has shape \(8,\)"):
        compare(MINE, "GRPO", Function("rows", lambda b: b.rewards))
    with pytest.raises(ValueError, match=r"nothing, given as 'GRPO', .* has shape None"):
        compare(MINE, "GRPO", Function("nothing", lambda b: None))  # type: ignore[arg-type,return-value]


def test_an_error_of_a_function_names_it_its_rule_and_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "faulty_trainer.py").write_text(
        "from ragen_agent.conform.libraries import Function, Library\n"
        "LIBRARY = Library('mine', '1', {'GRPO': Function('my_advantages', lambda b: b.mask @ b.rewards)})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert main(["conform", "faulty_trainer:LIBRARY"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "my_advantages, given as 'GRPO', fails on the batch 'returns far apart': RuntimeError: " in said
    assert "faulty_trainer.py, line 2). It was called with a Batch of groups (8,), rewards (8,), mask (8, 12)," in said


def test_the_command_prints_what_the_page_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "ragen_agent", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["rule"] for row in printed] == list(RULES)
    assert main(["conform", "ragen_agent"]) == 0
    assert "PPO, token mean" in capsys.readouterr().out
    assert main(["conform", "no_such_trainer:LIBRARY"]) == 2


def test_the_command_names_the_batch_of_the_largest_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def undefined_for_one(batch: Batch) -> torch.Tensor:
        groups = [batch.rewards[rows] - batch.rewards[rows].mean() for rows in batch.ids]
        parts = [each / (each.square().sum() / (len(each) - 1)).sqrt() for each in groups]
        return torch.cat(parts)[:, None] * batch.mask

    naive = Library("naive", "1", {"GRPO": Function("advantages", undefined_for_one)})
    monkeypatch.setattr(libraries, "LIBRARIES", {"naive": lambda: naive})
    assert main(["conform", "naive"]) == 0
    assert "inf, a group of one" in capsys.readouterr().out


def test_the_page_is_of_its_records(tmp_path: Path) -> None:
    assert conform_page.main(["--out", str(tmp_path)]) == 0
    for name in ("conform.json", "conform.md"):
        assert (tmp_path / name).read_text() == Path(conform_page.__file__).with_name(name).read_text()


def test_equal_returns_are_measured_apart() -> None:
    """A rule that divides the rounding error of a mean by its own size is seen, whatever it computes otherwise."""
    noisy = Function("noisy", lambda b: 0.5 * b.mask.to(b.rewards.dtype))
    assert compare(MINE, "GRPO", noisy).equal == {"-0.3": 0.5, "9.9": 0.5}
    assert {each.rule: each.equal for each in findings(load("ragen_agent"))}["GRPO"] == {"-0.3": 0, "9.9": 0}
