"""``ragen-gym serve``: the environments over HTTP."""

from __future__ import annotations

import argparse
import os
import sys

__all__ = ["add"]

_EXAMPLES = """\
examples:
  ragen-gym serve                                           http://127.0.0.1:8000, this machine only
  ragen-gym serve --port 9000 --session-ttl 3600            sessions live for an hour without a request
  RAGEN_GYM_TOKEN=$(openssl rand -hex 32) ragen-gym serve --host 0.0.0.0

The page http://127.0.0.1:8000/docs says what can be asked; http://127.0.0.1:8000/openapi.json says it to programs.
The token goes over the wire as it is: put a proxy with TLS before a server that others reach.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "serve",
        help="offer the environments over HTTP",
        description="Offer the environments over HTTP, in one process; its sessions end with it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for any free one (default: 8000)")
    parser.add_argument(
        "--token-env",
        default="RAGEN_GYM_TOKEN",
        metavar="NAME",
        help="environment variable with the token that clients must show; needed with a --host that is not this "
        "machine alone (default: RAGEN_GYM_TOKEN)",
    )
    limits = parser.add_argument_group("limits")
    for option, kind, default, what in (
        ("--max-sessions", int, 4096, "open sessions"),
        ("--max-per-client", int, None, "open sessions of one client (default: as many as --max-sessions)"),
        ("--max-batch", int, 1024, "environments of one batch"),
        ("--max-envs", int, 65536, "environments of all batches together"),
        ("--session-ttl", float, 900.0, "seconds without a request after which a session is closed"),
        ("--rate", float, 1000.0, "requests a second that one client may make, 0 for no limit"),
        ("--max-body", int, 2**18, "bytes of a request"),
        ("--max-reply", int, 2**18, "characters of all replies of an episode"),
        ("--max-seconds", float, 2.0, "seconds that the levels of one request may take to generate"),
    ):
        ending = "" if default is None else f" (default: {default})"
        limits.add_argument(option, type=kind, default=default, metavar="N", help=what + ending)
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from ragen_gym.serve.limits import Limits
        from ragen_gym.serve.server import bound_socket, check_token, run
    except ImportError as error:
        raise ValueError(f"serving needs {error.name}: run `pip install 'ragen-gym[serve]'`.") from error
    names = ("max_sessions", "max_per_client", "max_batch", "max_envs", "max_body", "max_reply", "session_ttl", "rate")
    limits = Limits(**{name: getattr(arguments, name) for name in (*names, "max_seconds")})
    token = check_token(arguments.host, os.environ.get(arguments.token_env), arguments.token_env)
    if not 0 <= arguments.port < 2**16:
        raise ValueError(f"--port {arguments.port} is not a port: choose 0 to 65535.")

    def started(url: str) -> None:
        who = "with a token" if token else "this machine only, no token"
        print(f"ragen-gym: serving on {url} ({who}); {url}/docs says how; Ctrl-C ends it", file=sys.stderr, flush=True)

    run(bound_socket(arguments.host, arguments.port), limits, token, started)
    return 0
