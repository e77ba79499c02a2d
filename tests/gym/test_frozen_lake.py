"""FrozenLake: its rule against a slow one and Gymnasium's, its slip law, its generator's law, its oracle."""

from __future__ import annotations

from collections import Counter, deque
from itertools import product
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.error import ResetNeeded
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ragen_gym.envs.step import StepEnv
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.seeding import Stream, episode_keys, stream_key, uniforms
from ragen_gym.testing import Search, TooLarge, check_game, games, intervals, states

Action = FrozenLake.Action
CLOCKWISE = ("Up", "Right", "Down", "Left")
COMPASS = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}

OPEN = "_____\n_____\n__P__\n_____\n____G"


class SlowLake:
    """The rules once more, with a dictionary of places and the directions of a compass."""

    def __init__(self, text: str, success_rate: float) -> None:
        self.cells = {(r, c): symbol for r, row in enumerate(text.split("\n")) for c, symbol in enumerate(row)}
        self.player = next(place for place, symbol in self.cells.items() if symbol == "P")
        self.cells[self.player] = "_"
        self.success_rate = success_rate
        self.moves = 0

    def step(self, name: str, u: float) -> tuple[float, bool, bool]:
        """(reward, terminated, success)."""
        turn = 0 if u < self.success_rate else -1 if u < (1 + self.success_rate) / 2 else 1
        down, right = COMPASS[CLOCKWISE[(CLOCKWISE.index(name) + turn) % 4]]
        target = self.player[0] + down, self.player[1] + right
        if target in self.cells:
            self.player = target
        self.moves += 1
        here = self.cells[self.player]
        return float(here == "G"), here in "GO", here == "G"

    def text(self) -> str:
        rows, columns = (1 + max(axis) for axis in zip(*self.cells, strict=True))
        shown = {**self.cells, self.player: {"_": "P", "O": "X", "G": "√"}[self.cells[self.player]]}
        return "\n".join("".join(shown[r, c] for c in range(columns)) for r in range(rows))


class LakeMachine(RuleBasedStateMachine):
    """Drives the environment and the slow lake with the same draws, which the documented stream gives."""

    @initialize(
        seed=st.integers(0, 2**70),
        noise_seed=st.integers(0, 2**70),
        success_rate=st.sampled_from([0.0, 1 / 3, 0.5, 0.8, 1.0]),
        shape=st.tuples(st.integers(2, 5), st.integers(2, 5)),
    )
    def start(self, seed: int, noise_seed: int, success_rate: float, shape: tuple[int, int]) -> None:
        height, width = shape
        self.env = StepEnv("FrozenLake", height=height, width=width, success_rate=success_rate)
        text, info = self.env.reset(seed=seed, options={"noise_seed": noise_seed})
        self.slow = SlowLake(text, success_rate)
        self.key = episode_keys(stream_key(noise_seed, Stream.DYNAMICS), 0, 1)
        self.level_id = info["level_id"]
        self.over = False

    @precondition(lambda self: not self.over)
    @rule(action=st.sampled_from(list(Action)))
    def move(self, action: Any) -> None:
        u = float(uniforms(self.key, self.slow.moves, 1)[0, 0])
        reward, self.over, success = self.slow.step(action.name.capitalize(), u)
        text, got, terminated, truncated, info = self.env.step(int(action))
        assert (text, got, terminated, info["success"]) == (self.slow.text(), reward, self.over, success)
        assert not truncated
        assert info["level_id"] == self.level_id

    @precondition(lambda self: self.over)
    @rule(action=st.sampled_from(list(Action)))
    def end(self, action: Any) -> None:
        with pytest.raises(ResetNeeded):
            self.env.step(int(action))
        assert self.env.text == self.slow.text()


TestLakeMachine = LakeMachine.TestCase
TestLakeMachine.settings = settings(settings(), max_examples=60, stateful_step_count=25)


@pytest.mark.parametrize(
    "knobs",
    [
        {"success_rate": 1.0},
        {"success_rate": 0.0, "frozen_prob": 0.5},
        {"size": 2},
        {"height": 2, "width": 6, "success_rate": 0.98},
        {"height": 5, "width": 3, "random_start": False, "min_path": 7},
        {"size": 12, "success_rate": 0.8},
    ],
    ids=str,
)
def test_the_game_keeps_the_suites_promises(knobs: dict[str, Any]) -> None:
    check_game(FrozenLake(**knobs), examples=25, actions=8)


@given(
    games(FrozenLake).flatmap(lambda game: st.tuples(st.just(game), states(game))),
    st.sampled_from(list(Action)),
    st.floats(0, 1, exclude_max=True),
)
def test_one_move_against_the_slow_lake(drawn: tuple[Any, Any], action: Any, u: float) -> None:
    game, (before, integers) = drawn
    slow = SlowLake(game.own_text(before), game.success_rate)
    board, state = bytearray(before), list(integers)
    reward, outcome = game.rule(board, state, int(action), u, game.params)
    assert (reward, outcome > 0, outcome == 2) == slow.step(action.name.capitalize(), u)
    assert game.own_text(board) == slow.text()


@pytest.mark.parametrize("success_rate", [0.0, 1 / 3, 0.5, 0.8, 0.98, 1.0])
@pytest.mark.parametrize("text", [OPEN, "P_O__\n_O___\nO____\n_____\n____G"])
def test_chances_are_gymnasiums(text: str, success_rate: float) -> None:
    """The law of every move from every place, against Gymnasium's own table of it."""
    letters = str.maketrans("_OGP", "FHGS")
    desc = text.translate(letters).split("\n")
    reference = FrozenLakeEnv(desc=desc, is_slippery=True, success_rate=success_rate)
    game = FrozenLake(size=5, success_rate=success_rate)
    for place in range(25):
        cells = text.replace("P", "_").replace("\n", "")
        if cells[place] != "_":
            continue
        cells = cells[:place] + "P" + cells[place + 1 :]
        board = game.parse("\n".join(cells[i : i + 5] for i in range(0, 25, 5)))
        state = game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist()
        for action in Action:
            expected: Counter[tuple[int, float, bool]] = Counter()
            for chance, target, reward, over in reference.P[place][int(action)]:
                expected[int(target), float(reward), bool(over)] += chance
            got: Counter[tuple[int, float, bool]] = Counter()
            for chance, (_, (cell,), reward, outcome) in Search(game).outcomes(board, state, action):
                got[cell // 6 * 5 + cell % 6, reward, outcome > 0] += chance  # type: ignore[assignment]
            assert {k: v for k, v in got.items() if v} == pytest.approx({k: v for k, v in expected.items() if v})


@pytest.mark.parametrize("success_rate", [0.0, 0.1, 1 / 3, 0.8, 0.98, 1.0])
def test_the_slip_law_exactly(success_rate: float) -> None:
    """Up goes up with ``success_rate`` and to each side with half of the rest."""
    game = FrozenLake(size=5, success_rate=success_rate)
    board = game.parse(OPEN)
    state = [board.index(game.Tile.PLAYER)]
    chances: dict[int, float] = {}
    for chance, (_, (cell,), _, _) in Search(game).outcomes(board, state, Action.UP):
        chances[cell - state[0]] = chances.get(cell - state[0], 0) + chance
    aside = (1 - success_rate) / 2
    law = {-6: success_rate, -1: aside, 1: aside}
    assert {k: v for k, v in chances.items() if v} == pytest.approx({k: v for k, v in law.items() if v})
    assert sum(chance for chance, _ in intervals(game)) == pytest.approx(1)


@pytest.mark.parametrize("success_rate", [1 / 3, 0.8])
def test_the_slip_law_in_play(success_rate: float) -> None:
    """Real draws: 25 moves up of each of 300 members of a group, in the middle of a lake too large to leave."""
    rows = [["_"] * 61 for _ in range(61)]
    rows[30][30], rows[0][0] = "P", "G"
    level = "\n".join(map("".join, rows))
    env = StepEnv("FrozenLake", size=61, success_rate=success_rate, observation="grid")
    ways = np.empty((300, 25), np.int64)
    for noise_seed in range(300):
        env.reset(seed=0, options={"level": level, "noise_seed": noise_seed})
        for move in range(25):
            before = env.state[1][0]
            env.step(int(Action.UP))
            ways[noise_seed, move] = [-62, -1, 1].index(env.state[1][0] - before)
    law = np.array([success_rate, (1 - success_rate) / 2, (1 - success_rate) / 2])
    counts = np.bincount(ways.ravel(), minlength=3)
    assert ((counts - ways.size * law) ** 2 / (ways.size * law)).sum() < 13.8, counts  # 2 degrees, one in a thousand
    for lag in (1, 5, 10, 20):
        pairs = np.bincount((3 * ways[:, lag:] + ways[:, :-lag]).ravel(), minlength=9)
        expected = pairs.sum() * np.outer(law, law).ravel()
        assert ((pairs - expected) ** 2 / expected).sum() < 26.1, (lag, pairs)  # 8 degrees, one in a thousand


def test_a_group_shares_the_lake_and_not_the_ice() -> None:
    env = StepEnv("FrozenLake")
    levels, ends = set(), set()
    for noise_seed in range(32):
        _, info = env.reset(seed=12, options={"noise_seed": noise_seed})
        levels.add(info["level_id"])
        steps = [env.step(0)[0], None if env.game.over(env.state[0]) else env.step(1)[0]]
        ends.add(tuple(steps))
    assert len(levels) == 1
    assert len(ends) > 3


def bfs(text: str) -> int:
    """Moves on a shortest path from the player to the goal, or -1."""
    lake = SlowLake(text, 1.0)
    distance = {lake.player: 0}
    queue = deque([lake.player])
    while queue:
        row, column = place = queue.popleft()
        if lake.cells[place] == "G":
            return distance[place]
        for down, right in COMPASS.values():
            target = row + down, column + right
            if lake.cells.get(target, "O") != "O" and target not in distance:
                distance[target] = distance[place] + 1
                queue.append(target)
    return -1


def lakes(game: FrozenLake, count: int, split: str | None = None, key: int = 0) -> list[str]:
    return [game.own_text(bytes(board)) for board in game.generate(episode_keys(key, 0, count), split)]


@pytest.mark.parametrize("random_start", [True, False])
@pytest.mark.parametrize("min_path", [1, 3])
def test_the_generators_law_exactly(random_start: bool, min_path: int) -> None:
    """Small lakes come as often as they should: every start, goal and ice, given that the path is long enough."""
    p, count = 0.6, 20_000
    game = FrozenLake(height=2, width=3, frozen_prob=p, min_path=min_path, random_start=random_start)
    law: dict[str, float] = {}
    for start, goal in product(range(6), repeat=2):
        if start == goal or (not random_start and (start, goal) != (0, 5)):
            continue
        for ice in product("_O", repeat=4):
            cells = list(ice)
            for place, symbol in sorted([(start, "P"), (goal, "G")]):
                cells.insert(place, symbol)
            text = "".join(cells[:3]) + "\n" + "".join(cells[3:])
            if bfs(text) >= min_path:
                law[text] = p ** ice.count("_") * (1 - p) ** ice.count("O")
    counts = Counter(lakes(game, count))
    assert set(counts) <= set(law)
    expected = {text: count * weight / sum(law.values()) for text, weight in law.items()}
    assert min(expected.values()) > 5
    chi_square = sum((counts[text] - mean) ** 2 / mean for text, mean in expected.items())
    freedom = len(law) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5 + 5


@pytest.mark.parametrize(("height", "width", "frozen_prob"), [(4, 4, 0.8), (8, 8, 0.7), (9, 8, 0.7), (3, 30, 0.9)])
def test_the_generators_law_against_a_slow_generator(height: int, width: int, frozen_prob: float) -> None:
    """Holes and paths as numpy's generator and a search over a dictionary give them; 8x8 is 64 cells, 9x8 more."""
    game = FrozenLake(height=height, width=width, frozen_prob=frozen_prob, min_path=2)
    rng = np.random.default_rng(0)
    slow: list[str] = []
    while len(slow) < 1500:
        cells = np.where(rng.random(height * width) < frozen_prob, "_", "O")
        start, goal = rng.choice(height * width, 2, replace=False)
        cells[start], cells[goal] = "P", "G"
        text = "\n".join("".join(row) for row in cells.reshape(height, width))
        if bfs(text) >= 2:
            slow.append(text)
    fast = lakes(game, 1500)
    for measure in (bfs, lambda text: text.count("O"), lambda text: text.index("P"), lambda text: text.index("G")):
        ours, theirs = ([float(measure(text)) for text in texts] for texts in (fast, slow))
        error = np.hypot(np.std(ours), np.std(theirs)) / 1500**0.5
        assert abs(np.mean(ours) - np.mean(theirs)) < 3.5 * error
        assert np.std(ours) == pytest.approx(np.std(theirs), rel=0.1)
    holes = np.array([[cell == "O" for cell in text.replace("\n", "")] for text in fast], float)
    near = np.corrcoef(holes[:, :-1].ravel(), holes[:, 1:].ravel())[0, 1]
    reference = np.array([[cell == "O" for cell in text.replace("\n", "")] for text in slow], float)
    assert abs(near - np.corrcoef(reference[:, :-1].ravel(), reference[:, 1:].ravel())[0, 1]) < 0.05


@given(games(FrozenLake), st.sampled_from(["train", "validation", "test", None]), st.integers(0, 2**64 - 1))
@settings(max_examples=30)
def test_generated_lakes_meet_their_knobs(game: FrozenLake, split: str | None, key: int) -> None:
    try:
        texts = lakes(game, 8, split, key)
    except ValueError:
        assume(False)
    for text in texts:
        assert bfs(text) >= game.min_path
        rows = text.split("\n")
        assert (len(rows), {len(row) for row in rows}) == (game.height, {game.width})
        if not game.random_start:
            assert (text[0], text[-1]) == ("P", "G")
        if game.frozen_prob == 1:
            assert "O" not in text


def test_every_start_and_goal_is_as_likely() -> None:
    game = FrozenLake(size=3, frozen_prob=1.0)
    counts = Counter(
        (text.replace("\n", "").index("P"), text.replace("\n", "").index("G")) for text in lakes(game, 7200)
    )
    assert len(counts) == 72
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 112.3  # 71 degrees, one in a thousand


@given(games(FrozenLake).flatmap(lambda game: st.tuples(st.just(game), states(game))), st.integers(1, 8))
@settings(max_examples=25)
def test_the_oracle_against_trying_everything(drawn: tuple[Any, Any], actions_left: int) -> None:
    game, (board, state) = drawn
    solution, search = game.solve(board), Search(game, 20_000)
    said = solution.success(board, state, actions_left), solution.expected_return(board, state, actions_left)
    try:
        assert search.best(board, state, actions_left) == pytest.approx(said)
        assert search.value(board, state, actions_left, solution.action) == pytest.approx(said)
    except TooLarge:
        return


@pytest.mark.parametrize("success_rate", [1 / 3, 0.8, 1.0])
def test_the_oracle_against_value_iteration_over_gymnasiums_table(success_rate: float) -> None:
    game = FrozenLake(success_rate=success_rate)
    for board in game.generate(episode_keys(9, 0, 5), None):
        text = game.own_text(bytes(board))
        desc = text.translate(str.maketrans("_OGP", "FHGS")).split("\n")
        table = FrozenLakeEnv(desc=desc, is_slippery=True, success_rate=success_rate).P
        value = np.zeros(16)
        start = text.replace("\n", "").index("P")
        solution, state = game.solve(bytes(board)), [text.index("P")]
        for actions_left in range(1, 41):
            value = np.array(
                [
                    max(sum(p * (r + value[t] * (not over)) for p, t, r, over in table[s][a]) for a in range(4))
                    for s in range(16)
                ]
            )
            assert solution.success(bytes(board), state, actions_left) == pytest.approx(value[start])


@given(games(FrozenLake, success_rate=st.just(1.0)).flatmap(lambda game: st.tuples(st.just(game), states(game, 4))))
def test_on_firm_ice_the_plan_is_a_shortest_path(drawn: tuple[Any, Any]) -> None:
    game, (board, state) = drawn
    distance = bfs(game.own_text(board))
    solution = game.solve(board)
    assert solution.success(board, state, distance) == 1
    assert solution.success(board, state, distance - 1) == 0
    now, integers, outcome, moves = bytearray(board), list(state), 0, 0
    while not outcome:
        action = solution.action(bytes(now), integers, distance + 3 - moves)
        _, outcome = game.rule(now, integers, action, 0.5, game.params)
        moves += 1
    assert (outcome, moves) == (2, distance)


def test_without_a_chance_it_walks_towards_the_goal() -> None:
    game = FrozenLake(success_rate=1.0)
    board = game.parse("P___\nOOO_\n____\n___G")
    assert game.solve(board).action(board, [0], 2) == Action.RIGHT
    assert game.solve(board).success(board, [0], 2) == 0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"size": 1}, r"FrozenLake: height=1 must be an integer from 2 to 64\."),
        ({"height": 65}, r"height=65 must be an integer from 2 to 64\."),
        ({"width": 4.0}, r"width=4.0 must be an integer from 2 to 64\."),
        ({"size": "4"}, r"height='4' must be an integer"),
        ({"size": 4, "height": 5}, r"size=4 and height=5 disagree; leave one out\."),
        ({"frozen_prob": 1.5}, r"frozen_prob=1.5 must be a number from 0 to 1\."),
        ({"frozen_prob": "much"}, r"frozen_prob='much' must be a number from 0 to 1\."),
        ({"success_rate": -0.1}, r"success_rate=-0.1 must be a number from 0 to 1\."),
        ({"success_rate": float("nan")}, r"success_rate=nan must be a number from 0 to 1\."),
        ({"success_rate": None}, r"success_rate=None must be a number from 0 to 1\."),
        ({"min_path": 0}, r"min_path=0 must be an integer from 1 to 15\."),
        ({"min_path": 16}, r"min_path=16 must be an integer from 1 to 15\."),
        ({"min_path": 2.5}, r"min_path=2.5 must be an integer from 1 to 15\."),
        ({"random_start": "no"}, r"random_start='no' must be True or False\."),
    ],
)
def test_bad_knobs(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrozenLake(**knobs)


def test_knobs_that_no_lake_meets() -> None:
    """Within a bounded number of draws, an error with every knob that has a part in it."""
    game = FrozenLake(frozen_prob=0.1, min_path=12, random_start=False)
    with pytest.raises(ValueError, match="FrozenLake: no level in") as error:
        game.generate(episode_keys(0, 0, 1), "test")
    for knob in ("min_path=12", "height=4", "width=4", "frozen_prob=0.1", "random_start=False", "split='test'"):
        assert knob in str(error.value)
