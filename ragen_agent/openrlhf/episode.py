"""One episode against an engine that answers asynchronously, on the ``TokenMDP`` that the local trainer uses too.

A game is played by ``play_episode``, or by a user's program that asks an endpoint (``ragen_agent.programs``) next to
the engine: ``play_program``.

Ids go in and ids come out: what was sampled is never decoded and encoded again, so equal sampled tokens give equal
``Trajectory`` objects on both backends. Everything that can take long has a timeout, and an error costs only its own
episode: the trajectory then names the failure, and training leaves it out. What would fail in every episode, such as a
prompt that does not fit, is a ``ContractError`` and ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from itertools import pairwise
from typing import Any, Protocol

from ragen_agent.config.settings import Program
from ragen_agent.inference import ImageSpan, Sampled
from ragen_agent.programs.endpoint import Endpoint
from ragen_agent.programs.rollout import MOST_IDLE, NO_EPISODE
from ragen_agent.programs.worker import Worker
from ragen_agent.tokens.rollout import Instance, append_or_fail
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory, failed
from ragen_gym.core.failures import Failure
from ragen_gym.core.threads import in_thread

_POLL = 0.05  # seconds between looks at the program
_GRACE = 2.0  # seconds in which a program that was asked to end may do so


class ContractError(ValueError):
    """Settings with which no episode can be played; the run stops at once."""


class TooManyFailuresError(RuntimeError):
    """More episodes failed than the failure budget allows."""


class Generate(Protocol):
    """Samples one reply."""

    async def __call__(self, ids: Sequence[int], images: Sequence[ImageSpan], *, limit: int, seed: int) -> Sampled:
        """Continues ``ids`` until a stop id or ``limit`` tokens; raises a ValueError for arguments that never work.

        ``images`` are the pictures in ``ids``.
        """
        ...


async def play_episode(
    process: TokenMDP,
    generate: Generate,
    *,
    seed: int,
    noise_seed: int,
    request_seed: Callable[[int], int],
    generation_timeout: float,
    environment_timeout: float,
    check: Callable[[Sequence[int]], None] = lambda ids: None,
) -> Trajectory:
    """Plays one episode by ``generate``, the engine; after a timeout of the environment ``process`` must not be reused.

    ``request_seed`` gives the seed of each turn's reply. The timeouts are seconds for one reply, and for the reset or
    one answer of the environment. ``check`` is called with ids that no model sampled, and may raise a ValueError.

    Raises:
        ContractError: the reset, ``check`` or the engine refused what every other episode would pass too.
    """
    ids: list[int] = []
    try:
        await in_thread(
            lambda: process.reset(seed=seed, options={"noise_seed": noise_seed}), timeout=environment_timeout
        )
        ids = list(process.ids)
        check(ids)
        turn = 0
        while not process.done:
            room = process.max_tokens_per_episode - len(process.ids)
            limit = min(process.max_tokens_per_turn, room)
            reply = await _reply(generate, process, limit, request_seed(turn), generation_timeout)
            if reply is None:
                break
            context = process.context
            glue = await in_thread(append_or_fail, process, reply, timeout=environment_timeout)
            ids = list(process.ids)
            if not process.done:
                check(ids if process.context > context else glue)
            turn += 1
    except TimeoutError:
        return failed(ids, f"{Failure.ENVIRONMENT_TIMEOUT}: no answer within {environment_timeout:g} s", seed)
    except ValueError as error:
        raise ContractError(str(error)) from error
    except Exception as error:  # of the game: it costs this episode, never the run
        return failed(ids, f"{Failure.ENVIRONMENT_ERROR}: {type(error).__name__}: {error}", seed)
    return process.trajectory()


async def _reply(generate: Generate, process: TokenMDP, limit: int, seed: int, seconds: float) -> Sampled | None:
    """The engine's reply; None if it failed, and with it the episode."""
    try:
        return await asyncio.wait_for(generate(process.ids, process.images, limit=limit, seed=seed), seconds)
    except TimeoutError:
        process.fail(f"{Failure.GENERATION_TIMEOUT}: no reply within {seconds:g} s")
    except ValueError:  # of the arguments, which are the same in every episode
        raise
    except Exception as error:  # out of memory, a lost device: this episode cannot go on
        process.fail(f"{Failure.ENGINE_ERROR}: {type(error).__name__}: {error}")
    return None


class _Source:
    """One episode, sampled by the engine of an event loop."""

    def __init__(
        self,
        instance: Instance,
        generate: Generate,
        request_seed: Callable[[int], int],
        generation_timeout: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.trajectory: Trajectory | None = None
        self._left = [(0, instance)]
        self._generate, self._request_seed, self._timeout, self._loop = generate, request_seed, generation_timeout, loop

    def next(self) -> tuple[int, Instance] | None:
        return self._left.pop() if self._left else None

    def sample(self, ids: list[int], limit: int, episode: int, number: int, gone: Callable[[], bool]) -> Sampled:
        reply = self._generate(ids, (), limit=limit, seed=self._request_seed(number))
        waiting = asyncio.run_coroutine_threadsafe(asyncio.wait_for(reply, self._timeout), self._loop)
        while not wait([waiting], _POLL).done:
            if gone():
                waiting.cancel()
                raise ConnectionAbortedError
        try:
            return waiting.result()
        except TimeoutError:
            raise TimeoutError(f"no reply within {self._timeout:g} s") from None
        except Exception as error:  # out of memory, a lost device: this episode cannot go on
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def over(self, episode: int, trajectory: Trajectory) -> None:
        self.trajectory = trajectory


async def play_program(
    endpoint: Endpoint,
    program: Program,
    process: TokenMDP,
    generate: Generate,
    instance: Instance,
    *,
    request_seed: Callable[[int], int],
    generation_timeout: float,
    check: Callable[[Sequence[int]], None] = lambda ids: None,
) -> Trajectory:
    """Starts a program for one episode, and ends it with the episode; one that ends without it is started again.

    ``process`` gives the turn environment, template and limits; for the others see ``play_episode``.

    Raises:
        ContractError: the command cannot be started, or ended again and again without having begun an episode.
    """
    source = _Source(instance, generate, request_seed, generation_timeout, asyncio.get_running_loop())
    worker = Worker(program, process, source, check)
    worker.url = endpoint.add(worker)
    idle, ended = 0, ""
    try:
        while source.trajectory is None:
            if worker.process is None:
                if idle == MOST_IDLE:
                    raise ValueError(NO_EPISODE.format(program.command, idle, ended))
                worker.start()
                idle += 1
            await asyncio.sleep(_POLL)
            ended = worker.look_after() or ended
        return source.trajectory
    except ValueError as error:
        raise ContractError(str(error)) from error
    finally:
        endpoint.remove(worker.url)
        if worker.process is not None:
            worker.process.ask_to_end()
            await in_thread(worker.process.end, _GRACE)


def response_of(
    trajectory: Trajectory, prompt: str = "", label: str = "", pictures: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A row as OpenRLHF's ``SamplesGenerator`` reads it; a failed episode has no action, so no loss, and no reward.

    ``pictures`` are what the models' processes need of the row's, see ``ragen_agent.openrlhf.pictures.packed``.
    """
    played, sampled = trajectory.failure is None, trajectory.sampled
    edges = [0, *(sampled[1:] != sampled[:-1]).nonzero()[0] + 1, len(trajectory.ids)]
    spans = [(int(a), int(b)) for a, b in pairwise(edges) if sampled[a]]
    return {
        "prompt": prompt,
        "label": label,
        "images": None,  # they are in the trajectory, and OpenRLHF reads none here
        "mm_train_inputs": pictures,
        "reward": trajectory.total_reward if played else 0.0,
        "scores": float(trajectory.success),
        "observation_tokens": trajectory.ids.tolist(),
        "action_ranges": spans if played else [],
        "rollout_log_probs": trajectory.log_probs.tolist(),
        "truncated": trajectory.truncated,
        "extra_logs": {},
    }


def check_failures(played: Sequence[Trajectory], budget: float) -> None:
    """Raises a ``TooManyFailuresError`` if more than the share ``budget`` of the episodes failed."""
    reasons = [str(trajectory.failure) for trajectory in played if trajectory.failure is not None]
    if len(reasons) > budget * len(played):
        examples = "; ".join(sorted(set(reasons))[:3])
        raise TooManyFailuresError(
            f"{len(reasons)} of {len(played)} episodes failed, more than openrlhf.failure_budget={budget:g} "
            f"allows: {examples}"
        )
