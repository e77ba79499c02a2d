"""Wrong addresses, and answers that are not a server of games."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ragen_gym.serve import RemoteEnv, ServerError


def test_a_program_without_a_server_ends_in_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    program = f"from ragen_gym.serve import RemoteEnv; RemoteEnv({url!r}, 'FrozenLake')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"no answer from {url} to POST /sessions (ConnectError: " in done.stderr.splitlines()[-1]
    assert "Start it with ragen-gym serve, or correct the address" in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1, "the frames of the HTTP library say nothing to its user"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"error": "Not Found"}'], ids=str)
@pytest.mark.parametrize("status", [201, 500])
def test_an_answer_that_is_none(body: bytes, status: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    with pytest.raises(ServerError, match="is no ragen-gym server"):
        RemoteEnv(f"http://127.0.0.1:{server.server_port}", "FrozenLake")
    server.shutdown()
    server.server_close()
