"""OpenEnv's validation of a package and its running server: ``python -m ragen_gym.integrations.graders FOLDER URL``."""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> int:
    """Print a line for each check; the exit code is 1 where the verdict is FAIL."""
    parser = argparse.ArgumentParser(
        prog="python -m ragen_gym.integrations.graders",
        description="Validate a package of OpenEnv and its running server.",
    )
    parser.add_argument("folder", type=Path, help="the folder of openenv.yaml")
    parser.add_argument("url", help="its server, which takes 16 sessions or more")
    arguments = parser.parse_args()
    try:
        from openenv.validation import ManifestError, SignatureError, Verdict

        from ragen_gym.integrations.graders.validate import validate
    except ImportError as error:
        parser.error(f"{error}: run pip install 'openenv==0.10.*'")
    try:
        report = validate(arguments.folder, arguments.url)
    except (ManifestError, SignatureError, ValueError) as error:
        parser.error(str(error))
    for result in report.results:
        print(f"{result.status.value:5} {result.check_id:36} {'; '.join(result.evidence)}")
    print(f"verdict: {report.verdict.value}")
    return int(report.verdict is Verdict.FAIL)


if __name__ == "__main__":
    raise SystemExit(main())
