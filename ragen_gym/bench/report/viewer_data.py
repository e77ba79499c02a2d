"""Episodes as the viewer shows them: the board after every action, by replay, and the conversation.

The form is documented in ``templates/viewer.js``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from math import isnan
from typing import Any

from ragen_gym.bench.losses import Loss, find_loss, kind_name, oracle_line
from ragen_gym.bench.records import EpisodeRecord, TurnRecord
from ragen_gym.bench.replay import ReplayedEpisode, ReplayedTurn, Replayer
from ragen_gym.bench.report.tables import number
from ragen_gym.core.failures import Failure
from ragen_gym.envs.reply import Problem, Reply, explain_problem
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.values import Value
from ragen_gym.render.png import encode_png

_LARGEST_PICTURE = 2**14  # bytes of a PNG that a page takes up; grainy pictures are larger, and are left out


def tags(record: EpisodeRecord) -> list[str]:
    """Tags that an episode can be filtered by; the first is its outcome."""
    outcome = "error" if not record.counted else "solved" if record.success else "failed"
    return [outcome, *["malformed"] * any(turn.problem for turn in record.turns)]


def heading(record: EpisodeRecord, agent: str, name: str) -> dict[str, Any]:
    """The line of an episode in the list.

    Args:
        record: the episode.
        agent: what the report calls who played it.
        name: unique, for links.
    """
    rollout = f", rollout {record.rollout}" if record.rollout else ""
    turns, moves = len(record.turns), record.moves
    replied = [f"{turns} turn{'s' * (turns != 1)}"] * any(turn.reply is not None for turn in record.turns)
    note = " · ".join([*replied, *[f"{moves} move{'s' * (moves != 1)}"] * bool(moves or not replied)])
    if not record.counted:
        note = str(record.failure).replace("_", " ")
    return {
        "id": name,
        "title": f"{record.split} {record.index}{rollout}",
        "note": f"{agent} · {note}",
        "tags": tags(record),
        "fields": {"agent": agent, "split": record.split},
        "pair": record.path,
    }


def details(replayer: Replayer, record: EpisodeRecord, optimal: str) -> dict[str, Any]:
    """All else of an episode: its frames, turns, facts and how it ended; ``optimal`` says what the oracle does here."""
    replay = replayer.replay(record)
    loss = find_loss(replayer, replay) if record.counted else None
    frames: list[dict[str, Any]] = [{"board": replay.board}]
    turns: list[dict[str, Any]] = []
    for recorded, replayed in zip(record.turns, replay.turns, strict=False):
        first = len(frames)
        frames += [
            {"board": move.board, "action": move.action, "reward": round(move.reward, 6), "note": move.note}
            for move in replayed.moves
        ]
        turns.append({**_turn(replayer, recorded, replayed, len(turns)), "frames": [first, len(frames)]})
        _add_regret(replayer, replayed, turns[-1], frames[first:])
        if loss and loss.turn == len(turns) - 1:
            turns[-1]["pivot"] = _pivot(replayer, replay, loss)
            if loss.move is not None:
                frames[first + loss.move]["pivot"] = True
    shown = {
        "board_style": replayer.split.name,
        "frames": frames,
        "turns": turns,
        "facts": _facts(record, replay, optimal, "" if replayer.split.is_task else replayer.env.game.success_means),
    }
    if record.system:
        shown["system"] = replayer.split.name if record.system == replay.system else record.system
    if record.failure:
        shown["failure"] = _failure(record)
    return shown


def _add_regret(
    replayer: Replayer, replayed: ReplayedTurn, turn: dict[str, Any], frames: Sequence[dict[str, Any]]
) -> None:
    """What each move of a turn, and the turn beyond them, gave away of the return and of the probability of success.

    Nothing where that is unknown.
    """
    if replayed.value is None or isnan(replayed.value.before.total):
        return
    for frame, move in zip(frames, replayed.value.moves, strict=False):
        frame["regret"] = _rounded(move.regret)
        if replayer.env.game.stochastic:
            frame["chance"] = round(move.chance.success, 4) + 0.0
    if any(forfeited := _rounded(replayed.value.forfeited)):
        turn["forfeited"] = forfeited


def _rounded(regret: Value) -> list[float]:
    return [round(max(0.0, number), 4) + 0.0 for number in regret]


def _pivot(replayer: Replayer, replay: ReplayedEpisode, loss: Loss) -> dict[str, str]:
    """The pivot in words, and what the oracle plays instead from there."""
    env, turn = replayer.env, replay.turns[loss.turn]
    here = len(turn.moves) if loss.move is None else loss.move  # what a turn forfeits, it does after its moves
    before = [*(move for played in replay.turns[: loss.turn] for move in played.moves), *turn.moves[:here]]
    text, line = before[-1].board if before else replay.board, list[int]()
    if loss.kind != "hopeless":
        board = env.game.parse(text, env.vocabulary)
        line = oracle_line(env.game, env.game.solve(board), board, turn.left - here)
    names = " → ".join(env.action_names[action] for action in line)
    if len(line) > 1 and env.game.stochastic:
        names += ", if every move goes as meant"
    return {"what": kind_name(env.game, loss.kind), "oracle": names}


def _turn(replayer: Replayer, recorded: TurnRecord, replayed: ReplayedTurn, number: int) -> dict[str, Any]:
    turn: dict[str, Any] = {"message": recorded.message, "reply": recorded.reply, "reward": round(recorded.reward, 6)}
    names = () if replayer.split.is_task else replayer.env.action_names
    if replayed.image is not None:
        file = encode_png(replayed.image)
        if len(file) <= _LARGEST_PICTURE:
            turn["image"] = f"data:image/png;base64,{b64encode(file).decode()}"
    if recorded.reply is None:
        turn |= {"title": f"Move {number + 1}", "message": ""}  # the board next to it shows the same
        turn["actions"] = [[names[action], "played"] for action in recorded.actions]
        return turn
    reply = replayer.parse(recorded.reply)
    turn["actions"] = _named(reply, recorded, names)
    thinking = [part for part in (recorded.reasoning, reply.thinking) if part]
    if thinking:
        turn["thinking"] = "\n\n".join(thinking)
    if reply.thinking is not None:
        turn["answer"] = recorded.reply.partition("</think>")[2].strip()
    if recorded.problem:
        turn["problem"] = explain_problem(Problem(recorded.problem))
    facts = []
    if recorded.completion_tokens is not None:
        facts.append(f"{recorded.completion_tokens:,} tokens")
    if recorded.finish_reason not in (None, "stop"):
        facts.append(f"ended by {recorded.finish_reason}")
    if recorded.seconds >= 0.05:
        facts.append(f"{recorded.seconds:.1f} s")
    if recorded.retries:
        facts.append(f"{recorded.retries} {'retries' if recorded.retries > 1 else 'retry'}")
    return {**turn, "facts": facts} if facts else turn


def _named(reply: Reply, recorded: TurnRecord, names: tuple[str, ...]) -> list[list[str]]:
    """Each name that the reply gives, and what became of it."""
    if reply.actions[: len(recorded.actions)] != recorded.actions:  # it was read in another way
        return [[names[action], "played"] for action in recorded.actions]
    known, left = {name.casefold() for name in names}, len(recorded.actions)
    named = []
    for name in reply.names:
        played = name.casefold() in known and left > 0
        left -= played
        named.append([name, "played" if played else "not played" if name.casefold() in known else "unknown"])
    return named


def _facts(record: EpisodeRecord, replay: ReplayedEpisode, optimal: str, success_means: str) -> list[str]:
    ending = "terminated" if record.terminated else "out of turns or actions" if record.truncated else "cut off"
    outcome = "not counted" if not record.counted else "solved" if record.success else f"not solved, {ending}"
    if record.counted and record.success and success_means:
        outcome += f" ({success_means})"
    facts = [outcome, f"return {number(record.total_reward)}", optimal, f"level {record.level_id}"]
    if replay.diverged_at is not None:
        facts.append(f"turn {replay.diverged_at + 1} plays more than the rules allow: see `ragen-gym bench verify`")
    return [fact for fact in facts if fact]


def _failure(record: EpisodeRecord) -> str:
    kind = str(record.failure).replace("_", " ")
    counted = "counts as not solved" if record.failure is Failure.CONTEXT_OVERFLOW else "not counted"
    return f"Ended by {kind} ({counted}). {record.detail}".strip()


def board_style(env: StepEnv) -> dict[str, Any]:
    """Style of an environment's boards in the viewer, in its vocabulary, as ``templates/board.js`` takes it.

    A game on a grid that has no sprites is drawn with its symbols.
    """
    game = env.game
    if game.layout != "grid":
        return {"kind": game.layout}
    symbols = zip(env.vocabulary.symbols, game.Tile, strict=True)
    return {"kind": "grid", "cells": {symbol: game.sprites.get(tile.name, [f"@{symbol}"]) for symbol, tile in symbols}}
