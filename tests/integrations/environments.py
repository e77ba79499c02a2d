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
from pathlib import Path

__all__ = ["ENVIRONMENTS", "main"]

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "integrations"
PINS = Path(__file__).parent / "constraints"


#: What the environment of a target holds besides ragen-gym and pytest, as pinned in ``constraints/TARGET.txt``.
ENVIRONMENTS = {
    "verifiers": ("verifiers", "uv"),
    "openenv": ("openenv",),
    "trl": ("torch", "trl"),
    "skyrl": ("skyrl-gym",),
    "atropos": ("atroposlib",),
    "art": ("openpipe-art", "openai<3"),
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
    print(f"test-integrations: {target}", flush=True)
    python = BUILD / target / "bin" / "python"
    pins, done = PINS / f"{target}.txt", BUILD / target / "installed"
    if not done.exists() or done.read_bytes() != pins.read_bytes():
        shutil.rmtree(BUILD / target, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", BUILD / target], check=True)
        common = ["pytest", "pytest-timeout", "hatchling", "editables"]
        flags = ["-q", "--disable-pip-version-check", "-c", str(pins)]
        for wanted in ([*ENVIRONMENTS[target], *common], ["--no-build-isolation", "-e", str(ROOT)]):
            if subprocess.run([str(python), "-m", "pip", "install", *flags, *wanted], check=False).returncode:
                return False
        shutil.copyfile(pins, done)
    path = os.pathsep.join((str(python.parent), os.environ["PATH"]))  # the libraries call uv and themselves by name
    variables = {**os.environ, "RAGEN_GYM_INTEGRATION": target, "PATH": path}
    test = f"tests/integrations/test_{target}.py"
    command = [str(python), "-m", "pytest", "-W", "default", "-p", "no:cacheprovider", test, *rest]
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
