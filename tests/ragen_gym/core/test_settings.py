"""Settings classes: types, ranges and meanings from the fields alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from ragen_gym.core.settings import check_settings, declared, setting


@dataclass(frozen=True)
class Cooking:
    """One field of each kind."""

    minutes: int = setting(3, "how long it boils", low=1, unit="minutes")
    salt: float = setting(0.5, "how much salt", low=0, high=1)
    heat: float = setting(1.0, "how hot", above=0, below=10)
    lid: bool = setting(True, "whether a lid is on")
    pot: str = setting("small", "which pot", choices=("small", "large", ""))
    limit: int | None = setting(None, "at most so many", low=1)
    herbs: list = setting(["thyme"], "which herbs")  # type: ignore[type-arg]
    note: str = "not a setting"

    def __post_init__(self) -> None:
        check_settings(self, "cooking.")


def test_declarations_hold_types_and_defaults() -> None:
    fields = declared(Cooking)
    assert list(fields) == ["minutes", "salt", "heat", "lid", "pot", "limit", "herbs"], (
        "fields without one are left out"
    )
    assert (fields["minutes"].type, fields["minutes"].default, fields["minutes"].unit) == (int, 3, "minutes")
    assert fields["herbs"].default == ["thyme"]
    assert declared(Cooking) is fields, "computed once"


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("minutes", "at least 1"),
        ("salt", "from 0 to 1"),
        ("heat", "above 0 and below 10"),
        ("lid", ""),
        ("pot", "one of small, large"),
        ("limit", "at least 1"),
    ],
)
def test_ranges_in_words(field: str, words: str) -> None:
    assert declared(Cooking)[field].range == words


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"minutes": 0}, "cooking.minutes is 0; it must be at least 1."),
        ({"minutes": 2.0}, "cooking.minutes is 2.0; it must be an integer, such as 3."),
        ({"minutes": True}, "cooking.minutes is True; it must be an integer, such as 3."),
        ({"salt": 1.5}, "cooking.salt is 1.5; it must be from 0 to 1."),
        ({"salt": float("nan")}, "cooking.salt is nan; it must be from 0 to 1."),
        ({"heat": 0.0}, "cooking.heat is 0.0; it must be above 0 and below 10."),
        ({"heat": 10}, "cooking.heat is 10.0; it must be above 0 and below 10."),
        ({"lid": 1}, "cooking.lid is 1; it must be true or false, such as True."),
        ({"pot": "huge"}, "cooking.pot is 'huge'; choose one of small, large."),
        ({"limit": "3"}, "cooking.limit is '3'; it must be an integer or none, such as None."),
        ({"limit": 0}, "cooking.limit is 0; it must be at least 1."),
        ({"herbs": "dill"}, "cooking.herbs is 'dill'; it must be a list, such as ['thyme']."),
    ],
)
def test_errors_name_the_field_the_value_and_the_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Cooking(**values)


def test_good_values_are_taken_and_whole_numbers_become_floats() -> None:
    cooking = Cooking(salt=1, heat=9.5, pot="", limit=None)
    assert isinstance(cooking.salt, float)
    assert cooking.salt == 1.0
    assert Cooking().herbs is not Cooking().herbs, "a list is copied for each object"
