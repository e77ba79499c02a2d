"""Writes the API reference, a page for each module, into a folder: ``python renders/api_reference.py build/docs``."""

from __future__ import annotations

import pkgutil
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import jinja2
import pdoc
import pdoc.render
import pdoc.render_helpers

import ragen_agent
import ragen_gym

PACKAGES = (ragen_gym, ragen_agent)
#: Modules that run only where the library is installed that they adapt the games to.
ADAPTERS = tuple(
    f"ragen_gym.integrations.{name}"
    for name in ("art", "atropos", "nemo", "openenv", "skyrl", "trl", "verifiers", "verl")
)
#: Command lines describe themselves, and the distributed trainer's modules run only where OpenRLHF is installed.
LEFT_OUT = ("ragen_gym.cli", "ragen_agent.cli", "ragen_agent.openrlhf", *ADAPTERS)

#: Signatures wrap in place of being cut, and no long name makes a page wider than a phone.
STYLE = """
.pdoc .param, .pdoc .return-annotation { white-space: pre-wrap; }
.pdoc .attr, .pdoc .docstring p, .pdoc .docstring li { overflow-wrap: anywhere; }
"""


def modules() -> list[str]:
    """The names of the two packages and of every public module in them, those of ``LEFT_OUT`` excepted."""
    names = []
    for package in PACKAGES:
        names.append(package.__name__)
        walked = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        names += [each.name for each in walked if not each.name.startswith(LEFT_OUT) and "._" not in each.name]
    return names


def bind_names(module: ModuleType) -> None:
    """Makes names that a package imports at their first use its own, since pdoc reads a module's dictionary."""
    for name in getattr(module, "__all__", ()):
        vars(module)[name] = getattr(module, name)


def readable(docstring: str) -> str:
    """A docstring as Markdown shows it well.

    Under "## Arguments" and "## Attributes" each ``name: meaning`` becomes an item of a list, and the double colon
    before a block of code a single one.
    """
    lines: list[str] = []
    listed = False
    for line in docstring.splitlines():
        if line.startswith("## "):
            listed = line in ("## Arguments", "## Attributes")
        elif listed and re.match(r"[A-Z][a-z]+:$", line):  # Raises:, which pdoc reads
            listed = False
        named = re.match(r"([\w*]+(?:, [\w*]+)*): (.*)", line) if listed else None
        if named and lines[-1].startswith("## "):
            lines.append("")
        lines.append(f"- **{named[1]}:** {named[2]}" if named else re.sub(r"(?<=\S)::$", ":", line))
    return "\n".join(lines)


@jinja2.pass_context
def to_markdown(context: jinja2.runtime.Context, docstring: str) -> str:
    """The filter of that name, of the readable docstring."""
    return pdoc.render_helpers.to_markdown_with_context(context, readable(docstring))


def write(folder: Path) -> int:
    """Writes the pages; returns how many modules have one."""
    names = modules()
    for name in names:
        bind_names(import_module(name))
    pdoc.render.configure(docformat="google", search=True, show_source=False)
    pdoc.render.env.filters["to_markdown"] = to_markdown
    pdoc.render.env.loader = jinja2.ChoiceLoader([jinja2.DictLoader({"custom.css": STYLE}), pdoc.render.env.loader])
    pdoc.pdoc(*names, output_directory=folder)
    return len(names)


def dead_links(folder: Path) -> list[str]:
    """Links of the folder's pages to a file that is not there; the web is not asked."""
    dead = []
    for page in sorted(folder.rglob("*.html")):
        for target in set(re.findall(r'(?:href|src)="([^"$]+)"', page.read_text(encoding="utf-8"))):
            link = urlsplit(target)
            if not link.scheme and not (page.parent / unquote(link.path)).exists():
                dead.append(f"{page.relative_to(folder)}: {target}")
    return dead


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python renders/api_reference.py FOLDER")
    out = Path(sys.argv[1])
    written = write(out)
    if dead := dead_links(out):
        sys.exit("links that lead nowhere:\n" + "\n".join(dead))
    print(f"{written} modules: {out}/index.html")
