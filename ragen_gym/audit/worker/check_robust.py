"""Checks of what an environment does with bad input, and of what it costs: exceptions, leaks, speed, memory."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

from .context import Context, Fault, comparable, passed
from .protocol import NotApplicable, Outcome, key, literal

__all__ = ["action_in_space", "action_out_of_range", "exception_state", "memory", "plays", "resources", "speed"]

_BAD: tuple[Any, ...] = (-1, -2, 10**6, "banana", "", None, 3.7, [], {}, "\ud800", "x" * 100_000)
_EPISODES = 60  # in each window of the check of memory
_WINDOWS = 3
_OTHERS = 0.1  # the most CPU time of other threads in a window, as a share of its own
_GROWTH = 1024  # bytes an episode that stay allocated
_SLOW_STEP, _SLOW_RESET = 0.1, 1.0  # seconds
_MADE = 20
_SCHEDULED = Path("/proc/thread-self/schedstat")  # nanoseconds run, nanoseconds waited, turns


def plays(context: Context) -> Outcome:
    """Seeds and actions play without an exception."""
    count = 0
    env = context.make()
    for seed in context.within_time([*context.some_seeds(), 0, 2**31 - 1]):
        played: list[Any] = []
        try:
            env.reset(context.seed(seed))
            for action in context.actions(seed):
                played.append(action)
                if env.step(action).done:
                    break
        except NotApplicable:
            raise
        except Exception as error:
            what = f"action {len(played)}" if played else "reset"
            raise Fault(
                f"seed {seed}: {what} raises {type(error).__name__}: {str(error)[:200]}",
                context.code(
                    f"e = new(); start(e, {context.seed(seed)})", f"[act(e, a) for a in {literal(played)}]  # raises"
                ),
            ) from error
        count += 1
    return passed(f"{count} episodes were played without an exception")


def action_in_space(context: Context) -> Outcome:
    """Every action of the declared space is taken."""
    count = 0
    env = context.make()
    if env.action_space is None or not hasattr(env.action_space, "contains"):
        raise NotApplicable("no action space is declared")
    for seed in context.within_time(context.some_seeds(8)):
        for action in env.actions() or context.actions(seed, 8):
            env.reset(context.seed(seed))
            count += 1
            if not env.action_space.contains(action):
                raise Fault(
                    f"the action {action!r} is offered, and is not in {env.action_space}",
                    context.code(f"e = new(); start(e, {seed})", f"assert e.action_space.contains({literal(action)})"),
                )
            try:
                env.step(action)
            except Exception as error:
                raise Fault(
                    f"the action {action!r} of the space raises {type(error).__name__}: {error}",
                    context.code(f"e = new(); start(e, {seed})", f"act(e, {literal(action)})  # raises"),
                ) from error
    return passed(f"{count} actions of the space are taken")


def action_out_of_range(context: Context) -> Outcome:
    """An action outside the space is not played as if it were one of it."""
    env = context.make()
    actions = env.actions()
    if not actions or not all(isinstance(action, int) for action in actions):
        raise NotApplicable("the actions are not numbers")
    seed = 3
    for action in (min(actions) - 1, max(actions) + 1, -len(actions)):
        if action in actions:
            continue
        observation, _ = env.reset(context.seed(seed))
        try:
            step = env.step(action)
        except Exception:  # refused, as it should be
            env = context.make()
            continue
        if key(step.observation) != key(observation) or step.done:
            raise Fault(
                f"the action {action}, outside {min(actions)} to {max(actions)}, is played as if it were one",
                context.code(
                    f"e = new(); o = start(e, {seed}); a = act(e, {action})",
                    "assert repr(a[0]) == repr(o) and not a[2]",
                ),
            )
    return passed("actions outside the space are refused or do nothing")


def exception_state(context: Context) -> Outcome:
    """An action that raises leaves the episode as it was."""
    context.need_repeats()
    if isinstance(context.actions(0, 1)[0], dict):
        raise NotApplicable("actions are models of the library, which checks them before the environment sees them")
    raised = 0
    for seed in context.within_time(context.some_seeds(4)):
        actions = context.actions(seed)
        truth = context.transcript(context.make(), seed, actions)
        replies = isinstance(actions[0], str)  # of a model: always texts
        bads = [bad for bad in _BAD if not replies or isinstance(bad, str)]
        for place, bad in enumerate(bads):
            if place and context.late:
                break
            env = context.make()
            record: list[Any] = [key((env.reset(seed)[0], None))]
            hurt = False
            try:
                env.step(bad)
            except Exception:
                hurt = True
            if not hurt:
                continue
            raised += 1
            for action in actions:
                try:
                    step = env.step(action)
                except Exception as error:
                    raise _hurt(context, seed, bad, actions[: len(record)], f"raises {type(error).__name__}") from error
                record.append(comparable(step))
                if step.done:
                    break
            if record != truth:
                raise _hurt(context, seed, bad, actions[: len(truth)], "goes on differently")
    if not raised:
        return passed(f"none of {len(_BAD)} bad actions raises")
    return passed(f"after {raised} bad actions that raise, the episode goes on as it would have")


def _hurt(context: Context, seed: int, bad: Any, actions: list[Any], how: str) -> Fault:
    shown = repr(bad) if len(repr(bad)) < 40 else f"'x' * {len(bad)}"
    return Fault(
        f"seed {seed}: after the bad action {shown} has raised, the episode {how}",
        context.code(
            f"def play(bad):\n    e = new(); start(e, {seed})\n    try: bad and act(e, {shown})\n    except Exception: pass\n"
            f"    out = []\n    for a in {literal(actions)}:\n        try: out.append(repr(act(e, a)))\n"
            "        except Exception as x: out.append(repr(x))\n    return out",
            "assert play(True) == play(False)",
        ),
    )


def resources(context: Context) -> Outcome:
    """Environments that are closed leave no open files and no threads."""

    def held() -> tuple[int, int]:
        gc.collect()
        files = Path("/proc/self/fd")
        return (len(list(files.iterdir())) if files.exists() else 0), threading.active_count()

    def use() -> None:
        env = context.target.make()
        context.episode(env, context.seed(3), context.actions(3, 5))
        env.close()

    use()
    use()
    before = held()
    for _ in context.within_time(range(_MADE)):
        use()
    after = held()
    grown, made = (after[0] - before[0], after[1] - before[1]), context.tried
    if max(grown) >= made // 2:
        raise Fault(
            f"{made} environments that were made and closed leave {grown[0]} open files and {grown[1]} threads",
            context.code(
                "import gc, os, threading; held = lambda: (gc.collect(), len(os.listdir('/proc/self/fd')) + threading.active_count())[1]",
                f"def use():\n    e = new(); start(e, 3); getattr(e, 'close', int)()\nuse(); before = held(); [use() for _ in range({_MADE})]",
                f"assert held() - before < {_MADE // 2}",
            ),
            files=grown[0],
            threads=grown[1],
        )
    return passed(f"{made} environments were made and closed without a trace", files=grown[0], threads=grown[1])


def speed(context: Context) -> Outcome:
    """Resets and steps take no longer than a model would wait for."""
    env = context.target.make()
    resets = steps = 0
    reset_time = step_time = 0.0
    ends = time.monotonic() + min(3.0, context.seconds / 3)
    for seed in range(10**6):
        actions = context.actions(seed % 8)
        began = _own_seconds()
        env.reset(context.seed(seed))
        reset_time += _own_seconds() - began
        resets += 1
        began = _own_seconds()
        steps += len(context.play(env, actions))
        step_time += _own_seconds() - began
        if time.monotonic() > ends:
            break
    numbers = {"reset_ms": 1000 * reset_time / resets, "step_ms": 1000 * step_time / max(steps, 1)}
    shown = f"a reset takes {numbers['reset_ms']:.3g} ms, a step {numbers['step_ms']:.3g} ms"
    if reset_time / resets > _SLOW_RESET or step_time / max(steps, 1) > _SLOW_STEP:
        raise Fault(
            shown,
            context.code(
                "import time; e = new(); t = time.time(); start(e, 3)",
                f"u = time.time(); [act(e, a) for a in {literal(context.actions(3, 1))}]",
                f"assert u - t < {_SLOW_RESET} and time.time() - u < {_SLOW_STEP}",
            ),
            **numbers,
        )
    return passed(shown, **numbers)


def _own_seconds() -> float:
    """The clock, less the time in which this thread waited for a processor that others had (where Linux says it)."""
    try:
        waited = int(_SCHEDULED.read_text().split()[1])
    except (OSError, IndexError):
        waited = 0
    return time.perf_counter() - waited / 1e9


def memory(context: Context) -> Outcome:
    """Memory does not grow with the number of episodes."""
    env = context.target.make()

    def window() -> int:
        for place in range(_EPISODES):
            if context.late:
                raise NotApplicable(
                    "episodes are too slow to play enough of them, or other threads worked all the time"
                )
            context.episode(env, context.seed(place % context.seeds), context.actions(place % 8))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    for place in range(8):
        context.actions(place)
    grown: list[float] = []
    tracemalloc.start()
    try:
        size = window()
        while len(grown) < _WINDOWS:
            before, own, others = size, time.thread_time(), _seconds_of_others()
            size = window()
            # What another thread allocates meanwhile, such as a compiler, is counted too: such a window says nothing.
            if _seconds_of_others() - others <= _OTHERS * (time.thread_time() - own):
                grown.append((size - before) / _EPISODES)
    finally:
        tracemalloc.stop()
    if min(grown) > _GROWTH:
        raise Fault(
            f"each episode leaves {grown[-1] / 1024:.1f} KiB allocated",
            context.code(
                "import gc, tracemalloc; e = new()",
                f"def window():\n    for s in range({_EPISODES}):\n        start(e, s % 8)\n        for a in {literal(context.actions(3))}:\n"
                "            if any(act(e, a)[2:4]): break\n    gc.collect(); return tracemalloc.get_traced_memory()[0]",
                f"window(); tracemalloc.start(); window(); a = [window() for _ in range(3)]; "
                f"assert min(a[1] - a[0], a[2] - a[1]) <= {_GROWTH} * {_EPISODES}",
            ),
            bytes_an_episode=grown[-1],
        )
    least = max(min(grown), 0)
    return passed(f"{_WINDOWS * _EPISODES} episodes leave {least:.0f} bytes each", bytes_an_episode=least)


def _seconds_of_others() -> float:
    """CPU time of all other threads of this process."""
    return time.process_time() - time.thread_time()
