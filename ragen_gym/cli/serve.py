"""``ragen-gym serve``: the environments over HTTP."""

from __future__ import annotations

import argparse
import os
import sys

from ragen_gym.core.command_line import add_command
from ragen_gym.games.registry import load, load_task

_EXAMPLES = """\
examples:
  ragen-gym serve                        for programs of this machine
  ragen-gym serve --port 9000 --session-ttl 3600
  RAGEN_GYM_TOKEN=$(openssl rand -hex 32) ragen-gym serve --host 0.0.0.0

The page http://127.0.0.1:8000/docs lists all requests; http://127.0.0.1:8000/openapi.json is the same for programs.
A --host that is not this machine alone needs a token, which clients must show, in RAGEN_GYM_TOKEN.
It is sent unencrypted: put a proxy with TLS in front of a server that other machines reach.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    about = "Offer the environments over HTTP, in one process; its sessions end with it."
    parser = add_command(commands, "serve", "offer the environments over HTTP", _serve, _EXAMPLES, about)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for any free one (default: 8000)")
    parser.add_argument(
        "--game", action="append", default=[], metavar="MODULE:NAME", help="offer a game of your own too; repeatable"
    )
    parser.add_argument(
        "--max-sessions", type=int, default=1024, metavar="N", help="sessions that may be open (default: 1024)"
    )
    parser.add_argument(
        "--session-ttl",
        type=float,
        default=900,
        metavar="S",
        help="seconds without a request after which a session is closed (default: 900)",
    )


def _serve(arguments: argparse.Namespace) -> int:
    from ragen_gym.serve.app import create_app
    from ragen_gym.serve.server import bound_socket, check_token, run, url_of

    token = check_token(arguments.host, os.environ.get("RAGEN_GYM_TOKEN"))
    app = create_app(token, max_sessions=arguments.max_sessions, session_ttl=arguments.session_ttl)
    for name in arguments.game:
        if load_task(name) is not None:
            raise ValueError(f"--game {name} is a text task: the server offers games alone.")
        load(name)
    if not 0 <= arguments.port < 2**16:
        raise ValueError(f"--port {arguments.port} is not a port: choose 0 to 65535.")
    bound = bound_socket(arguments.host, arguments.port)
    who, url = "with a token" if token else "this machine only, no token", url_of(bound)
    print(f"ragen-gym: serving on {url} ({who}); {url}/docs says how; Ctrl-C ends it", file=sys.stderr, flush=True)
    run(bound, app)
    return 0
