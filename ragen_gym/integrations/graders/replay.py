"""Sessions of a running OpenEnv server, and the episodes that its package declares: plan, oracle, canaries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import finalize

from openenv.core.generic_client import GenericEnvClient
from openenv.validation import Subject
from openenv.validation.runtime.collector import collect_runtime_evidence
from openenv.validation.runtime.contracts import RuntimeEvidence, RuntimePlan, load_runtime_plan

from ragen_gym.audit.worker.protocol import NotApplicable

#: Arguments of a reset, and the actions after it.
Plan = tuple[dict[str, Any], Sequence[Any]]

_IDLE_STEPS = 30


class Session:
    """A session of a server as a Gymnasium-like environment; ``arguments`` go to every reset."""

    def __init__(self, url: str, arguments: dict[str, Any] | None = None) -> None:
        self._client, self._arguments = GenericEnvClient(base_url=url).sync(), arguments or {}
        self.close = finalize(self, self._client.close)  # once, also where nobody calls it: the server's room is small

    def reset(self, seed: int | None = None, **others: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the info holds the reward of the reset, None in most environments."""
        result = self._client.reset(**self._arguments, **({} if seed is None else {"seed": seed}), **others)
        return result.observation, {"reward": result.reward}

    def step(self, action: dict[str, Any]) -> tuple[Any, float | None, bool, dict[str, Any]]:
        """Take an action."""
        result = self._client.step(action)
        return result.observation, result.reward, result.done, {}


@dataclass(frozen=True)
class Package:
    """A package and its running server. What it does not declare, or the server refuses, raises ``NotApplicable``."""

    subject: Subject

    @cached_property
    def url(self) -> str:
        """Address of the server."""
        if self.subject.running is None:
            raise NotApplicable("no server is running")
        return str(self.subject.running.base_url)

    @cached_property
    def plan(self) -> RuntimePlan:
        """The runtime plan, whose actions are the ones known."""
        execution = getattr(self.subject.manifest, "execution", None)
        if execution is None:
            raise NotApplicable("openenv.yaml declares no validation.execution, so that no actions are known")
        return load_runtime_plan(self.subject.root, execution)

    def record(self) -> RuntimeEvidence:
        """The episode of the runtime plan, as OpenEnv collects it."""
        timeout = self.subject.manifest.resources.episode_timeout_s
        evidence = collect_runtime_evidence(self.url, self.plan, episode_timeout_s=timeout)
        if evidence.failure_reason:
            raise NotApplicable(evidence.failure_reason)
        return evidence

    def episode(self, arguments: dict[str, Any], actions: Sequence[Any] = ()) -> tuple[list[Any], list[float]]:
        """The observations and the rewards of an episode in a session of its own; a reset has a reward in some."""
        with closing(Session(self.url)) as session:
            try:
                observation, info = session.reset(**arguments)
                shown, rewards = [observation], [info["reward"]]
                for action in actions:
                    observation, reward, done, _ = session.step(action)
                    shown.append(observation)
                    rewards.append(reward)
                    if done:
                        break
            except (RuntimeError, OSError) as error:  # an error message of the server, and no connection
                raise NotApplicable(f"the server refused: {error}") from error
        return shown, [reward for reward in rewards if reward is not None]

    def rewards(self, plan: Plan) -> list[float]:
        """The rewards of a declared episode, one or more."""
        rewards = self.episode(*plan)[1]
        if not rewards:
            raise NotApplicable("an episode without a reward")
        return rewards

    def beginnings(self, seeds: range) -> list[Any]:
        """First observations of seeds."""
        return [self.episode({**self.plan.reset.options, "seed": seed})[0] for seed in seeds]

    def floor(self, seeds: range) -> float:
        """The most that a reset, or actions whose texts are empty, earn."""
        blank, options = _blank(self.plan.actions[0]), self.plan.reset.options
        idle = [] if blank == self.plan.actions[0] else [blank] * _IDLE_STEPS
        found: list[float] = []
        for seed in seeds:
            try:
                found += self.episode({**options, "seed": seed}, idle)[1]
            except NotApplicable:  # an empty text is refused, which earns nothing
                found += self.episode({**options, "seed": seed})[1]
        if not found:
            raise NotApplicable("neither a reset nor an action with empty texts has a reward")
        return max(found)

    @cached_property
    def oracle(self) -> Plan:
        """The declared oracle: a reset and actions, or a bare state to be injected."""
        declared = self.subject.manifest.capabilities.oracle
        if declared is None or declared.form != "injected_state":
            raise NotApplicable(f"no state to be injected is declared: the oracle is {declared and declared.form}")
        content = self._read(declared.location)
        replay = isinstance(content, dict) and {"reset", "actions"} <= content.keys()
        return (content["reset"], content["actions"]) if replay else ({"injected_state": content}, ())

    @cached_property
    def canaries(self) -> list[Plan]:
        """The declared canaries; none where none are declared."""
        location = self.subject.manifest.capabilities.canaries
        if not location:
            return []
        try:
            plans = [(each["reset"], each["actions"]) for each in self._read(location)]
        except (TypeError, KeyError):
            plans = []
        if not plans:
            raise NotApplicable(f"{location} is not a list of objects with reset and actions")
        return plans

    def _read(self, location: str) -> Any:
        path = (self.subject.root / location).resolve()
        if not path.is_relative_to(self.subject.root.resolve()) or not path.is_file():
            raise NotApplicable(f"{location} is not a file of the package")
        return json.loads(path.read_text(encoding="utf-8"))


def texts(value: Any) -> Iterator[str]:
    """All texts within JSON data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)


def _blank(value: Any) -> Any:
    """JSON data with empty texts."""
    if isinstance(value, dict):
        return {name: _blank(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_blank(each) for each in value]
    return "" if isinstance(value, str) else value
