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

_PRIME, _BASIS = np.uint64(1099511628211), np.uint64(14695981039346656037)
_1, _32 = np.uint64(1), np.uint64(32)

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int32]
_Bytes = npt.NDArray[np.uint8]
_Moves = npt.NDArray[np.int64]

_rule: Any = None  # the game's, in each copy of ``_explore``


class Reached(NamedTuple):
    """The states that can be reached from a state, which is the first; those from which more moves are left come first.

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
    begin: _Bytes, numbers: _Ints, moves: int, params: Any, draws: _Floats, actions: int, limit: int
) -> tuple[_Bytes, _Ints, _Moves, _Ints, _Floats, _Bytes]:
    """``Reached`` from the state of ``begin`` and ``numbers``, in which so many moves are left."""
    steps, room = actions * len(draws), 64
    while room < 2 * steps:
        room *= 2
    boards, states = np.empty((room, len(begin)), np.uint8), np.empty((room, len(numbers)), np.int32)
    reach, after = np.zeros(room, np.int64), np.zeros((room, steps), np.int32)
    rewards, outcomes = np.zeros((room, steps), np.float64), np.full((room, steps), OVER, np.uint8)
    slots = np.full(4 * room, -1, np.int32)
    board, state = np.empty(len(begin), np.uint8), np.empty(len(numbers), np.int32)
    boards[0], states[0], reach[0] = begin, numbers, moves
    slots[_slot_of(begin, numbers, boards, states, slots)] = 0
    first, count = 0, 1
    for left in range(moves, 0, -1):
        last = count
        for node in range(first, last):
            if count + steps > room:  # twice as much room
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
                break
        if count == last or count > limit:
            break
        first = last
    count = count if count <= limit else 0
    # Copies: who keeps a part of an array keeps all of it.
    return (
        boards[:count].copy(),
        states[:count].copy(),
        reach[:count].copy(),
        after[:count].copy(),
        rewards[:count].copy(),
        outcomes[:count].copy(),
    )


def _explore_plain(
    rule: Rule, begin: _Bytes, numbers: _Ints, moves: int, params: Any, draws: _Floats, actions: int, limit: int
) -> tuple[_Bytes, _Ints, _Moves, _Ints, _Floats, _Bytes]:
    """``_explore`` as Python runs it soonest: over bytes and lists."""
    if isinstance(params, np.ndarray):
        params = params.tolist()
    else:
        params = tuple(part.tolist() if isinstance(part, np.ndarray) else part for part in params)
    steps = [(action, u) for action in range(actions) for u in draws.tolist()]
    layer = [(begin.tobytes(), tuple(numbers.tolist()))]
    rows, reach, found = {layer[0]: 0}, [moves], list[list[tuple[int, float, int]]]()
    for left in range(moves, 0, -1):
        following = []
        for first, integers in layer:
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
                rows, reach, found, following = {}, [], [], []
                break
        layer = following
        if not layer:
            break
    found += [[(0, 0.0, OVER)] * len(steps)] * (len(rows) - len(found))
    table = np.array(found).reshape(len(rows), len(steps), 3)
    return (
        np.frombuffer(b"".join([board for board, _ in rows]), np.uint8).reshape(len(rows), len(begin)),
        np.array([state for _, state in rows], np.int32).reshape(len(rows), len(numbers)),
        np.array(reach, np.int64),
        table[:, :, 0].astype(np.int32),
        np.ascontiguousarray(table[:, :, 1]),
        table[:, :, 2].astype(np.uint8),
    )


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
