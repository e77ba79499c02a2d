"""Build steps of the site: pages and links from outside ``docs``, generated references, formulas, docstrings.

The pages of ``benchmarks`` and of the suites are read where they lie, so there is one copy of each. Settings and
command lines are written into the pages that hold ``<!-- settings -->`` and ``<!-- command lines -->``.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import posixpath
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from ragen_agent.cli.settings import groups
from ragen_agent.config.presets import other_defaults
from ragen_gym.core.settings import Setting

ROOT = Path(__file__).parents[1]
#: Folders and pages of the repository that the site has, and their places in it.
FOLDERS = {
    "docs": "",
    "examples": "examples",
    "benchmarks": "results",
    "ragen_gym/bench/suites": "results/suites",
    "skills": "project/skills",
}
PROJECT = ("CONTRIBUTING.md", "AGENTS.md", "SECURITY.md", "CHANGELOG.md")
FILES = {name: f"project/{name}" for name in PROJECT if (ROOT / name).exists()}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHOWN = (".md", ".png", ".gif", ".ipynb")

#: Weight of a page's titles in the search, by the folder of the site.
BOOST = {"results": 0.2, "environments": 4.0, "start": 2.0}

#: A link or picture of Markdown or HTML; its address is the group ``to``.
LINK = re.compile(r'(?:\]\(|(?:src|href)=")(?P<to>[^)"\s]+)')
#: A row of a table that needs the width of the table of contents, as lines of code do.
WIDE = re.compile(r"^\|(?:[^|\n]*\|){9}", re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Give the navigation the examples, the project's own pages, and the pages of results that it does not name."""
    written = [uri for uri in _outside() if re.match(r"examples/.*\.md$", uri)]
    if examples := [*written, *(f"examples/{path.stem}.md" for path in EXAMPLES)]:
        guides = next(i for i, section in enumerate(config.nav) if "Guides" in section)
        config.nav.insert(guides + 1, {"Examples": examples})
    for section in config.nav:
        if "Results" in section:
            named = {each for each in section["Results"] if isinstance(each, str)}
            found = sorted(uri for uri in _outside() if re.match(r"results/.*\.md$", uri) and uri not in named)
            experiments = [uri for uri in found if uri.startswith("results/experiments/")]
            section["Results"] += [{"Experiments": sorted(experiments, key=lambda uri: not uri.endswith("README.md"))}]
            section["Results"] += [{"Further measurements": [uri for uri in found if uri not in experiments]}]
        if "Reference" in section:
            section["Reference"] += [{"Project": [uri for uri in _outside() if re.match(r"project/.*\.md$", uri)]}]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures from outside ``docs``, and a page for each example."""
    for uri, path in _outside().items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    for path in EXAMPLES:
        code = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
        files.append(File.generated(config, f"examples/{path.stem}.md", content=code))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's pages, fill in what is generated, and set its place in the search and its width."""
    page.meta.setdefault("search", {}).setdefault("boost", BOOST.get(page.file.src_uri.partition("/")[0], 1.0))
    example = page.file.abs_src_path is None
    if example or WIDE.search(markdown):
        page.meta.setdefault("hide", ["toc"])
    if example:
        return markdown
    source = Path(page.file.abs_src_path).relative_to(ROOT)
    parts = FENCED.split(markdown)
    fenced = [*FENCED.findall(markdown), ""]
    markdown = "".join(
        LINK.sub(partial(_moved, source, page), part) + code for part, code in zip(parts, fenced, strict=True)
    )
    for name, write in {"settings": _settings, "command lines": _command_lines}.items():
        mark = f"<!-- {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, "\n\n".join(write()))
    return markdown


def on_page_content(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write formulas in MathML, which browsers show without a script, and let names in tables break between words."""
    text = re.sub(r"<td.*?</td>", lambda cell: re.sub(r"<code>.*?</code>", _breaking, cell[0]), text, flags=re.DOTALL)
    return re.sub(
        r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>',
        lambda found: convert(html.unescape(found[3]), display="inline" if found[2] == "(" else "block"),
        text,
        flags=re.DOTALL,
    )


def _breaking(code: re.Match[str]) -> str:
    """Code whose names may break after a dot, an underscore, a slash or an equals sign."""
    return re.sub(r"(?<=\w[._/=])(?=\w)", "<wbr>", code[0])


def _outside() -> dict[str, Path]:
    """Pages and pictures from outside ``docs``, by their path in the site."""
    return {home: ROOT / name for name, home in FILES.items()} | {
        posixpath.join(home, path.relative_to(ROOT / folder).as_posix()): path
        for folder, home in FOLDERS.items()
        if home
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SHOWN
    }


def _moved(source: Path, page: Page, found: re.Match[str]) -> str:
    """A link of the repository as the site has it, relative to the page."""
    target, hash_sign, anchor = found["to"].partition("#")
    path = posixpath.normpath(posixpath.join(source.parent.as_posix(), target))
    homes = sorted((folder for folder in FOLDERS if f"{path}/".startswith(f"{folder}/")), key=len)
    if example := re.fullmatch(r"(examples/\w+)\.py", path):
        homes, path = ["examples"], f"{example[1]}.md"
    if not target or ":" in target or not (homes or path in FILES):
        return found[0]
    uri = FILES.get(path) or posixpath.normpath(posixpath.join(FOLDERS[homes[-1]], posixpath.relpath(path, homes[-1])))
    link = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
    return found[0].replace(found["to"], link + hash_sign + anchor)


def _settings() -> Iterator[str]:
    """Every setting of a run, by table."""
    for group in groups():
        yield f"## {group.name or 'Run'}\n\n{group.about}"
        for name, each in group.settings.items():
            yield f"#### `{name}` {{#{name}}}\n\n" + "\n".join(_setting(name, each))


def _setting(name: str, each: Setting) -> Iterator[str]:
    """The meaning of a setting; its type, default and range; the meanings of its choices."""
    kind = "text" if each.type is str else getattr(each.type, "__name__", str(each.type))
    parts = [kind, f"default `{json.dumps(each.default)}`" + f" {each.unit}" * bool(each.unit)]
    parts += [f"{who}: `{json.dumps(value)}`" for who, value in other_defaults(name)]
    parts += [each.range] if each.range and not each.meanings else []
    parts += [f"empty: {each.empty}"] * bool(each.empty)
    yield f"{_plain(each.doc)}.<br>*{'; '.join(parts)}*\n"
    for choice, described in each.meanings.items():
        yield f"- `{choice or json.dumps(choice)}`: {_plain(described)}"


def _plain(text: str) -> str:
    """Text whose signs mean nothing in Markdown."""
    return re.sub(r"([<>*_\[\]|])", r"\\\1", text)


def _command_lines() -> Iterator[str]:
    """The help of every command."""
    from ragen_agent.cli import build_parser as agent
    from ragen_gym.cli import build_parser as gym

    os.environ["COLUMNS"] = "100"  # the width that argparse takes
    for parser in (gym(), agent()):
        yield from _help(parser, 2)


def _help(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                yield from _help(command, 3)


class Docstrings(griffe.Extension):
    """Docstrings as Markdown shows them well: Gymnasium's lists of arguments, and blocks of code after ``::``."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = readable(obj.docstring.value)


def readable(docstring: str) -> str:
    """Make list items of the ``name: meaning`` lines below "## Arguments", and ``:`` of ``::`` before a block."""
    lines: list[str] = []
    listed = False
    for line in docstring.splitlines():
        if line.startswith("## "):
            listed = line == "## Arguments"
        elif listed and re.match(r"[A-Z][a-z]+:$", line):  # Raises:, a section of Google's style
            listed = False
        named = re.match(r"([\w*]+(?:, [\w*]+)*): (.*)", line) if listed else None
        if named and lines[-1].startswith("## "):
            lines.append("")
        lines.append(f"- `{named[1]}`: {named[2]}" if named else re.sub(r"(?<=\S)::$", ":", line))
    return "\n".join(lines)
