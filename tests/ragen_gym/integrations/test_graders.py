"""Registration of the checks of OpenEnv, which ``tests/integrations/test_openenv_graders.py`` runs in the real one."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
MODULE = "ragen_gym.integrations.graders.checks"


def registered() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = project["entry-points"]["openenv.validation.graders"]
    return found


def test_every_check_is_registered_under_its_id() -> None:
    tree = ast.parse((ROOT / MODULE.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8"))
    checks = {
        ast.literal_eval(decorator.args[0]): f"{MODULE}:{node.name}"
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
    }
    assert checks
    assert registered() == checks


def test_the_guide_gives_ragen_gym_the_checks_that_are_registered() -> None:
    guide = (ROOT / "docs/guides/with_other_libraries.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in guide.splitlines() if line.startswith("| `") and "| ragen-gym: " in line]
    assert {name for row in rows for name in re.findall(r"`(\w+\.\w+)`", row[1])} == registered().keys()
