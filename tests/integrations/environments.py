"""The tests of the adapters, each in an environment with the real library; ``make test-integrations`` runs this.

Every environment is made under ``build/integrations``, once for each state of its pins; the tests of one that cannot be
made have failed. Names of targets as arguments choose some of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ENVIRONMENTS", "Library", "main"]

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "integrations"
PINS = Path(__file__).parent / "constraints"


@dataclass(frozen=True)
class Library:
    """What one environment holds besides ragen-gym and pytest."""

    requirements: tuple[str, ...]
    python: tuple[int, int] = (3, 11)  # the oldest that the library runs on
    test: str = ""  # file of tests; by default that of its own name


#: By target. Its versions are pinned in ``constraints/TARGET.txt``.
ENVIRONMENTS = {
    "verifiers": Library(("verifiers", "uv")),
    "openenv": Library(("openenv",)),
    "trl": Library(("torch", "trl")),
    "skyrl": Library(("skyrl-gym",)),
    "atropos": Library(("atroposlib",)),
    "art": Library(("openpipe-art", "openai<3")),
}


def main(argv: list[str] | None = None) -> int:
    """Make the environments and run their tests; the exit code is 1 where some failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(ENVIRONMENTS)}; all by default")
    arguments, rest = parser.parse_known_args(argv)
    for target in arguments.targets:
        if target not in ENVIRONMENTS:
            parser.error(f"no target {target!r}: choose of {', '.join(ENVIRONMENTS)}")
    failed = [target for target in arguments.targets or ENVIRONMENTS if not _passes(target, rest)]
    print(f"test-integrations: {'failed: ' + ', '.join(failed) if failed else 'all passed'}")
    return bool(failed)


def _passes(target: str, rest: list[str]) -> bool:
    library = ENVIRONMENTS[target]
    interpreter = _interpreter(library.python)
    if interpreter is None:
        print(
            f"test-integrations: {target} needs Python {'.'.join(map(str, library.python))} or newer", file=sys.stderr
        )
        return False
    print(f"test-integrations: {target}", flush=True)
    python = BUILD / target / "bin" / "python"
    pins, done = PINS / f"{target}.txt", BUILD / target / "installed"
    if not done.exists() or done.read_bytes() != pins.read_bytes():
        shutil.rmtree(BUILD / target, ignore_errors=True)
        subprocess.run([interpreter, "-m", "venv", BUILD / target], check=True)
        common = ["pytest", "pytest-timeout", "hatchling", "editables"]
        flags = ["-q", "--disable-pip-version-check", "-c", str(pins)]
        for wanted in ([*library.requirements, *common], ["--no-build-isolation", "-e", str(ROOT)]):
            if subprocess.run([str(python), "-m", "pip", "install", *flags, *wanted], check=False).returncode:
                return False
        shutil.copyfile(pins, done)
    path = os.pathsep.join((str(python.parent), os.environ["PATH"]))  # the libraries call uv and themselves by name
    variables = {**os.environ, "RAGEN_GYM_INTEGRATION": target, "PATH": path}
    test = f"tests/integrations/test_{library.test or target.replace('-', '_')}.py"
    command = [str(python), "-m", "pytest", "-W", "default", "-p", "no:cacheprovider", test, *rest]
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode == 0


def _interpreter(oldest: tuple[int, int]) -> str | None:
    """This interpreter where it is new enough, else the first one of a newer version on the path that runs."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    for minor in range(oldest[1], oldest[1] + 3):
        found = shutil.which(f"python3.{minor}")
        if found and not subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode:
            return found
    return None


if __name__ == "__main__":
    raise SystemExit(main())
