"""What both trainers share of an iteration, on episodes made by hand."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from ragen_agent.config import Training
from ragen_agent.run.console import Display
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo
from ragen_agent.update.advantages import turn_advantages
from ragen_agent.update.iteration import Iteration, score, teaches_nothing, undecided


def episode(reward: float, failure: str | None = None) -> Trajectory:
    """Two tokens of prompt, three sampled ones."""
    return Trajectory(
        ids=np.arange(5),
        sampled=np.array([False, False, True, True, True]),
        log_probs=np.array([0, 0, -1, -2, -0.75], dtype=np.float32),
        turn_ends=(4,),
        turn_rewards=(reward,),
        terminated=True,
        success=reward >= 1,
        failure=failure,
        seed=0,
    )


def iteration(returns: list[float], settings: Training, games: tuple[str, ...] = ("A", "A")) -> Iteration:
    return Iteration.score_and_filter(0, [episode(r) for r in returns], games, settings, 0)


# Two groups of two: the first differs in length only, the second in its returns only.
LONG = replace(
    episode(1.0),
    ids=np.arange(6),
    sampled=np.array([False, False, True, True, True, True]),
    log_probs=np.array([0, 0, -1.25, -1.25, -1.25, -1.25], dtype=np.float32),  # the same mean entropy
    turn_ends=(5,),
)
DIFFERENT = [LONG, episode(1.0), episode(0.0), episode(1.0)]


@pytest.mark.parametrize(
    ("settings", "nothing"),
    [
        ({"algo": "grpo", "filter": "none"}, False),
        ({"algo": "grpo", "filter": "top", "keep": 0.5}, False),
        # What the filter leaves out cannot teach, even if its returns differ.
        ({"algo": "grpo", "filter": "random", "keep": 0.5}, True),
        ({"algo": "reinforce", "filter": "random", "keep": 0.5}, False),  # 1 against the mean 0.75
        ({"algo": "ppo", "filter": "random", "keep": 0.5}, False),
    ],
)
def test_only_what_the_filter_keeps_can_teach(settings: dict[str, Any], nothing: bool) -> None:
    training = Training(group_size=2, **settings)
    assert teaches_nothing(score(DIFFERENT, training), training) is nothing
    made = Iteration.score_and_filter(0, DIFFERENT, ["A", "A"], training, 0)
    assert made.stagnant is nothing
    assert made.rows == ([] if nothing else made.kept)
    assert made.kept, "the filter keeps a group either way"


def test_equal_returns_teach_nothing() -> None:
    for algo in ("grpo", "dr_grpo", "rloo", "brpo", "reinforce"):
        assert iteration([0.5] * 4, Training(group_size=2, algo=algo, filter="none")).stagnant, algo
    assert not iteration([0.0, 1.0, 0.5, 0.5], Training(group_size=2, algo="reinforce", filter="none")).stagnant
    assert not iteration([0.5] * 4, Training(group_size=2, algo="ppo", filter="none")).stagnant
    assert iteration([0.5] * 4, Training(group_size=2, algo="ppo", filter="top")).stagnant, "there is no episode left"


def test_the_figures_of_an_iteration() -> None:
    played = [episode(1.0), episode(0.0), episode(1.0), episode(9.0, failure="engine_error: out of memory")]
    made = Iteration.score_and_filter(0, played, ["A", "B"], Training(group_size=2, filter="top", keep=0.5), 0)
    figures = made.figures(None)
    assert {name: figures[name] for name in ("success", "success/A", "success/B")} == {
        "success": pytest.approx(2 / 3),
        "success/A": 0.5,
        "success/B": 1.0,
    }
    assert (figures["failed"], figures["failures"]) == (1, {"engine_error": 1})
    assert figures["overflowed"] == 0
    assert (figures["kept"], figures["kept_share"]) == (2, 0.5)
    std = float(torch.tensor([1.0, 0.0]).std())
    assert (figures["return_std_kept"], figures["return_std_dropped"]) == (pytest.approx(std), 0.0)
    assert figures["return_std"] == pytest.approx(std / 2)
    both = iteration([0.0, 1.0, 0.0, 3.0], Training(group_size=2, filter="top", keep=0.5)).figures(None)
    assert (both["return_std_kept"], both["return_std_dropped"]) == (pytest.approx(3 * std), pytest.approx(std))
    assert figures["entropy_sampled"] == pytest.approx(3.75 / 3), "of the episodes that did not fail"
    assert figures["reply_tokens"] == 3.0
    assert "success/A" not in Iteration.score_and_filter(0, played, ["A", "A"], Training(group_size=2), 0).figures(None)


def test_episodes_that_run_out_of_tokens_are_counted_and_said() -> None:
    cut = replace(episode(0.0), terminated=False, truncated=True, overflowed=True)
    figures = Iteration.score_and_filter(0, [episode(1.0), cut], ["A"], Training(group_size=2), 0).figures(None)
    assert figures["overflowed"] == 1
    for record, said in ((figures, True), ({**figures, "overflowed": 0}, False)):
        out = io.StringIO()
        display = Display(Console(file=out, width=200))
        with display.progress("reinforcement", 1):
            display.advance(record)
        assert ("out of tokens" in out.getvalue()) is said


def test_a_tree_by_hand() -> None:
    """Two first replies, 7 and 8, two after each: Q is 1/2 and 1 of the first, and 1, 0, 1, 1 of the second ones."""
    info = TurnInfo("", 1, 1, True)
    leaves = [
        Trajectory(
            ids=np.array([0, first, 0, second]),
            sampled=np.array([False, True, False, True]),
            log_probs=np.array([0, -1, 0, -1], dtype=np.float32),
            turn_ends=(1, 3),
            turn_rewards=(0.0, reward),
            terminated=True,
            turn_infos=(info, info),
        )
        for first, second, reward in ((7, 1, 1.0), (7, 2, 0.0), (8, 3, 1.0), (8, 4, 1.0))
    ]
    settings = Training(algo="rloo", groups_by="tree", branches=[2, 2], group_size=4, filter="none", gamma_turn=1.0)
    made = Iteration.score_and_filter(0, leaves, ["A"], settings, 0)
    assert list(map(turn_advantages, made.learned)) == [(-0.5, 1.0), (-0.5, -1.0), (0.5, 0.0), (0.5, 0.0)]
    assert made.sampled_tokens == 6
    assert made.figures(None)["repeated_rate"] == 0.0, "a reply in two places is one reply"
    broken = replace(leaves[2], failure="engine_error: x")
    figures = Iteration.score_and_filter(0, [*leaves[:2], broken, broken], ["A"], settings, 0).figures(None)
    assert (figures["failed"], figures["failures"]) == (1, {"engine_error": 1})


def test_the_filter_of_ragen_2_by_hand() -> None:
    """Variances 4.5, 0.5, 0.02 and 0 sum to 5.02: of that 90 % is 4.518, which the two largest reach, one does not.

    By the stds, 2.12, 0.71, 0.14 and 0, the same two are needed for 90 % of 2.97; for 97 % all three are.
    """
    returns = [0.0, 3.0, 0.0, 1.0, 0.0, 0.2, 5.0, 5.0]
    ragen_2: dict[str, Any] = {"filter": "top_p", "filter_statistic": "variance", "keep": 0.9}

    def kept(**changes: Any) -> list[int]:
        made = iteration(returns, Training(group_size=2, **(ragen_2 | changes)), games=("A",) * 4)
        return made.groups.kept.any(1).nonzero().flatten().tolist()

    assert kept() == [0, 1]
    assert kept(keep=4.49 / 5.02) == [0]
    assert kept(keep=0.97) == [0, 1]
    assert kept(keep=0.97, filter_statistic="std") == [0, 1, 2]
    assert kept(keep=1.0) == [0, 1, 2], "a group without variance is dropped"
    dead = iteration([1.0] * 8, Training(group_size=2, **ragen_2), games=("A",) * 4)
    assert (dead.rows, dead.stagnant) == ([], True), "an empty batch skips the step"


def test_dynamic_sampling_trains_on_the_first_groups_that_differ() -> None:
    """DAPO: of five groups played for three places, the second and fourth are decided; the filter sees the others."""
    returns = [0.0, 1.0, 1.0, 1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 9.0]
    settings = Training(groups=2, group_size=2, filter="none", refills=3)
    made = iteration(returns, settings, games=("A",) * 5)
    assert made.groups.kept.any(1).tolist() == [True, False, True, False, False]
    assert made.rows == [0, 1, 4, 5]
    figures = made.figures(None)
    assert (figures["refilled"], figures["lacking"]) == (3, 0)
    assert figures["success"] == 0.4, "of all that was played: what was replaced is not hidden"
    top = iteration(returns, replace(settings, groups=3, filter="top", keep=1 / 3), games=("A",) * 5)
    assert top.rows == [8, 9]
    assert top.figures(None)["lacking"] == 0
    few = iteration(returns[:8], replace(settings, groups=4), games=("A",) * 4)
    assert (few.rows, few.figures(None)["lacking"]) == ([0, 1, 4, 5], 2)
    none = iteration([1.0] * 4, settings)
    assert (none.rows, none.stagnant) == ([], True)
    assert undecided([episode(1.0), episode(0.0, "engine_error: x")], settings).tolist() == [], "a failure is no return"
    assert not {"refilled", "lacking", "overlong"} & set(iteration(returns[:4], Training(group_size=2)).figures(None))


def test_overlong_shaping_by_hand() -> None:
    """Replies of 3 and 4 tokens, a limit of 5 and a buffer of 3: they lose 1/3 and 2/3."""
    settings = Training(groups=2, group_size=2, filter="none", overlong_buffer=3)
    made = Iteration.score_and_filter(0, DIFFERENT, ["A", "A"], settings, 0, 5)
    assert [t.total_reward for t in made.learned] == pytest.approx([1 / 3, 2 / 3, -1 / 3, 2 / 3])
    assert [t.total_reward for t in made.played] == [1.0, 1.0, 0.0, 1.0], "what is recorded is the game's"
    assert made.figures(None)["overlong"] == 1.0
    assert Iteration.score_and_filter(0, DIFFERENT, ["A", "A"], settings, 0, 7).figures(None)["overlong"] == 0.0
    # Dynamic sampling goes by the game's rewards: the first group differs by the lengths of its replies alone.
    made = Iteration.score_and_filter(0, DIFFERENT, ["A", "A"], replace(settings, refills=1), 0, 5)
    assert made.rows == [2, 3]


def test_the_first_episodes_are_written_down_and_the_ends_of_the_group_that_teaches_most() -> None:
    returns = [0.0, 0.1, 0.0, 0.2, 0.0, 1.0, 0.5, 0.5]
    made = iteration(returns, Training(group_size=2, filter="top", keep=0.5), games=("A",) * 4)
    records = made.episode_records([100 + row for row in range(8)])
    assert list(records) == [0, 1, 5, 4]
    assert [record["kept"] for record in records.values()] == [False, False, True, True]
    assert [record["noise_seed"] for record in records.values()] == [100, 101, 105, 104]
    broken = [episode(1.0), episode(1.0), episode(-9.0, "engine_error: x"), *map(episode, (0.0, 1.0, 0.0))]
    made = Iteration.score_and_filter(0, broken, ["A", "A"], Training(group_size=3, filter="none"), 0)
    assert list(made.episode_records([0] * 6)) == [0, 1, 4, 3], "a failed episode is no difference"
    nothing = iteration([0.5] * 8, Training(group_size=2, filter="top"), games=("A",) * 4)
    assert list(nothing.episode_records([0] * 8)) == [0, 1]
