"""The record of one episode as a row of tokens: all that training reads."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragen_agent.inference import ImageSpan
from ragen_gym.core.failures import memory_was_full
from ragen_gym.render.png import decode_png, encode_png


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode as a row of tokens.

    Attributes:
        ids: int64 (T,), prompt, sampled replies and the template's glue, as the model saw them.
        sampled: bool (T,), True for exactly the ids that the policy sampled.
        log_probs: float32 (T,), the log-probability of each sampled id; 0 elsewhere.
        turn_ends: the index in ``ids`` of each turn's last sampled token.
        turn_rewards: each turn's reward, earned at that token.
        terminated: the game ended.
        truncated: a budget ended the episode (turns, actions, or ``max_tokens_per_episode``).
        success: the game was won.
        failure: None, or the failure as ``"kind: details"`` (``ragen_gym.core.failures.Failure``); failed episodes are
            excluded from score and loss.
        level_id: the level's content hash.
        seed: the seed of the reset, if one was given.
        messages: the conversation as ``({"role", "content"}, ...)``, for people to read. Training never uses it.
            A content with pictures is a list of ``{"type": "text", "text"}`` and ``{"type": "image"}``.
        turn_infos: one ``TurnInfo`` a turn; empty if the environment gives none.
        contexts: the indices at which a new prompt begins, ascending from 0, if prompts did not keep all earlier turns
            (``history`` of ``TokenMDP``): from there on the model no longer saw the ids before. Empty if it saw the
            whole row.
        images: the pictures that the model saw, at their placeholders in ``ids``; repeated if a new prompt shows them
            again.
        overflowed: ``max_tokens_per_episode`` cut the last reply, or ended the episode before the next message.
    """

    ids: NDArray[np.int64]
    sampled: NDArray[np.bool_]
    log_probs: NDArray[np.float32]
    turn_ends: tuple[int, ...]
    turn_rewards: tuple[float, ...]
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    failure: str | None = None
    level_id: str = ""
    seed: int | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    turn_infos: tuple[TurnInfo, ...] = ()
    contexts: tuple[int, ...] = ()
    images: tuple[ImageSpan, ...] = ()
    overflowed: bool = False

    def __post_init__(self) -> None:
        ids, sampled, log_probs, ends = self.ids, self.sampled, self.log_probs, self.turn_ends
        assert ids.dtype == np.int64
        assert sampled.dtype == np.bool_
        assert log_probs.dtype == np.float32
        assert ids.shape == sampled.shape == log_probs.shape == (len(ids),)
        assert np.count_nonzero(np.isfinite(log_probs)) == len(log_probs)
        assert not np.count_nonzero(log_probs[~sampled]), "only sampled tokens have a log-probability"
        assert len(ends) == len(self.turn_rewards)
        assert all(map(math.isfinite, self.turn_rewards))
        assert len(self.turn_infos) in (0, len(ends))
        assert list(ends) == sorted(set(ends)), "turns end one after the other"
        assert all(0 <= end < len(ids) and sampled[end] for end in ends)
        assert not self.contexts or self.contexts[0] == 0, "the first context begins with the row"
        assert list(self.contexts) == sorted(set(self.contexts)), "contexts follow one another"
        assert all(a.end <= b.start for a, b in pairwise(self.images)), "pictures follow one another"
        assert not self.images or self.images[-1].end <= len(ids)
        assert not any(sampled[image.start : image.end].any() for image in self.images), "nobody samples a picture"
        assert not (self.terminated and self.truncated), "an episode ends once"
        if self.failure is None:
            assert self.terminated or self.truncated, "an episode ends by the game, a budget or a failure"
            assert ends, "an episode has a turn"
            assert not np.count_nonzero(sampled[ends[-1] + 1 :]), "every sampled token belongs to a turn that ended"

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return float(sum(self.turn_rewards))

    def split_contexts(self) -> list[Trajectory]:
        """A trajectory for each context that holds a turn, as the model saw it; the row itself if there is only one.

        Only ids, masks, log-probs and turns are cut; the outcome of the episode is repeated in each.
        """
        if not self.contexts:
            return [self]
        parts = []
        for first, end in zip(self.contexts, (*self.contexts[1:], len(self.ids)), strict=True):
            turns = [turn for turn, last in enumerate(self.turn_ends) if first <= last < end]
            if not self.sampled[first:end].any():
                continue
            part = replace(
                self,
                ids=self.ids[first:end],
                sampled=self.sampled[first:end],
                log_probs=self.log_probs[first:end],
                turn_ends=tuple(self.turn_ends[turn] - first for turn in turns),
                turn_rewards=tuple(self.turn_rewards[turn] for turn in turns),
                turn_infos=tuple(self.turn_infos[turn] for turn in turns) if self.turn_infos else (),
                contexts=(),
                images=tuple(image.moved(-first) for image in self.images if first <= image.start < end),
            )
            parts.append(part)
        return parts

    def to_dict(self) -> dict[str, Any]:
        """The trajectory as plain lists, numbers and strings, for JSON; ``from_dict`` is its exact inverse."""
        return {
            "ids": self.ids.tolist(),
            "sampled": self.sampled.astype(int).tolist(),
            "log_probs": self.log_probs.tolist(),
            "turn_ends": list(self.turn_ends),
            "turn_rewards": list(self.turn_rewards),
            "terminated": self.terminated,
            "truncated": self.truncated,
            "success": self.success,
            "failure": self.failure,
            "level_id": self.level_id,
            "seed": self.seed,
            "messages": [dict(message) for message in self.messages],
            "turn_infos": [info.to_dict() for info in self.turn_infos],
            **({"contexts": list(self.contexts)} if self.contexts else {}),
            **({"images": _images_to_list(self.images)} if self.images else {}),
            **({"overflowed": True} if self.overflowed else {}),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Trajectory:
        """The trajectory that ``to_dict`` wrote.

        Raises:
            KeyError: an entry is missing.
        """
        return cls(
            ids=np.asarray(record["ids"], dtype=np.int64),
            sampled=np.asarray(record["sampled"], dtype=np.bool_),
            log_probs=np.asarray(record["log_probs"], dtype=np.float32),
            turn_ends=tuple(record["turn_ends"]),
            turn_rewards=tuple(record["turn_rewards"]),
            terminated=record["terminated"],
            truncated=record["truncated"],
            success=record["success"],
            failure=record["failure"],
            level_id=record["level_id"],
            seed=record["seed"],
            messages=tuple(record["messages"]),
            turn_infos=tuple(map(TurnInfo.from_dict, record["turn_infos"])),
            contexts=tuple(record.get("contexts", ())),
            images=_images_of_list(record.get("images", ())),
            overflowed=record.get("overflowed", False),
        )


@dataclass(frozen=True)
class TurnInfo:
    """One turn."""

    problem: str  # the reply's problem (ragen_gym.envs.reply.Problem), or empty
    named: int  # number of actions in the answer, known or not
    played: int  # number of them played
    effective: bool  # True if the turn changed the board or ended the game
    #: True if the board that the reply describes, or predicts, is the true one; None if the environment does not
    #: require it
    observation_right: bool | None = None
    prediction_right: bool | None = None
    #: the highest expected return before the turn, in the moves left, NaN if unknown; None if not recorded
    value: float | None = None
    state: str | None = None  # a hash of level and game state before the turn; None if not recorded
    advantage: float | None = None  # the turn's own; None if all turns share the episode's advantage
    #: the fewest and the most moves that the reply says are still needed, and the moves left; None if it is not asked
    budget: tuple[int, int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON; without unrecorded ones."""
        return {name: field for name, field in asdict(self).items() if name not in _ON_REQUEST or field is not None}

    @classmethod
    def from_dict(cls, info: Mapping[str, Any]) -> TurnInfo:
        """The turn that ``to_dict`` wrote."""
        return cls(**{**info, "budget": tuple(info["budget"]) if info.get("budget") else None})

    @classmethod
    def of(
        cls, info: Mapping[str, Any], before: str | None, after: str | None, terminated: bool, state: str | None = None
    ) -> TurnInfo | None:
        """From the turn environment's information, its boards and the state before; None without a parser."""
        reply = info.get("reply")
        if reply is None:
            return None
        played = len(info.get("actions", ()))
        return cls(
            str(reply.problem or ""),
            len(reply.names),
            played,
            played > 0 and (terminated or before != after),
            info.get("observation_right"),
            info.get("prediction_right"),
            info["turn_value"].before.total if "turn_value" in info else None,
            state,
            budget=info.get("budget"),
        )


def failed(ids: Sequence[int], reason: str, seed: int | None = None) -> Trajectory:
    """A trajectory that training leaves out: none of its tokens counts as sampled.

    ``reason`` is ``"kind: details"``, the kind one of ``Failure``. An empty row becomes two zeros, since consumers need
    tokens.
    """
    row = np.array(ids if len(ids) > 1 else [0, 0], dtype=np.int64)
    return Trajectory(
        ids=row,
        sampled=np.zeros(len(row), dtype=np.bool_),
        log_probs=np.zeros(len(row), dtype=np.float32),
        turn_ends=(),
        turn_rewards=(),
        failure=reason,
        seed=seed,
    )


def without_failed(played: Sequence[Trajectory]) -> list[Trajectory]:
    """The episodes that say something about the player; raises a ValueError if all failed."""
    whole = [t for t in played if t.failure is None]
    if not whole:
        failure = played[0].failure or ""
        advice = ". Lower evaluation.batch: so many episodes are played at a time" * memory_was_full(failure)
        raise ValueError(
            f"all {len(played)} episodes failed, so nothing was measured. The first failed by: {failure}{advice}"
        )
    return whole


_ON_REQUEST = ("value", "state", "advantage", "budget")


def _images_to_list(images: Sequence[ImageSpan]) -> list[dict[str, Any]]:
    """Pictures for JSON, each as a PNG in base 64; a repeated picture is the index of its first occurrence.

    The pixels themselves are kept, not the board, so a record shows and trains what the model saw, even if later
    versions draw differently. A board of flat tiles takes one or two kilobytes.
    """
    first: dict[bytes, int] = {}
    records: list[dict[str, Any]] = []
    for place, image in enumerate(images):
        record: dict[str, Any] = {"start": image.start, "grid": list(image.grid)}
        if image.digest in first:
            record["same_as"] = first[image.digest]
        else:
            first[image.digest] = place
            record["size"] = list(image.pixels.shape[:2])
            record["png"] = base64.b64encode(encode_png(image.pixels)).decode()
        records.append(record)
    return records


def _images_of_list(records: Sequence[Mapping[str, Any]]) -> tuple[ImageSpan, ...]:
    """The inverse of ``_images_to_list``."""
    images: list[ImageSpan] = []
    for record in records:
        rows, columns = record["grid"]
        if "same_as" in record:
            same = images[record["same_as"]]
            images.append(replace(same, start=record["start"], grid=(rows, columns)))
        else:
            pixels = decode_png(base64.b64decode(record["png"]), (*record["size"], 3))
            images.append(ImageSpan(record["start"], (rows, columns), pixels))
    return tuple(images)
