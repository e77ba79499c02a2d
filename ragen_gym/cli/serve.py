"""``ragen-gym serve``: the environments over HTTP."""

from __future__ import annotations

import argparse
import os
import sys

from ragen_gym.cli.command import add_command
from ragen_gym.core.settings import declared
from ragen_gym.games.registry import load, load_task
from ragen_gym.serve.limits import Limits

__all__ = ["add"]

_EXAMPLES = """\
examples:
  ragen-gym serve                        for programs of this machine
  ragen-gym serve --port 9000 --session-ttl 3600
  RAGEN_GYM_TOKEN=$(openssl rand -hex 32) ragen-gym serve --host 0.0.0.0

The page http://127.0.0.1:8000/docs lists all requests; http://127.0.0.1:8000/openapi.json is the same for programs.
The token is sent unencrypted: put a proxy with TLS in front of a server that other machines reach.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    about = "Offer the environments over HTTP, in one process; its sessions end with it."
    parser = add_command(commands, "serve", "offer the environments over HTTP", _serve, _EXAMPLES, about)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for any free one (default: 8000)")
    parser.add_argument(
        "--token-env",
        default="RAGEN_GYM_TOKEN",
        metavar="NAME",
        help="environment variable with the token that clients must show; needed with a --host that is not this "
        "machine alone (default: RAGEN_GYM_TOKEN)",
    )
    parser.add_argument(
        "--game", action="append", default=[], metavar="MODULE:NAME", help="offer a game of your own too; repeatable"
    )
    limits = parser.add_argument_group("limits")
    for name, each in declared(Limits).items():
        limits.add_argument(
            f"--{name.replace('_', '-')}",
            type=float if each.type is float else int,
            default=each.default,
            metavar="N",
            help=each.doc + ("" if each.default is None else f" (default: {each.default})"),
        )


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from ragen_gym.serve.server import bound_socket, check_token, run, url_of
    except ImportError as error:
        raise ValueError(f"serving needs {error.name}: run `pip install 'ragen-gym[serve]'`.") from error
    limits = Limits(**{name: getattr(arguments, name) for name in declared(Limits)})
    token = check_token(arguments.host, os.environ.get(arguments.token_env), arguments.token_env)
    if not 0 <= arguments.port < 2**16:
        raise ValueError(f"--port {arguments.port} is not a port: choose 0 to 65535.")

    for name in arguments.game:
        if load_task(name) is not None:
            raise ValueError(
                f"--game {name} is a text task, and the server offers games alone: use "
                "ragen_gym.TaskEnv in your own process."
            )
        load(name)

    bound = bound_socket(arguments.host, arguments.port)
    who, url = "with a token" if token else "this machine only, no token", url_of(bound)
    print(f"ragen-gym: serving on {url} ({who}); {url}/docs says how; Ctrl-C ends it", file=sys.stderr, flush=True)
    run(bound, limits, token)
    return 0
