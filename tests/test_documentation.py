"""The pages' examples, run as they stand."""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

import ragen_gym
from ragen_agent.cli.settings import groups
from ragen_agent.run.information import Information
from ragen_agent.update.metrics import METRICS
from tests.pages import PAGES, ROOT, SKILLS, TRIED, blocks, commands, run_blocks, run_commands

#: ``make test-wheel`` runs the others, each with no more than it installs.
REST = [page for page in PAGES if page not in TRIED]


@pytest.mark.slow
@pytest.mark.parametrize("page", REST, ids=lambda page: page.name)
def test_python_examples_run(page: Path, tmp_path: Path) -> None:
    run_blocks(page, "python", tmp_path, "-W", "error")


OPTIONAL = [
    pytest.param(page, library, id=f"{page.name}-{library}")
    for page in PAGES
    for library in dict.fromkeys(re.findall(r"^```python (\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
]


@pytest.mark.parametrize(("page", "library"), OPTIONAL)
def test_examples_with_a_library_run_where_it_is_installed(page: Path, library: str, tmp_path: Path) -> None:
    """Blocks marked with a library, such as ``python trl``, are a script of their own. Its warnings are its own."""
    for block in blocks(page, f"python {library}"):
        compile(block, str(page), "exec")
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    run_blocks(page, f"python {library}", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in [*REST, *SKILLS] if commands(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_run_in_their_order(page: Path, tmp_path: Path) -> None:
    run_commands(page, tmp_path)


LINKED = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *SKILLS,
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "benchmarks").rglob("*.md"),
]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_are_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = ["".join(found) for found in re.findall(r'(?:href|src)="([^"]+)"|\]\(([^)\s]+)\)', text)]
    for target in targets:
        path, _, _ = target.partition("#")
        assert target.startswith("http") or (page.parent / path).exists(), target


@pytest.mark.parametrize("page", SKILLS, ids=lambda page: page.parent.name)
def test_a_skill_says_its_name_and_its_use(page: Path) -> None:
    head = re.match(r"---\nname: (\S+)\ndescription: (.+)\n---\n", page.read_text(encoding="utf-8"))
    assert head
    assert head[1] == page.parent.name
    assert "Use it" in head[2]
    assert f"skills/{head[1]}/SKILL.md" in (ROOT / "AGENTS.md").read_text(encoding="utf-8")


def test_the_map_of_the_house_names_what_is_there() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    named = [
        path
        for path in re.findall(r"`((?:ragen_gym|ragen_agent|benchmarks|tests)/[^`\s]*)`", text)
        if "NAME" not in path
    ]
    assert len(named) > 10
    assert not [path for path in named if not (ROOT / path).exists()]
    read = re.findall(r"\| `(ragen_agent/\S+)\.py` \| (`.*`) \|", text)
    assert len(read) == 8
    for file, names in read:
        for name in names.strip("`").split("`, `"):
            resolve_name(f"{file.replace('/', '.')}:{name}")


def test_the_citation_is_of_this_version() -> None:
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited
    assert cited[1] == ragen_gym.__version__


def test_the_server_image_copies_what_is_there() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    sent = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()}
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name in sent, f".dockerignore keeps {name} from the builder"


def test_every_command_of_the_makefile_is_named_there_or_in_its_help() -> None:
    named = set(re.findall(r"^make (\w+)", "\n".join(blocks(ROOT / "README.md", "sh")), re.MULTILINE))
    targets = set(re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named
    assert named <= targets


NUMBER = r"(?<![\d.])[+-]?\d+(?:\.\d+)?"


def figures(text: str, form: str) -> set[tuple[float, ...]]:
    """The values of that form, each with its interval, without signs: "costs 9.2" is -9.2 elsewhere."""
    plain = re.sub(r"\s+", " ", text.replace("\N{MINUS SIGN}", "-").replace("*", ""))
    found = (tuple(abs(float(word)) for word in words) for words in re.findall(f"(?={form})", plain))
    return {(value, *sorted(interval)) for value, *interval in found}


def test_the_figures_in_sentences_are_those_of_the_pages_that_commands_write() -> None:
    by_hand = [ROOT / "README.md", ROOT / "benchmarks" / "findings.md"]
    generated = {*(ROOT / "benchmarks").rglob("*.md"), ROOT / "docs" / "environments" / "README.md"} - {*by_hand}
    written = " ".join(page.read_text(encoding="utf-8") for page in sorted(generated))
    known = figures(written, rf"({NUMBER})\D{{1,12}}({NUMBER})(?: to |, )({NUMBER})")
    form = rf"({NUMBER})[^\d()]*\(({NUMBER}) to ({NUMBER})\b"
    readme, findings = (figures(page.read_text(encoding="utf-8"), form) for page in by_hand)
    assert len(readme) >= 3
    assert len(findings) > 20
    assert readme | findings <= known
    table = re.search(r"^\| mean over seeds.*?\n\n", written, re.DOTALL | re.MULTILINE)
    assert table
    assert table[0] in by_hand[1].read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_the_tables_of_the_readme_are_cut_from_generated_pages() -> None:
    readme = rows((ROOT / "README.md").read_text(encoding="utf-8"))
    games = rows((ROOT / "docs" / "environments" / "README.md").read_text(encoding="utf-8"))
    rates = {re.search(r"ragen/\w+", row[1])[0]: [cell.split()[0] for cell in row[2:]] for row in games[2:]}  # type: ignore[index]
    shown = {match[0]: row[3:] for row in readme if (match := re.search(r"ragen/\w+", row[1]))}
    assert shown == rates
    findings = rows((ROOT / "benchmarks" / "findings.md").read_text(encoding="utf-8"))
    known = [(row[2].split(", "), row[3:]) for row in findings if len(row) == 6]
    published = [row for row in readme if re.match(r"RAGEN|VAGEN", row[0])]
    assert len(published) == 5
    for name, rate, *lines in published:
        assert any(rate in rates and lines == others for rates, others in known), name


def test_the_keys_of_other_projects_name_what_is_here() -> None:
    """A setting and its value are allowed, a figure is one that runs record, and a dash gives its reason."""
    settings = {name: each for group in groups() for name, each in group.settings.items()}
    table = [row for row in rows((ROOT / "docs/reference/keys.md").read_text(encoding="utf-8")) if len(row) == 3]
    entries = [row for row in table if row[0] != "key" and set(row[0]) != {"-"}]
    assert len({key for key, *_ in entries}) == len(entries) > 80
    for key, here, note in entries:
        assert (here == "—") <= bool(note), f"{key} gives no reason"
        for text in re.findall("`(.+?)`", here):
            name, _, value = text.partition("=")
            known = (
                name in settings or name in Information._fields or name in METRICS or name.startswith("ragen-agent ")
            )
            assert known, f"{key}: {name} is neither a setting nor a figure nor a command"
            if value:
                assert settings[name].allows(int(value) if settings[name].type is int else value), text
        for name in re.findall(r"`((?:training|turns|openrlhf|evaluation)\.\w+)", note):
            assert name in settings, f"{key}: {name}"


def used(code: str) -> Iterator[str]:
    """The dotted names of the project that a script imports, or reads from a module that it imports."""
    modules = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("ragen_gym", "ragen_agent")):
            for each in node.names:
                modules[each.asname or each.name] = name = f"{node.module}.{each.name}"
                yield name
        elif isinstance(node, ast.Import):
            modules |= {each.name: each.name for each in node.names if each.name in ("ragen_gym", "ragen_agent")}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if isinstance(resolve_name(module), ModuleType):
                yield f"{module}.{node.attr}"


def test_what_guides_and_examples_import_is_in_the_reference() -> None:
    """By the object itself, as some names are imported from a package and shown where they are defined."""
    reference = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = re.findall(r"^::: (\S+)|`(ragen_(?:gym|agent)\.[\w.]+)`", reference, re.MULTILINE)
    public = {id(resolve_name(full or line)) for full, line in shown}
    examples = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")]
    scripts = [*examples, *(code for page in PAGES for code in blocks(page, r"python(?: \w+)?"))]
    names = {name for code in scripts for name in used(code)}
    assert len(names) > 60
    assert sorted(name for name in names if id(resolve_name(name)) not in public) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700
