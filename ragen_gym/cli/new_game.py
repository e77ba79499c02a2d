"""``ragen-gym new-game``: a small game or text task that works, its tests and its page, to begin with."""

from __future__ import annotations

import argparse
import ast
import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from ragen_gym.core.command_line import add_command
from ragen_gym.core.storage import write_atomic
from ragen_gym.games.registry import TABLE

_EXAMPLES = """\
examples:
  ragen-gym new-game TreasureHunt                        a game on a grid, in this folder
  ragen-gym new-game WordCount --text --folder my_tasks  a text task, in a folder that is made
  python -m pytest test_treasure_hunt.py                 then change it, and test it again
"""
_TEMPLATES = Path(__file__).with_name("templates")
_NAME, _MODULE = "NewGame", "new_game"  # in the templates


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "new-game",
        "write a small game that works, its tests and its page, to begin with",
        _run,
        _EXAMPLES,
    )
    parser.add_argument("name", metavar="NAME", help="of the class and the id, such as TreasureHunt")
    parser.add_argument(
        "--folder", type=Path, default=Path(), metavar="DIR", help="where, made if need be (default: here)"
    )
    parser.add_argument("--text", action="store_true", help="a text task: messages and replies, no board and no moves")


def _run(arguments: argparse.Namespace) -> int:
    module, *others = new_game(arguments.name, arguments.folder, text=arguments.text)
    game = f"{module.stem}:{arguments.name}"
    print(f"{module} holds {game}; its tests and its page are {' and '.join(map(str, others))}.")
    if arguments.folder != Path():
        print(f"Go to the folder first: cd {arguments.folder}")
    print(f"Test it: python -m pytest {others[0].name}, after pip install pytest hypothesis")
    if not arguments.text:
        print(f"Play it: ragen-gym play {game}")
    print(f"Train on it: ragen-agent train --game {game}")
    print(f"Publish it: ragen-gym export-env verifiers DIR --game {game}; ragen-gym export-env --help names other hubs")
    return 0


def new_game(name: str, folder: Path, *, text: bool = False) -> list[Path]:
    """Write the module, its tests and its page; nothing is written if one of them is there.

    Args:
        name: of the class, in capitals and small letters: ``TreasureHunt`` gives the module ``treasure_hunt``.
        folder: where; it is made if need be.
        text: whether it is a text task, not a game on a grid.

    Raises:
        ValueError: a name that cannot be used, or a file is there.
    """
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise ValueError(f"{name!r} is not the name of a class: give letters and digits, such as TreasureHunt.")
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    if name in TABLE:
        raise ValueError(f"{name} is a game of the suite ({TABLE[name].game}): choose another name.")
    files = [folder / f"{module}.py", folder / f"test_{module}.py", folder / f"{module}.md"]
    for path in files:
        if path.exists():
            raise ValueError(f"{path} exists: choose another name or --folder, or remove it.")
    if keyword.iskeyword(module) or find_spec(module) is not None:
        raise ValueError(f"{name} would be the module {module}, and Python has one of that name: choose another name.")
    kind = "text_task" if text else "grid_game"
    templates = (f"{kind}.py", f"test_{kind}.py", f"{kind}.md")
    sources = [(_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8") for template in templates]
    nodes = [node for source in sources[:2] for node in ast.walk(ast.parse(source))]
    used = {node.id for node in nodes if isinstance(node, ast.Name)} - {_NAME}
    if keyword.iskeyword(name) or name in used:
        raise ValueError(f"{name} is a word of Python or a name that the module or its test uses: choose another name.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in zip(files, sources, strict=True):
        write_atomic(path, source.replace(_NAME, name).replace(_MODULE, module))
    return files
