"""Episodes played by programs: processes that reach the engine and the game through the endpoint.

A program is started with ``OPENAI_BASE_URL``, ``ANTHROPIC_BASE_URL`` and ``RAGEN_GYM_URL`` in its environment, and a
key for each API. It may play one episode and end, and is started again for the next, or request one session after
another until none is left (HTTP 410). A reward of the game goes to the last reply sampled before it.

The game is played in the threads of the server, and all tokens are sampled in the thread of ``play_programs``, waiting
requests in one batch. Each reply draws from the stream of its episode and its number, but batches depend on the
programs' timing: a run with programs repeats only up to the last bits of the logits.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ragen_agent.config.settings import Program
from ragen_agent.inference import Engine, Sampled
from ragen_agent.programs.endpoint import Endpoint
from ragen_agent.programs.worker import Worker
from ragen_agent.tokens.rollout import Instance, sample
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory

_POLL = 0.02  # seconds to wait for a request before checking on the programs
_GATHER = 0.004  # seconds for which a request waits for others to join its batch
MOST_IDLE = 3  # consecutive programs without an episode after which the run ends
NO_EPISODE = (
    "program.command {!r} ended {} times in a row ({}) without having begun an episode: it must POST to "
    "RAGEN_GYM_URL/sessions, as a client of ragen-gym serve does."
)
_GRACE = 2.0  # seconds between asking a program to end and ending it


def play_programs(
    engine: Engine,
    processes: Sequence[TokenMDP],
    instances: Sequence[Instance],
    program: Program,
    *,
    temperature: float,
    seed: int,
    check: Callable[[Sequence[int]], None] = lambda ids: None,
    over: Callable[[Mapping[int, Trajectory]], None] = lambda played: None,
    numbers: Sequence[int] | None = None,
) -> list[Trajectory]:
    """One episode for each instance, played by programs; see the module and ``ragen_agent.tokens.rollout.play``.

    Args:
        engine: samples the replies.
        processes: give turn environments, templates and limits; each serves one program at a time.
        instances: the episodes to play.
        program: the command and its settings.
        temperature: sampling temperature, above 0; a program's own is ignored.
        seed: sampling seed.
        check: called with unsampled ids; it may raise.
        over: called with the finished episodes, by their numbers.
        numbers: of the instances to play; None for all of them.

    Returns:
        Trajectories in the order of ``instances``; failed episodes have ``failure`` set.

    Raises:
        ValueError: messages with pictures, or a command that cannot be started or never begins an episode.
    """
    rollout = _Rollout(engine, instances, program, temperature, seed, numbers)
    with Endpoint() as endpoint:
        try:
            return rollout.play(endpoint, processes[: program.workers], check, over)
        finally:
            rollout.stop()


@dataclass
class _Pending:
    """A request waiting for its reply."""

    ids: list[int]
    limit: int
    number: int
    done: threading.Event = field(default_factory=threading.Event)
    abandoned: bool = False  # the reply is no longer awaited
    reply: Sampled | None = None
    error: str = ""


class _Rollout:
    """The episodes of one call; ``play`` runs in the caller's thread, the rest in the server's threads too."""

    def __init__(
        self,
        engine: Engine,
        instances: Sequence[Instance],
        program: Program,
        temperature: float,
        seed: int,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.engine, self.instances, self.program = engine, instances, program
        self.numbers = range(len(instances)) if numbers is None else numbers
        self.temperature, self.seed = temperature, seed
        self.played: dict[int, Trajectory] = {}
        self.workers: list[Worker] = []
        self._waiting: queue.SimpleQueue[_Pending] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._begun = 0
        self._stopped = False

    def play(
        self,
        endpoint: Endpoint,
        processes: Sequence[TokenMDP],
        check: Callable[[Sequence[int]], None],
        over: Callable[[Mapping[int, Trajectory]], None],
    ) -> list[Trajectory]:
        for process in processes[: len(self.numbers)]:
            worker = Worker(self.program, process, self, check)
            worker.url = endpoint.add(worker)
            self.workers.append(worker)
        idle = 0
        while len(self.played) < len(self.numbers):
            for worker in self.workers:
                if worker.process is None and self._begun < len(self.numbers):
                    worker.start()
            self._sample(self._gather())
            for worker in self.workers:
                ended = worker.look_after()
                if ended is not None:
                    idle = 0 if worker.episodes else idle + 1
                    if idle >= MOST_IDLE and self._begun < len(self.numbers):
                        raise ValueError(NO_EPISODE.format(self.program.command, idle, ended))
            over(self.played)
        return [self.played[number] for number in self.numbers]

    def next(self) -> tuple[int, Instance] | None:
        """See ``Source``."""
        with self._lock:
            if self._begun == len(self.numbers):
                return None
            number = self.numbers[self._begun]
            self._begun += 1
            return number, self.instances[number]

    def sample(self, ids: list[int], limit: int, episode: int, number: int, gone: Callable[[], bool]) -> Sampled:
        """See ``Source``."""
        pending = _Pending(ids, limit, episode + len(self.instances) * number)
        self._waiting.put(pending)
        while not pending.done.wait(_POLL):
            if self._stopped:
                raise RuntimeError("the rollout has ended")
            if gone():
                pending.abandoned = True
                raise ConnectionAbortedError
        if pending.reply is None:
            raise RuntimeError(pending.error)
        return pending.reply

    def over(self, episode: int, trajectory: Trajectory) -> None:
        """See ``Source``."""
        self.played[episode] = trajectory

    def stop(self) -> None:
        """End the programs."""
        self._stopped = True
        running = [worker.process for worker in self.workers if worker.process is not None]
        for process in running:
            process.ask_to_end()
        until = time.monotonic() + _GRACE
        for process in running:
            process.end(max(0.0, until - time.monotonic()))

    def _gather(self) -> list[_Pending]:
        found: list[_Pending] = []
        with suppress(queue.Empty):
            found.append(self._waiting.get(timeout=_POLL))
            while True:
                found.append(self._waiting.get(timeout=_GATHER))
        return found

    def _sample(self, batch: Sequence[_Pending]) -> None:
        batch = [each for each in batch if not each.abandoned]
        while batch:
            longest = max(len(each.ids) + each.limit for each in batch)
            rows = max(1, self.engine.max_rows(longest))
            now, batch = batch[:rows], batch[rows:]
            try:
                replies = sample(
                    self.engine,
                    [each.ids for each in now],
                    [each.limit for each in now],
                    temperature=self.temperature,
                    seed=self.seed,
                    episodes=[each.number for each in now],
                )
            except Exception as error:  # out of memory, a lost device: these episodes cannot continue
                for each in now:
                    each.error = f"{type(error).__name__}: {error}"
            else:
                for each, reply in zip(now, replies, strict=True):
                    each.reply = reply
            for each in now:
                each.done.set()
