"""Thousands of sessions at once, and requests that take long beside many that do not."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import Counter
from typing import Any

import pytest

from ragen_gym.serve import Limits
from ragen_gym.serve.schemas import CreateRequest
from ragen_gym.serve.served_envs import ServedTurn
from ragen_gym.serve.server import allow_many_files
from ragen_gym.serve.service import Service
from tests.ragen_gym.serve.load import Player, hundreds, started

LAKE: dict[str, Any] = {"env": "FrozenLake"}


@pytest.mark.slow
def test_thousands_of_sessions_play_at_once() -> None:
    count = min(2000, allow_many_files() - 200)

    async def one(player: Player, index: int, door: asyncio.Semaphore) -> str:
        async with door:  # a server's queue of connections is not endless
            made = await player.open({**LAKE, "start": {"seed": index % 7}})
        return str(made["start"]["observation"])

    async def crowd(port: int) -> None:
        door, players = asyncio.Semaphore(100), [Player(port) for _ in range(count)]
        seen = await asyncio.gather(*(one(player, i, door) for i, player in enumerate(players)))
        assert len({player.path for player in players}) == count
        assert seen == [seen[i % 7] for i in range(count)]  # nobody plays on another's board
        health = await players[0].ask("GET", "/health")
        assert health["sessions"] == count
        answers = await asyncio.gather(
            *(player.ask("POST", f"{player.path}/step", {"action": 1}) for player in players)
        )
        assert len(Counter(answer["observation"] for answer in answers)) > 1
        assert all(answer["info"]["level_id"] == answers[i % 7]["info"]["level_id"] for i, answer in enumerate(answers))
        for some in hundreds(players):
            await asyncio.gather(*(player.close() for player in some))

    with started("--port", "0", "--max-memory", str(2**18 * count)) as port:
        asyncio.run(crowd(port))


def test_dear_requests_hold_up_nobody() -> None:
    """While a block of dear levels is generated, and batches move, single moves are answered.

    A server that generates in its event loop answers one during a reset at the most.
    """
    dear: dict[str, Any] = {"env": "Sokoban", "env_options": {"size": 10, "boxes": 3}}

    async def most_moves_during_a_reset(port: int) -> int:
        generating, moving, batch = Player(port), Player(port), Player(port)
        await asyncio.gather(generating.open(dear), moving.open(LAKE), batch.open({**LAKE, "num_envs": 1024}))
        moves: list[float] = []

        async def move() -> None:
            while True:
                await moving.ask("POST", f"{moving.path}/reset", {"seed": 0})
                await moving.ask("POST", f"{moving.path}/step", {"action": 1})
                moves.append(time.perf_counter())

        others = [asyncio.create_task(move()), asyncio.create_task(batch.batch_steps(math.inf, 1024))]
        resets = []
        for _ in range(86):  # levels come in blocks, so most resets find theirs ready
            began = time.perf_counter()
            await generating.ask("POST", f"{generating.path}/reset", {})
            resets.append((began, time.perf_counter()))
        for other in others:
            other.cancel()
        await asyncio.wait(others)
        for player in (generating, moving, batch):
            player.drop()
        return max(sum(began < at < ended for at in moves) for began, ended in resets)

    with started("--port", "0") as port:
        assert asyncio.run(most_moves_during_a_reset(port)) >= 3


@pytest.mark.parametrize(
    ("thread", "options"),
    [
        ("MainThread", {}),
        ("levels", {"budgets": {"grounding": True}}),
        ("levels", {"budgets": {"observation": "image"}}),
    ],
)
def test_replies_that_take_long_to_read_hold_up_nobody(thread: str, options: dict[str, Any]) -> None:
    async def thread_of_a_turn() -> str:
        service, request = Service(Limits()), CreateRequest(env="FrozenLake", grain="turn", **options)
        session = json.loads(await service.create(request))["session"]
        env = service.store.get(session).env
        assert isinstance(env, ServedTurn)
        env.turn = lambda reply: {"thread": threading.current_thread().name}  # type: ignore[method-assign]
        return str(await service.ask(session, lambda env: env.turn("Up"), light=True))

    assert thread in asyncio.run(thread_of_a_turn())
