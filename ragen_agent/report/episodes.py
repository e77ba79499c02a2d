"""Recorded episodes as the viewer shows them: a line in its list, and the replay, coloured token by token.

An episode is replayed by the benchmark's replayer, from its level, its noise seed and its replies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

from tokenizers import Tokenizer

from ragen_agent.config import Config
from ragen_agent.report.runs import RecordedRun, read_episode
from ragen_agent.tasks.tasks import all_settings, make_game_env
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.metrics import piece_decoder, turn_spans
from ragen_gym.bench.records import EpisodeRecord, TurnRecord
from ragen_gym.bench.replay import Replayer
from ragen_gym.bench.report.html_page import Entry
from ragen_gym.bench.report.tables import number
from ragen_gym.bench.report.viewer_data import board_style, details
from ragen_gym.bench.suites import Split, without_levels
from ragen_gym.core.failures import Failure
from ragen_gym.core.levels import Level
from ragen_gym.core.storage import read_json_lines
from ragen_gym.envs.messages import plain_text
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.registry import load_task

FILTERS = [
    {"label": "All"},
    {"label": "Solved", "tag": "solved"},
    {"label": "Failed", "tag": "failed"},
    {"label": "Malformed", "tag": "malformed"},
    {"label": "Trained on", "tag": "learned"},
    {"label": "Largest advantage", "tag": "advantage", "order": "advantage"},
    {"label": "Longest replies", "order": "tokens"},
    {"label": "Errors", "tag": "error"},
]

#: Of ``episodes.jsonl``, in the order of the list.
PHASES = ("after", "before", "more imitation", "clean warm start", "training")

#: Nats at which the colour of a log-prob is full: a token of a probability below one in a hundred.
SURPRISE = 5.0


@dataclass(frozen=True)
class StoredEpisode:
    """A line of ``episodes.jsonl``; ``place`` counts it among those of its phase, in training of its iteration."""

    record: Mapping[str, Any]
    trajectory: Trajectory
    place: int

    @property
    def trained(self) -> bool:
        """True if it was played to learn from, not to measure."""
        return bool(self.record["phase"] == "train")

    @property
    def iteration(self) -> int:
        """Of the training, from 0; 0 for one that was measured."""
        return int(self.record.get("iteration", 0))

    @property
    def phase(self) -> str:
        """One of ``PHASES``, or another in words."""
        return "training" if self.trained else str(self.record["phase"]).replace("_", " ")

    @property
    def advantages(self) -> Sequence[float]:
        """One for each sampled token; empty for an episode that was measured."""
        return self.record.get("advantages") or ()

    @property
    def prompts(self) -> list[str]:
        """The messages of the user, in order."""
        return [plain_text(m["content"]) for m in self.trajectory.messages if m["role"] == "user"]

    @property
    def replies(self) -> list[str]:
        """The replies that were played, in order."""
        replies = [plain_text(m["content"]) for m in self.trajectory.messages if m["role"] == "assistant"]
        return replies[: len(self.trajectory.turn_ends)]


class EpisodeViews:
    """The episodes of a run for the viewer.

    Args:
        run: whose episodes they are.
        several: the page shows other runs, too.
        recent: only the last so many; None for all.

    Attributes:
        recorded: number of episodes in the run's folder.
        board_styles: how boards are drawn, by the name that an episode's details give.
        systems: the system messages, likewise.
    """

    def __init__(self, run: RecordedRun, several: bool, recent: int | None = None) -> None:
        self.run, self.several = run, several
        self.board_styles: dict[str, Any] = {}
        self.systems: dict[str, str] = {}
        self._piece = _token_text(run)
        self._episodes, self.recorded = _read_episodes(run, recent)
        self._largest = max((abs(a) for episode in self._episodes for a in episode.advantages), default=0.0)
        games = [
            GameReplayer(f"{run.name}/{place}", config)
            for place, config in enumerate(all_settings(run.config))
            if load_task(config.game) is None  # a text task has no boards to draw
        ]
        self._game_of = [next((game for game in games if game.knows(each)), None) for each in self._episodes]

    def groups(self) -> list[list[Entry]]:
        """The episodes of each level in all phases, and of each iteration."""
        groups: dict[tuple[bool, int], list[Entry]] = {}
        for episode, game in zip(self._episodes, self._game_of, strict=True):
            key = episode.trained, episode.iteration if episode.trained else episode.place
            groups.setdefault(key, []).append(Entry(self._heading(episode), partial(self._details, episode, game)))
        return [*groups.values()]

    def _heading(self, episode: StoredEpisode) -> dict[str, Any]:
        t, record, run = episode.trajectory, episode.record, self.run
        turns, tokens, advantages = len(t.turn_ends), int(t.sampled.sum()), episode.advantages
        where = f"{run.name}, {episode.phase}" if self.several else episode.phase
        name = f"{run.name}.{record['phase']}.{episode.iteration + episode.trained}.{episode.place + 1}"
        # Without breaks inside a figure, since the list of episodes is narrow.
        note = [
            f"return\u00a0{number(t.total_reward)}",
            f"{turns}\u00a0turn{'s' * (turns != 1)}",
            f"{tokens}\u00a0tokens",
        ]
        note += ["out of tokens"] * t.overflowed
        if self.several or not advantages:
            note.insert(0, where)
        if advantages:
            note.insert(0, f"advantage\u00a0{number(sum(advantages) / len(advantages))}")
        tags = {
            "error" if t.failure is not None else "solved" if t.success else "failed": True,
            "malformed": any(turn.problem for turn in t.turn_infos),
            "learned": bool(record.get("kept")),
            "advantage": bool(advantages),
        }
        heading = {
            "id": name,
            "note": " · ".join(note),
            "tags": [tag for tag, holds in tags.items() if holds],
            "order": {"advantage": max(map(abs, advantages), default=0.0), "tokens": tokens},
        }
        fields = {"run": run.name, "phase": episode.phase}
        if episode.trained:
            title = f"Iteration {episode.iteration + 1}, episode {episode.place + 1}"
            return {**heading, "title": title, "fields": fields, "pair": name}
        # Only what is measured on the same levels can stand side by side.
        level = f"{run.config.game}/{run.config.evaluation.split}/{t.level_id}/{record.get('noise_seed')}"
        return {**heading, "title": f"Level {episode.place + 1}", "fields": fields | {"player": where}, "pair": level}

    def _details(self, episode: StoredEpisode, game: GameReplayer | None) -> dict[str, Any]:
        shown = _transcript(episode) if game is None else game.details(episode)
        if game is not None:
            self.board_styles.setdefault(game.name, game.board_style)
        system = next((plain_text(m["content"]) for m in episode.trajectory.messages if m["role"] == "system"), "")
        if system:
            known = (key for key, text in self.systems.items() if text == system)
            key = next(known, f"{self.run.name}:{len(self.systems)}")
            self.systems[key] = system
            shown["system"] = key
        kept = episode.record.get("kept")
        if kept is not None:
            shown["facts"] = [*shown["facts"], "trained on" if kept else "left out of the update"]
        for turn, picture in zip(shown["turns"], _pictures(episode), strict=False):
            turn["image"] = picture
        if self._piece is not None:
            self._colour(shown["turns"], episode, self._piece)
        return shown

    def _colour(self, turns: Sequence[dict[str, Any]], episode: StoredEpisode, piece: Callable[[int], str]) -> None:
        t, advantages = episode.trajectory, episode.advantages
        before = t.sampled.cumsum() - t.sampled  # sampled tokens ahead of each
        for turn, (first, end) in zip(turns, turn_spans(t), strict=False):
            tokens = []
            for at in range(first, end):
                value: dict[str, float] | None = None
                if t.sampled[at]:
                    value = {"advantage": advantages[int(before[at])]} if advantages else {}
                    value["log-prob"] = round(float(t.log_probs[at]), 3)
                tokens.append({"text": piece(int(t.ids[at])), "value": value})
            turn["tokens"] = tokens
            turn["scale"] = {"log-prob": SURPRISE} | ({"advantage": self._largest} if self._largest else {})


class GameReplayer:
    """Replays the episodes of one game of a run.

    Args:
        name: of its board style in the viewer.
        config: the settings of a run on it alone.
    """

    def __init__(self, name: str, config: Config) -> None:
        self.name, self.config = name, config
        self._envs: dict[str, TurnEnv] = {}
        self._levels: dict[str, Level] = {}

    def knows(self, episode: StoredEpisode) -> bool:
        """True if it can replay the episode; then the level is remembered. Call it before ``details``.

        It draws the level from the seed, and a stochastic game has one noise seed for all turns of the episode.
        """
        t = episode.trajectory
        env = self._env("train" if episode.trained else self.config.evaluation.split)
        if episode.record.get("noise_seed") is None and env.game.stochastic:
            return False
        if t.level_id in self._levels:
            return True
        if t.seed is None:
            return False
        env.reset(seed=t.seed)
        if env.level.id != t.level_id:
            return False
        self._levels[t.level_id] = env.level
        return True

    @property
    def board_style(self) -> dict[str, Any]:
        """Style of its boards in the viewer."""
        return board_style(self._env("train").env)

    @cached_property
    def _replayer(self) -> Replayer:
        """Of all levels that are known by then."""
        options, levels = self.config.turns.of_environment(states_limit=True), tuple(self._levels.values())
        split = Split(
            self.name, self.config.game, without_levels(self.config.game, self.config.env_options), levels, options
        )
        return Replayer(split, valued=True)

    def details(self, episode: StoredEpisode) -> dict[str, Any]:
        """The episode replayed, for the viewer."""
        env, level_id = self._env("train"), episode.trajectory.level_id
        env.reset(options={"level": self._levels[level_id]})
        record = _bench_record(episode, list(self._levels).index(level_id), env)
        return details(self._replayer, record, "")

    def _env(self, split: str) -> TurnEnv:
        if split not in self._envs:
            self._envs[split] = make_game_env(self.config, split)
        return self._envs[split]


def sort_headings(headings: Sequence[dict[str, Any]], runs: Sequence[RecordedRun]) -> list[dict[str, Any]]:
    """As the list shows them: run by run, the measured episodes first, those after reinforcement before all."""
    names = [run.name for run in runs]

    def key(heading: dict[str, Any]) -> tuple[int, ...]:
        phase = heading["fields"]["phase"]
        *_, iteration, place = heading["id"].split(".")
        rank = PHASES.index(phase) if phase in PHASES else len(PHASES)
        return names.index(heading["fields"]["run"]), rank, int(iteration), int(place)

    return sorted(headings, key=key)


def _read_episodes(run: RecordedRun, recent: int | None) -> tuple[list[StoredEpisode], int]:
    """The last ``recent`` episodes, or all; and the number of all."""
    places, episodes = Counter[tuple[Any, Any]](), []
    for record, trajectory in read_json_lines(run.folder.episodes, read_episode):
        key = record["phase"], record.get("iteration")
        episodes.append(StoredEpisode(record, trajectory, places[key]))
        places[key] += 1
    return episodes[-recent:] if recent else episodes, len(episodes)


def _bench_record(episode: StoredEpisode, index: int, env: TurnEnv) -> EpisodeRecord:
    """The trajectory as the benchmark records an episode; ``env`` stands at its level."""
    t = episode.trajectory
    turns = []
    for place, (prompt, text, span) in enumerate(zip(episode.prompts, episode.replies, turn_spans(t), strict=False)):
        info = t.turn_infos[place] if t.turn_infos else None
        reply = env.parse(text)
        turns.append(
            TurnRecord(
                message=prompt,
                reply=text,
                actions=tuple(reply.actions[: info.played] if info else reply.actions),
                reward=t.turn_rewards[place],
                problem=(info.problem if info else str(reply.problem or "")) or None,
                completion_tokens=int(t.sampled[slice(*span)].sum()),
            )
        )
    kind, _, detail = (t.failure or "").partition(": ")
    known = kind in list(Failure)
    failure = Failure(kind) if known else Failure.AGENT_ERROR
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
        failure=None if t.failure is None else failure,
        detail=detail if known else t.failure or "",
    )


def _transcript(episode: StoredEpisode) -> dict[str, Any]:
    """An episode that cannot be replayed, as of another version's levels or a tree: its messages in place of boards."""
    t, prompts = episode.trajectory, episode.prompts
    turns = [
        {"message": prompts[k], "reply": reply, "reward": round(t.turn_rewards[k], 6), "frames": [k + 1, k + 1]}
        for k, reply in enumerate(episode.replies)
    ]
    frames = [{"board": text} for text in prompts] or [{"board": ""}]
    outcome = "not counted" if t.failure else "solved" if t.success else "not solved"
    shown: dict[str, Any] = {"board_style": "text", "frames": frames, "turns": turns}
    shown["facts"] = [outcome, f"return {number(t.total_reward)}", f"level {t.level_id}", "not replayed"]
    return {**shown, "failure": f"Ended by {t.failure}"} if t.failure else shown


def _pictures(episode: StoredEpisode) -> list[str]:
    """The picture of the message before each reply, as data; none of an episode that was read."""
    images, placed = episode.record.get("images", ()), episode.trajectory.images
    found = []
    for first, _ in turn_spans(episode.trajectory) if placed else ():
        image = images[max(at for at, each in enumerate(placed) if each.end <= first)]
        png = image["png"] if "png" in image else images[image["same_as"]]["png"]
        found.append(f"data:image/png;base64,{png}")
    return found


def _token_text(run: RecordedRun) -> Callable[[int], str] | None:
    """The text of a token, by the run's own tokenizer; None for a run that has not saved one yet.

    The file that ``tokenizers`` reads gives the same texts without transformers, whose import takes seconds.
    """
    saved = [each for each in (run.folder.checkpoint, run.folder.warm) if (each / "tokenizer_config.json").is_file()]
    if not saved:
        return None
    if not (whole := saved[0] / "tokenizer.json").is_file():  # a tokenizer written in Python
        from transformers import AutoTokenizer

        return piece_decoder(AutoTokenizer.from_pretrained(saved[0], local_files_only=True, trust_remote_code=False))
    tokenizer = Tokenizer.from_file(str(whole))
    return cache(lambda token: str(tokenizer.decode([token], skip_special_tokens=False)))
