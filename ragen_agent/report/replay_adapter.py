"""Episodes of training played again by the benchmark's replay, from their level, their luck and their replies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ragen_agent.config import Config
from ragen_agent.training.replies import turn_spans
from ragen_agent.training.tasks import make_env
from ragen_agent.trajectory import Trajectory
from ragen_gym.bench.records import EpisodeRecord, TurnRecord
from ragen_gym.bench.replay import Replayer
from ragen_gym.bench.report.sprites import look
from ragen_gym.bench.report.tables import number
from ragen_gym.bench.report.viewer_data import details
from ragen_gym.bench.suite import Split
from ragen_gym.core.failures import Failure
from ragen_gym.core.levels import Level
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.turn import TurnEnv

__all__ = ["GameReplay", "Stored", "as_written", "stored"]


@dataclass(frozen=True)
class Stored:
    """A line of `episodes.jsonl`: `place` counts it among those of its phase, and of its iteration in training."""

    record: Mapping[str, Any]
    trajectory: Trajectory
    place: int

    @property
    def trained(self) -> bool:
        """Whether it was played to learn from, not to measure."""
        return bool(self.record["phase"] == "train")

    @property
    def iteration(self) -> int:
        """Of the training, from 0; 0 for one that was measured."""
        return int(self.record.get("iteration", 0))


def stored(records: Sequence[Mapping[str, Any]]) -> Iterator[Stored]:
    """The lines of `episodes.jsonl`, counted."""
    counts: dict[tuple[Any, ...], int] = {}
    for record in records:
        key = record["phase"], record.get("iteration")
        place = counts.get(key, 0)
        counts[key] = place + 1
        yield Stored(record, Trajectory.from_dict(record), place)


class GameReplay:
    """One game of a run, and the stage on which its episodes are replayed: the benchmark's own.

    Args:
        name: under which the viewer finds the look of its boards.
        config: the settings of a run on it alone.
    """

    def __init__(self, name: str, config: Config) -> None:
        self.name, self.config = name, config
        self._envs: dict[str, TurnEnv] = {}
        self._levels: dict[str, Level] = {}
        self._replayer: Replayer | None = None

    def knows(self, episode: Stored) -> bool:
        """Whether it draws this level from this seed; then the level is remembered. To be asked before `details`."""
        t = episode.trajectory
        if t.level_id in self._levels:
            return True
        if t.seed is None:
            return False
        env = self._env("train" if episode.trained else self.config.evaluation.split)
        env.reset(seed=t.seed)
        if env.level.id != t.level_id:
            return False
        self._levels[t.level_id] = env.level
        self._replayer = None
        return True

    @property
    def look(self) -> dict[str, Any]:
        """How the viewer draws its boards."""
        return look(self._env("train").env)

    def details(self, episode: Stored) -> dict[str, Any]:
        """The episode replayed, as the viewer takes it."""
        if self._replayer is None:
            turns = self.config.turns
            names = {field.name for field in fields(TurnConfig)}
            options = TurnConfig(**{name: value for name, value in vars(turns).items() if name in names})
            levels = tuple(self._levels.values())
            self._replayer = Replayer(
                Split(self.name, self.config.game, dict(self.config.env_options), levels, options)
            )
        env, level = self._env("train"), self._levels[episode.trajectory.level_id]
        env.reset(options={"level": level})
        index = list(self._levels).index(level.id)
        return {**details(self._replayer, _record(episode, index, env), ""), "look": self.name}

    def _env(self, split: str) -> TurnEnv:
        if split not in self._envs:
            self._envs[split] = make_env(self.config, split)
        return self._envs[split]


def _record(episode: Stored, index: int, env: TurnEnv) -> EpisodeRecord:
    """The trajectory as the benchmark records an episode; `env` stands at its level."""
    t = episode.trajectory
    asked = [m["content"] for m in t.messages if m["role"] == "user"]
    replies = [m["content"] for m in t.messages if m["role"] == "assistant"]
    counts = [int(t.sampled[first:end].sum()) for first, end in turn_spans(t)]
    turns = []
    for place, reply in enumerate(replies[: len(t.turn_ends)]):
        facts = t.turn_facts[place] if t.turn_facts else None
        said = env.parse(reply)
        turns.append(
            TurnRecord(
                message=asked[place],
                reply=reply,
                actions=tuple(said.actions[: facts.played] if facts else said.actions),
                reward=t.turn_rewards[place],
                problem=(facts.problem if facts else str(said.problem or "")) or None,
                completion_tokens=counts[place],
            )
        )
    kind, _, detail = (t.failure or "").partition(": ")
    known = Failure(kind) if kind in list(Failure) else Failure.AGENT_ERROR
    return EpisodeRecord(
        key="",
        split=env.game.name,
        index=index,
        rollout=0,
        level_id=t.level_id,
        noise_seed=int(episode.record.get("noise_seed") or 0),
        turns=tuple(turns),
        success=t.success,
        total_reward=t.total_reward,
        terminated=t.terminated,
        truncated=t.truncated,
        last_board="",
        failure=None if t.failure is None else known,
        detail=detail if kind in list(Failure) else t.failure or "",
    )


def as_written(t: Trajectory) -> dict[str, Any]:
    """An episode that cannot be replayed, as of another version's levels: its messages stand where boards would."""
    asked = [m["content"] for m in t.messages if m["role"] == "user"]
    replies = [m["content"] for m in t.messages if m["role"] == "assistant"]
    turns = [
        {"message": asked[k], "reply": reply, "reward": round(t.turn_rewards[k], 6), "frames": [k + 1, k + 1]}
        for k, reply in enumerate(replies[: len(t.turn_ends)])
    ]
    frames = [{"board": text} for text in asked] or [{"board": ""}]
    outcome = "not counted" if t.failure else "solved" if t.success else "not solved"
    shown: dict[str, Any] = {"look": "text", "frames": frames, "turns": turns}
    shown["facts"] = [outcome, f"return {number(t.total_reward)}", f"level {t.level_id}", "not replayed"]
    return {**shown, "failure": f"Ended by {t.failure}"} if t.failure else shown
