"""Recorded episodes as the viewer shows them: a line in its list, and the replay, coloured token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from ragen_agent.report.replay_adapter import GameReplay, Stored, as_written, stored
from ragen_agent.report.runs import Run
from ragen_agent.training.replies import piece_decoder, turn_spans
from ragen_agent.training.tasks import all_settings
from ragen_gym.bench.report.payload import Entry
from ragen_gym.bench.report.tables import number
from ragen_gym.core.storage import read_json_lines

__all__ = ["FILTERS", "Episodes", "ordered"]

FILTERS = [
    {"label": "All"},
    {"label": "Solved", "tag": "solved"},
    {"label": "Failed", "tag": "failed"},
    {"label": "Malformed", "tag": "malformed"},
    {"label": "Learned from", "tag": "learned"},
    {"label": "Largest advantage", "tag": "advantage", "order": "advantage"},
    {"label": "Longest replies", "order": "tokens"},
    {"label": "Errors", "tag": "error"},
]

#: Nats at which the colour of a log-prob is full: a token of a chance below one in a hundred.
SURPRISE = 5.0

Piece = Callable[[int], str]


class Episodes:
    """The episodes of a run.

    Attributes:
        looks: of the boards, by the name that an episode's details give.
        systems: the system messages, likewise.
    """

    def __init__(self, run: Run, several: bool) -> None:
        self.run, self.several = run, several
        self.looks: dict[str, Any] = {}
        self.systems: dict[str, str] = {}
        self._piece = _piece(run)
        self._stored = list(stored(read_json_lines(run.folder.episodes)))
        self._largest = max((abs(a) for e in self._stored for a in e.record.get("advantages", ())), default=0.0)
        self._games = [
            GameReplay(f"{run.name}/{place}", config) for place, config in enumerate(all_settings(run.config))
        ]
        self._game_of = [self._find(episode) for episode in self._stored]

    def __len__(self) -> int:
        return len(self._stored)

    def groups(self) -> Iterator[list[Entry]]:
        """Those of a level's phases, and those of an iteration, by turns; iterations from all parts of the run first.

        A page that has no room for all so holds some of everything.
        """
        fixed: dict[int, list[int]] = {}
        trained: dict[int, list[int]] = {}
        for at, episode in enumerate(self._stored):
            where = trained if episode.trained else fixed
            where.setdefault(episode.iteration if episode.trained else episode.place, []).append(at)
        spread = sorted(trained, key=lambda iteration: (_fraction(iteration), iteration))
        levels, iterations = [fixed[key] for key in sorted(fixed)], [trained[key] for key in spread]
        for level, iteration in zip_longest(levels, iterations):
            entries = [self._entry(at) for at in [*(level or []), *(iteration or [])]]
            if entries:
                yield entries

    def _entry(self, at: int) -> Entry:
        episode, game = self._stored[at], self._game_of[at]
        return Entry(self._heading(episode), lambda: self._details(episode, game))

    def _heading(self, episode: Stored) -> dict[str, Any]:
        t, record, run = episode.trajectory, episode.record, self.run
        phase = "training" if episode.trained else str(record["phase"]).replace("_", " ")
        title = (
            f"Iteration {episode.iteration + 1}, episode {episode.place + 1}"
            if episode.trained
            else f"Level {episode.place + 1}"
        )
        turns, tokens, advantages = len(t.turn_ends), int(t.sampled.sum()), record.get("advantages")
        note = f"return {number(t.total_reward)} · {turns} turn{'s' * (turns != 1)} · {tokens} tokens"
        mean = sum(advantages) / len(advantages) if advantages else 0.0
        outcome = "error" if t.failure is not None else "solved" if t.success else "failed"
        malformed = any(facts.problem for facts in t.turn_facts)
        tags = [outcome, *["malformed"] * malformed, *["learned"] * bool(record.get("kept"))]
        where = f"{run.name}, {phase}" if self.several else phase
        name = f"{run.name}.{record['phase']}.{episode.iteration + episode.trained}.{episode.place + 1}"
        level = f"{run.config.game}/{run.config.evaluation.split}/{t.level_id}/{record.get('noise_seed')}"
        # Only what is measured on the same levels can stand side by side.
        fields = {"run": run.name, "phase": phase} | ({} if episode.trained else {"player": where})
        taught = [f"advantage {number(mean)}"] if advantages else []
        return {
            "id": name,
            "title": title,
            "note": " · ".join([*taught, *([] if taught and not self.several else [where]), note]),
            "tags": [*tags, *["advantage"] * bool(advantages)],
            "fields": fields,
            "pair": name if episode.trained else level,
            "order": {"advantage": max(map(abs, advantages or ()), default=0.0), "tokens": tokens},
        }

    def _details(self, episode: Stored, game: GameReplay | None) -> dict[str, Any]:
        t = episode.trajectory
        shown = as_written(t) if game is None else game.details(episode)
        if game is not None:
            self.looks.setdefault(game.name, game.look)
        system = next((m["content"] for m in t.messages if m["role"] == "system"), "")
        if system:
            key = next(
                (key for key, text in self.systems.items() if text == system), f"{self.run.name}:{len(self.systems)}"
            )
            self.systems[key] = system
            shown["system"] = key
        kept = episode.record.get("kept")
        if kept is not None:
            shown["facts"] = [*shown["facts"], "learned from" if kept else "left out of the update"]
        if self._piece is not None:
            self._colour(shown["turns"], episode)
        return shown

    def _colour(self, turns: Sequence[dict[str, Any]], episode: Stored) -> None:
        """The tokens of each turn's reply as they were sampled, with log-prob and, if it taught, advantage."""
        t, advantages = episode.trajectory, episode.record.get("advantages")
        assert self._piece is not None
        before = t.sampled.cumsum() - t.sampled  # sampled tokens ahead of each
        for turn, (first, end) in zip(turns, turn_spans(t), strict=False):
            tokens = []
            for at in range(first, end):
                value: dict[str, float] | None = None
                if t.sampled[at]:
                    value = {} if advantages is None else {"advantage": advantages[int(before[at])]}
                    value["log-prob"] = round(float(t.log_probs[at]), 3)
                tokens.append({"text": self._piece(int(t.ids[at])), "value": value})
            turn["tokens"] = tokens
            turn["scale"] = {"log-prob": SURPRISE} | ({"advantage": self._largest} if self._largest else {})

    def _find(self, episode: Stored) -> GameReplay | None:
        """The game that the episode was played in, of those that the run plays: it has that level under that seed."""
        return next((game for game in self._games if game.knows(episode)), None)


def ordered(headings: Sequence[dict[str, Any]], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """As the list shows them: run by run, the measured episodes first, those after reinforcement before all."""
    phases = ["after", "before", "more imitation", "clean warm start", "training"]
    names = [run.name for run in runs]

    def key(heading: dict[str, Any]) -> tuple[int, ...]:
        phase = heading["fields"]["phase"]
        *_, iteration, place = heading["id"].split(".")
        rank = phases.index(phase) if phase in phases else len(phases)
        return names.index(heading["fields"]["run"]), rank, int(iteration), int(place)

    return sorted(headings, key=key)


def _piece(run: Run) -> Piece | None:
    """The text of a token, by the run's own tokenizer; None for a run that has not saved one yet."""
    from transformers import AutoTokenizer

    for folder in (run.folder.checkpoint, run.folder.warm):
        if (folder / "tokenizer_config.json").is_file():
            return piece_decoder(AutoTokenizer.from_pretrained(folder, local_files_only=True))
    return None


def _fraction(number: int) -> float:
    """The number's binary digits mirrored at the point, so that 0, 1, 2, 3 … lie far from one another in 0 to 1."""
    bits = f"{number:b}"[::-1]
    return int(bits, 2) / 2.0 ** len(bits)
