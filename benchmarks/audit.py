"""Findings of ``ragen-gym audit`` in other libraries' environments: ``python -m benchmarks.audit``.

Each library has an interpreter of its own with the library installed: ``--install DIR`` makes them all, ``--venv
NAME=PATH`` names one (a folder with ``bin/python``). Repositories without a package are folders named by ``--repository
NAME=PATH``. What has neither is left out and listed. Every finding's evidence is run again by itself in a fresh
interpreter: it is reproduced where its assertion fails there. Where some are not, the end lists them with how their
evidence ended, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import markdown_table
from ragen_gym.audit import CHECKS, SEVERITIES, AuditSettings, audit
from ragen_gym.core.child_python import child_environment, child_python
from ragen_gym.core.storage import write_atomic
from ragen_gym.games.registry import TABLE

OUT = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).with_suffix(".md")
_REPRODUCE_SECONDS = 600  # of a machine that does other work, too
_ATTEMPTS = 8

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PACKAGES: dict[str, list[str]] = TABLES["packages"]
FALSE_ALARMS = {(row["target"], row["check"]): row["why"] for row in TABLES["false_alarms"]}
#: Of the repositories that the table below was made with.
_REVISIONS = "RAGEN at 5eb79b8, VAGEN at 2936322 and its branch vagen-legacy at 787c7e2."
COLUMNS = ("library", "version", "target", "errors", "warnings", "passed", "not applicable")


@dataclass(frozen=True)
class Subject:
    """One environment that is audited."""

    library: str  # its heading on the page
    venv: str  # the interpreter that has the library; "" for this one
    target: str
    repository: str = ""  # where it is imported from, if it is not installed
    options: Mapping[str, Any] = field(default_factory=dict)
    actions: Sequence[Any] = ()
    train: str | None = None
    test: str | None = None
    checks: Sequence[str] = ()  # only these, where an environment takes seconds to make


SUBJECTS = [
    Subject(target=target, **row)
    for row in TABLES["subjects"]
    for target in row.pop("targets", None) or [spec.id for spec in TABLE.values()]
]


def main(argv: Sequence[str] | None = None) -> int:
    """Audit what can be, write the page and the JSON beside this module; 1 where a finding is not reproduced."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--install", type=Path, metavar="DIR", help="make there the interpreters that are missing")
    parser.add_argument("--venv", action="append", default=[], metavar="NAME=PATH", help="a library's interpreter")
    parser.add_argument("--repository", action="append", default=[], metavar="NAME=PATH", help="a library's sources")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="libraries or targets with this in them"
    )
    parser.add_argument("--page-only", action="store_true", help="write the page again from the JSON")
    arguments = parser.parse_args(argv)
    venvs, repositories = (
        dict(pair.split("=", 1) for pair in pairs) for pairs in (arguments.venv, arguments.repository)
    )
    chosen = [
        subject
        for subject in SUBJECTS
        if not arguments.only or any(text in f"{subject.library} {subject.target}" for text in arguments.only)
    ]
    if arguments.install:
        wanted = [name for name in PACKAGES if name not in venvs and any(each.venv == name for each in chosen)]
        venvs |= _installed(arguments.install, wanted)
    rows: list[dict[str, Any]] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else []
    if not arguments.page_only:
        for subject in chosen:
            row = _row(subject, venvs, repositories)
            print(row["library"], row["target"], row.get("left_out") or row["counts"], flush=True)
            if OUT.exists():  # another process may have added to it
                rows = json.loads(OUT.read_text(encoding="utf-8"))
            rows = merged(rows, row)
            write_atomic(OUT, json.dumps(rows, indent=1) + "\n")
    write_atomic(PAGE, page(rows))
    failed = [(row, check) for row in rows for check in row.get("checks", ()) if not check.get("reproduced", True)]
    for row, check in failed:
        said = f"{row['library']}, {row['target']}, {check['check']}: {check['not_reproduced']}"
        print(f"not reproduced: {said}", file=sys.stderr)
    return int(bool(failed))


def _installed(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """An interpreter for each of these of ``PACKAGES``."""
    found = {}
    for name in names:
        venv, done = folder / name, folder / name / "installed"
        if not done.exists():
            print(f"installing {', '.join(PACKAGES[name])} into {venv}", flush=True)
            subprocess.run(child_python("-m", "venv", "--clear", "--without-pip", str(venv)), check=True)
            pip = child_python("-m", "pip", "--python", str(venv), "install", "-qq")
            subprocess.run([*pip, *PACKAGES[name]], check=True)
            done.touch()
        found[name] = str(venv.resolve())
    return found


def merged(rows: Sequence[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with one more, in the place of the last one of its target.

    What cannot be had today keeps what was found before.
    """
    places = {(each["library"], each["target"]): place for place, each in enumerate(rows)}
    place = places.get((row["library"], row["target"]), len(rows))
    if place < len(rows) and "left_out" in row and "checks" in rows[place]:
        row = rows[place]
    return [*rows[:place], row, *rows[place + 1 :]]


def _row(subject: Subject, venvs: Mapping[str, str], repositories: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {"library": subject.library, "target": subject.target}
    if subject.venv and subject.venv not in venvs:
        return {**row, "left_out": f"no interpreter was given: --venv {subject.venv}=PATH"}
    root, _, inside = subject.repository.partition("/")
    if root and root not in repositories:
        return {**row, "left_out": f"no sources were given: --repository {root}=PATH"}
    python = str(Path(venvs[subject.venv]) / "bin" / "python") if subject.venv else sys.executable
    path = [str(Path(repositories[root]) / inside), str(Path(__file__).parent)] if root else []
    asked = {name: getattr(subject, name) for name in ("options", "actions", "train", "test", "checks")}
    settings = AuditSettings(**asked, python=python, path=path)
    try:
        report = audit(subject.target, settings)
    except ValueError as error:
        return {**row, "left_out": " ".join(str(error).replace("*", "").split())[:200]}
    row |= report.to_dict() | {"library": subject.library}
    for check in row["checks"]:
        if check["status"] == "finding":
            # Where seeds do not repeat, or threads race, the evidence has another course each time: some attempts.
            chance = report.status("seed_repeats") == "finding" or check["check"] == "seed_threads"
            reason = unreproduced(check["evidence"], python, path)
            for _ in range(_ATTEMPTS - 1 if chance else 0):
                reason = reason and unreproduced(check["evidence"], python, path)
            check |= {"reproduced": not reason} | ({"not_reproduced": reason} if reason else {})
    return row


def unreproduced(evidence: str, python: str, path: Sequence[str]) -> str:
    """Why the evidence, run by itself, does not show its finding.

    The empty text where it does: it ends in a failed assertion, or raises where it says so.
    """
    program = f"import sys; sys.path[:0] = {list(path)!r}\n{evidence}\n"
    if evidence.startswith("#"):
        return ""  # a process that ended, which the audit itself has seen
    folder = Path(__file__).parents[1] if python == sys.executable else Path("/")
    try:
        done = subprocess.run(
            [python, "-P", "-c", program],
            cwd=folder,
            env=child_environment() if python == sys.executable else None,
            capture_output=True,
            text=True,
            timeout=_REPRODUCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its evidence took more than {_REPRODUCE_SECONDS} s"
    if not done.returncode:
        return "no assertion of its evidence failed" if "# raises" not in evidence else "its evidence raised nothing"
    if "AssertionError" in done.stderr or "# raises" in evidence:
        return ""
    errors = [line for line in done.stderr.splitlines() if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    last = errors[-1] if errors else f"exit code {done.returncode}"
    return f"its evidence ended otherwise: {last[:200]}"


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page in Markdown."""
    recorded = {(row["library"], row["target"]): row for row in rows}
    rows = [
        recorded.get((each.library, each.target))
        or {"library": each.library, "target": each.target, "left_out": "not run yet"}
        for each in SUBJECTS
    ]
    audited = [row for row in rows if "checks" in row]
    found = [(row, check) for row in audited for check in row["checks"] if check["status"] == "finding"]
    severities = Counter(check["severity"] for _, check in found)
    failed = [(row, check) for row, check in found if not check["reproduced"]]
    alarms = [check for row, check in found if check["reproduced"] and (row["target"], check["check"]) in FALSE_ALARMS]
    lines = [
        "# What an audit finds",
        "",
        f"`python -m benchmarks.audit` asked {len(audited)} environments of "
        f"{len({row['library'] for row in audited})} libraries up to {len(CHECKS)} questions each. It has {len(found)} "
        f"findings: {severities['error']} errors and {severities['warning']} warnings. The "
        f"evidence of each was run again by itself in a fresh interpreter: {len(found) - len(failed)} of {len(found)} "
        f"reproduced, with up to {_ATTEMPTS} attempts where threads race or seeds do not repeat, since these "
        f"differ each time. Known false alarms, marked so: {len(alarms)}.",
        "",
        f"The sources: {_REVISIONS}",
        "",
    ]
    rows_of = []
    for row in audited:
        counts = Counter(check["severity"] for check in row["checks"] if check["status"] == "finding")
        cells = [row["library"], row["version"].rpartition(" ")[2], f"`{row['target']}`"]
        cells += [str(counts[severity] or "-") for severity in SEVERITIES]
        rows_of.append([*cells, *(str(row["counts"][status]) for status in ("passed", "not applicable"))])
    lines += [markdown_table(COLUMNS, rows_of), "", "## Findings", "", "The evidence of all is in `audit.json`.", ""]
    for library in dict.fromkeys(row["library"] for row, _ in found):
        shown = [_finding(row, check) for row, check in found if row["library"] == library]
        table = markdown_table(["target", "finding", "what was seen", "reproduced"], shown)
        lines += [f"### {library}", "", table, ""]
    left_out = [f"- {row['library']}, `{row['target']}`: {row['left_out'][:200]}" for row in rows if "left_out" in row]
    if left_out:
        lines += ["## Left out", "", *left_out, ""]
    return "\n".join(lines)


def _finding(row: Mapping[str, Any], check: Mapping[str, Any]) -> list[str]:
    detail = " ".join(check["detail"].split())
    again = "yes" if check["reproduced"] else f"no: {check['not_reproduced']}"
    if reason := FALSE_ALARMS.get((row["target"], check["check"])):
        again = f"{again}; false alarm: {reason}"
    return [f"`{row['target']}`", f"{check['severity']}: {check['check']}", detail[:300], again]


if __name__ == "__main__":
    sys.exit(main())
