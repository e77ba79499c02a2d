"""An episode that a program plays against vLLM: the endpoint of ``ragen_agent.programs`` next to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import wait

from ragen_agent.config.settings import Program
from ragen_agent.inference import Sampled
from ragen_agent.openrlhf.episode import ContractError, Generate
from ragen_agent.programs.endpoint import Endpoint
from ragen_agent.programs.rollout import MOST_IDLE, NO_EPISODE
from ragen_agent.programs.worker import Worker
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.threads import in_thread

__all__ = ["play_program"]

_POLL = 0.05  # seconds between looks at the program
_GRACE = 2.0  # seconds in which a program that was asked to end may do so


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

    Args:
        endpoint: at which the program reaches the engine and the game.
        program: the command, and how it is run.
        process: whose turn environment, template and limits are used.
        generate: the engine, of this event loop.
        instance: what to play.
        request_seed: number of a reply in the episode -> seed with which it is sampled.
        generation_timeout: seconds for one reply.
        check: called with ids that no model sampled; it may raise a ValueError.

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
