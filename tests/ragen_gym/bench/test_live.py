"""Live reports over HTTP: only this machine, only that run; in a browser they grow with it."""

from __future__ import annotations

import http.client
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.report import live
from ragen_gym.bench.report.live import LivePage, ResultsPage, _hosts, make_server, waiting_page
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import load_suite
from ragen_gym.cli import main
from tests.browser import launched, open_page
from tests.ragen_gym.bench.imperfect_agent import ImperfectAgent


@contextmanager
def served(page: LivePage) -> Iterator[int]:
    """The port of a server of the page."""
    with make_server(page, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


def test_only_this_machine_reads_only_this_page(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    text = waiting_page("Benchmark report", tmp_path / "run")
    with served(LivePage(lambda: text, [], 0.0)) as port:
        for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
            assert ask(port, Host=host)[::2] == (200, text)
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil.example:{port}", ""):
            status, _, said = ask(port, Host=host)
            assert (status, "<html" in said) == (421, False)
        for path in ("/secret", "/../secret", "/?x", f"http://127.0.0.1:{port}/secret"):
            assert ask(port, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(port, method=method)[0] == 501
        status, headers, said = ask(port, method="HEAD")
        assert (status, headers["Content-Length"], said) == (200, str(len(text.encode())), "")
        assert "Access-Control-Allow-Origin" not in headers
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        assert ask(port, If_None_Match=headers["ETag"])[0] == 304
    assert {"localhost", "127.0.0.1", "localhost:80"} <= _hosts(80), "browsers leave HTTP's own port out"
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r'(?:src|href)="https?:', text)


def test_the_server_listens_on_this_machine_alone() -> None:
    page = LivePage(lambda: "", [], 0.0)
    with make_server(page, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        with pytest.raises(ValueError, match=f"port {server.server_port} cannot be used"):
            make_server(page, server.server_port)
    with pytest.raises(ValueError, match="port 70000 cannot be used"):
        make_server(page, 70000)


def test_a_page_is_made_again_only_when_a_file_has_changed_or_a_minute_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, made = tmp_path / "episodes.jsonl", []

    def render() -> str:
        if file.is_file() and file.read_text() == "damaged":
            raise ValueError("line 1 is damaged")
        made.append(1)
        return f"page {len(made)}"

    page = LivePage(render, [file], every=0.0)
    assert page.current() == page.current()
    assert made == [1]
    file.write_text("one")
    assert page.current()[0] == b"page 2"
    file.write_text("damaged")
    assert page.current()[0] == b"page 2", "the page before stays"
    damaged = LivePage(render, [file], every=0.0)
    with served(damaged) as port:
        assert ask(port)[::2] == (503, "line 1 is damaged\n")
    slow = LivePage(render, [file], every=60.0)
    file.write_text("three")
    assert slow.current()[0] == b"page 3"
    file.write_text("four")
    assert slow.current()[0] == b"page 3", "it is not yet time for another"
    assert page.current()[0] == b"page 4"
    monkeypatch.setattr(live, "_UNCHANGED", 0.0)
    time.sleep(0.1)  # many times as long as the page took
    assert page.current()[0] == b"page 5"


def test_a_port_is_for_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "run", "--suite", "smoke", "--agent", "random", "--out", str(tmp_path / "run"), "--port", "8000"]
    assert main(words) == 2
    assert "--port is for the page: add --web" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_of_a_benchmark_grows_in_a_browser(tmp_path: Path) -> None:
    """A real run plays in two sessions, while the page is open."""
    suite, out = load_suite("smoke"), tmp_path / "run"
    follows = ResultsPage(out)
    agent = ImperfectAgent("careful", 0.9, 0.95)

    def play(limit: int) -> None:
        player = threading.Thread(target=run_suite, args=(suite, agent, out, RunOptions(limit=limit)))
        player.start()  # in a thread of its own: Playwright keeps an event loop running in this one
        player.join()

    with served(LivePage(follows.render, follows.files, 0.2)) as port, launched() as browser:
        sheet = open_page(browser, f"http://127.0.0.1:{port}/", ".rv-bar")
        live = sheet.page.locator(".live")
        expect(live).to_have_text("waiting for the run")
        assert sheet.page.locator(".lane").count() == 0
        play(2)
        expect(live).to_have_text("finished · 12 of 12 episodes", timeout=60_000)
        expect(sheet.page.locator(".lane .point")).to_have_count(6)
        sheet.page.wait_for_selector(".rv-turn")
        sheet.press("j", "ArrowRight")
        title, caption = sheet.title, sheet.caption
        play(3)
        expect(live).to_have_text("finished · 18 of 18 episodes", timeout=60_000)
        expect(sheet.page.locator(".rv-filters button").first).to_contain_text("18")
        assert (sheet.title, sheet.caption) == (title, caption), "the reader's place stays"
        assert sheet.filter("All") == 18
        assert {address.rpartition(":")[0] for address in sheet.asked if not address.startswith("data:")} == {
            "http://127.0.0.1"
        }
        sheet.close()


@pytest.mark.slow
def test_a_run_with_a_page_ends_at_ctrl_c(tmp_path: Path) -> None:
    command = ["bench", "run", "--suite", "smoke", "--limit", "1", "--agent", "random", "--web", "--out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ragen_gym.cli", *command, str(tmp_path / "run")],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # so that both its processes are interrupted, as by a terminal
    )
    assert process.stderr is not None
    said, deadline = b"", time.monotonic() + 120
    while b"stays until Ctrl-C" not in said:
        assert select.select([process.stderr], [], [], deadline - time.monotonic())[0], said
        piece = os.read(process.stderr.fileno(), 4096)
        assert piece, said
        said += piece
    port = int(re.findall(rb"http://127\.0\.0\.1:(\d+)/", said)[0])
    assert "finished · 6 of 6 episodes" in ask(port)[2]
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, b"Traceback" in errors) == (0, False)
    assert b"6 episodes played now" in out
    with pytest.raises(ConnectionRefusedError):
        ask(port)


def test_a_taken_port_is_named_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[Any]) -> None:
    with make_server(LivePage(lambda: "", [], 0.0), 0) as server:
        words = ["bench", "run", "--suite", "smoke", "--agent", "random", "--out", str(tmp_path / "run"), "--web"]
        assert main([*words, "--port", str(server.server_port)]) == 2
    assert f"port {server.server_port} cannot be used" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
