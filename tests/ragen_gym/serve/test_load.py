"""Requests that take long beside many that do not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from tests.ragen_gym.serve.test_command import started


def test_dear_requests_hold_up_nobody() -> None:
    """While blocks of dear levels are generated, single moves are answered.

    A server that generates in its event loop answers one during a reset at the most.
    """

    async def most_moves_during_a_reset(url: str) -> int:
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:

            async def opened(**body: Any) -> str:
                return f"/sessions/{(await http.post('/sessions', json=body)).json()['session']}"

            async def ask(path: str, **body: Any) -> None:
                (await http.post(path, json=body)).raise_for_status()

            dear = await opened(env="Sokoban", env_options={"size": 10, "boxes": 3})
            lake = await opened(env="FrozenLake")
            moves: list[float] = []

            async def move() -> None:
                while True:
                    await ask(f"{lake}/reset", seed=0)
                    await ask(f"{lake}/step", action=1)
                    moves.append(time.perf_counter())

            other = asyncio.create_task(move())
            resets = []
            for _ in range(86):  # levels come in blocks, so most resets find theirs ready
                began = time.perf_counter()
                await ask(f"{dear}/reset")
                resets.append((began, time.perf_counter()))
            other.cancel()
            await asyncio.wait([other])
            return max(sum(began < at < ended for at in moves) for began, ended in resets)

    with started("--port", "0") as (url, _):
        assert asyncio.run(most_moves_during_a_reset(url)) >= 3
