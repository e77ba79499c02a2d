from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import Any

import pytest

from ragen_gym.core.settings import check_settings, declared, json_schema, parts, setting

KINDS: dict[str, str] = {"a": "the first", "b": "the second"}


@dataclass(frozen=True)
class Inner:
    """The inner part."""

    share: float = setting(0.5, "a share", low=0, high=1)

    def __post_init__(self) -> None:
        check_settings(self, "inner.")


@dataclass(frozen=True)
class Outer:
    """The whole.

    More of it.
    """

    count: int = setting(3, "how many", low=1, unit="things")
    norm: float = setting(1.0, "a norm", above=0, high=inf)
    kind: str = setting("", "which", choices=KINDS, empty="as count says")
    limit: int | None = setting(None, "a limit", low=1)
    names: list[str] = setting(["x"], "names")
    switch: str = setting("", "what it is for", empty="nothing")
    size: int = setting(8, "its size", low=1, needs="switch")
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count is 0; it must be at least 1."),
        ({"count": True}, "count is True; it must be an integer, such as 3."),
        ({"count": 2.0}, "count is 2.0; it must be an integer, such as 3."),
        ({"norm": 0.0}, "norm is 0.0; it must be above 0."),
        ({"norm": nan}, "norm is nan; it must be above 0."),
        ({"kind": "c"}, "kind is 'c'; choose one of a, b."),
        ({"limit": 0}, "limit is 0; it must be at least 1."),
        ({"limit": "3"}, "limit is '3'; it must be an integer or none, such as None."),
        ({"names": "x"}, "names is 'x'; it must be a list, such as ['x']."),
        ({"size": 0}, "size is 0; it must be at least 1."),
        ({"size": 9}, "size is 9, which has no effect without switch; give that too, or leave size at 8."),
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
    with pytest.raises(ValueError, match=r"inner\.share is 2\.0; it must be from 0 to 1\."):
        Inner(2)


def test_choices_follow_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "c", "the third")
    assert Outer(kind="c").kind == "c"
    assert declared(Outer)["kind"].meanings["c"] == "the third"


def test_the_declarations_give_a_schema() -> None:
    assert list(declared(Outer)) == ["count", "norm", "kind", "limit", "names", "switch", "size"]
    assert parts(Outer) == {"inner": Inner}
    schema = json_schema(Outer)
    assert schema["description"] == "The whole."
    assert schema["properties"]["count"] == {
        "type": "integer",
        "default": 3,
        "description": "how many [things]",
        "minimum": 1,
    }
    assert schema["properties"]["norm"]["exclusiveMinimum"] == 0
    assert "maximum" not in schema["properties"]["norm"]
    assert schema["properties"]["kind"]["enum"] == ["", "a", "b"]
    assert schema["properties"]["limit"]["type"] == ["integer", "null"]
    assert schema["properties"]["inner"]["properties"]["share"]["maximum"] == 1
    assert not schema["additionalProperties"]
