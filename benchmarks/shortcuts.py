"""Scripts that solve lakes without planning, by size of the lake: ``python -m benchmarks.shortcuts``.

Two walkers that look one move ahead, and a copy of the nearest level. A success rate shows planning only where it lies
above what these reach on the same levels. The lakes do not slip.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks import markdown_table, page_parser
from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.run.evaluation import evaluated_levels
from ragen_agent.sft.demonstrations import chunks
from ragen_agent.tasks.tasks import make_env
from ragen_agent.tokens.rollout import Instance
from ragen_gym.core.stats import Rate, percent, wilson
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.text import EDGE
from ragen_gym.envs.policies import random_value
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.game import PLAYING, SUCCESS

SPLIT = "train"
COPIES = 20  # equally near levels that are tried at most
LAKES = (  # size, chance of ice, least moves, budget of moves
    (4, 0.8, 3, 10),
    (4, 0.8, 6, 10),
    (5, 0.8, 6, 10),
    (6, 0.8, 6, 15),
    (6, 0.8, 8, 15),
    (6, 0.6, 12, 15),
    (8, 0.6, 14, 20),
)

COLUMNS = (
    *("lakes", "ice", "shortest path", "moves", "walker", "forward walker", "nearest", "one cell apart"),
    *("random", "optimal"),
)

PAGE = """\
# Scripts that solve lakes without planning

Written by `python -m benchmarks.shortcuts`. Success in % on {levels} test lakes that the blind script loses and that do
not slip; 95 % intervals reach at most {half:.1f} points to each side. A *walker* steps on the neighbouring ice
nearest to the goal, one of several at random; the *forward walker* does not return to where it came from while there
is another way. *Nearest* plays the shortest path of the training lake that differs in the fewest cells, of
{episodes:,}, rotated or reflected; *one cell apart* is the share of test lakes that differ from one of these in a
single cell. No test lake is a rotation, a reflection or the way back of a training lake. Random and optimal play are
computed within the same number of moves. Fifteen moves are three turns of five: a run of two turns plays at most ten,
so compare it with scripts of ten moves.

{table}

**No model of these pages is shown to be above these scripts.** On 6x6 lakes with paths of twelve moves or more, a
model of 0.42M parameters imitated 11,000 faultless demonstrations, nine minutes on one core with one seed. It solves
1.0 % (0.4 to 2.3) of 512 test lakes, the forward walker 27.4 (23.7 to 31.4) and a copy of the nearest of its 11,000
lakes 16.0 (13.1 to 19.4). Reinforcement was not tried from there. Those figures were written down by hand; the run
was

```sh
ragen-agent train --recipe small-beyond-blind --set env_options.size=6 --set env_options.frozen_prob=0.6 \\
  --set env_options.min_path=12 --set turns.max_turns=3 --set turns.max_actions=15 --set small_model.hidden=96 \\
  --set small_model.feed_forward=288 --set demonstrations.episodes=11000 \\
  --set "demonstrations.moves=[0,0,0,0,1]" --set training.iterations=0
```
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and writes the page; 0."""
    parser = page_parser("shortcuts", __doc__)
    parser.add_argument("--levels", type=int, default=512, help="test lakes of each size (default: 512)")
    parser.add_argument("--episodes", type=int, default=24_000, help="training lakes (default: 24000)")
    options = parser.parse_args(argv)
    rows = []
    for size, ice, moves, budget in LAKES:
        settings = {
            "env_options": {"size": size, "frozen_prob": ice, "min_path": moves, "beyond_blind": True},
            "turns": {"max_actions": budget},
            "demonstrations": {"episodes": options.episodes},
            "evaluation": {"levels": options.levels},
        }
        config = with_settings(Config(), merged(default_settings("FrozenLake"), settings))
        rates = [rate.rate for rate in shortcuts(config).values()] + _references(config)
        rows.append([f"{size}x{size}", percent(ice), f"{moves} or more", f"{budget}", *map(percent, rates)])
    half = 196 * (0.25 / options.levels) ** 0.5
    table = markdown_table(COLUMNS, rows)
    page = PAGE.format(levels=options.levels, episodes=options.episodes, half=half, table=table)
    write_atomic(options.out / "shortcuts.md", page)
    print(page)
    return 0


def applies(config: Config) -> bool:
    """True for a run on square lakes that do not slip and that the blind script loses."""
    env = make_env(config, SPLIT)
    if not isinstance(env, TurnEnv) or not isinstance(game := env.game, FrozenLake):
        return False
    return game.beyond_blind and not game.stochastic and game.height == game.width


def shortcuts(config: Config) -> dict[str, Rate]:
    """The rate of each script on the levels that a run is measured on.

    ``walker`` and ``forward_walker``: see ``walked``. ``nearest``: see ``copied``, of the levels of the demonstrations.
    ``one_cell``: no script, but the share of levels that differ from one of those in a single cell.
    """
    env, starts = _starts(*evaluated_levels(config))
    assert isinstance(env.game, FrozenLake)
    game, budget, boards = env.game, env.config.max_actions, [*starts]
    shown = demonstrated(config)
    rates = {
        "walker": [walked(game, board, budget, forward=False) for board in boards],
        "forward_walker": [walked(game, board, budget, forward=True) for board in boards],
        "nearest": [copied(game, board, shown, budget) for board in boards],
        "one_cell": [float(differences(board, shown).min() == 1) for board in boards],
    }
    return {name: wilson(sum(chances), len(chances)) for name, chances in rates.items()}


def walked(game: FrozenLake, board: bytes, budget: int, *, forward: bool) -> float:
    """Chance that a walker reaches the goal within ``budget`` moves.

    It steps on the neighbouring cell without a hole that is nearest to the goal, counted in rows and columns; of
    several it draws one. If ``forward`` it does not return to the cell that it comes from while there is another.
    """
    goal, start = board.index(game.Tile.GOAL), board.index(game.Tile.PLAYER)
    near = {cell: _neighbours(game, board, cell) for cell in range(len(board)) if board[cell] != EDGE}
    here, reached = {(start, start): 1.0}, 0.0
    for _ in range(budget):
        there: dict[tuple[int, int], float] = defaultdict(float)
        for (cell, before), weight in here.items():
            choice = [each for each in near[cell] if not forward or each != before] or near[cell]
            least = min(_distance(game, each, goal) for each in choice)
            choice = [each for each in choice if _distance(game, each, goal) == least]
            for each in choice:
                there[each, cell] += weight / len(choice)
        reached += sum(weight for (cell, _), weight in there.items() if cell == goal)
        here = {place: weight for place, weight in there.items() if place[0] != goal}
    return reached


def _starts(env: ReplyEnv, instances: Iterable[Instance]) -> tuple[TurnEnv, Iterator[bytes]]:
    """The environment, and the board of each level, on which it stands then."""
    assert isinstance(env, TurnEnv)

    def boards() -> Iterator[bytes]:
        for instance in instances:
            env.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
            yield bytes(env.env.state[0])

    return env, boards()


def _references(config: Config) -> list[float]:
    """Success of random and of optimal play within ``turns.max_actions``, computed."""
    moves = config.turns.max_actions
    env, starts = _starts(*evaluated_levels(config))
    found = [(random_value(env.env, moves)[0], env.solution().success(*env.env.state, moves)) for _ in starts]
    return [float(rate) for rate in np.mean(found, 0)]


def demonstrated(config: Config) -> NDArray[np.uint8]:
    """The boards of a run's demonstrations in all rotations and reflections, each once, uint8 (n, rows, columns)."""
    instances = (instance for chunk in chunks(config, config.demonstrations) for instance in chunk.instances)
    boards = set(_starts(make_env(config, SPLIT), instances)[1])
    lakes = np.stack([_cells(board) for board in sorted(boards)])
    turned = [np.rot90(each, turns, (1, 2)) for each in (lakes, lakes[:, :, ::-1]) for turns in range(4)]
    return np.unique(np.concatenate(turned), axis=0)


def copied(game: FrozenLake, board: bytes, shown: NDArray[np.uint8], budget: int) -> float:
    """Share of the nearest levels whose shortest path, played on this board, reaches the goal within ``budget`` moves.

    The nearest of ``shown``, uint8 (n, rows, columns), differ in the fewest cells; the first ``COPIES`` are tried.
    """
    apart = differences(board, shown)
    nearest = shown[np.flatnonzero(apart == apart.min())[:COPIES]]
    return float(np.mean([_plays(game, board, _path(game, _board(lake), budget)) for lake in nearest]))


def differences(board: bytes, shown: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Cells in which each of ``shown``, uint8 (n, rows, columns), differs from a board, int64 (n,)."""
    return np.asarray((shown != _cells(board)).sum((1, 2)), np.int64)


def _path(game: FrozenLake, board: bytes, budget: int) -> Iterator[int]:
    """The moves of a shortest path."""
    solution, cells, state = game.solve(board), bytearray(board), [board.index(game.Tile.PLAYER)]
    for left in range(budget, 0, -1):
        yield (action := solution.action(cells, state, left))
        if game.rule(cells, state, action, 0.0, game.params)[1] != PLAYING:
            return


def _plays(game: FrozenLake, board: bytes, moves: Iterator[int]) -> bool:
    cells, state, outcome = bytearray(board), [board.index(game.Tile.PLAYER)], PLAYING
    for action in moves:
        if outcome == PLAYING:
            outcome = game.rule(cells, state, action, 0.0, game.params)[1]
    return outcome == SUCCESS


def _neighbours(game: FrozenLake, board: bytes, cell: int) -> list[int]:
    targets = [game.params[0][12 * cell + 3 * action] for action in game.Action]
    return [each for each in targets if each != cell and board[each] != game.Tile.HOLE]


def _distance(game: FrozenLake, cell: int, goal: int) -> int:
    (row, column), (goal_row, goal_column) = divmod(cell, game.width + 1), divmod(goal, game.width + 1)
    return abs(row - goal_row) + abs(column - goal_column)


def _cells(board: bytes) -> NDArray[np.uint8]:
    """A board as uint8 (rows, columns)."""
    return np.stack([np.frombuffer(row, np.uint8) for row in board.split(bytes([EDGE]))])


def _board(lake: NDArray[np.uint8]) -> bytes:
    return bytes([EDGE]).join(row.tobytes() for row in lake)


if __name__ == "__main__":
    raise SystemExit(main())
