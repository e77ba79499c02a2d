"""``ragen-gym serve`` as a process of its own: how it starts, ends, is killed and comes back."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from ragen_gym.cli import serve
from ragen_gym.serve import RemoteEnv, RemoteTurnEnv, ServerError, ServerUnreachable, SessionLost


def command(*options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "ragen_gym.cli", "serve", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@contextmanager
def started(*options: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server, and the URL that it says."""
    process = command(*options, **environment)
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stderr:  # where nothing is compiled yet, it says first what it waits for
            lines.append(line)
            if found := re.match(r"ragen-gym: serving on (http://\S+) \(", line):
                yield found[1], process
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def port_of(url: str) -> str:
    return url.rpartition(":")[2]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_server_that_is_killed_comes_back_empty() -> None:
    with started("--port", "0") as (url, process):
        env, turns = RemoteEnv(url, "FrozenLake"), RemoteTurnEnv(url, "Sokoban")
        start = env.reset(seed=3)[0]
        turns.reset(seed=4)
        env.step(0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for call in (lambda: env.step(0), env.reset, lambda: turns.step("x"), lambda: RemoteEnv(url, "Bandit")):
            with pytest.raises(ServerUnreachable, match="is the server running"):
                call()
        with started("--port", port_of(url)) as (again, _):
            assert again == url
            for call in (lambda: env.step(0), env.reset, lambda: turns.step("x")):
                with pytest.raises(SessionLost, match="the server was restarted"):
                    call()
            for old in (env, turns):
                old.close()
            env = RemoteEnv(again, "FrozenLake")  # the seed gives the level back; only the moves are lost
            assert env.reset(seed=3)[0] == start
            env.step(0)
            env.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("sent", "code", "said"), [(signal.SIGINT, 130, "ragen-gym: stopped."), (signal.SIGTERM, -signal.SIGTERM, "")]
)
def test_it_ends_when_told_to(sent: signal.Signals, code: int, said: str) -> None:
    with started("--port", "0") as (url, process):
        env = RemoteEnv(url, "FrozenLake")
        env.reset(seed=0)
        process.send_signal(sent)
        assert process.wait(20) == code
        assert process.stderr is not None
        assert process.stderr.read().strip() == said
        with pytest.raises(ServerUnreachable):
            env.step(0)
        env.close()


def test_it_lets_others_in_only_with_a_token() -> None:
    token = "0123456789abcdef0123456789abcdef"
    options = ("--host", "0.0.0.0", "--port", "0")
    for given, words in (({}, "clients must show a token"), ({"RAGEN_GYM_TOKEN": "abc"}, "must have 16 or more")):
        process = command(*options, **given)
        assert words in process.communicate(timeout=60)[1]
        assert process.returncode == 2
    with started(*options, RAGEN_GYM_TOKEN=token) as (url, _):
        local = f"http://127.0.0.1:{port_of(url)}"
        for headers in ({}, {"Host": "elsewhere.example"}):
            assert httpx.get(f"{local}/envs", headers=headers, timeout=120).status_code == 401
        with pytest.raises(ServerError, match="token"):
            RemoteEnv(local, "Bandit")
        RemoteEnv(local, "Bandit", token=token).close()


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = command("--port", str(taken.getsockname()[1]))
        said = process.communicate(timeout=60)[1]
        assert re.search("[Aa]ddress already in use", said)
        assert process.returncode == 2


def test_a_text_task_is_refused() -> None:
    process = command("--port", "0", "--game", "ragen_gym.tasks:Countdown")
    assert "Countdown is a text task: the server offers games alone" in process.communicate(timeout=120)[1]
    assert process.returncode == 2


@pytest.mark.parametrize(
    ("options", "words"), [(("--port", "70000"), "0 to 65535"), (("--session-ttl", "0"), "session_ttl=0.0 must be")]
)
def test_options_that_cannot_be(options: tuple[str, ...], words: str) -> None:
    parser = argparse.ArgumentParser()
    serve.add(parser.add_subparsers())
    arguments = parser.parse_args(["serve", *options])
    with pytest.raises(ValueError, match=words):
        arguments.run(arguments)
