"""The compiled loops of the batch: one step of every environment, and boards as grids and as characters.

Each loop is serial: on shared cores threads cost more than they bring. A game's rule is compiled into ``advance`` by
``ragen_gym.games._jit.compiled_with``, its mask into ``masks``; nothing else in here knows the game.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ragen_gym.core.seeding import GOLDEN
from ragen_gym.envs.batch_episodes import buffers_of, copy_bytes
from ragen_gym.games._jit import compiled, compiled_with
from ragen_gym.games.kernels import mix

#: What ``advance`` does with an environment whose episode is over: nothing, begin another one instead of the next step,
#: or begin another one at once.
STOP, NEXT_STEP, SAME_STEP = 0, 1, 2

_GOLDEN, _11 = np.uint64(GOLDEN), np.uint64(11)
_0, _1, _2, _3, _4, _5, _6, _7, _8 = (np.uint64(i) for i in range(9))
_10, _12, _15, _16, _20 = (np.uint64(i) for i in (10, 12, 15, 16, 20))
_TO_UNIT = 2.0**-53

_arrays = compiled(buffers_of)


@compiled
def _place(
    which: np.ndarray,
    taken: np.ndarray,
    states: np.ndarray,
    boards: np.ndarray,
    ring_boards: np.ndarray,
    ring_states: np.ndarray,
) -> None:
    """Put the environments ``which`` at the start of the episode that each has taken last."""
    cells, ring = np.uint64(boards.shape[1]), np.uint64(ring_boards.shape[1])
    flat, flat_ring = boards.reshape(-1), ring_boards.reshape(-1)
    for i in which:
        slot = np.uint64(taken[i] - 1) & (ring - _1)
        copy_bytes(flat_ring, (np.uint64(i) * ring + slot) * cells, flat, np.uint64(i) * cells, cells)
        for j in range(states.shape[1]):
            states[i, j] = ring_states[i, slot, j]


@compiled
def _turn(
    which: np.ndarray,
    noise_keys: np.ndarray,
    filled: np.ndarray,
    taken: np.ndarray,
    noise: np.ndarray,
    elapsed: np.ndarray,
    done: np.ndarray,
) -> bool:
    """Take the next episode of the environments ``which``; whether that was the last prepared one for some of them."""
    dry = False
    for i in which:
        taken[i] += 1
        noise[i] = mix(noise_keys[i] + np.uint64(taken[i]) * _GOLDEN)
        elapsed[i], done[i] = 0, False
        dry |= taken[i] == filled[i]
    return dry


@compiled
def begin(which: np.ndarray, block: np.ndarray, ring_boards: np.ndarray, ring_states: np.ndarray) -> bool:
    """Start the next prepared episode of each environment of ``which``, int64 (m,); see ``advance`` for the rest.

    Returns whether that was the last prepared one for some environment.
    """
    n, _, cells = ring_boards.shape
    buffers = _arrays(block, n, ring_states.shape[2], cells)
    dry = _turn(which, buffers.noise_keys, buffers.filled, buffers.taken, buffers.noise, buffers.elapsed, buffers.done)
    _place(which, buffers.taken, buffers.states, buffers.boards, ring_boards, ring_states)
    return dry


@compiled
def _list_of(done: np.ndarray, ended: np.ndarray) -> int:
    """Write the indices of what is done into ``ended``, int64 (n,); how many there are."""
    count = 0
    for i in range(done.shape[0]):  # without a branch, which nobody could predict
        ended[count] = i
        count += int(done[i])
    return count


@compiled
def _draw(noise: np.ndarray, draws: np.ndarray) -> None:
    """The next random number of each environment: uint64 (n,), advanced, -> float64 (n,) in [0, 1)."""
    for i in range(noise.shape[0]):
        noise[i] += _GOLDEN
        draws[i] = np.float64(np.int64(mix(noise[i]) >> _11)) * _TO_UNIT  # 53 bits; signed ones convert faster


@compiled
def _judge(
    outcomes: np.ndarray,
    elapsed: np.ndarray,
    limit: int,
    terminated: np.ndarray,
    truncated: np.ndarray,
    success: np.ndarray,
    done: np.ndarray,
) -> None:
    """Write the flags that follow from what the rule said and how long the episode is; see ``advance``."""
    for i in range(outcomes.shape[0]):
        outcome, late = outcomes[i], elapsed[i] >= limit
        terminated[i], truncated[i], success[i] = outcome != 0, late, outcome == 2
        done[i] = (outcome != 0) | late


def rule(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """The rule of the game for which ``advance`` is compiled."""
    raise NotImplementedError


def advance(
    actions: np.ndarray,
    settings: np.ndarray,
    params: Any,
    block: np.ndarray,
    ring_boards: np.ndarray,
    ring_states: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    success: np.ndarray,
) -> tuple[int, bool]:
    """One step of every environment, in place; (how many are listed as ended, what ``begin`` says).

    Where an action is not one of the game's nothing happens, and the number is -1.

    The rule runs on every environment, since a branch that nobody can predict costs more than it: one that begins
    another episode instead of the step (``NEXT_STEP``) plays the step on its new board, and is then put back to that
    episode's start. What is the same for all environments is done in loops of its own, which compile to vector
    instructions.

    Args:
        actions: int64 (n,).
        settings: int64 (4,): how many actions the game has; the step from which an episode is truncated; ``STOP``,
            ``NEXT_STEP`` or ``SAME_STEP``; whether the rule uses its random number. With ``SAME_STEP``,
            ``buffers.ended`` lists who is over after the step, and the caller begins the new episodes itself, once it
            has kept what it needs of the old.
        params: the rule's numbers.
        block: what ``ragen_gym.envs.batch_episodes.buffers_of`` takes apart.
        ring_boards: uint8 (n, ring, cells); this and the next are a ``ragen_gym.envs.batch_episodes.LevelPrefetch``'s.
        ring_states: int32 (n, ring, integers).
        rewards: float64 (n,), written, as are the following.
        terminated: bool (n,).
        truncated: bool (n,).
        success: bool (n,).
    """
    n: int = actions.shape[0]
    n_actions, limit, mode, noisy = settings[0], settings[1], settings[2], settings[3]
    n_ended, wrong = 0, False
    for i in range(n):
        wrong |= (actions[i] < 0) | (actions[i] >= n_actions)
    if wrong:
        return -1, False
    filled, elapsed, ended, noise, noise_keys, draws, taken, states, boards, outcomes, done = _arrays(
        block, n, ring_states.shape[2], ring_boards.shape[2]
    )
    if noisy:
        _draw(noise, draws)
    for i in range(n):
        elapsed[i] += 1
    if mode == NEXT_STEP:
        n_ended = _list_of(done, ended)
    anew = ended[:n_ended]
    dry = _turn(anew, noise_keys, filled, taken, noise, elapsed, done)
    _place(anew, taken, states, boards, ring_boards, ring_states)
    for i in range(n):
        rewards[i], outcomes[i] = rule(boards[i], states[i], actions[i], draws[i], params)
    _place(anew, taken, states, boards, ring_boards, ring_states)
    for i in anew:
        rewards[i], outcomes[i] = 0.0, 0
    _judge(outcomes, elapsed, limit, terminated, truncated, success, done)
    if mode == SAME_STEP:
        n_ended = _list_of(done, ended)
    return n_ended, dry


def legal(board: Any, state: Any, params: Any) -> int:
    """The mask of the game for which ``masks`` is compiled."""
    raise NotImplementedError


def masks(boards: np.ndarray, states: np.ndarray, params: Any, out: np.ndarray) -> None:
    """Write the action masks of many boards, int8 (n, actions)."""
    for i in range(boards.shape[0]):
        bits = legal(boards[i], states[i], params)
        for action in range(out.shape[1]):
            out[i, action] = (bits >> action) & 1


@cache
def step_kernel(game_rule: Callable[..., Any]) -> Callable[..., tuple[int, bool]]:
    """``advance`` for this rule."""
    return compiled_with(advance, rule=game_rule)


@cache
def mask_kernel(game_legal: Callable[..., Any]) -> Callable[..., None]:
    """``masks`` for this function."""
    return compiled_with(masks, legal=game_legal)


@compiled
def _copy_four(source: np.ndarray, p: np.uint64, target: np.ndarray, q: np.uint64) -> None:
    b0, b1, b2, b3 = source[p], source[p + _1], source[p + _2], source[p + _3]
    target[q], target[q + _1], target[q + _2], target[q + _3] = b0, b1, b2, b3


@compiled
def grids(boards: np.ndarray, out: np.ndarray) -> None:
    """Boards without the bytes between their rows: uint8 (n, height * (width + 1) - 1) -> uint8 (n, height, width)."""
    n, height, width = out.shape
    source, target = boards.reshape(-1), out.reshape(-1)
    p, q, columns = _0, _0, np.uint64(width)
    last = columns - _4
    for _ in range(n):
        # The commonest sizes have loops of their own: a number of bytes that the compiler knows is copied at once.
        if width == 4 and height == 4:
            _copy_four(source, p, target, q)
            _copy_four(source, p + _5, target, q + _4)
            _copy_four(source, p + _10, target, q + _8)
            _copy_four(source, p + _15, target, q + _12)
            p, q = p + _20, q + _16
        elif width == 8:
            for _ in range(height):
                copy_bytes(source, p, target, q, _8)
                p, q = p + _8 + _1, q + _8
        elif 4 <= width < 8:
            for _ in range(height):
                _copy_four(source, p, target, q)
                if width > 4:
                    _copy_four(source, p + last, target, q + last)
                p, q = p + columns + _1, q + columns
        else:
            for _ in range(height):
                copy_bytes(source, p, target, q, columns)
                p, q = p + columns + _1, q + columns
        p -= _1


@compiled
def characters(boards: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """The code point of each byte: uint8 (n, cells), uint32 (256,) -> uint32 (n, cells)."""
    source, target = boards.reshape(-1), out.reshape(-1)
    for j in range(source.shape[0]):
        target[j] = table[source[j]]
