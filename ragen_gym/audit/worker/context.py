"""Shared part of the checks: episodes played from seeds, the actions they play, and facts found once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .protocol import AuditedEnv, Check, NotApplicable, Outcome, RenewedEnv, Step, Target, key

_LEAST = 4  # values that a check looks at, however long they take

#: An episode as it is compared: the beginning, then (observation, reward, terminated, truncated) after each action.
Transcript = list[Any]


class Fault(Exception):
    """A finding, raised where it is seen: what was seen, and Python that shows it."""


def passed(detail: str) -> Outcome:
    """The check holds; ``detail`` says on how much."""
    return Outcome("passed", detail)


@dataclass
class Context:
    """One audit.

    Args:
        target: what is audited.
        seeds: how many seeds a check plays.
        steps: the most actions of an episode.
        seconds: what one check may take; the loops that can be cut short are.
        train, test: seeds of each side of a split, and its constructor options; None for those that the target declares.
    """

    target: Target
    seeds: int = 24
    steps: int = 30
    seconds: float = 20.0
    train: tuple[Sequence[int], dict[str, Any]] | None = None
    test: tuple[Sequence[int], dict[str, Any]] | None = None
    tried: int = 0
    _deadline: float = 0.0
    _actions: dict[int, list[Any]] = field(default_factory=dict)

    def run(self, check: Check) -> Outcome:
        """The outcome of a check; a finding and a reason why it does not apply may be raised."""
        assert check.run is not None, check.id
        self.begin()
        try:
            return check.run(self)
        except Fault as fault:
            return Outcome("finding", *fault.args)
        except NotApplicable as reason:
            return Outcome("not applicable", str(reason))

    def begin(self) -> None:
        """Start the time of a check."""
        self._deadline = time.monotonic() + self.seconds

    def fault(self, detail: str, *lines: str) -> Fault:
        """A finding with its evidence: the target's definitions, then these lines."""
        return Fault(detail, "\n".join([self.target.code, *lines]))

    @property
    def late(self) -> bool:
        """True if a check should end with what it has."""
        return time.monotonic() > self._deadline

    def within_time(self, values: Iterable[Any], parts: int = 1) -> Iterable[Any]:
        """The values, until the check's time (the rest of it, divided by ``parts``) is up; the first ones always.

        After the last one ``tried`` says how many they were.
        """
        until = time.monotonic() + max(self._deadline - time.monotonic(), 0) / parts
        count = 0
        for value in values:
            if count >= _LEAST and time.monotonic() > until:
                break
            count += 1
            yield value
        self.tried = count

    def make(self, **options: Any) -> AuditedEnv:
        """A new environment, whose episodes have nothing of each other."""
        if self.leaky:
            return RenewedEnv(self.target, options)  # type: ignore[return-value]  # hands everything on
        return self.target.make(**options)

    @cached_property
    def leaky(self) -> bool:
        """True if a reset leaves something of the episode before, although new environments repeat a seed."""
        try:
            env, other = self.target.make(), self.target.make()
            first, again = key(env.reset(self.seed(3))[0]), key(other.reset(self.seed(3))[0])
            self.play(env, (env.sample(place) for place in range(3)))
            return first == again != key(env.reset(self.seed(3))[0])
        except Exception:  # the checks say what is wrong
            return False

    @cached_property
    def shared(self) -> AuditedEnv:
        """One environment that a check may use, and must leave in any state."""
        return self.make()

    def actions(self, seed: int, number: int | None = None) -> list[Any]:
        """Actions that do not depend on how an episode goes, the same for a seed whenever they are asked for."""
        if seed not in self._actions:
            self.shared.reset(seed)
            self._actions[seed] = [self.shared.sample(1000 * seed + place) for place in range(self.steps)]
        return self._actions[seed][:number]

    def some_seeds(self, number: int | None = None) -> list[int]:
        """Small and large seeds."""
        wanted = self.seeds if number is None else number
        return [place if place % 2 else 1_000_003 * place % 2**31 for place in range(wanted)]

    def transcript(
        self, env: AuditedEnv, seed: int | None, actions: Sequence[Any] = (), *, hidden: bool = False
    ) -> Transcript:
        """An episode as it is compared; its beginning includes the ``hidden`` state."""
        observation, _ = env.reset(seed)
        start = key((observation, env.state() if hidden else None))
        return [start, *map(comparable, self.play(env, actions))]

    def episode(self, env: AuditedEnv, seed: int | None, actions: Sequence[Any]) -> tuple[Any, list[Step]]:
        """(the first observation, the steps)."""
        observation, _ = env.reset(seed)
        return observation, self.play(env, actions)

    @staticmethod
    def play(env: AuditedEnv, actions: Iterable[Any]) -> list[Step]:
        """The steps of these actions, up to the end of the episode."""
        steps = []
        for action in actions:
            steps.append(env.step(action))
            if steps[-1].done:
                break
        return steps

    def level(self, env: AuditedEnv, seed: int | None) -> str:
        """Beginning of an episode: the observation, and the hidden state where it is known."""
        observation, _ = env.reset(seed)
        return key((observation, env.state()))

    def whole_level(self, env: AuditedEnv, seed: int | None) -> str:
        """Key that tells one level from another, also where the first observation does not show all of it.

        Without noise, that is the first observation and what fixed actions lead to.
        """
        observation, _ = env.reset(seed)
        start = observation, env.state()
        if self.stochastic:
            return key(start)
        return key((start, [comparable(step) for step in self.play(env, self.actions(0))]))

    @cached_property
    def repeats(self) -> bool:
        """True if a seed gives its episode again; checks that need it ask here."""
        return self.target.takes_seed and not any(len(set(map(str, self.twice(s)))) > 1 for s in self.some_seeds(3))

    def twice(self, seed: int) -> list[Transcript]:
        """The episode of a seed in two new environments."""
        return [self.transcript(self.make(), seed, self.actions(seed), hidden=True) for _ in range(2)]

    def need_repeats(self) -> None:
        """Raises NotApplicable where seeds do not repeat."""
        if not self.target.takes_seed:
            raise NotApplicable("reset takes no seed")
        if not self.repeats:
            raise NotApplicable("a seed does not repeat even in one process (see seed_repeats)")

    @cached_property
    def stochastic(self) -> bool:
        """True if one level and the same actions are seen to end differently with other seeds of the dynamics."""
        try:
            env = self.make()
            for seed in self.some_seeds(8):
                endings = set()
                for noise in range(6):
                    env.reset_with_noise(seed, noise)
                    endings.add(key([comparable(step) for step in self.play(env, self.actions(seed))]))
                if len(endings) > 1:
                    return True
        except Exception:  # no such seed, or what the environment raises, which the checks find
            return False
        return False

    @cached_property
    def played(self) -> list[tuple[int, Any, list[Step]]]:
        """Episodes of random actions: (seed, first observation, steps)."""
        env = self.make()
        seeds = self.within_time(self.some_seeds())
        return [(seed, *self.episode(env, self.seed(seed), self.actions(seed))) for seed in seeds]

    def seed(self, seed: int) -> int | None:
        """The seed for ``reset``; None where it takes none."""
        return seed if self.target.takes_seed else None


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The first place at which two records differ; 0 where none is before the shorter one's end."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)


def comparable(step: Step) -> tuple[str, Any, bool, bool]:
    """A step as an entry of a transcript."""
    return key(step.observation), _number(step.reward), bool(step.terminated), bool(step.truncated)


def _number(reward: Any) -> Any:
    try:
        return round(float(reward), 9)
    except (TypeError, ValueError):
        return repr(reward)
