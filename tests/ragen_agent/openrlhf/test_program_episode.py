"""Programs against an engine that answers asynchronously: the same rows as with the local trainer's loop."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ragen_agent.config import Config, Program, with_settings
from ragen_agent.inference import ImageSpan, Sampled
from ragen_agent.openrlhf.episode import ContractError, play_program, response_of
from ragen_agent.programs.endpoint import Endpoint
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.threads import in_thread
from tests.pages import ROOT, script_of

GUIDE = ROOT / "docs" / "guides" / "your_own_agent.md"
CONFIG = with_settings(
    Config(),
    {
        "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
        "env_options": {"size": 4},
        "turns": {"max_turns": 3, "max_tokens_per_turn": 6},
    },
)


@pytest.fixture(scope="module")
def agent() -> Policy:
    return Policy.build(CONFIG)


class Engine:
    """The small model, asked one request at a time from an event loop."""

    def __init__(self, agent: Policy) -> None:
        self.agent, self.turn = agent, asyncio.Lock()
        self.asked: list[tuple[list[int], Sampled, int]] = []

    async def __call__(self, ids: Sequence[int], images: Sequence[ImageSpan], *, limit: int, seed: int) -> Sampled:
        def sample() -> Sampled:
            session = self.agent.engine.start([list(ids)], temperature=1.0, seed=seed)
            [reply] = session.reply([limit])
            session.close()
            assert reply is not None
            return reply

        async with self.turn:
            reply = await in_thread(sample)
        self.asked.append((list(ids), reply, seed))
        return reply


def play(agent: Policy, engine: Engine, command: str, count: int = 1, timeout: float = 60.0) -> list[Trajectory]:
    program = Program(command)
    processes = agent.processes("train", count)

    async def episodes() -> list[Trajectory]:
        with Endpoint() as endpoint:
            return await asyncio.gather(
                *(
                    play_program(
                        endpoint,
                        program,
                        process,
                        engine,
                        Instance(3, number),
                        request_seed=lambda turn, number=number: 100 * number + turn,  # type: ignore[misc]
                        generation_timeout=timeout,
                    )
                    for number, process in enumerate(processes)
                )
            )

    return asyncio.run(episodes())


def test_sampled_ids_are_kept_in_rows_that_openrlhf_reads(agent: Policy, tmp_path: Path) -> None:
    script_of(GUIDE, "python", tmp_path)
    engine = Engine(agent)
    played = play(agent, engine, shlex.join([sys.executable, str(tmp_path / "my_agent.py")]), count=2)
    asked = {seed: (prompt, reply) for prompt, reply, seed in engine.asked}
    for number, trajectory in enumerate(played):
        assert trajectory.failure is None
        assert trajectory.seed == 3
        rows = trajectory.split_contexts()
        assert len(rows) == len(trajectory.turn_ends)
        for turn, row in enumerate(rows):
            prompt, reply = asked[100 * number + turn]
            assert row.ids.tolist() == prompt + reply.ids
            assert row.log_probs[row.sampled].tolist() == pytest.approx(reply.log_probs)
        response = response_of(trajectory)
        spans = [response["observation_tokens"][first:end] for first, end in response["action_ranges"]]
        assert spans == [asked[100 * number + turn][1].ids for turn in range(len(rows))]
    assert len(asked) == sum(len(trajectory.turn_ends) for trajectory in played)


@pytest.mark.parametrize(
    ("command", "message"),
    [("no-such-program", "cannot be started"), (f"{sys.executable} -c pass", "without having begun an episode")],
)
def test_a_command_that_plays_nothing_ends_the_run(agent: Policy, command: str, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        play(agent, Engine(agent), command)
