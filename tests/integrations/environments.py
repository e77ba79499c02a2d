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

#: The rest of what the extra agent needs to play episodes.
AGENT = ("jinja2", "pillow", "pydantic", "regex", "rich", "safetensors", "scipy", "tomli-w")

#: What the environment of a target holds besides ragen-gym and pytest, as pinned in ``constraints/TARGET.txt``.
ENVIRONMENTS = {
    "verifiers": ("verifiers", "uv"),
    "openenv": ("openenv", "reasoning-gym", "textarena"),  # and environments of others for its graders
    "nemo": ("nemo-gym", "httpx"),
    "ors": ("openreward",),
    "trl": ("torch", "trl"),
    "verl": ("torch", "verl", "cachetools", "fastapi", "uvicorn"),  # the last three as vLLM brings them
    "molt": (
        "torch",
        "transformers",
        "ray[default]",
        "datasets",
        "einops",
        "optree",
        "torchdata",
        "fastapi",
        "uvicorn",
        "pillow",  # as vLLM brings it
    ),
    "skyrl": ("skyrl-gym",),
    "atropos": ("atroposlib",),
    "art": ("openpipe-art", "openai<3"),
    "harbor": ("pydantic", "scipy", "openai", "httpx"),
    "inspect": ("inspect-ai", "jinja2", "rich", "scipy"),  # the last three score, as the extra bench brings them
    "clients": ("anthropic", "openai", "torch", "transformers", *AGENT),
}

#: What is installed without its requirements: Molt's ask for CUDA, and Harbor's are for its sandboxes.
ALONE = {"harbor": ("harbor",), "molt": ("molt-rl",)}

#: The oldest Python that a target's library takes, and the first newer one that it does not, where not those of ours.
PYTHONS = {"art": ((3, 12), (4,)), "harbor": ((3, 12), (4,)), "nemo": ((3, 13, 14), (4,)), "verl": ((3, 11), (3, 13))}
OURS = ((3, 11), (4,))


def main(argv: list[str] | None = None) -> int:
    """Make the environments and run their tests; the exit code is 1 where some failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(ENVIRONMENTS)}; all by default")
    arguments, rest = parser.parse_known_args(argv)
    for target in arguments.targets:
        if target not in ENVIRONMENTS:
            parser.error(f"no target {target!r}: choose of {', '.join(ENVIRONMENTS)}")
    named, untested, failed = arguments.targets, [], []
    for target in named or ENVIRONMENTS:
        base = _python(target)
        if base is None:
            oldest, refused = (".".join(map(str, version)) for version in PYTHONS[target])
            untested.append(f"{target}, which needs a Python from {oldest} on and below {refused} on the PATH")
        if target in named if base is None else not _passes(target, base, rest):
            failed.append(target)
    print(f"test-integrations: {'failed: ' + ', '.join(failed) if failed else 'all tested passed'}")
    for line in untested:
        print(f"test-integrations: not tested: {line}")
    return bool(failed)


def _python(target: str) -> str | None:
    """The first interpreter that the library takes: this one, or one on the PATH; None where there is none."""
    oldest, refused = PYTHONS.get(target, OURS)
    for name in (sys.executable, *(f"python3.{minor}" for minor in (13, 14, 15, 12, 11)), "python3"):
        found, ask = shutil.which(name), f"import sys; sys.exit(not {oldest} <= sys.version_info < {refused})"
        if found and not subprocess.run([found, "-c", ask], stderr=subprocess.DEVNULL, check=False).returncode:
            return found
    return None


def _passes(target: str, base: str, rest: list[str]) -> bool:
    print(f"test-integrations: {target}", flush=True)
    python = BUILD / target / "bin" / "python"
    pins, done = PINS / f"{target}.txt", BUILD / target / "installed"
    if not done.exists() or done.read_bytes() != pins.read_bytes():
        shutil.rmtree(BUILD / target, ignore_errors=True)
        subprocess.run([base, "-m", "venv", BUILD / target], check=True)
        common = ["pytest", "pytest-timeout", "hatchling", "editables"]
        flags = ["-q", "--disable-pip-version-check", "-c", str(pins)]
        alone = [["--no-deps", *ALONE[target]]] if target in ALONE else []
        for wanted in ([*ENVIRONMENTS[target], *common], *alone, ["--no-build-isolation", "-e", str(ROOT)]):
            if subprocess.run([str(python), "-m", "pip", "install", *flags, *wanted], check=False).returncode:
                return False
        shutil.copyfile(pins, done)
    path = os.pathsep.join((str(python.parent), os.environ["PATH"]))  # the libraries call uv and themselves by name
    variables = {**os.environ, "RAGEN_GYM_INTEGRATION": target, "PATH": path}
    tests = sorted(map(str, Path(__file__).parent.glob(f"test_{target}*.py")))
    command = [str(python), "-m", "pytest", "-W", "default", "-p", "no:cacheprovider", *tests, *rest]
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
