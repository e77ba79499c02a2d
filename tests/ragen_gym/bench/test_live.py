"""Live reports over HTTP: only this machine, only that run."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ragen_gym.bench.report import live
from ragen_gym.bench.report.live import LivePage, make_server, waiting_page


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
