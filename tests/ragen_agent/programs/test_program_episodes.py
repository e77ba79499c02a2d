"""Episodes that programs play: what is sampled is what is kept, and what a program does wrong costs its episode."""

from __future__ import annotations

import json
import math
import os
import select
import shlex
import sys
import time
import zlib
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_agent.config import Config, Program, with_settings
from ragen_agent.inference import Sampled
from ragen_agent.local.run import train
from ragen_agent.programs.conversation import Conversation
from ragen_agent.programs.request import Request, RequestError
from ragen_agent.programs.rollout import _Rollout, play_programs
from ragen_agent.programs.worker import ProgramProcess, Worker
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.rollout import Instance, group
from ragen_agent.tokens.trajectory import Trajectory
from tests.pages import ROOT, script_of
from tests.ragen_agent.displays import quiet

GUIDE = ROOT / "docs" / "guides" / "your_own_agent.md"
SMALL = {
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "env_options": {"size": 4},
    "turns": {"max_turns": 3, "max_tokens_per_turn": 6},
}
#: Plays one episode and keeps the conversation, as most agents do.
KEEPS = """
session = post(URL + "/sessions", {"grain": "turn", "env": "FrozenLake"})
turn = post(URL + "/sessions/" + session["session"] + "/reset", {"seed": 3})
messages = [{"role": "system", "content": session["instructions"]}]
while not (turn.get("terminated") or turn.get("truncated")):
    messages.append({"role": "user", "content": turn["observation"]})
    messages.append({"role": "assistant", "content": ask(messages)})
    turn = post(URL + "/sessions/" + session["session"] + "/turn", {"reply": messages[-1]["content"]})
"""


@pytest.fixture(scope="module")
def agent() -> Policy:
    return Policy.build(with_settings(Config(), SMALL))


@pytest.fixture(scope="module")
def helpers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide's program, and its ``post`` and ``ask`` for others."""
    folder = tmp_path_factory.mktemp("programs")
    script_of(GUIDE, "python", folder)
    return folder


def command(helpers: Path, text: str | None = None) -> str:
    """A program of these lines, or the guide's."""
    program = helpers / "my_agent.py"
    if text is not None:
        program = helpers / f"program{zlib.crc32(text.encode())}.py"
        head = "import os, sys, time\nfrom my_agent import ask, post\nURL = os.environ['RAGEN_GYM_URL']\n"
        program.write_text(head + text)
    return shlex.join([sys.executable, str(program)])


class Recording:
    """The engine, with what it was asked and what it sampled."""

    def __init__(self, agent: Policy) -> None:
        self.engine = agent.engine
        self.sampled: list[tuple[list[int], Sampled]] = []

    def max_rows(self, tokens: int) -> int:
        return self.engine.max_rows(tokens)

    def start(self, prompts: Sequence[Sequence[int]], **arguments: Any) -> Any:
        session, asked = self.engine.start(prompts, **arguments), [list(prompt) for prompt in prompts]
        reply = session.reply

        def recorded(limits: Sequence[int]) -> list[Sampled | None]:
            replies = reply(limits)
            assert None not in replies, "a small batch has no stragglers"
            self.sampled += [(p, r) for p, r in zip(asked, replies, strict=True) if r is not None]
            return replies

        session.reply = recorded  # type: ignore[method-assign]
        return session


def play(agent: Policy, engine: Any, instances: list[Instance], program: Program, count: int = 2) -> list[Trajectory]:
    return play_programs(
        engine, agent.processes("train", count), instances, program, temperature=1.0, seed=5, check=lambda ids: None
    )


def test_a_program_that_keeps_the_conversation_fills_one_row_with_the_sampled_ids(agent: Policy, helpers: Path) -> None:
    engine = Recording(agent)
    played = play(agent, engine, group([3, 4], 2), Program(command(helpers, KEEPS), workers=2))
    assert [t.seed for t in played] == [3, 3, 4, 4]
    assert all(t.failure is None and not t.contexts for t in played), [t.failure for t in played]
    asked = sorted(engine.sampled, key=lambda each: len(each[0]))
    for trajectory in played:
        assert len(trajectory.turn_infos) == len(trajectory.turn_ends)
        starts = [0, *(end + 1 for end in trajectory.turn_ends)]
        for first, end in zip(starts, trajectory.turn_ends, strict=False):
            begin = first + int(np.argmax(trajectory.sampled[first : end + 1]))
            prompt, ids = trajectory.ids[:begin].tolist(), trajectory.ids[begin : end + 1].tolist()
            log_probs = trajectory.log_probs[begin : end + 1]
            found = [reply for asked_ids, reply in asked if asked_ids == prompt and reply.ids == ids]
            assert any(np.allclose(reply.log_probs, log_probs) for reply in found), "as the engine sampled it"
            assert trajectory.sampled[begin : end + 1].all()
    assert sum(len(t.turn_ends) for t in played) == len(engine.sampled)


@pytest.mark.parametrize("game", ["Bandit", "ragen_gym.tasks:Countdown"])
def test_one_turn_is_the_turn_that_training_without_a_program_plays(helpers: Path, game: str) -> None:
    turns = {"max_turns": 1, "max_tokens_per_turn": 6}
    config = with_settings(Config(), {**SMALL, "game": game, "env_options": {}, "turns": turns})
    agent, instances = Policy.build(config), group([1, 2, 3], 2)
    own = agent.play(agent.processes("train", 2), instances, 1.0, 5)
    played = play(agent, agent.engine, instances, Program(command(helpers), workers=2))
    for mine, theirs in zip(own, played, strict=True):
        assert mine.ids.tolist() == theirs.ids.tolist()
        assert mine.sampled.tolist() == theirs.sampled.tolist()
        assert np.allclose(mine.log_probs, theirs.log_probs, atol=1e-4)
        assert (mine.turn_rewards, mine.success, mine.level_id) == (
            theirs.turn_rewards,
            theirs.success,
            theirs.level_id,
        )
        assert (mine.terminated, mine.truncated, mine.turn_infos) == (
            theirs.terminated,
            theirs.truncated,
            theirs.turn_infos,
        )


def test_a_prompt_that_does_not_extend_the_one_before_begins_a_row(agent: Policy, helpers: Path) -> None:
    engine = Recording(agent)
    played = play(agent, engine, group([3], 2), Program(command(helpers), workers=2))
    for trajectory in played:
        assert trajectory.failure is None
        rows = trajectory.split_contexts()
        assert len(rows) == len(trajectory.turn_ends) == max(1, len(trajectory.contexts))
        for row in rows:
            begin = int(np.argmax(row.sampled))
            assert (row.ids[:begin].tolist(), row.ids[begin:].tolist()) in [(p, r.ids) for p, r in engine.sampled]


def test_messages_hold_each_reply_once_after_what_it_answers(agent: Policy) -> None:
    """A request that begins a row repeats earlier replies, which the report took for those of later turns."""
    conversation = Conversation(agent.chat, 8, 512)
    system = {"role": "system", "content": "Play."}
    said = [{"role": "user", "content": f"board {turn}"} for turn in range(3)]
    replies = [agent.tokenizer.encode(f"<answer>{name}</answer>") for name in ("Up", "Down", "Left")]
    texts: list[dict[str, str]] = []
    for turn, ids in enumerate(replies):
        shortened = [{"role": "user", "content": "what was"}, *texts] if turn else []
        reply = conversation.request([system, *shortened, said[turn]])
        conversation.add(reply, Sampled(ids, [-1.0] * len(ids)))
        texts.append({"role": "assistant", "content": reply.text})
    assert len({text["content"] for text in texts}) == 3
    trajectory = conversation.trajectory([0.0] * 3, [], truncated=True)
    assert len(trajectory.contexts) == 3
    assert trajectory.messages == (system, said[0], texts[0], said[1], texts[1], said[2], texts[2])


def test_what_the_template_refuses_is_no_error_of_the_server(agent: Policy) -> None:
    """Clients send a request again that is answered with 500."""
    tokenizer = deepcopy(agent.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if not loop.first and loop.previtem.role == m.role %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    conversation = Conversation(ChatFormat.from_tokenizer(tokenizer), 8, 512)
    with pytest.raises(ValueError, match="cannot write these messages: roles must alternate"):
        conversation.request([{"role": "user", "content": "Up"}, {"role": "user", "content": "Down"}])


def test_rewards_go_to_the_last_reply_before_them(agent: Policy, helpers: Path) -> None:
    twice = """
session = post(URL + "/sessions", {})
turn, url = session["start"], URL + "/sessions/" + session["session"] + "/turn"
messages = [{"role": "user", "content": turn["observation"]}]
for question in range(2):
    messages.append({"role": "assistant", "content": ask(messages)})
    messages.append({"role": "user", "content": turn["observation"]})
turn = post(url, {"reply": "nonsense"})
turn = post(url, {"reply": "nonsense"})
"""
    [trajectory] = play(agent, agent.engine, [Instance(3, 3)], Program(command(helpers, twice)))
    assert list(trajectory.turn_rewards) == pytest.approx([0.0, -0.2])
    assert trajectory.failure is None
    assert trajectory.truncated, "the program ended before the game"
    assert trajectory.turn_infos == ()


@pytest.mark.parametrize(
    ("lines", "failure"),
    [
        ("post(URL + '/sessions', {})\nsys.exit('no idea')", "agent_error: exit code 1: no idea"),
        ("post(URL + '/sessions', {})", "agent_error: the program ended the episode without asking the model"),
        ("post(URL + '/sessions', {})\ntime.sleep(60)", "timeout: the program took more than 5 s"),
    ],
)
def test_a_program_that_breaks_fails_its_episode_alone(
    agent: Policy, helpers: Path, lines: str, failure: str, tmp_path: Path
) -> None:
    once = f"""
try:
    os.mkdir({str(tmp_path / "begun")!r})
except FileExistsError:
    exec({KEEPS!r})
    sys.exit()
{lines}
"""
    late = Program(command(helpers, once), workers=1, timeout=5.0 if "timeout" in failure else 60.0)
    first, second = play(agent, agent.engine, [Instance(3, 3), Instance(4, 4)], late)
    assert first.failure == failure
    if "timeout" not in failure:  # five seconds may be too short for the second one on a slow machine
        assert second.failure is None


def test_a_program_that_asks_without_end_is_ended_too(agent: Policy, helpers: Path) -> None:
    asks = """
session, until = post(URL + "/sessions", {}), time.monotonic() + 30
while time.monotonic() < until:
    ask([{"role": "user", "content": session["start"]["observation"]}])
"""
    late = Program(command(helpers, asks), workers=1, timeout=1.0)
    [trajectory] = play(agent, agent.engine, [Instance(3, 3)], late)
    assert trajectory.failure == "timeout: the program took more than 1 s"


def test_an_episode_that_is_begun_as_the_program_ends_is_over(agent: Policy) -> None:
    """A request may be on its way as its program is ended: its episode was not played, and the rollout never ended."""
    program = Program("none")
    rollout = _Rollout(agent.engine, [Instance(3, 3)], program, 1.0, 0)
    worker = Worker(program, agent.processes("train", 1)[0], rollout, lambda ids: None)
    worker.begin()
    assert worker.look_after() is None
    assert rollout.played[0].failure == "agent_error: the program ended as it began the episode"


def test_a_level_that_cannot_be_made_fails_its_episode_alone(
    agent: Policy, helpers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = agent.processes("train", 1)
    reset = processes[0].env.reset

    def breaks(*, seed: int, options: dict[str, Any]) -> Any:
        if seed == 3:
            raise RuntimeError("no such level")
        return reset(seed=seed, options=options)

    monkeypatch.setattr(processes[0].env, "reset", breaks)
    instances = [Instance(3, 3), Instance(4, 4)]
    program = Program(command(helpers, KEEPS), workers=1)
    first, second = play_programs(agent.engine, processes, instances, program, temperature=1.0, seed=5)
    assert (first.failure, first.seed) == ("environment_error: RuntimeError: no such level", 3)
    assert second.failure is None


def test_a_reward_that_is_no_number_fails_its_episode_alone(agent: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a record of the episode the rollout would wait for it for ever."""
    [process] = agent.processes("train", 1)
    step = process.env.step
    monkeypatch.setattr(process.env, "step", lambda reply: (*step(reply)[:1], math.nan, False, False, {}))
    rollout = _Rollout(agent.engine, [Instance(3, 3)], Program("none"), 1.0, 0)
    monkeypatch.setattr(rollout, "sample", lambda *_: Sampled([process.chat.end_id], [-1.0]))
    worker = Worker(Program("none"), process, rollout, lambda ids: None)
    worker.begin()
    worker.complete(Request([{"role": "user", "content": "hello"}]))
    with pytest.raises(RequestError, match="the turn's reward is nan"):
        worker.turn({"reply": "<answer>Up</answer>"})
    worker.end()
    assert rollout.played[0].failure == "environment_error: ValueError: the turn's reward is nan"


def test_messages_that_do_not_fit_are_said_and_truncate_the_episode(agent: Policy, helpers: Path) -> None:
    longer = """
session = post(URL + "/sessions", {})
messages = [{"role": "user", "content": session["start"]["observation"]}]
while True:
    messages.append({"role": "assistant", "content": ask(messages)})
    messages.append({"role": "user", "content": session["start"]["observation"] * 3})
"""
    [trajectory] = play(agent, agent.engine, [Instance(3, 3)], Program(command(helpers, longer)))
    assert (trajectory.failure, trajectory.truncated, trajectory.success) == (None, True, False)
    assert len(trajectory.turn_ends) > 1
    assert len(trajectory.ids) <= Config().turns.max_tokens_per_episode


def test_a_reply_that_the_limit_of_the_episode_cuts_is_counted(helpers: Path) -> None:
    once = """
session = post(URL + "/sessions", {})
ask([{"role": "user", "content": session["start"]["observation"]}])
"""
    config = with_settings(Config(), SMALL)
    [whole] = play(Policy.build(config), Policy.build(config).engine, [Instance(3, 3)], Program(command(helpers, once)))
    most = int(np.argmax(whole.sampled)) + 2
    tight = Policy.build(with_settings(config, {"turns": {"max_tokens_per_episode": most}}))
    played = play(tight, tight.engine, [Instance(3, seed) for seed in range(8)], Program(command(helpers, once)))
    stopped = [int(t.ids[-1]) in tight.processes("train", 1)[0].chat.stop_ids for t in played]
    assert [t.overflowed for t in played] == [not each for each in stopped]
    assert not all(stopped)
    assert not whole.overflowed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no-such-program", "cannot be started"),
        ("  ", "cannot be started"),
        (f"{sys.executable} -c pass", "without having begun an episode"),
        (f"{sys.executable} -c 'import time; time.sleep(60)'", "no episode within 0.2 s"),
    ],
)
def test_a_command_that_plays_nothing_is_an_error(agent: Policy, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        play(agent, agent.engine, [Instance(3, 3)], Program(line, timeout=10.0 if "time" not in line else 0.2))


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    process = ProgramProcess(shlex.join(["/bin/sh", "-c", f"(echo up; exec sleep 60) > {pipe} &"]), {})
    assert [select.select([reader], [], [], 30) and os.read(reader, 9)] == [b"up\n"]
    while process.running:
        time.sleep(0.01)
    process.end()
    assert select.select([reader], [], [], 30)[0], "the end of the pipe, which the child held open"
    assert os.read(reader, 9) == b""
    os.close(reader)


@pytest.mark.parametrize(
    "settings",
    [{"turns": {"observation": "image"}}, {"turns": {"history": 0}}],
)
def test_what_a_program_cannot_do_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"program\.command"):
        with_settings(Config(), {"program": {"command": "x"}, **settings})


def test_a_run_trains_on_what_a_program_played(helpers: Path, tmp_path: Path) -> None:
    config = with_settings(
        Config(),
        {
            **SMALL,
            "game": "Bandit",
            "env_options": {},
            "turns": {"max_turns": 1, "max_tokens_per_turn": 24},
            "program": {"command": command(helpers), "workers": 2},
            "warm_start": {"epochs": 1},
            "demonstrations": {"episodes": 32},
            "training": {"iterations": 1, "groups": 2, "group_size": 2, "keep": 1.0, "minibatch": 4},
            "evaluation": {"levels": 2},
        },
    )
    train(config, RunFolder.create(tmp_path / "run", config), quiet())
    [record] = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert record["failed"] == 0
    assert record["new_prompts"] == 0
