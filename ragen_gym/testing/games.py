"""``check_game``: the promises of the ``Game`` interface, tested on a game."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from enum import IntEnum
from functools import cache, partial
from inspect import get_annotations, getattr_static
from itertools import combinations, pairwise, product
from math import isclose, isnan, log, sqrt
from typing import Any, TypeVar, get_args

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from ragen_gym.core.levels import SPLITS, Level
from ragen_gym.core.seeding import Stream, episode_keys, stream_key
from ragen_gym.core.stats import binomial_tail
from ragen_gym.core.text import TextFormat, Vocabulary
from ragen_gym.games.game import OVER, PLAYING, SUCCESS, Game, Solution
from ragen_gym.games.grid import GridGame
from ragen_gym.games.values import LevelValues, exact_play, script_of
from ragen_gym.testing.strategies import Play, first_state, plays

T = TypeVar("T")

_NEEDED = {
    "name": "the name of its id, a string",
    "Action": "an IntEnum of the actions",
    "Tile": "an IntEnum of what a cell shows",
    "noise": "Stream.DYNAMICS or Stream.REWARD",
    "rule": "staticmethod(your_rule)",
    "vocabularies": "a dict of ragen_gym.core.text.Vocabulary by name",
    "description": "a paragraph for the player",
}


def _check_declared(game: Game) -> None:
    own = type(game).__name__
    if isinstance(game, type):
        raise AssertionError(f"{game.__name__} is a class: give a game, such as {game.__name__}().")
    for member, what in _NEEDED.items():
        require(hasattr(game, member), f"{own} has no `{member}`: give it {what}.")
    _check_dataclass(type(game))
    for function in ("rule", "legal", "blind"):
        kept = getattr_static(game, function)
        require(
            kept is None or isinstance(kept, staticmethod),
            f"{own}.{function} is a plain function, which would be handed the game as its first argument: write "
            f"`{function} = staticmethod(…)`.",
        )
    for what, codes in (("Action", game.Action), ("Tile", game.Tile)):
        require(
            isinstance(codes, type) and issubclass(codes, IntEnum) and [*map(int, codes)] == list(range(len(codes))),
            f"{own}.{what} must be an IntEnum that counts from 0, such as A, B = range(2); it is {list(codes)}.",
        )
    _check_vocabularies(game)
    require(game.layout in ("grid", "arms", "text"), f"{own}.layout is {game.layout!r}; it must be grid, arms or text.")
    for tiles in ("player_tiles", "goal_tiles", "box_tiles", "target_tiles"):
        unknown = sorted(set(getattr(game, tiles)) - set(game.Tile))
        require(not unknown, f"{own}.{tiles} holds {unknown}, which {own}.Tile does not have.")
    params: Any = game.params
    require(
        isinstance(params, tuple | list | array | np.ndarray),
        f"{own}.params is a {type(params).__name__}; it must be a tuple of numbers, or an array.array.",
    )


def _check_dataclass(cls: type[Game]) -> None:
    """An option is an annotation of a dataclass; without the decorator it would silently be none."""
    declared = [
        name for name, kind in get_annotations(cls).items() if "ClassVar" not in str(kind) and name not in dir(Game)
    ]
    require(
        is_dataclass(cls) and (not declared or "__dataclass_fields__" in cls.__dict__),
        f"{cls.__name__} declares {', '.join(declared) or 'options'} and is not a dataclass of its own, so they are no "
        "options: put @dataclass(frozen=True) above the class.",
    )


def _check_vocabularies(game: Game) -> None:
    """A symbol for each tile, or none at all where the game writes its boards in its own way."""
    own, tiles = type(game).__name__, [tile.name for tile in game.Tile]
    require(game.vocabularies, f"{own}.vocabularies is empty: give it one in which levels are written.")
    for name, vocabulary in game.vocabularies.items():
        require(
            len(vocabulary.symbols) in (0, len(tiles)),
            f"{own}: vocabulary {name!r} has {len(vocabulary.symbols)} symbols for {len(tiles)} tiles; give each one "
            f"of {', '.join(tiles)} a symbol, in that order.",
        )


def check_game(game: Game, *, examples: int = 50, actions: int = 10, max_nodes: int = 20_000) -> list[str]:
    """Check a game: generator, levels, splits, text, rule, action mask, rewards, invariants and oracle.

    The oracle plays some hundred episodes, which must succeed as often as it promises, and random play must not beat
    it. Where the game is small enough, a search through everything must give what it promises, too.

    Args:
        game: the game; with a small board the oracle is held against a search through everything.
        examples: episodes to play; a failure comes with the smallest one that shows it.
        actions: moves in an episode.
        max_nodes: states in which the oracle is followed, on each of a few levels; on a larger game that is left out.

    Returns:
        Sentences on what was not checked; ``ragen-gym check`` prints them.

    Raises:
        AssertionError: what the game does and what it should do.
    """
    _check_declared(game)
    unchecked: list[str] = []
    if game.blind is None:
        unchecked.append(
            "the blind script: the game has none, so scores stand beside random and optimal play alone; give its class "
            "`blind = staticmethod(your_function)`, a function of (board, state, params) that returns an action, "
            "straight for the goal whatever is in the way"
        )
    require(
        game.noise in (Stream.DYNAMICS, Stream.REWARD),
        f"{game.name}.noise is {game.noise!r}: it must be Stream.DYNAMICS or Stream.REWARD, or the noise would depend "
        "on the level's draws.",
    )
    _check_generator(game)
    unchecked += _check_splits(game)

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(plays(game, actions), st.integers(1, actions))
    def check_play(play: Play, actions_left: int) -> None:
        unchecked.extend(_check_episode(game, play, actions_left))

    try:
        check_play()
        for play in _oracle_plays(game, 5 * actions):
            unchecked += _check_episode(game, play, actions)
    except Flaky as error:
        raise AssertionError(
            f"{game.name}: the same episode passes and fails, so the game depends on more than its arguments: "
            f"{' '.join(map(str, getattr(error, 'exceptions', [error])))}"
        ) from error
    if not game.has_values:
        unchecked.append(
            "the action mask, and the oracle against a search through everything: noise_in_params = False, so the "
            "chances of what an action does are not known"
        )
    written = {text_format for _, text_format in _writings(game)}
    refused = [text_format for text_format in get_args(TextFormat) if text_format not in written]
    unchecked += [f"text formats that the game does not write: {', '.join(refused)}"] * bool(refused)
    if game.has_values:
        unchecked += _check_oracle(game, actions, max_nodes)
    unchecked += _check_oracle_by_play(game, actions)
    return [*dict.fromkeys(unchecked)]


def _oracle_plays(game: Game, most: int) -> Iterator[Play]:
    """Episodes of the oracle, which come where random moves seldom do: to the goal, and next to it."""
    rng = np.random.default_rng(0)
    for board in map(bytes, game.generate(_keys(_LEVELS), None)):
        now, state, moves, outcome = bytearray(board), first_state(game, board), list[tuple[int, float]](), PLAYING
        with suppress(_NoAnswer):
            solution = _asked(game.solve, board)
            while outcome == PLAYING and len(moves) < most:
                action = _asked(_action, game, solution, bytes(now), state, most - len(moves))
                moves.append((action, float(rng.random())))
                _, outcome = game.rule(now, state, *moves[-1], game.params)
        yield Play(board, tuple(moves))


def _keys(count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return episode_keys(stream_key(0, Stream.LEVEL), 0, count)


def _check_generator(game: Game) -> None:
    keys, name = _keys(16), game.name
    boards = game.generate(keys, None)
    cells = game.cells if isinstance(game, GridGame) else boards.shape[-1] if isinstance(boards, np.ndarray) else 0
    require(
        isinstance(boards, np.ndarray) and boards.dtype == np.uint8 and boards.shape == (len(keys), cells),
        f"{name}.generate gives {_kind(boards)}; it must be uint8 ({len(keys)}, {cells or 'cells'}), one board a key.",
    )
    alone = np.concatenate([game.generate(keys[i : i + 1], None) for i in reversed(range(len(keys)))])[::-1]
    require(
        np.array_equal(boards, alone),
        f"{name}.generate: a key's board depends on other keys or earlier calls; it must depend on the key alone.",
    )
    starts = game.starts(boards)
    require(
        isinstance(starts, np.ndarray) and starts.dtype == np.int32 and starts.ndim == 2 and len(starts) == len(boards),
        f"{name}.starts gives {_kind(starts)}; it must be int32 ({len(boards)}, integers).",
    )
    ids = [game.level(bytes(board)).id for board in boards]
    require(list(game.ids(boards)) == ids, f"{name}.ids disagrees with Level.id: {game.ids(boards)} against {ids}.")


def _kind(value: Any) -> str:
    """The dtype and shape of an array, the type of anything else."""
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _check_splits(game: Game) -> list[str]:
    owners: dict[int, str] = {}
    unchecked: list[str] = []
    for split in SPLITS:
        try:
            boards = game.generate(_keys(32), split)
        except ValueError as error:  # with these options the split is empty
            unchecked.append(f"levels of split={split!r}: the game has none ({error})")
            continue
        for board in map(bytes, boards):
            text, owner, family = game.own_text(board), game.split_of(board), game.family(board)
            require(owner == split, f"{game.name}: split={split!r} gave a level that split_of calls {owner!r}:\n{text}")
            require(
                type(family) is int and 0 <= family < 2**64 and family == game.family(bytearray(board)),
                f"{game.name}.family gives {family!r}; it must be an int from 0 to 2**64 - 1 that the board decides.",
            )
            other = owners.setdefault(family, split)
            require(other == split, f"{game.name}: the family of this level is in {other!r} and in {split!r}:\n{text}")
    for board in game.generate(_keys(32), None):
        owner = game.split_of(bytes(board))
        require(owner in (*SPLITS, None), f"{game.name}.split_of gives {owner!r}, not one of {SPLITS} or None.")
    return unchecked


def _check_oracle(game: Game, actions: int, max_nodes: int) -> list[str]:
    """The oracle against the exact values: never beaten, and its own policy earns what it says."""
    boards = [*map(bytes, game.generate(_keys(2 * _LEVELS), None))]
    starts = [(board, first_state(game, board)) for board in boards]
    levels = [(start, game.solve(start[0]), LevelValues(game, start, actions)) for start in starts]
    for left, (start, solution, values) in product(range(actions + 1), levels):
        best = values.value(*start, left)
        too_large = [
            f"the oracle against a search through everything, from {left} actions on (too many states): a better "
            "policy may exist, and the promised return may be too high"
        ]
        if isnan(best.total):
            return too_large
        try:
            said = solution.expected_return(*start, left), solution.success(*start, left)
            won, total = exact_play(game, start, left, script_of(solution), max_nodes)
        except RuntimeError as error:
            return [_no_answer(error)]
        except OverflowError:
            return too_large
        label = f"{game.name}: with {left} actions the oracle promises (return, success) {said}"
        require(
            isclose(said[1], sum(won), abs_tol=CLOSE),
            f"{label}, and its own actions reach {(total, sum(won))} on\n{game.own_text(start[0])}",
        )
        require(
            np.allclose(said, best, rtol=0, atol=CLOSE),
            f"{label}, and trying everything gives {tuple(best)} on\n{game.own_text(start[0])}",
        )
        require(
            best.success == 0 or solution.winnable(*start) is not False,
            f"{game.name}: the oracle calls a level not winnable that {left} actions win:\n{game.own_text(start[0])}",
        )
    return []


CLOSE = 1e-9
#: Levels on which oracle and random play are held against the oracle's promises, and episodes on each.
_LEVELS, _EPISODES = 8, 250
#: Chance with which a right game would fail one of these comparisons. The draws are the same each time.
_ERROR = 1e-6


def _check_oracle_by_play(game: Game, actions: int) -> list[str]:
    """Episodes of the oracle and of random moves on some levels against what the oracle promises, level by level."""
    rng, boards = np.random.default_rng(0), [*map(bytes, game.generate(_keys(_LEVELS), None))]
    rewards = [value for _, value in game.rewards()]
    span = sum(max(value, 0.0) for value in rewards) - sum(min(value, 0.0) for value in rewards)  # of a move
    waits: list[str] = []  # said last: an oracle that is wrong otherwise is told so first

    def chosen(solution: Solution, board: bytes, state: Sequence[int], left: int) -> int:
        action = _asked(solution.action, board, state, left)
        if not game.action_mask(board, state)[action] and _asked(solution.success, board, state, left) > CLOSE:
            waits.append(f"with {left} actions left, {game.Action(action).name} on\n{game.own_text(board)}")
        return action

    for left, board in product(sorted({1, 2, actions, 5 * actions}), boards):
        try:
            solution, start = _asked(game.solve, board), first_state(game, board)
            success, total = (_asked(ask, board, start, left) for ask in (solution.success, solution.expected_return))
            policy = cache(partial(chosen, solution))
            n = _EPISODES if game.stochastic else 1  # one episode of a deterministic game is exact
            by_oracle = [_play(game, board, policy, left, rng) for _ in range(n)]
        except _NoAnswer as error:
            return [_no_answer(error)]
        at_random = [_play(game, board, None, left, rng) for _ in range(_EPISODES)]
        for player, episodes in (("the oracle's own moves", by_oracle), ("random moves", at_random)):
            n, solved = len(episodes), sum(won for _, won in episodes)
            wrong = binomial_tail(solved, n, success) < _ERROR
            if episodes is by_oracle:  # of random play, less is expected
                wrong |= binomial_tail(n - solved, n, 1 - success) < _ERROR
                wrong |= n == 1 and not isclose(solved, success, abs_tol=CLOSE)
            label = f"{game.name}: within {left} actions the oracle promises"
            where = f"in {n:,} episode{'s' * (n > 1)} on\n{game.own_text(board)}"
            require(
                not wrong,
                f"{label} success of {success:.3g}, and {player} succeed at a rate of {solved / n:.3g} {where}",
            )
            # Hoeffding's bound, with the range of returns of so many moves.
            room = left * span * sqrt(-log(_ERROR) / (2 * n)) if n > 1 else 0.0
            mean = sum(paid for paid, _ in episodes) / n
            require(
                mean <= total + room + CLOSE,
                f"{label} a return of at most {total:.3g}, and {player} earn {mean:.3g} each {where}",
            )
    require(
        not waits,
        f"{game.name}: the oracle plays moves that change nothing where it can still win, so demonstrations teach to "
        f"wait; among the best moves it must take one of a shortest episode: {(waits or [''])[0]}",
    )
    return []


class _NoAnswer(Exception):
    """A question that is too large for the oracle, in the oracle's words."""


def _asked(question: Callable[..., T], *arguments: Any) -> T:
    try:
        return question(*arguments)
    except (RuntimeError, ValueError) as error:
        raise _NoAnswer(str(error)) from error


def _no_answer(error: Exception) -> str:
    return f"the oracle where it gives no answer: {error}"


def _play(
    game: Game,
    board: bytes,
    policy: Callable[[bytes, tuple[int, ...], int], int] | None,
    actions: int,
    rng: np.random.Generator,
) -> tuple[float, bool]:
    """(Return, success) of an episode; None for a policy plays random moves."""
    now, state, total = bytearray(board), first_state(game, board), 0.0
    for left, u in zip(range(actions, 0, -1), rng.random(actions).tolist(), strict=True):
        action = policy(bytes(now), tuple(state), left) if policy else int(rng.integers(len(game.Action)))
        reward, outcome = game.rule(now, state, action, u, game.params)
        total += reward
        if outcome != PLAYING:
            return total, outcome == SUCCESS
    return total, False


def require(condition: Any, message: str) -> None:
    """Raise an AssertionError with this message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def _check_text(game: Game, board: bytes) -> None:
    for vocabulary, text_format in _writings(game):
        text = game.formatter(vocabulary, text_format)(board)
        label = f"{game.name}, vocabulary {vocabulary.name!r}, text_format {text_format!r}"
        read = game.parse(text, vocabulary, text_format)
        require(read == board, f"{label}: the text does not read back as its board, but as {read!r}:\n{text}")
        characters, shortest, longest = game.charset(vocabulary, text_format)
        strange = set(text) - characters
        require(not strange, f"{label}: charset lacks {sorted(strange)}:\n{text}")
        require(
            shortest <= len(text) <= longest,
            f"{label}: charset says {shortest} to {longest} characters, this text has {len(text)}:\n{text}",
        )


def _writings(game: Game) -> list[tuple[Vocabulary, TextFormat]]:
    """The vocabularies and formats that the game can write."""
    found: list[tuple[Vocabulary, TextFormat]] = []
    for vocabulary in game.vocabularies.values():
        for text_format in get_args(TextFormat):
            try:
                game.formatter(vocabulary, text_format)
            except ValueError:
                continue
            found.append((vocabulary, text_format))
    return found


def _check_episode(game: Game, play: Play, actions_left: int) -> list[str]:
    """Play an episode and hold every step of it to the interface; sentences on what was not checked."""
    level = game.level(play.board)
    read = game.board(Level(level.game, level.text))
    require(read == play.board, f"{game.name}: a level's text reads back as another board:\n{level}")
    fast, solution = _compiled(game.rule), game.solve(play.board)
    board, state, unchecked = bytearray(play.board), first_state(game, play.board), list[str]()
    conserved, outcome = game.conserved(play.board), PLAYING
    for count, (action, u) in enumerate(play.moves, 1):
        _check_text(game, bytes(board))
        _check_mask(game, bytes(board), tuple(state))
        _check_blind(game, bytes(board), state)
        try:
            _check_values(game, solution, bytes(board), tuple(state), actions_left)
        except RuntimeError as error:  # a search that ended without an answer
            unchecked.append(_no_answer(error))
        before, cells, integers = bytes(board), np.frombuffer(bytes(board), np.uint8).copy(), np.array(state, np.int32)
        middle, middle_state = bytearray(board), list(state)
        reward, outcome = game.rule(board, state, action, u, game.params)
        label = f"{game.name}: action {action} with u={u!r} on\n{game.own_text(before)}\n"
        require(
            (type(reward), type(outcome)) == (float, int) and outcome in (PLAYING, OVER, SUCCESS),
            f"{label}returns {reward!r}, {outcome!r}; it must return a float and {PLAYING}, {OVER} or {SUCCESS}.",
        )
        result = reward, outcome, bytes(board), state
        for _ in range(2):
            again, again_state = bytearray(before), integers.tolist()
            repeated = *game.rule(again, again_state, action, u, game.params), bytes(again), again_state
            require(
                repeated == result,
                f"{label}gives {result}, and then {repeated}: the rule must depend on its arguments alone.",
            )
        if game.has_values:
            part = game.noise_intervals()[bisect_right(game.noise_thresholds, u) if game.stochastic else 0]
            same = *game.rule(middle, middle_state, action, part[1], game.params), bytes(middle), middle_state
            require(
                same == result,
                f"{label}does something else than with u={part[1]!r}: a rule may compare u only with numbers in "
                "params, unless the game says noise_in_params = False, and then it has no exact values.",
            )
        try:
            batch = *fast(cells, integers, action, u, game.params), cells.tobytes(), integers.tolist()
        except Exception as error:
            hint = " Decorate each function that the rule calls with numba.extending.register_jitable."
            raise AssertionError(
                f"{game.name}: numba cannot compile the rule, or run it compiled: {error}"
                f"{hint * ('Untyped global name' in str(error))}"
            ) from error
        require(batch == result, f"{label}gives {result} as Python and {batch} compiled.")
        require(
            _is_sum(reward, game), f"{label}pays {reward!r}, which no rewards of the table add up to: {game.rewards()}."
        )
        now = game.conserved(bytes(board))
        require(now == conserved, f"{label}changes what the game conserves from {conserved} to {now}.")
        require(
            outcome != PLAYING or not game.over(board),
            f"{label}goes on, though `over` says of the new board that the game is over:\n{game.own_text(board)}",
        )
        if outcome:
            break
        require(
            game.longest is None or count < game.longest, f"{label}is move {count} and goes on; longest={game.longest}."
        )
    _check_text(game, bytes(board))
    return unchecked


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    from ragen_gym.games._jit import compiled

    return compiled(function)


def _check_blind(game: Game, board: bytes, state: Sequence[int]) -> None:
    if game.blind is None:
        return
    now, integers = bytearray(board), list(state)
    chosen = [game.blind(now, integers, game.params) for _ in range(2)]
    require(
        chosen[0] == chosen[1] and chosen[0] in set(game.Action),
        f"{game.name}.blind returns {chosen[0]!r}, then {chosen[1]!r}; it must return an action of the game, which its "
        f"arguments alone decide:\n{game.own_text(board)}",
    )
    require(
        (bytes(now), integers) == (board, list(state)),
        f"{game.name}.blind changes its arguments; it must only read them.",
    )


def _check_mask(game: Game, board: bytes, state: Sequence[int]) -> None:
    """The mask against what each action can do; for a fresh array each time."""
    mask = game.action_mask(board, state)
    require(
        isinstance(mask, np.ndarray) and mask.dtype == np.int8 and mask.shape == (len(game.Action),),
        f"{game.name}.action_mask gives {_kind(mask)}; it must be int8 ({len(game.Action)},).",
    )
    if game.has_values:
        draws = [u for _, u in game.noise_intervals()]
        truth = [any(_changes(game, board, state, action, u) for u in draws) for action in game.Action]
        require(
            mask.tolist() == [int(able) for able in truth],
            f"{game.name}.action_mask is {mask.tolist()}; the actions that can change the state are "
            f"{[int(able) for able in truth]}:\n{game.own_text(board)}",
        )
    bits = sum(int(able) << action for action, able in enumerate(mask))
    for legal in (game.legal, _compiled(game.legal)) if game.legal else ():
        said = legal(np.frombuffer(board, np.uint8), np.array(state, np.int32), game.params)
        require(said == bits, f"{game.name}.legal says {said:#b}, action_mask {bits:#b}:\n{game.own_text(board)}")
    before = mask.copy()
    mask[:] = 7
    again = 7 in game.action_mask(board, state)
    mask[:] = before
    require(not again, f"{game.name}.action_mask gives one array twice: give a fresh one.")


def _changes(game: Game, board: bytes, state: Sequence[int], action: int, u: float) -> bool:
    cells, integers = bytearray(board), list(state)
    game.rule(cells, integers, action, u, game.params)
    return (bytes(cells), integers) != (board, list(state))


def _check_values(game: Game, solution: Solution, board: bytes, state: Sequence[int], actions_left: int) -> None:
    """What holds of an oracle anywhere: its chance is one, it grows with the actions left, its action exists."""
    chances = [solution.success(board, state, left) for left in range(actions_left + 1)]
    _action(game, solution, board, state, actions_left)
    require(
        all(0 <= low <= high + CLOSE and high <= 1 + CLOSE for low, high in pairwise(chances)),
        f"{game.name}: the oracle's chance of success must grow with the actions left, within 0 and 1; "
        f"it says {chances} of\n{game.own_text(board)}",
    )
    require(
        chances[0] == 0 and isclose(solution.expected_return(board, state, 0), 0, abs_tol=CLOSE),
        f"{game.name}: with no action left there is neither success nor reward; the oracle promises (success, return) "
        f"{(chances[0], solution.expected_return(board, state, 0))} of\n{game.own_text(board)}",
    )


def _action(game: Game, solution: Solution, board: bytes, state: Sequence[int], actions_left: int) -> int:
    action = solution.action(board, state, actions_left)
    require(action in set(game.Action), f"{game.name}: the oracle's action {action!r} is not one of the game's.")
    return action


def _is_sum(reward: float, game: Game) -> bool:
    """Whether some of the documented rewards, each at most once, add up to this one."""
    values = [value for _, value in game.rewards()]
    sums = (sum(chosen) for size in range(len(values) + 1) for chosen in combinations(values, size))
    return any(isclose(reward, total, abs_tol=CLOSE) for total in sums)
