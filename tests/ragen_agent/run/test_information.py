"""Mutual information of reasoning and prompt: by hand, and on policies that are known to read it or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor

from ragen_agent.config import Config, Training, with_settings
from ragen_agent.inference.vision import ImageTable
from ragen_agent.run.diagnostics import Monitor
from ragen_agent.run.information import MeasuredPolicy, information, information_figures
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.iteration import Iteration, ScoredGroups
from tests.ragen_agent.run.test_diagnostics import spoken


class Knowing:
    """Scores of a reasoning: ``match`` nats if it names the last prompt before it, ``other`` if not."""

    def __init__(self, match: float = 0.0, other: float = 0.0) -> None:
        self.match, self.other, self.asked = match, other, list[str]()

    def log_probs(self, rows: Sequence[tuple[list[int], list[int]]], images: ImageTable | None = None) -> Tensor:
        texts = [("".join(map(chr, before)), "".join(map(chr, said))) for before, said in rows]
        self.asked += [before + said for before, said in texts]
        names = [before[before.rindex(":") - 1] for before, _ in texts]
        scores = [self.match if said[-1] == name else self.other for (_, said), name in zip(texts, names, strict=True)]
        return torch.tensor(scores, dtype=torch.float64)


def episode(names: str) -> Trajectory:
    """A turn for each name, which is the prompt's and which the thought ends with."""
    told = spoken(*(f"<think>it is {name}</think>" for name in names))
    ids, starts = told.ids.copy(), [0, *(end + 1 for end in told.turn_ends[:-1])]
    ids[starts] = [ord(name) for name in names]
    return replace(told, ids=ids)


def figures(policy: Knowing, played: list[Trajectory], **options: object) -> dict[str, float]:
    return information_figures(cast(MeasuredPolicy, policy), played, chr, **options)  # type: ignore[arg-type]


def test_the_information_of_first_turns_reads_no_later_ones() -> None:
    """Of each level two episodes; the monitor measures them in the iterations that are due."""
    policy, played = Knowing(), [episode(names) for names in ("Ax", "Ax", "Bx", "Bx")]
    groups = ScoredGroups(torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool), torch.zeros(2))
    monitor = Monitor(with_settings(Config(), {"diagnostics": {"information_every": 2}}), chr, None)
    for number, due in ((0, True), (1, False)):
        iteration = Iteration(number, played, played, ["Bandit"] * 2, groups, False, {}, Training())
        assert ("retrieval_chance" in monitor.before_update(cast(MeasuredPolicy, policy), iteration)) is due
    own = [f"{prompt}:<think>it is {said}" for said in "AABB" for prompt in "AB"]
    assert policy.asked[:8] == own


def test_a_first_reply_that_branches_share_is_read_once() -> None:
    """Four episodes of each level in a tree of (2, 2), so two reasonings of each."""
    policy, played = Knowing(), [episode(names) for names in ("Ax",) * 4 + ("Bx",) * 4]
    groups = ScoredGroups(torch.zeros(2, 4), torch.ones(2, 4, dtype=torch.bool), torch.zeros(2))
    settings = Training(algo="rloo", groups_by="tree", group_size=4, branches=[2, 2])
    iteration = Iteration(0, played, played, ["Bandit"] * 2, groups, False, {}, settings)
    monitor = Monitor(with_settings(Config(), {"diagnostics": {"information_every": 1}}), chr, None)
    monitor.before_update(cast(MeasuredPolicy, policy), iteration)
    assert policy.asked[:8] == [f"{prompt}:<think>it is {said}" for said in "AABB" for prompt in "AB"]


def test_a_template_and_a_policy_that_reads_its_prompt() -> None:
    """The prompts of 16 turns at distinct places; log P nats are the most that a reasoning can carry."""
    played = [episode(names) for names in ("ABCD", "EFGH", "IJKL", "MNOP", "QRST", "UVWX")]
    template = figures(Knowing(-3.0, -3.0), played)
    reader = figures(Knowing(-3.0, -900.0), played)
    length = len("it is A")
    for prefix in ("", "turns_"):
        assert template[f"{prefix}mutual_information"] == pytest.approx(0.0, abs=1e-12)
        for name, k in (("accuracy", 1), ("at_2", 2), ("at_4", 4)):
            assert template[f"{prefix}retrieval_{name}"] == pytest.approx(k / 6)
            assert reader[f"{prefix}retrieval_{name}"] == 1.0
        assert reader[f"{prefix}mutual_information"] == pytest.approx(math.log(6) / length)
        assert reader[f"{prefix}retrieval_chance"] == 1 / 6


def test_every_turn_can_be_drawn_under_all_that_came_before_it() -> None:
    played, seen = [episode("ABCD"), episode("EFGH")], set[str]()
    for seed in range(40):
        policy = Knowing()
        figures(policy, played, seed=seed)
        again = Knowing()
        figures(again, played, seed=seed)
        assert policy.asked == again.asked
        seen |= {text[-1] for text in policy.asked[4:]}
        assert all(text.count(":") == "ABCDEFGH".index(text[text.rindex(":") - 1]) % 4 + 1 for text in policy.asked[4:])
    assert seen == set("ABCDEFGH")
    windows = replace(played[0], contexts=(0, played[0].turn_ends[0] + 1))
    policy = Knowing()
    figures(policy, [windows, windows], seed=1)
    assert all(text.count(":") <= 3 for text in policy.asked), "a later window forgets the first turn"


def test_the_z_score_is_against_the_std_of_the_mixture() -> None:
    """Reasonings of equal length with log-probs under the mixture of log(1/4) and log(1/2), twice each."""
    scores = torch.log(torch.tensor([[[1 / 4, 1 / 4]] * 2, [[1 / 2, 1 / 2]] * 2]))
    assert information(scores, torch.ones(2, 2)).marginal_std == pytest.approx(math.log(2) / 2)

    played = [episode(names) for names in ("AB", "CD")]
    alone = figures(Knowing(-1.0, -9.0), played)
    assert alone["marginal_std"] == pytest.approx(0.0, abs=1e-12)
    assert alone["information_zscore"] == pytest.approx(alone["mutual_information"] / 1e-3)
    later = figures(Knowing(-1.0, -9.0), played, past=[{"marginal_std": 0.5}, {}, {"marginal_std": 1.0}])
    smoothed = 0.9 * (0.9 * 0.5 + 0.1 * 1.0)
    assert later["information_zscore_ema"] == pytest.approx(alone["mutual_information"] / (smoothed + 1e-3))
    assert later["information_zscore"] == alone["information_zscore"]


def test_without_reasoning_or_with_one_prompt_nothing_is_measured() -> None:
    silent = spoken("ab", "c")
    assert figures(Knowing(), [silent, replace(silent, ids=silent.ids + 1)]) == {}
    assert figures(Knowing(), [replace(episode("A"), failure="environment_error: x"), episode("B")]) == {}


def test_information_by_hand() -> None:
    """Two prompts, one reasoning each, of 2 tokens and of 1.

    Z_1 has probability 1/4 under its own prompt and 1/16 under the other; Z_2 1/2 and 1/2. Matched: -log 2 and
    -log 2 a token. Marginals: log(5/32) / 2 and log(1/2). I = mean(-log 2 - log(5/32) / 2, 0).
    """
    scores = torch.log(torch.tensor([[[1 / 4, 1 / 16]], [[1 / 2, 1 / 2]]]))
    measured = information(scores, torch.tensor([[2], [1]]))
    assert measured.conditional_entropy == pytest.approx(math.log(2))
    assert measured.mutual_information == pytest.approx((-math.log(2) - math.log(5 / 32) / 2) / 2, abs=1e-6)
    assert measured.retrieval_accuracy == 0.75, "the first is found, the second is a tie of two"
    assert measured.retrieval_chance == 0.5
    assert measured.retrieval_at_2 == measured.retrieval_at_4 == 1.0, "there are only two"
