"""Episodes played by an engine: many token processes stepped together, one turn at a time.

The rollouts of a group share a level, and each has its own transition noise (`group`), so the std of a group's returns
measures the policy and the game, not a slip common to all rollouts.

An engine error ends only the episodes in play, and a game's error only its own episode, never the run. They end as
failures (``"engine_error: ..."``, ``"environment_error: ..."``), which training leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from ragen_agent.inference import Engine, GenerationSession, Sampled
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory, failed
from ragen_gym.core.failures import Failure


class PastReply(NamedTuple):
    """A reply that was sampled in another episode, and the noise seed of the turn that it was played in."""

    ids: Sequence[int]
    log_probs: Sequence[float]
    noise_seed: int


@dataclass(frozen=True)
class Instance:
    """One episode to play: ``seed`` decides the level, ``noise_seed`` its transition noise.

    The replies in ``past`` are played again before the policy goes on, each with its own noise.
    """

    seed: int
    noise_seed: int
    past: Sequence[PastReply] = ()

    def begin(self, process: TokenMDP) -> None:
        """Start the episode.

        Raises:
            RuntimeError: a reply in ``past`` cannot be played again: the game fails, ends or writes a longer text.
            Else as ``TokenMDP.begin``.
        """
        noise, *later = [*(reply.noise_seed for reply in self.past), self.noise_seed]
        process.begin(seed=self.seed, options={"noise_seed": noise})
        for turn, (reply, after) in enumerate(zip(self.past, later, strict=True), 1):
            differs = f"the replay of turn {turn} differs from the episode that it branches from"
            try:
                process.append_reply(reply.ids, reply.log_probs)
            except ValueError as error:  # the reply had room the first time
                raise RuntimeError(f"{differs}: {error}") from error
            if process.done:
                raise RuntimeError(f"{differs}: {process.trajectory().failure or 'it is over'}")
            if after != noise:  # else the stream goes on
                process.env.get_wrapper_attr("reseed_noise")(after)
            noise = after


def group(seeds: Sequence[int], group_size: int) -> list[Instance]:
    """``group_size`` instances for each seed, one after another; number i has noise seed ``seed * group_size + i``."""
    return [Instance(seed, seed * group_size + i) for seed in seeds for i in range(group_size)]


def play(
    engine: Engine,
    processes: Sequence[TokenMDP],
    instances: Sequence[Instance],
    *,
    temperature: float,
    seed: int,
    check: Callable[[Sequence[int]], None] = lambda ids: None,
    over: Callable[[Mapping[int, Trajectory]], None] = lambda played: None,
    numbers: Sequence[int] | None = None,
) -> list[Trajectory]:
    """One episode for each instance; when an episode ends, the next one takes its place.

    Args:
        engine: samples the replies.
        processes: token processes to use, any number: as many episodes are played at a time, or fewer if the engine
            cannot hold that many.
        instances: the episodes to play.
        temperature: sampling temperature, above 0.
        seed: sampling seed; episode i draws from the stream of (seed, i), independent of the other episodes.
        check: called with unsampled ids (prompts and glue) before they are fed; it may raise.
        over: called after each turn with the finished episodes, by their numbers.
        numbers: of the instances to play, each as it would be among all; None for all of them.

    Returns:
        Trajectories in the order of ``instances``; failed episodes have ``failure`` set.

    Raises:
        ValueError: from ``check`` or a reset; a temperature that is not positive; or an engine that cannot hold one
            episode.
    """
    rows = min(engine.max_rows(process.max_tokens_per_episode) for process in processes)
    if rows < 1:
        raise ValueError(
            "one episode of max_tokens_per_episode does not fit into the engine's cache; lower max_tokens_per_episode, "
            "or raise cached_tokens."
        )
    numbers = range(len(instances)) if numbers is None else numbers
    return _Rollout(engine, instances, temperature, seed, check).play(processes[:rows], numbers, over)


def sample(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    *,
    temperature: float,
    seed: int,
    episodes: Sequence[int] | None = None,
) -> list[Sampled]:
    """One reply to each prompt, of at most ``limits[i]`` tokens; ``episodes`` as in ``Engine.start``."""
    session = engine.start(prompts, temperature=temperature, seed=seed, episodes=episodes)
    found: dict[int, Sampled] = {}
    rows = list(range(len(prompts)))
    while rows:
        replies = session.reply([limits[row] for row in rows])
        found |= {row: reply for row, reply in zip(rows, replies, strict=True) if reply is not None}
        writing = [place for place, reply in enumerate(replies) if reply is None]
        rows = [rows[place] for place in writing]
        if rows:
            session.feed(writing, [[] for _ in writing])
    session.close()
    return [found[row] for row in range(len(prompts))]


class _Rollout:
    """Episodes in play: ``slots`` are their numbers and processes, in the order of the session's rows."""

    def __init__(
        self,
        engine: Engine,
        instances: Sequence[Instance],
        temperature: float,
        seed: int,
        check: Callable[[Sequence[int]], None],
    ) -> None:
        self.engine, self.instances = engine, instances
        self.temperature, self.seed, self.check = temperature, seed, check
        self.session: GenerationSession | None = None
        self.slots: list[tuple[int, TokenMDP]] = []
        self.moved: list[tuple[int, TokenMDP]] = []  # the last slots: they begin a new prefix in a new row
        self.broken: list[tuple[int, TokenMDP, Trajectory]] = []  # they could not begin

    def play(
        self,
        processes: Sequence[TokenMDP],
        numbers: Sequence[int],
        report: Callable[[Mapping[int, Trajectory]], None],
    ) -> list[Trajectory]:
        played: dict[int, Trajectory] = {}
        free, waiting = list(processes), list(numbers)
        while len(played) < len(numbers):
            new = list(zip(waiting, free, strict=False))
            waiting, free = waiting[len(new) :], free[len(new) :]
            if self._begin(new):
                self._turn()
            over = [slot for slot in self.slots if slot[1].done]
            self.slots = [slot for slot in self.slots if not slot[1].done]
            played.update((episode, process.trajectory()) for episode, process in over)
            free += [process for _, process in over]
            played.update((episode, trajectory) for episode, _, trajectory in self.broken)
            free += [process for _, process, _ in self.broken]
            self.broken = []
            report(played)
        return [played[episode] for episode in numbers]

    def _begin(self, new: list[tuple[int, TokenMDP]]) -> bool:
        """Begins episodes; False if the engine failed or no episode is in play."""
        begun = []
        for episode, process in new:
            instance = self.instances[episode]
            try:
                instance.begin(process)
            except ValueError:  # from the settings, which are the same in every episode
                raise
            except Exception as error:  # from the game
                reason = f"{Failure.ENVIRONMENT_ERROR}: {type(error).__name__}: {error}"
                self.broken.append((episode, process, failed([], reason, instance.seed)))
                continue
            self.check(process.ids)
            begun.append((episode, process))
        self.slots += begun
        if not self.slots:
            return False
        joining, self.moved = [*self.moved, *begun], []
        prompts = [process.ids for _, process in joining]
        images = [process.images for _, process in joining]
        # A row's number decides its draws, so every prefix of an episode has its own number.
        episodes = [episode + len(self.instances) * process.context for episode, process in joining]
        try:
            if self.session is None:
                self.session = self.engine.start(
                    prompts, temperature=self.temperature, seed=self.seed, episodes=episodes, images=images
                )
            elif joining:
                self.session.join(prompts, episodes, images=images)
        except ValueError:  # from the arguments, the same for all episodes
            raise
        except Exception as error:
            self._break(error)
            return False
        return True

    def _turn(self) -> None:
        """One reply in every slot; running episodes are fed the ids after it."""
        assert self.session is not None
        limits = [min(p.max_tokens_per_turn, p.max_tokens_per_episode - len(p.ids)) for _, p in self.slots]
        try:
            replies = list(zip(self.slots, self.session.reply(limits), strict=True))
        except Exception as error:  # out of memory, a lost device: these episodes cannot continue
            self._break(error)
            return
        rows, feeds, images = [], [], []
        for row, ((episode, process), reply) in enumerate(replies):
            context = process.context
            glue = [] if reply is None else append_or_fail(process, reply)  # None: it is still writing
            if process.done:
                continue
            self.check(process.ids if process.context > context else glue)
            if process.context > context:
                self.moved.append((episode, process))
            else:
                rows.append(row)
                feeds.append(glue)
                images.append(process.images_of(len(glue)))
        over = [slot for slot, _ in replies if slot[1].done]
        self.slots = [*(self.slots[row] for row in rows), *self.moved, *over]
        if not rows:
            self.session.close()
            self.session = None
            return
        try:
            self.session.feed(rows, feeds, images=images)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        _fail([process for _, process in self.slots], error)
        self.session, self.moved = None, []


def append_or_fail(process: TokenMDP, reply: Sampled) -> list[int]:
    """Appends a reply; returns the ids that follow it. A reply that the process refuses fails the episode."""
    broken = [log_prob for log_prob in reply.log_probs if not isfinite(log_prob)]
    if broken:
        process.fail(f"{Failure.ENGINE_NAN}: the log-probability of a sampled token is {broken[0]}")
        return []
    try:
        return process.append_reply(reply.ids, reply.log_probs)
    except ValueError as error:  # an id outside the vocabulary, or no whole turn
        _fail([process], error)
        return []


def _fail(processes: Sequence[TokenMDP], error: Exception) -> None:
    for process in processes:
        process.fail(f"{Failure.ENGINE_ERROR}: {type(error).__name__}: {error}")
