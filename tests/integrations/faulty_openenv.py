"""An OpenEnv server with a fault planted by the argument ``fault`` of a reset: a word is to be read backwards."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
from openenv.core.env_server import Environment, create_app, types

NAME, TASKS, LAST_SEED = "faulty", 7, 4242
SERVED = count()  # of the whole server


class Say(types.Action):
    text: str


class Shown(types.Observation):
    text: str


class Shared:
    word = ""


class Backwards(Environment[Say, Shown, types.State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._now, self._own, self._episodes = types.State(), Shared(), count()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Shown:
        self._fault, self._injected = given.get("fault"), given.get("injected_state")
        self._now = types.State(episode_id=episode_id)
        random = np.random.default_rng(None if self._fault == "unseeded" else seed)
        self._words = Shared if self._fault == "one word for all sessions" else self._own
        self._words.word = self._injected or "".join(random.choice(list("abcdefgh"), 8))
        shown = [self._shown()]
        if self._fault == "shows the solution":
            shown.append(f"({self._words.word})")
        if self._fault == "offers choices":
            shown.append(f"abcdefgh or {self._words.word}?")
        if self._fault == "counts a session's episodes":
            shown.append(str(next(self._episodes)))
        if self._fault == "counts the server's episodes" and seed == LAST_SEED:
            shown.append(str(next(SERVED)))
        return Shown(text=" ".join(shown))

    def _shown(self) -> str:
        return f"Read backwards: {self._words.word[::-1]}"

    def step(self, action: Say, timeout_s: float | None = None, **others: Any) -> Shown:
        self._now.step_count += 1
        pays = {"pays for nothing": "", "pays who asks": "Reward: 1."}.get(str(self._fault), self._words.word)
        reward = float(action.text in (pays, self._words.word))
        if self._fault == "pays half":
            reward /= 2
        if self._fault == "pays by its mood" and self._injected:
            reward -= 0.01 * (next(SERVED) % 2)
        return Shown(text=self._shown(), reward=max(reward, 0.0), done=self._now.step_count == 3)

    @property
    def state(self) -> types.State:
        return self._now

    def num_tasks(self, split: str) -> int:
        return TASKS


app = create_app(Backwards, Say, Shown, NAME, 64)
