"""Episodes played by an engine: many token processes stepped together, one turn at a time.

The members of a group share a level and each has its own noise (`group`), so that what a group's spread of returns
measures is the policy and the game, not a slip that all members had in common.

An engine that breaks costs the episodes that it was playing, never the run: they end as failures ("engine_error: ..."),
which training leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragen_agent.engines import Engine, Sampled
from ragen_agent.token_mdp import TokenMDP, Trajectory

__all__ = ["Instance", "group", "play"]

ENGINE_ERROR = "engine_error"


@dataclass(frozen=True)
class Instance:
    """One episode to play: `seed` decides the level, `noise_seed` its luck."""

    seed: int
    noise_seed: int


def group(seeds: Sequence[int], members: int) -> list[Instance]:
    """`members` instances for each seed, side by side; member i of every group has noise seed `seed * members + i`."""
    return [Instance(seed, seed * members + member) for seed in seeds for member in range(members)]


def play(
    engine: Engine,
    processes: Sequence[TokenMDP],
    instances: Sequence[Instance],
    *,
    temperature: float,
    seed: int,
    check: Callable[[Sequence[int]], None] | None = None,
) -> list[Trajectory]:
    """One episode for each instance.

    Args:
        engine: samples the replies.
        processes: token processes to use, any number: as many episodes are played at a time.
        instances: what to play.
        temperature: of sampling, above 0.
        seed: of sampling; equal arguments and weights give equal trajectories.
        check: called with ids that no model sampled (prompts and glue) before they are fed; it may raise.

    Returns:
        Trajectories in the order of `instances`; of episodes that broke, with `failure` set.

    Raises:
        ValueError: what `check` or a reset raises; or a temperature that is not positive.
        RuntimeError: the engine broke every episode, so that there is nothing to go on with.
    """
    trajectories: list[Trajectory] = []
    for start in range(0, len(instances), len(processes)):
        batch = instances[start : start + len(processes)]
        played = list(processes[: len(batch)])
        for process, instance in zip(played, batch, strict=True):
            process.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        _play_batch(engine, played, temperature, seed + start, check or (lambda ids: None))
        trajectories += [process.trajectory() for process in played]
    reasons = [t.failure for t in trajectories if t.failure is not None and t.failure.startswith(ENGINE_ERROR)]
    if instances and len(reasons) == len(instances):
        raise RuntimeError(f"all {len(reasons)} episodes failed in the engine; the first with {reasons[0]}")
    return trajectories


def _play_batch(
    engine: Engine,
    processes: Sequence[TokenMDP],
    temperature: float,
    seed: int,
    check: Callable[[Sequence[int]], None],
) -> None:
    for process in processes:
        check(process.ids)
    live = list(processes)
    try:
        session = engine.start([process.ids for process in live], temperature=temperature, seed=seed)
    except ValueError:  # of the arguments, which no other episode would change
        raise
    except Exception as error:
        _fail(live, error)
        return
    while live:
        rooms = [process.max_tokens_per_episode - len(process.ids) for process in live]
        limits = [min(process.max_tokens_per_turn, room) for process, room in zip(live, rooms, strict=True)]
        try:
            replies = list(zip(live, session.reply(limits), strict=True))
        except Exception as error:  # out of memory, a lost device: whatever it was, these episodes cannot go on
            _fail(live, error)
            return
        rows, feeds = [], []
        for row, (process, reply) in enumerate(replies):
            glue = _append(process, reply)
            if not process.done:
                check(glue)
                rows.append(row)
                feeds.append(glue)
        live = [live[row] for row in rows]
        try:
            if live:
                session.feed(rows, feeds)
        except Exception as error:
            _fail(live, error)
            return


def _append(process: TokenMDP, reply: Sampled) -> list[int]:
    """Appends a reply; returns what follows it unsampled. A reply that the process refuses ends its episode."""
    glue: list[int] = []
    try:
        for token, log_prob in zip(reply.ids, reply.log_probs, strict=True):
            glue = process.append(token, log_prob)
    except ValueError as error:  # an id outside the vocabulary, a log-prob that is not finite
        _fail([process], error)
    return glue


def _fail(processes: Sequence[TokenMDP], error: Exception) -> None:
    for process in processes:
        process.fail(f"{ENGINE_ERROR}: {type(error).__name__}: {error}")
