"""Who may import whom: the rooms of the three trees, the arrows between them, and no circles.

Every import counts: at the top of a module, inside functions, and under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TREES = ("ragen_gym", "ragen_agent", "benchmarks")

#: What each room of ``ragen_gym`` may import of it, from the bottom up; a room is a package or a module.
GYM: dict[str, str] = {
    "core": "",
    "games": "core",
    "render": "core games",
    "envs": "core games render",
    "": "core games envs wrappers",
    "wrappers": "core games",
    "tasks": "core envs",
    "testing": "core games envs .",
    "multiagent": "core games render envs .",
    "bench": "core games render envs .",
    "serve": "core games render envs .",
    "audit": "core",
    "integrations": "core games envs audit bench .",
    "cli": "core games render envs testing audit bench serve integrations .",
}
#: The rooms of ``ragen_agent`` by floor, from the bottom up: a room may import what lies on the floors below it.
FLOORS = (
    "config",
    "algo inference",
    "tokens",
    ".",
    "tasks programs",
    "models",
    "update agents",
    "run",
    "sft exact",
    "preflight",
    "local openrlhf report",
    "conform learnable",
    "cli",
)
AGENT: dict[str, str] = {
    room.replace(".", ""): " ".join(FLOORS[:floor]) for floor, rooms in enumerate(FLOORS) for room in rooms.split()
}
#: What ``ragen_agent`` may import of ``ragen_gym``: its public rooms. ``ragen_gym`` imports nothing of ``ragen_agent``.
PUBLIC = "core games render envs bench serve audit ."


def rooms(tree: str, arrows: dict[str, str]) -> dict[str, set[str]]:
    """A table of arrows with whole names; the root package is ``""`` as a room and ``.`` as a target."""
    return {
        f"{tree}.{name}".rstrip("."): {tree if target == "." else f"{tree}.{target}" for target in targets.split()}
        for name, targets in arrows.items()
    }


ARROWS = rooms("ragen_gym", GYM)
_PUBLIC = rooms("ragen_gym", {"public": PUBLIC})["ragen_gym.public"]
ARROWS |= {name: targets | _PUBLIC for name, targets in rooms("ragen_agent", AGENT).items()}
ARROWS["benchmarks"] = set(ARROWS)

#: Distributions that a room does without.
WITHOUT = {
    "ragen_gym.core": {"gymnasium", "numba", "torch"},
    "ragen_gym.games": {"gymnasium", "torch"},
    "ragen_gym.envs": {"pygame", "torch"},
    **{f"ragen_gym.{room}": {"torch"} for room in ("audit", "cli", "integrations", "multiagent", "serve", "testing")},
    "ragen_agent.algo": {"gymnasium", "transformers"},
    "ragen_agent.config": {"torch", "transformers"},
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the trees by its dotted name."""
    found = {}
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[tuple[str, bool]]:
    """(module of the trees that is imported, whether only types are checked with it)."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[tuple[str, bool]] = set()
    for node, for_types in _statements(ast.parse(path.read_text(encoding="utf-8")), False):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            below = [f"{source}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else source for name in below]
        else:
            continue
        found |= {(name, for_types) for name in names if name in modules() and name != module}
    return frozenset(found)


def _statements(node: ast.AST, for_types: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = for_types or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        yield child, inside
        yield from _statements(child, inside)


def room(module: str) -> str:
    """The room that a module stands in."""
    name = ".".join(module.split(".")[:2])
    return name if name in ARROWS else module.split(".", maxsplit=1)[0]


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of one circle, or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Circles of a graph, such that without one edge of each there is none."""
    graph, found = {node: set(targets) for node, targets in graph.items()}, []
    while steps := circle(graph)[::-1]:
        found.append(" -> ".join(steps))
        graph[steps[0]].discard(steps[1])
    return found


def test_imports_are_found_wherever_they_stand() -> None:
    found = imports("ragen_gym.envs.step")
    assert {("ragen_gym.games.registry", False), ("ragen_gym.render.renderer", True)} <= found
    assert ("ragen_gym.render.frames", False) in imports("ragen_gym.envs.board_view"), "inside a function"
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) != []


def test_every_module_stands_in_a_known_room() -> None:
    unknown = sorted(m for m in modules() if m not in ARROWS and room(m) in ("ragen_gym", "ragen_agent"))
    assert not unknown, f"give these a room in the table: {unknown}"


def test_imports_follow_the_arrows() -> None:
    wrong = sorted(
        f"{module} imports {target}{' for its types' * for_types}"
        for module in modules()
        for target, for_types in imports(module)
        if room(target) != room(module) and room(target) not in ARROWS[room(module)]
    )
    assert not wrong, "imports against the arrows:\n" + "\n".join(wrong)


def test_the_packages_do_not_name_modules_of_the_repository() -> None:
    """No string of the installed packages names one either: it would be imported at run time."""
    for module, path in modules().items():
        if not module.startswith("benchmarks"):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
            assert not {text for text in strings if text.split(".")[0] == "benchmarks" and " " not in text}, module


@pytest.mark.parametrize("name", WITHOUT)
def test_rooms_do_without_some_distributions(name: str) -> None:
    for module, path in modules().items():
        if room(module) == name:
            nodes = [node for node, _ in _statements(ast.parse(path.read_text(encoding="utf-8")), False)]
            tops = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
            tops |= {(node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
            assert not tops & WITHOUT[name], module


@pytest.mark.parametrize("tree", TREES)
def test_no_circle_of_files(tree: str) -> None:
    # An import for types alone may lead back inside one folder: a game's generator takes the game that calls it.
    graph = {
        module: {
            target
            for target, for_types in imports(module)
            if not (for_types and module.rpartition(".")[0] in (target, target.rpartition(".")[0]))
        }
        for module in modules()
        if module.split(".")[0] == tree
    }
    found = circles(graph)
    assert not found, "circles of files:\n" + "\n".join(found)


def test_no_circle_of_packages() -> None:
    graph: dict[str, set[str]] = {}
    for module in modules():
        graph.setdefault(room(module), set()).update(room(target) for target, _ in imports(module))
    for name, targets in graph.items():
        targets.discard(name)
    found = circles(graph)
    assert not found, "circles of packages:\n" + "\n".join(found)


def test_only_packages_list_their_names() -> None:
    """Public is what the reference names; two modules pass on names of others."""
    listing = {name for name, path in modules().items() if "\n__all__ = " in path.read_text(encoding="utf-8")}
    modules_alone = {name for name in listing if modules()[name].name != "__init__.py"}
    assert modules_alone == {"ragen_gym.envs.prompts", "ragen_gym.audit.worker.main"}
