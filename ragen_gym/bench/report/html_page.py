"""Common part of the report pages of benchmarks and training: the page around the sections, and the episode viewer.

A page is one HTML file that needs no network: styles, scripts and episodes are inside it, and its content security
policy lets nothing else run, whatever a reply says. To make one:

1. Write a template that extends ``base.html`` and fills its block ``sections``, which follows findings and viewer; the
   contents bar lists every ``<h2 id=...>``. ``plots.html`` holds macros for plots between random and optimal play,
   ``plots`` the numbers that they take.
2. Make an ``Entry`` of each episode, in the form that ``templates/viewer.js`` documents;
   ``ragen_gym.bench.report.viewer_data`` makes it of an ``EpisodeRecord``. ``pack`` them into an ``Archive``.
3. Call ``render_page`` with an ``EpisodeViewer``, and write the text to a file.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ragen_gym.core.console import finite

try:
    import jinja2
    from markupsafe import Markup
except ImportError as error:
    raise ImportError("reports need jinja2: run `pip install 'ragen-gym[bench]'`.") from error

_TEMPLATES = Path(__file__).with_name("templates")
_STYLES = ("base.css", "viewer.css", "page.css")
_SCRIPTS = ("board.js", "transcript.js", "panes.js", "viewer.js", "report.js")

_BLOCK = 400_000  # characters of JSON in a block: opening one takes a few milliseconds


@dataclass(frozen=True)
class Entry:
    """An episode that may be packed."""

    heading: dict[str, Any]  # its line in the list
    details: Callable[[], dict[str, Any]]  # makes everything else; called when the episode is packed


@dataclass(frozen=True)
class Archive:
    """The episodes of a page, compressed in blocks that are opened one at a time."""

    #: of the episodes that fitted, each with the ``block`` it is in, its place ``at`` there, its ``length`` in frames,
    #: and ``pivot``, which is true if the viewer marks where it was lost
    headings: list[dict[str, Any]]
    blocks: list[str]  # lists of details as ``packed`` text


@dataclass(frozen=True)
class EpisodeViewer:
    """The viewer of a page."""

    #: what ``new Viewer(host, data)`` of ``templates/viewer.js`` takes, the headings as ``episodes`` included
    index: Mapping[str, Any]
    blocks: Sequence[str]  # those of the ``Archive``
    note: str  # a sentence above the viewer: which episodes it shows


def render_page(
    template: str,
    viewer: EpisodeViewer | None,
    *,
    folder: Path = _TEMPLATES,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    live: str | None = None,
    **variables: Any,
) -> str:
    """The text of a page, in which half of a surrogate pair, which is no UTF-8, is a question mark.

    Args:
        template: name of a template that extends ``base.html``.
        viewer: the episodes; None for a page that has none, and no script.
        folder: where the template and its styles and scripts are, besides the shared ones.
        styles: CSS files of that folder, after the shared ones.
        scripts: JavaScript files of that folder, after the shared ones.
        data: JSON values by the id of the element that holds each, ``packed``; ``unpack(id)`` reads one in a script.
        live: state of a run that goes on, for a page that ``ragen_gym.bench.report.live`` serves and that asks for the
            next one; None for a page that needs no server.
        variables: of the template; ``base.html`` needs ``kind``, ``title``, ``lede``, ``counts``, ``findings``,
            ``terms`` and ``colophon``.
    """
    style, script = _source(_STYLES, folder, styles), _source(_SCRIPTS, folder, scripts) if viewer else ""
    if live is not None:
        script += (_TEMPLATES / "live.js").read_text(encoding="utf-8")
    loader = jinja2.FileSystemLoader([folder, _TEMPLATES])
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["headings"] = _headings
    blocks = {f"episodes-{place}": text for place, text in enumerate(viewer.blocks)} if viewer else {}
    values = {**(data or {}), "episodes-index": viewer.index} if viewer else {}
    embedded = {name: packed(value) for name, value in values.items()}
    text = environment.get_template(template).render(
        **variables,
        style=Markup(style),
        style_hash=_policy_hash(style),
        script=Markup(script),
        script_hash=_policy_hash(script),
        sprites=Markup((_TEMPLATES / "tiles.svg").read_text(encoding="utf-8")),
        live=live,
        viewer_note=viewer.note if viewer else None,
        embedded={name: Markup(content) for name, content in (embedded | blocks).items()},
    )
    return text.encode("utf-8", "replace").decode()


def _headings(html: str) -> list[tuple[str, Markup]]:
    """Id and title of every section, for the contents bar."""
    return [(name, Markup(title)) for name, title in re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', html)]


def is_page(path: Path) -> bool:
    """True if there is a file that ``render_page`` made."""
    beginning = (_TEMPLATES / "base.html").read_text(encoding="utf-8").partition("{{")[0].encode()
    return path.is_file() and path.read_bytes().startswith(beginning)


def pack(groups: Iterable[list[Entry]], megabytes: float) -> Archive:
    """Pack groups of episodes, each whole or not at all, in order, until the next block would exceed ``megabytes``."""
    headings: list[dict[str, Any]] = []
    blocks: list[str] = []
    room = megabytes * 1e6
    waiting: list[tuple[dict[str, Any], str]] = []

    def close() -> bool:
        """Pack what is waiting; whether it fits."""
        nonlocal room
        text = _compressed(f"[{','.join(details for _, details in waiting)}]")
        if len(text) > room and blocks:
            return False
        room -= len(text)
        headings.extend({**heading, "block": len(blocks), "at": at} for at, (heading, _) in enumerate(waiting))
        blocks.append(text)
        waiting.clear()
        return True

    for group in groups:
        for entry in group:
            details = entry.details()
            pivot = any("pivot" in turn for turn in details.get("turns", ()))
            marks = {"length": len(details.get("frames", ())), "pivot": pivot}
            waiting.append((entry.heading | marks, _json(details)))
        if sum(len(details) for _, details in waiting) > _BLOCK and not close():
            return Archive(headings, blocks)
    if waiting:
        close()
    return Archive(headings, blocks)


def packed(value: Any) -> str:
    """JSON, compressed by gzip, in base64: text that cannot end a script or say anything in HTML."""
    return _compressed(_json(value))


def plural(count: int, noun: str) -> tuple[str, str]:
    """A number and what it counts, for the head of a page, such as ``("1,024", "episodes")``."""
    return f"{count:,}", noun + "s" * (count != 1)


def _source(shared: Sequence[str], folder: Path, own: Sequence[str]) -> str:
    """Files one after another."""
    paths = [*(_TEMPLATES / name for name in shared), *(folder / name for name in own)]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def _policy_hash(text: str) -> str:
    """The hash by which a content security policy lets an inline script or style pass."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _compressed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _json(value: Any) -> str:
    write = partial(json.dumps, separators=(",", ":"), allow_nan=False)
    try:
        text = write(value, ensure_ascii=False)
    except ValueError:
        value = finite(value)
        text = write(value, ensure_ascii=False)
    # Half a surrogate pair, which a model may write, is no UTF-8: only then everything else is escaped, too.
    try:
        text.encode()
    except UnicodeEncodeError:
        return write(value)
    return text
