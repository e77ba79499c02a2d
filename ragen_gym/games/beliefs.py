"""Exact play of several attempts at one level whose rules are partly hidden: the Bayes-adaptive optimum and its lines.

A *world* is one way the hidden rules may be: a game and what the name of each action does in it. The worlds are equally
likely at first. A player sees each move's reward and what became of the board, so its knowledge is the posterior over
the worlds, its *belief*. With n moves left in this attempt and j attempts after it, the optimum is (Bayes-adaptive
Markov decision process: Duff, "Optimal learning", 2002, section 1.4)

    V(s, b, n, j) = max_a sum_o P(o | s, b, a) [r + W],    b' = b conditioned on o,

where W is V(s', b', n - 1, j) inside the attempt and discount * V(start, b', moves, j - 1) where the attempt ends with
this move. Every pair (s, b) that can be reached is one node of a graph; the values follow by backward induction. A
belief is kept as counts of likelihood ratios, a sufficient statistic: histories that tell the same share a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ragen_gym.games.game import PLAYING, SUCCESS, Board, Game, listed

#: Pairs of a state and a belief that are looked at: some five seconds.
MAX_NODES = 50_000
#: Of a likelihood ratio.
_DIGITS = 12
#: Beliefs that are kept.
_REMEMBERED = 2**14
#: Values that differ by less are equal: of several best actions the first is taken.
_TIE = 1e-9

_Floats = npt.NDArray[np.float64]
_Policy = Callable[[int, int], _Floats]
"""policy(moves left, attempts after this one) -> probability of each action in each node, float64 (nodes, actions)."""

State = tuple[bytes, tuple[int, ...]]

Ratios = tuple[float, ...]
"""Likelihood of one observation in each world that is possible, divided by the highest."""
_Seen = tuple[float, bool, State]
"""All that a move shows: its reward, whether the game is over, and the state after it."""


class Belief(NamedTuple):
    """Everything that the observations tell about the world."""

    possible: tuple[int, ...]  # worlds, in their order
    evidence: tuple[tuple[Ratios, int], ...] = ()  # observations that differ between them, and how often each was made

    @lru_cache(_REMEMBERED)  # noqa: B019  # a tuple; most pairs of belief and observation come from several states
    def given(self, likelihood: tuple[tuple[int, float], ...]) -> Belief:
        """The belief after an observation: (world, its likelihood there) for each world that can show it."""
        chances = dict(likelihood)
        possible = tuple(world for world in self.possible if chances.get(world))
        kept = [place for place, world in enumerate(self.possible) if chances.get(world)]
        counts: dict[Ratios, int] = {}
        for ratios, count in (*self.evidence, (tuple(chances.get(world, 0.0) for world in self.possible), 1)):
            here = [ratios[place] for place in kept]
            scaled = tuple(round(ratio / max(here), _DIGITS) for ratio in here)
            if min(scaled) < 1:
                counts[scaled] = counts.get(scaled, 0) + count
        return Belief(possible, tuple(sorted(counts.items())))

    @lru_cache(_REMEMBERED)  # noqa: B019
    def posterior(self) -> list[tuple[int, float]]:
        """The possible worlds, each with its probability."""
        weights = [
            prod(ratios[place] ** count for ratios, count in self.evidence) for place in range(len(self.possible))
        ]
        total = sum(weights)
        return [(world, weight / total) for world, weight in zip(self.possible, weights, strict=True)]


class World(NamedTuple):
    """One way the hidden rules may be."""

    game: Game
    meanings: tuple[int, ...]  # of the name of each action: the action that it is
    symbols: tuple[int, ...] = ()  # of each tile: the tile whose symbol shows it; empty where none is hidden

    def shown(self, state: tuple[Board, Sequence[int]]) -> State:
        """All that a player sees of a state: with hidden symbols the board alone, in the symbols that show it."""
        board = bytes(state[0])
        return (_written(board, self.symbols), ()) if self.symbols else (board, tuple(state[1]))

    def true(self, shown: State) -> State:
        """The state that is shown so in this world, the inverse of ``shown``; its integers follow from the board."""
        if not self.symbols:
            return shown
        board = _written(shown[0], tuple(map(self.symbols.index, range(len(self.symbols)))))
        return board, tuple(self.game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist())


def _written(board: bytes, symbols: tuple[int, ...]) -> bytes:
    return board.translate(bytes(symbols) + bytes(range(len(symbols), 256)))


class Curve(NamedTuple):
    """Expected play of a policy, each of attempt 1, 2, …: float64 (attempts,)."""

    success: _Floats
    rewards: _Floats  # without the discount between attempts


class TrialValues:
    """Exact values of a trial: attempts at one level in an unknown one of several worlds.

    Args:
        worlds: all that are possible, equally likely; their games differ in nothing that the board shows.
        start: the state that every attempt begins in, as ``World.shown``.
        moves: of an attempt, from 1 on.
        attempts: from 1 on.
        discount: of each attempt's rewards against those of the attempt before it, from 0 to 1.
        likelihood: of the first board in each world, on any scale; None where it is alike in all.

    Raises:
        ValueError: there are more than ``MAX_NODES`` pairs of a state and a belief, or the chances of what a move does
            are unknown (``Game.noise_intervals``).
    """

    def __init__(
        self,
        worlds: Sequence[World],
        start: tuple[Board, Sequence[int]],
        moves: int,
        attempts: int,
        discount: float = 1.0,
        likelihood: Sequence[float] | None = None,
    ) -> None:
        self.worlds, self.moves, self.attempts, self.discount = tuple(worlds), moves, attempts, discount
        self.start: State = bytes(start[0]), tuple(start[1])
        self.prior = Belief(tuple(range(len(self.worlds))))
        if likelihood is not None:
            self.prior = self.prior.given(tuple(enumerate(likelihood)))
        self._actions = len(self.worlds[0].meanings)
        plain = tuple(range(self._actions))
        #: The worlds as they are for a player that knows the names of the actions.
        self._games = list(dict.fromkeys(world._replace(meanings=plain) for world in self.worlds))
        self._game_of = [self._games.index(world._replace(meanings=plain)) for world in self.worlds]
        self._rules = [(game.rule, listed(game.params), game.noise_intervals()) for game, _, _ in self._games]
        self._known: dict[tuple[int, State, int], dict[_Seen, tuple[float, float]]] = {}  # by game, state, action
        self._nodes: dict[tuple[State, Belief], int] = {}
        self._explore()

    def after(self, state: State, belief: Belief, action: int, reward: float, over: bool, then: State) -> Belief:
        """The belief after a move: ``action`` is the name that was used, by its place.

        Raises:
            ValueError: no world of the belief can do that.
        """
        seen = self._seen(state, belief, action).get((reward, over, then))
        if seen is None:
            raise ValueError(f"action {action} gave {reward} and {then}, which no world that is left can do.")
        return seen[1]

    def best(self, state: State, belief: Belief, moves_left: int, attempts_after: int) -> int:
        """The first best action of the Bayes-adaptive optimum, by the place of its name."""
        return int(self._argmax(moves_left, attempts_after)[self._nodes[state, belief]])

    @cached_property
    def bayes(self) -> Curve:
        """Bayes-adaptive optimal play: the highest expected discounted return of all attempts together."""
        return self.curve(lambda left, after: self._only(self._argmax(left, after)))

    @property
    def value(self) -> float:
        """The highest expected discounted return of all attempts together."""
        return float(self._tables[0][self.attempts - 1, self.moves, 0])

    @cached_property
    def greedy(self) -> Curve:
        """Play that remembers earlier attempts and maximises the present one's return, as if none came after it."""
        return self.curve(lambda left, _: self._only(self._argmax(left, 0)))

    @cached_property
    def forgetful(self) -> Curve:
        """The optimum without memory of earlier attempts: the best play of a single attempt, repeated."""
        single = self.curve(lambda left, _: self._only(self._argmax(left, 0)), attempts=1)
        return Curve(single.success.repeat(self.attempts), single.rewards.repeat(self.attempts))

    @cached_property
    def informed(self) -> Curve:
        """Optimal play that knows the world: the mean over worlds."""
        worlds, shares = zip(*self.prior.posterior(), strict=True)
        curves = [self._alone[self._game_of[world]].bayes for world in worlds]
        success, rewards = (
            np.array(shares) @ np.array([getattr(each, what) for each in curves]) for what in Curve._fields
        )
        return Curve(success.repeat(self.attempts), rewards.repeat(self.attempts))

    @cached_property
    def random(self) -> Curve:
        """Names drawn uniformly."""
        return self.curve(lambda left, after: np.full((len(self._nodes), self._actions), 1 / self._actions))

    @cached_property
    def blind(self) -> Curve | None:
        """The blind script, which takes names and symbols at their word; None where the game has none.

        Where no symbol says goal, it plays its first action.
        """
        game = self._games[0].game
        if (script := game.blind) is None:
            return None
        word, params = World(game, (), tuple(range(len(game.Tile))) * bool(self._games[0].symbols)), listed(game.params)

        def move(state: State) -> int:
            with suppress(IndexError):
                return script(*word.true(state), params)
            return 0

        chosen = self._only(np.array([move(state) for state, _ in self._nodes]))
        return self.curve(lambda left, after: chosen)

    @cached_property
    def thompson(self) -> Curve:
        """Thompson sampling: before each move a world is drawn from the belief, and its best move is played.

        Thompson, Biometrika 25, 1933; the best move is that of the present attempt alone.
        """
        return self.curve(lambda left, _: self._sampled(left))

    def mixed(self, epsilon: float) -> Curve:
        """``greedy``, but with probability ``epsilon``, from 0 to 1, a move is a name drawn uniformly."""
        share = epsilon / self._actions
        return self.curve(lambda left, _: (1 - epsilon) * self._only(self._argmax(left, 0)) + share)

    def curve(self, policy: _Policy, attempts: int | None = None) -> Curve:
        """Exact play of a policy that depends on state, belief, moves left and attempts left alone."""
        attempts = attempts or self.attempts
        here: _Floats = np.zeros(len(self._nodes))
        here[0] = 1.0
        success, rewards = np.zeros(attempts), np.zeros(attempts)
        for attempt in range(attempts):
            following: _Floats = np.zeros_like(here)
            for left in range(self.moves, 0, -1):
                flow = here[self._node] * policy(left, attempts - 1 - attempt)[self._node, self._action] * self._chance
                success[attempt] += flow @ self._success
                rewards[attempt] += flow @ self._reward
                ends = self._over | (left == 1)
                following += np.bincount(self._restart[ends], flow[ends], len(here)).astype(np.float64)
                here = np.bincount(self._next[~ends], flow[~ends], len(here)).astype(np.float64)
            here = following
        return Curve(success, rewards)

    def _explore(self) -> None:
        """The graph, an edge for each thing that an action may show in a node; the first node is the trial's start."""
        self._node_of(self.start, self.prior)
        first, edges = 0, []
        for _ in range(self.attempts * self.moves):
            last = len(self._nodes)
            for node, (state, belief) in list(enumerate(self._nodes))[first:last]:
                for action in range(self._actions):
                    for (reward, over, then), (chance, later, success) in self._seen(state, belief, action).items():
                        restart = self._node_of(self.start, later)
                        going = restart if over else self._node_of(then, later)
                        edges.append((node, action, chance, reward, success, over, going, restart))
            first = last
            if first == len(self._nodes):
                break
        columns = [np.array(column) for column in zip(*edges, strict=True)]
        self._node, self._action, self._chance, self._reward, self._success, self._over = columns[:6]
        self._next, self._restart = columns[6:]

    def _node_of(self, state: State, belief: Belief) -> int:
        node = self._nodes.setdefault((state, belief), len(self._nodes))
        if node >= MAX_NODES:
            raise ValueError(
                f"{self.attempts} attempts of {self.moves} moves in {len(self.worlds)} worlds reach more than "
                f"{MAX_NODES} pairs of a state and a belief, too many for exact values: use fewer attempts or moves, a "
                "smaller board, fewer unknown values, or a TrialEnv with oracle=False, which does without them."
            )
        return node

    def _seen(self, state: State, belief: Belief, action: int) -> dict[_Seen, tuple[float, Belief, float]]:
        """Everything that an action may show: its probability, the belief after it, and the chance of success then."""
        likelihood: dict[_Seen, list[tuple[int, float]]] = {}
        total: dict[_Seen, float] = {}
        won: dict[_Seen, float] = {}
        for world, probability in belief.posterior():
            results = self._results(self._game_of[world], state, self.worlds[world].meanings[action])
            for seen, (chance, success) in results.items():
                likelihood.setdefault(seen, []).append((world, chance))
                total[seen] = total.get(seen, 0.0) + probability * chance
                won[seen] = won.get(seen, 0.0) + probability * success
        return {
            seen: (chance, belief.given(tuple(likelihood[seen])), won[seen] / chance)
            for seen, chance in total.items()
            if chance
        }

    def _results(self, game: int, state: State, action: int) -> dict[_Seen, tuple[float, float]]:
        """Everything that an action may show in one game, with (its probability, the part of it that is a success)."""
        key = game, state, action
        if key not in self._known:
            rule, params, intervals = self._rules[game]
            found: dict[_Seen, tuple[float, float]] = {}
            true = self._games[game].true(state)
            for chance, u in intervals:
                board, numbers = bytearray(true[0]), list(true[1])
                reward, outcome = rule(board, numbers, action, u, params)
                seen = float(reward), outcome != PLAYING, self._games[game].shown((board, numbers))
                before, won = found.get(seen, (0.0, 0.0))
                found[seen] = before + chance, won + chance * (outcome == SUCCESS)
            self._known[key] = found
        return self._known[key]

    @cached_property
    def _tables(self) -> tuple[_Floats, npt.NDArray[np.int8]]:
        """V and the first best action by (attempts after this one, moves left, node)."""
        shape = self.attempts, self.moves + 1, len(self._nodes)
        value, best = np.zeros(shape), np.zeros(shape, np.int8)
        places = self._node * self._actions + self._action
        for after in range(self.attempts):
            again = self.discount * value[after - 1, self.moves, self._restart] if after else 0.0
            for left in range(1, self.moves + 1):
                later = np.where(self._over | (left == 1), again, value[after, left - 1, self._next])
                worth = np.bincount(places, self._chance * (self._reward + later), shape[2] * self._actions)
                worth = worth.reshape(shape[2], self._actions)
                value[after, left] = worth.max(1)
                best[after, left] = (worth >= worth.max(1, keepdims=True) - _TIE).argmax(1)
        return value, best

    def _argmax(self, moves_left: int, attempts_after: int) -> npt.NDArray[np.int8]:
        best: npt.NDArray[np.int8] = self._tables[1][attempts_after, moves_left]
        return best

    def _only(self, actions: npt.NDArray[np.integer]) -> _Floats:
        """The policy that takes one action in each node."""
        policy: _Floats = np.eye(self._actions)[actions]
        return policy

    @cached_property
    def _alone(self) -> dict[int, TrialValues]:
        """A single attempt of each game that is possible at first, known: its names mean the same in every world."""
        games = {self._game_of[world] for world in self.prior.possible}
        return {game: TrialValues([self._games[game]], self.start, self.moves, 1) for game in games}

    def _sampled(self, moves_left: int) -> _Floats:
        """The policy of ``thompson``."""
        policy = np.zeros((len(self._nodes), self._actions))
        for node, (state, belief) in enumerate(self._nodes):
            for world, probability in belief.posterior():
                alone = self._alone[self._game_of[world]]
                there = alone._nodes.get((state, Belief((0,))), 0)  # 0: not reached with a move left
                action = int(alone._argmax(moves_left, 0)[there])
                policy[node, self.worlds[world].meanings.index(action)] += probability
        return policy
