"""The tables of ``ragen_gym.games.values``: the states that can be reached, and their values by backward induction.

Both are kernels (``ragen_gym.games._jit``): Python until that has taken a second in all, compiled from then on, with
the same bits.
"""

from __future__ import annotations

from functools import cache, partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ragen_gym.games._jit import Kernel, kernel
from ragen_gym.games.game import OVER, PLAYING, SUCCESS, Rule

__all__ = ["Reached", "backward", "explorer"]

_PRIME, _BASIS = np.uint64(1099511628211), np.uint64(14695981039346656037)
_1, _32 = np.uint64(1), np.uint64(32)

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int32]
_Bytes = npt.NDArray[np.uint8]
_Moves = npt.NDArray[np.int64]

_rule: Any = None  # the game's, in each copy of ``_explore``


class Reached(NamedTuple):
    """The states that can be reached from some states, those from which the most moves are left first.

    Empty where there are more than the limit.
    """

    boards: _Bytes  # uint8 (states, cells)
    states: _Ints  # int32 (states, integers)
    reach: _Moves  # int64 (states,), how many moves further all states are there
    after: _Ints  # int32 (states, actions x draws), the next state, by its row
    rewards: _Floats  # float64, the same shape
    outcomes: _Bytes  # uint8, the same shape: PLAYING, OVER or SUCCESS; OVER of states with a reach of 0


@kernel
def _slot_of(board: _Bytes, state: _Ints, boards: _Bytes, states: _Ints, slots: _Ints) -> np.uint64:
    """The slot that holds a state's row, or the free one where it belongs; ``slots``, a power of two, has free ones."""
    key = _BASIS
    for cell in board:
        key = (key ^ np.uint64(cell)) * _PRIME
    for number in state:
        key = (key ^ np.uint64(number)) * _PRIME
    last = np.uint64(len(slots) - 1)
    slot = (key ^ (key >> _32)) & last
    while slots[slot] >= 0:
        row = slots[slot]
        same = True
        for i in range(len(state)):
            same = same and states[row, i] == state[i]
        for i in range(len(board)):
            if not same:
                break
            same = boards[row, i] == board[i]
        if same:
            break
        slot = (slot + _1) & last
    return slot


def _explore(
    begin: _Bytes, numbers: _Ints, moves: _Moves, params: Any, draws: _Floats, actions: int, limit: int
) -> tuple[_Bytes, _Ints, _Moves, _Ints, _Floats, _Bytes]:
    """``Reached`` from the states ``begin`` and ``numbers``; ``moves``, descending, are those left in each."""
    steps, room = actions * len(draws), 64
    while room < 2 * (steps + len(moves)):
        room *= 2
    boards, states = np.empty((room, begin.shape[1]), np.uint8), np.empty((room, numbers.shape[1]), np.int32)
    reach, after = np.zeros(room, np.int64), np.zeros((room, steps), np.int32)
    rewards, outcomes = np.zeros((room, steps), np.float64), np.full((room, steps), OVER, np.uint8)
    slots = np.full(4 * room, -1, np.int32)
    board, state = np.empty(begin.shape[1], np.uint8), np.empty(numbers.shape[1], np.int32)
    count = first = given = 0
    for left in range(moves[0], -1, -1):
        while given < len(moves) and moves[given] == left:
            slot = _slot_of(begin[given], numbers[given], boards, states, slots)
            if slots[slot] < 0:
                slots[slot] = count
                boards[count], states[count], reach[count] = begin[given], numbers[given], left
                count += 1
            given += 1
        last = count
        for node in range(first, last if left else first):
            if count + steps + len(moves) > room:  # twice as much room
                boards, states = np.concatenate((boards, boards)), np.concatenate((states, states))
                reach, after = np.concatenate((reach, reach)), np.concatenate((after, np.zeros_like(after)))
                rewards = np.concatenate((rewards, np.zeros_like(rewards)))
                outcomes = np.concatenate((outcomes, np.full_like(outcomes, OVER)))
                room *= 2
                slots = np.full(4 * room, -1, np.int32)
                for row in range(count):
                    slots[_slot_of(boards[row], states[row], boards, states, slots)] = row
            for step in range(steps):
                board[:] = boards[node]
                state[:] = states[node]
                reward, outcome = _rule(board, state, step // len(draws), draws[step % len(draws)], params)
                rewards[node, step], outcomes[node, step] = reward, outcome
                if outcome != PLAYING:
                    continue
                slot = _slot_of(board, state, boards, states, slots)
                if slots[slot] < 0:
                    slots[slot] = count
                    boards[count], states[count], reach[count] = board, state, left - 1
                    count += 1
                after[node, step] = slots[slot]
            if count > limit:
                return boards[:0], states[:0], reach[:0], after[:0], rewards[:0], outcomes[:0]
        first = last
    return boards[:count], states[:count], reach[:count], after[:count], rewards[:count], outcomes[:count]


def _explore_plain(
    rule: Rule, begin: _Bytes, numbers: _Ints, moves: _Moves, params: Any, draws: _Floats, actions: int, limit: int
) -> tuple[_Bytes, _Ints, _Moves, _Ints, _Floats, _Bytes]:
    """``_explore`` as Python runs it soonest: over bytes and lists."""
    params = params.tolist() if isinstance(params, np.ndarray) else tuple(map(_plain_part, params))
    width, steps = numbers.shape[1], [(action, u) for action in range(actions) for u in draws.tolist()]
    rows: dict[tuple[bytes, tuple[int, ...]], int] = {}
    reach: list[int] = []
    found: list[list[tuple[int, float, int]]] = []
    roots = list(zip(map(bytes, begin), map(tuple, numbers.tolist()), moves.tolist(), strict=True))[::-1]
    layer, left = list[tuple[bytes, tuple[int, ...]]](), int(moves[0])
    while left >= 0:
        while roots and roots[-1][2] == left:
            key = roots.pop()[:2]
            if rows.setdefault(key, len(rows)) == len(reach):
                reach.append(left)
                layer.append(key)
        following = []
        for first, integers in layer if left else ():
            results = []
            for action, u in steps:
                board, state = bytearray(first), list(integers)
                reward, outcome = rule(board, state, action, u, params)
                row = 0
                if outcome == PLAYING:
                    key = bytes(board), tuple(state)
                    row = rows.setdefault(key, len(rows))
                    if row == len(reach):
                        reach.append(left - 1)
                        following.append(key)
                results.append((row, reward, outcome))
            found.append(results)
            if len(rows) > limit:
                nothing = np.zeros((0, len(steps)))
                return begin[:0], numbers[:0], moves[:0], nothing.astype(np.int32), nothing, nothing.astype(np.uint8)
        layer, left = following, left - 1
    found += [[(0, 0.0, OVER)] * len(steps)] * (len(rows) - len(found))
    table = np.array(found)
    return (
        np.frombuffer(b"".join([board for board, _ in rows]), np.uint8).reshape(len(rows), -1),
        np.array([state for _, state in rows], np.int32).reshape(len(rows), width),
        np.array(reach),
        table[:, :, 0].astype(np.int32),
        np.ascontiguousarray(table[:, :, 1]),
        table[:, :, 2].astype(np.uint8),
    )


def _plain_part(part: Any) -> Any:
    return part.tolist() if isinstance(part, np.ndarray) else part


@cache
def explorer(rule: Rule) -> Kernel[..., tuple[_Bytes, _Ints, _Moves, _Ints, _Floats, _Bytes]]:
    """``_explore`` by the rule of a game: a function from states to the fields of ``Reached``."""
    own = {**_explore.__globals__, "_rule": Kernel(rule)}
    return Kernel(FunctionType(_explore.__code__, own, _explore.__name__), partial(_explore_plain, rule))


def _backward(
    after: _Ints, rewards: _Floats, outcomes: _Bytes, chances: _Floats, actions: int, moves: int, may_stop: bool
) -> tuple[_Floats, _Floats]:
    """V*, float64 (moves + 1, 2, states), and Q*, (moves + 1, 2, states, actions), by the moves left.

    Each is of the return and of success. With ``may_stop`` V* is at least 0.
    """
    size, kinds = len(after), len(chances)
    best, of_actions = np.zeros((moves + 1, 2, size)), np.zeros((moves + 1, 2, size, actions))
    earned = np.zeros((2, size, actions))
    for node in range(size):
        for action in range(actions):
            for kind in range(kinds):
                step = action * kinds + kind
                earned[0, node, action] += rewards[node, step] * chances[kind]
                if outcomes[node, step] == SUCCESS:
                    earned[1, node, action] += chances[kind]
    for left in range(1, moves + 1):
        for what in range(2):
            for node in range(size):
                highest = 0.0 if may_stop else -np.inf
                for action in range(actions):
                    later = 0.0
                    for kind in range(kinds):
                        step = action * kinds + kind
                        if outcomes[node, step] == PLAYING:
                            later += best[left - 1, what, after[node, step]] * chances[kind]
                    value = earned[what, node, action] + later
                    of_actions[left, what, node, action] = value
                    highest = max(highest, value)
                best[left, what, node] = highest
    return best, of_actions


def _backward_plain(
    after: _Ints, rewards: _Floats, outcomes: _Bytes, chances: _Floats, actions: int, moves: int, may_stop: bool
) -> tuple[_Floats, _Floats]:
    """``_backward`` as Python runs it soonest: over arrays, with the same sums in the same order."""
    shape = len(after), actions, len(chances)
    after, rewards, outcomes = after.reshape(shape), rewards.reshape(shape), outcomes.reshape(shape)
    best, of_actions = np.zeros((moves + 1, 2, shape[0])), np.zeros((moves + 1, 2, *shape[:2]))
    goes_on, earned = (outcomes == PLAYING) * chances, np.zeros((2, *shape[:2]))
    for kind, chance in enumerate(chances.tolist()):
        earned += np.stack([rewards[:, :, kind], outcomes[:, :, kind] == SUCCESS]) * chance
    for left in range(1, moves + 1):
        later = np.zeros_like(earned)
        for kind in range(shape[2]):
            later += best[left - 1][:, after[:, :, kind]] * goes_on[:, :, kind]
        of_actions[left] = earned + later
        best[left] = of_actions[left].max(2)
        if may_stop:
            best[left] = np.maximum(best[left], 0.0)
    return best, of_actions


backward = Kernel(_backward, _backward_plain)
