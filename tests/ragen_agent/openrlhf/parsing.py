"""OpenRLHF's own reading of a command line."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from ragen_agent.openrlhf.cli_flags import MODULE


class Parsed(Exception):
    """Raised where OpenRLHF would begin to train."""


def parsed_by_openrlhf(command: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The flags of a ``planned_command`` by OpenRLHF's parser and checks, up to where it asks Ray for a cluster."""
    import ray

    def begin(*args: Any, **kwargs: Any) -> None:
        raise Parsed

    seen: list[argparse.Namespace] = []
    parse = argparse.ArgumentParser.parse_args

    def note(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> argparse.Namespace:
        seen.append(parse(self, *args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", note)
    monkeypatch.setattr(ray, "is_initialized", begin)
    monkeypatch.setattr(sys, "argv", list(command[3:]))
    with pytest.raises(Parsed):
        runpy.run_module(MODULE, run_name="__main__")
    return vars(seen[-1])
