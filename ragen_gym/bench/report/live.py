"""Live reports: a local web server for the page of a run that is still going on.

The server has one address, which answers with the whole report as it stands. ``templates/live.js`` asks for it again
and again, and takes over what changed. The server reads the run's files and writes nothing. It listens on 127.0.0.1
alone, and answers only requests whose Host header names that address: a foreign site whose name resolves to 127.0.0.1
(DNS rebinding) gets nothing. Every user of the same machine can read the page.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from ragen_gym.bench.report.benchmark_page import page as benchmark_page
from ragen_gym.bench.report.html_page import EpisodeViewer, render_page
from ragen_gym.bench.results import ResultsFolder, load_results
from ragen_gym.bench.score import score_results
from ragen_gym.core.child_python import child_python
from ragen_gym.core.console import span

HOST = "127.0.0.1"
#: Episodes that a live page replays: the last ones.
RECENT = 48
#: Share of the time that a page may take to be made: a run on the same machine keeps the rest.
_SHARE = 0.1
#: Seconds after which a page is made again though no file has changed: a run that was stopped writes nothing.
_UNCHANGED = 60.0


class LivePage:
    """The page as it stands, made by one thread at a time, and anew when a file has changed or a minute is over.

    Args:
        render: makes the page; a ``ValueError``, ``OSError`` or ``RuntimeError`` from it leaves the page before.
        files: whose change makes the page again.
        every: least number of seconds between two pages.
    """

    def __init__(self, render: Callable[[], str], files: Sequence[Path], every: float) -> None:
        self._render, self._files, self._every = render, files, every
        self._lock = Lock()
        self._next = 0.0  # on the monotonic clock
        self._took = 0.0  # seconds for the page before; the quicker of two counts, as the first one also compiles
        self._made_of: object = None
        self._body, self._tag, self._error = b"", "", ""

    def current(self) -> tuple[bytes, str]:
        """The page and its entity tag.

        Raises:
            ValueError: there is no page yet, and none can be made.
        """
        with self._lock:
            state, began = [*map(_state_of, self._files)], time.monotonic()
            unchanged = state == self._made_of and began < self._next + _UNCHANGED
            if not unchanged and began >= self._next:
                try:
                    self._body = self._render().encode()
                except (ValueError, OSError, RuntimeError) as error:
                    self._error = str(error)
                self._made_of = state
                self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'
                ended = time.monotonic()
                took, self._took = min(self._took, ended - began), ended - began
                self._next = ended + max(self._every, took / _SHARE)
            if not self._body:
                raise ValueError(self._error)
            return self._body, self._tag


def _state_of(path: Path) -> tuple[int, int] | None:
    """Time of the last change and size; None without the file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error, unless the reader has only gone: the terminal is the run's."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def make_server(page: LivePage, port: int) -> ThreadingHTTPServer:
    """A server of the page on 127.0.0.1; ``serve_forever`` runs it.

    Args:
        page: the page at ``/``; there is nothing else.
        port: where it listens; 0 is any free one, which ``server_port`` gives.

    Raises:
        ValueError: the port is taken, or may not be used.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version, server_version, sys_version, timeout = "HTTP/1.1", "ragen-gym", "", 30

        def do_GET(self) -> None:
            if self.headers.get("Host") not in hosts:
                self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"This page is only for this machine's own address.\n")
            elif self.path != "/":
                self._answer(HTTPStatus.NOT_FOUND, b"There is one page: /\n")
            else:
                try:
                    body, tag = page.current()
                except ValueError as error:
                    self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode("utf-8", "replace"))
                    return
                if self.headers.get("If-None-Match") == tag:
                    self._answer(HTTPStatus.NOT_MODIFIED, b"", tag)
                else:
                    self._answer(HTTPStatus.OK, body, tag)

        do_HEAD = do_GET

        def _answer(self, status: HTTPStatus, body: bytes, tag: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"text/{'html' if tag else 'plain'}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("Content-Security-Policy", "frame-ancestors 'none'")  # the rest is in the page
            if tag:
                self.send_header("ETag", tag)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: the terminal is the run's."""

    try:
        server = _Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise ValueError(f"port {port} cannot be used: {error}; choose another, or 0 for any free one.") from error
    hosts = _hosts(server.server_port)
    return server


def _hosts(port: int) -> set[str]:
    """Host headers that name this machine: without the port where it is HTTP's own, which browsers leave out."""
    names = {HOST, "localhost"}
    return {f"{name}:{port}" for name in names} | (names if port == HTTP_PORT else set())


def waiting_page(kind: str, path: Path) -> str:
    """The page of a run that has not begun."""
    return render_page(
        "base.html",
        EpisodeViewer({"episodes": [], "filters": [{"label": "All"}]}, [], "No episode is recorded yet."),
        live="waiting for the run",
        kind=kind,
        title=path.resolve().name,
        lede=f"There is no run in {path} yet.",
        counts=[],
        findings=[],
        terms=[],
        colophon=[],
    )


class ResultsPage:
    """The page of a benchmark run while it goes on.

    Args:
        path: folder of the run, which may not be there yet.
        suite: its suite, by name or path, where ``run.json`` does not name one that is found.
    """

    def __init__(self, path: Path, suite: str | None = None) -> None:
        self.path, self.suite = path, suite
        folder = ResultsFolder(path)
        self.files = folder.files
        self._began: tuple[float, int] | None = None  # when it was first looked at, and the episodes that there were

    def render(self) -> str:
        """The page as it stands."""
        if not (self.path / "run.json").is_file():
            return waiting_page("Benchmark report", self.path)
        run = load_results(self.path, self.suite)
        done, wanted = len(run.records), sum(map(sum, run.asked.values()))
        now = time.monotonic()
        began, before = self._began = self._began or (now, done)
        state = [f"{done:,} of {wanted:,} episodes"]
        if done >= wanted:
            state.insert(0, "finished")
        elif done > before:
            state.append(f"{span((now - began) * (wanted - done) / (done - before))} left")
        return benchmark_page([run], [score_results(run)], [], recent=RECENT, live=" · ".join(state))


@contextmanager
def followed(path: Path, suite: str, port: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Within it a server follows the benchmark run of a folder: its address, and its process, so the run keeps its own.

    Args:
        path: folder of the run, which may not be there yet.
        suite: name or path of its suite.
        port: where it listens on 127.0.0.1; 0 is any free port.

    Raises:
        ValueError: the port is taken, or may not be used.
    """
    command = child_python("-m", "ragen_gym.bench.report.live", str(path), suite, str(port))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline().strip()
            if not said.isdigit():
                raise ValueError(said or "the process of the live page could not start.")
            yield f"http://{HOST}:{said}/", process
        finally:
            process.terminate()


def _follow(path: str, suite: str, port: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's, which then ends this process
    page = ResultsPage(Path(path), suite)
    try:
        server = make_server(LivePage(page.render, page.files, every=1.0), int(port))
    except ValueError as error:
        print(error, flush=True)
        return
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _follow(*sys.argv[1:])
