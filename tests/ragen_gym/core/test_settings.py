from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

import pytest

from ragen_gym.core.settings import check_settings, declared, setting

KINDS: dict[str, str] = {"a": "the first", "b": "the second"}


@dataclass(frozen=True)
class Outer:
    count: int = setting(3, "how many", low=1, unit="things")
    norm: float = setting(1.0, "a norm", above=0, high=inf)
    kind: str = setting("", "which", choices=KINDS, empty="as count says")
    limit: int | None = setting(None, "a limit", low=1)
    names: list[str] = setting(["x"], "names")
    share: float = setting(0.5, "a share", low=0, high=1)

    def __post_init__(self) -> None:
        check_settings(self, "outer.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "outer.count is 0; it must be at least 1."),
        ({"count": True}, "outer.count is True; it must be an integer, such as 3."),
        ({"count": 2.0}, "outer.count is 2.0; it must be an integer, such as 3."),
        ({"norm": 0.0}, "outer.norm is 0.0; it must be above 0."),
        ({"norm": nan}, "outer.norm is nan; it must be above 0."),
        ({"kind": "c"}, "outer.kind is 'c'; choose one of a, b."),
        ({"limit": 0}, "outer.limit is 0; it must be at least 1."),
        ({"limit": "3"}, "outer.limit is '3'; it must be an integer or none, such as None."),
        ({"share": 2}, "outer.share is 2.0; it must be from 0 to 1."),
        ({"names": "x"}, "outer.names is 'x'; it must be a list, such as ['x']."),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        replace(Outer(), **changes)


def test_what_is_right_is_taken() -> None:
    assert Outer(norm=inf, kind="b", limit=2).norm == inf
    assert (Outer().kind, Outer().names) == ("", ["x"])
    assert Outer().names is not Outer().names
    whole = Outer(norm=2).norm
    assert (whole, type(whole)) == (2.0, float)


def test_choices_follow_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "c", "the third")
    assert Outer(kind="c").kind == "c"
    assert declared(Outer)["kind"].meanings["c"] == "the third"
