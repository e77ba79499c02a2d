"""The documentation's site, built as ``make docs`` builds it, and looked at in a browser."""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.browser import launched, open_page
from tests.pages import ROOT

pytest.importorskip("mkdocs", reason="the site needs the extra docs")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as running:
        yield running


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Loaded(HTMLParser):
    """Addresses that a page loads; links that a reader may follow are not among them."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = ("src", "href") if tag != "a" else ()
        self.found += [value for name, value in attributes if name in names and value]


def test_every_page_has_a_place_and_loads_nothing_remote(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        found = Loaded(page).found
        assert any(each.endswith(".css") for each in found)
        assert [each for each in found if "//" in each] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


@pytest.mark.parametrize("way", ["served", "from a folder"])
def test_search_finds_a_game_without_a_network(site: Path, address: str, browser: Any, way: str) -> None:
    start = address if way == "served" else site.as_uri()
    sheet = open_page(browser, f"{start}/index.html", "input[name=query]")
    sheet.page.locator("input[name=query]").click()
    sheet.page.keyboard.type("FrozenLake")
    sheet.page.locator(".md-search-result__link", has_text="FrozenLake-v0").first.wait_for()
    assert all(each.startswith((start, "data:", "blob:")) for each in sheet.asked)
    sheet.close()


def test_tables_are_sorted_by_a_click(site: Path, browser: Any) -> None:
    sheet = open_page(browser, f"{site.as_uri()}/results/leaderboard.html", "th[aria-sort]")
    table = sheet.page.locator("article table").first
    for wanted, order in (("ascending", 1), ("descending", -1)):
        heading = table.locator("th", has_text="success")
        heading.click()
        assert heading.get_attribute("aria-sort") == wanted
        rates = [float(text.split()[0]) for text in table.locator("tbody td:nth-child(2)").all_inner_texts()]
        assert rates == sorted(rates)[::order]
        assert len(set(rates)) > 3
    sheet.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", ["index", "environments/FrozenLake", "concepts/starpo", "reference/environments"])
def test_pages_fit_a_phone_and_a_desk(site: Path, browser: Any, page: str, width: int, scheme: str) -> None:
    size = {"width": width, "height": 800}
    sheet = open_page(browser, f"{site.as_uri()}/{page}.html", "article", viewport=size, color_scheme=scheme)
    assert sheet.overflow() <= 0
    dark = sheet.page.evaluate("document.body.dataset.mdColorScheme") == "slate"
    assert dark == (scheme == "dark")
    sheet.close()


def test_the_reference_is_of_public_names_that_exist(site: Path) -> None:
    sources = {page: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")}
    names = [name for text in sources.values() for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)]
    assert 40 <= len(names) == len(set(names))
    assert not [name for name in names if "._" in name]
    built = "".join(
        (site / "reference" / f"{page.stem}.html").read_text(encoding="utf-8")
        for page in sources
        if page.stem != "README"
    )
    assert [name for name in names if f'id="{name}"' not in built] == []


def test_settings_and_command_lines_are_generated(site: Path) -> None:
    settings = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    assert 'id="training.starpo_s"' in settings
    assert "as training.starpo_s says" in settings
    commands = (site / "reference" / "command_lines.html").read_text(encoding="utf-8")
    for name in ("ragen-gym bench run", "ragen-agent train", "ragen-agent sft data"):
        assert f"usage: {name}" in commands
    assert "training.starpo_s" not in (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
