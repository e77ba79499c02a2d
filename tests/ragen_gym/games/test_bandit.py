"""The bandits: rule, law, oracle, names."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.core.seeding import Stream, episode_keys, stream_key, uniforms
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.bandit import SPLIT_OF_PAIR, Bandit, BanditRev
from ragen_gym.games.values import LevelValues, exact_play, script_of
from ragen_gym.testing import check_game, games

LOW_ARMS = {low for low, _ in SPLIT_OF_PAIR}

EPISODES = [
    # (class, board, arm, draw, reward, success)
    (Bandit, "Teacher\nTrader", 0, 0.1, 0.15, False),
    (Bandit, "Teacher\nTrader", 0, 0.9, 0.15, False),
    (Bandit, "Teacher\nTrader", 1, 0.24, 1.0, True),
    (Bandit, "Teacher\nTrader", 1, 0.25, 0.0, True),
    (Bandit, "Trader\nTeacher", 0, 0.0, 1.0, True),
    (Bandit, "Trader\nTeacher", 1, 0.0, 0.15, False),
    (BanditRev, "Teacher\nTrader", 0, 0.24, 1.0, True),
    (BanditRev, "Teacher\nTrader", 0, 0.25, 0.0, True),
    (BanditRev, "Teacher\nTrader", 1, 0.0, 0.15, False),
    (BanditRev, "Trader\nTeacher", 0, 0.0, 0.15, False),
]


@pytest.mark.parametrize(("game_class", "text", "arm", "u", "reward", "success"), EPISODES)
def test_episodes_by_hand(
    game_class: type[Bandit], text: str, arm: int, u: float, reward: float, success: bool
) -> None:
    game = game_class()
    board, state = bytearray(game.board(text)), [0]
    assert game.rule(board, state, arm, u, game.params) == (reward, 2 if success else 1)
    assert game.own_text(board) == text
    assert state == [1]


@given(games(Bandit), st.booleans())
def test_the_law_and_the_oracle(game: Any, reverse: bool) -> None:
    """Means by counting the draws; success by the last pull alone; the oracle reaches both optima at once."""
    if reverse:
        game = BanditRev(game.low, game.high, game.high_prob, game.pulls)
    for board in map(bytes, game.generate(episode_keys(3, 0, 4), None)):
        means = []
        for arm in (0, 1):
            means.append(
                sum(chance * game.rule(board, [0], arm, u, game.params)[0] for chance, u in game.noise_intervals())
            )
            risky = (game.arms[board[arm]] not in LOW_ARMS) != reverse
            assert means[arm] == pytest.approx(game.high * game.high_prob if risky else game.low)
        solution = game.solve(board)
        for actions_left in range(game.pulls + 2):
            said = solution.expected_return(board, [0], actions_left), solution.success(board, [0], actions_left)
            assert LevelValues(game, (board, [0]), actions_left).value(board, [0], actions_left) == pytest.approx(said)
            won, total = exact_play(game, (board, [0]), actions_left, script_of(solution))
            assert (total, sum(won)) == pytest.approx(said)
        if means[0] != pytest.approx(means[1]):
            assert solution.action(board, [0], 1) == int(means[1] > means[0])


@pytest.mark.parametrize(
    "game",
    [
        Bandit(pulls=4),
        Bandit(low=0.25),
        Bandit(low=-1.0, high=-0.5, high_prob=1.0),
        BanditRev(pulls=2, high_prob=0.0),
        BanditRev(names=(("A b", "Ä"), ("c", "d"))),
    ],
    ids=str,
)
def test_the_game_keeps_the_suites_promises(game: Bandit) -> None:
    check_game(game, examples=25, actions=5)


@given(st.integers(0, 2**70), st.integers(0, 2**70))
def test_the_reward_stream_pays(seed: int, noise_seed: int) -> None:
    """The draws are those of the documented stream, of the seed or of the noise's own."""
    env = StepEnv("Bandit", pulls=12)
    for key, options in ((seed, None), (noise_seed, {"noise_seed": noise_seed})):
        env.reset(seed=seed, options=options)
        risky = int(env.action_names[0] in LOW_ARMS)
        draws = uniforms(episode_keys(stream_key(key, Stream.REWARD), 0, 1), 0, 12)[0]
        assert [env.step(risky)[1] for _ in draws] == [float(u < 0.25) for u in draws]


def test_pairs_and_orders_are_drawn_uniformly() -> None:
    for split, count in (("train", 10), ("validation", 2), ("test", 8), (None, 20)):
        boards = Bandit().generate(episode_keys(5, 0, 400 * count), split)
        counts = Counter(map(bytes, boards))
        assert len(counts) == 2 * count
        chi_square = sum((seen - 200) ** 2 / 200 for seen in counts.values())
        freedom = 2 * count - 1
        assert chi_square < freedom + 3.3 * (2 * freedom) ** 0.5 + 6


def test_reversed_bandits_have_the_same_names_and_other_levels() -> None:
    one, other = StepEnv("Bandit"), StepEnv("BanditRev")
    (text, info), (text_rev, info_rev) = one.reset(seed=8), other.reset(seed=8)
    assert text == text_rev
    assert info["level_id"] != info_rev["level_id"]
    assert one.oracle_action(1) == 1 - other.oracle_action(1)


def test_names_of_ones_own() -> None:
    env = StepEnv("Bandit", names=[("steady", "wild"), ("calm", "rash")], pulls=3)
    seen = {env.reset(seed=seed)[0] for seed in range(40)}
    assert seen == {"steady\nwild", "wild\nsteady", "calm\nrash", "rash\ncalm"}
    assert env.game.split_of(env.state[0]) is None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"low": "little"}, r"Bandit: low='little' must be a number\."),
        ({"high": float("inf")}, r"Bandit: high=inf must be a number\."),
        ({"high_prob": 1.01}, r"Bandit: high_prob=1.01 must be a number from 0 to 1\."),
        ({"high_prob": None}, r"Bandit: high_prob=None must be a number from 0 to 1\."),
        ({"pulls": 0}, r"Bandit: pulls=0 must be an integer from 1 to 2147483647\."),
        ({"names": 3}, r"names must be 1 to 100 pairs \(low, high\) of distinct names; got 3"),
        ({"names": [("a",)]}, r"names must be 1 to 100 pairs"),
        ({"names": [("a", "b"), ("c", "A")]}, r"pairs \(low, high\) of distinct names"),
        ({"names": [("a", "b|c")]}, r"'b\|c' cannot name an arm: use printable characters but <, >, \| and ;\."),
        ({"names": [("a", " b")]}, r"' b' cannot name an arm: use printable characters"),
        ({"names": [("a", "")]}, r"'' cannot name an arm: use printable characters"),
        ({"names": [(1, 2)]}, r"1 cannot name an arm"),
    ],
)
def test_bad_options(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bandit(**kwargs)


@pytest.mark.parametrize("text", ["", "Teacher", "Teacher\nNurse", "Teacher\nTeacher", "teacher\nTrader", "a\nb\nc"])
def test_what_is_not_a_pair_of_arms(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a pair of arms; write for example Teacher\\nTrader"):
        Bandit().board(text)


def test_what_a_bandit_has_no_use_for() -> None:
    with pytest.raises(ValueError, match="names= chooses the arms itself; give split=None, or leave names out"):
        StepEnv("Bandit", names=[("a", "b")], split="train").reset(seed=0)
    with pytest.raises(ValueError, match="text_format='coord' does not fit arms; leave it at 'grid'"):
        StepEnv("Bandit", text_format="coord")
    from ragen_gym.core.text import Vocabulary

    with pytest.raises(ValueError, match="arms are written by name; leave out vocabulary 'mine'"):
        StepEnv("Bandit", vocabulary=Vocabulary("mine", "ab"))
