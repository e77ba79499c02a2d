"""OpenEnv's server of an environment of another library, which the variable ``FOREIGN`` names as the audit does."""

from __future__ import annotations

import os
from typing import Any

from openenv.core.env_server import Environment, create_app, types

from ragen_gym.audit.worker.main import open_target

TARGET = open_target(os.environ["FOREIGN"], {}, [])


class Say(types.Action):
    text: str


class Shown(types.Observation):
    text: str


class Foreign(Environment[Say, Shown, types.State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._env, self._now = TARGET.make(), types.State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Shown:
        self._now = types.State(episode_id=episode_id)
        return Shown(text=str(self._env.reset(seed)[0]))

    def step(self, action: Say, timeout_s: float | None = None, **_: Any) -> Shown:
        self._now.step_count += 1
        named = {str(each): each for each in self._env.actions()}
        step = self._env.step(named.get(action.text, action.text))
        return Shown(text=str(step.observation), reward=float(step.reward), done=step.done)

    @property
    def state(self) -> types.State:
        return self._now


app = create_app(Foreign, Say, Shown, "foreign", 64)
