"""The launchers of ``examples/cluster``, read by the linters of their languages; no Slurm or Kubernetes is here.

KubeRay's own schema comes with no package, so a RayJob's pods are checked and its other keys are not.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config.presets import read_recipe

FOLDER = Path(__file__).parents[1] / "examples" / "cluster"
KUBERNETES = "1.34"
RULES = "{extends: default, rules: {line-length: {max: 120}, document-start: disable}}"
LINTERS = "pip install '.[test]' brings the linters"
SHELLCHECK = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")


@pytest.mark.skipif(SHELLCHECK is None, reason=LINTERS)
@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_faultless_and_says_how_it_is_called(script: Path) -> None:
    assert SHELLCHECK is not None
    done = subprocess.run([SHELLCHECK, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    alone = {"PATH": "/usr/bin:/bin"}
    called = subprocess.run(["bash", script], capture_output=True, text=True, check=False, env=alone)
    assert called.returncode != 0
    assert "usage: " in called.stderr


def documents() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason=LINTERS)
    text = (FOLDER / "ray-job.yaml").read_text(encoding="utf-8")
    return [each for each in yaml.safe_load_all(text) if each]


def test_the_yaml_is_well_formed() -> None:
    linter, config = (pytest.importorskip(f"yamllint.{name}", reason=LINTERS) for name in ("linter", "config"))
    text = (FOLDER / "ray-job.yaml").read_text(encoding="utf-8")
    assert not [str(problem) for problem in linter.run(text, config.YamlLintConfig(RULES))]


def test_kubernetes_takes_the_pods_and_the_claim() -> None:
    schema = pytest.importorskip("kubernetes_validate", reason=LINTERS)
    job, claim = documents()
    schema.validate(claim, KUBERNETES, strict=True)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
        schema.validate({**pod, "metadata": {**pod["metadata"], "name": "ray"}}, KUBERNETES, strict=True)
    with pytest.raises(schema.ValidationError):
        schema.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"containers": [{}]}}, KUBERNETES)


def test_the_launchers_bring_the_gpus_of_the_recipe_that_they_start() -> None:
    job = documents()[0]["spec"]
    (name,) = re.findall(r"--recipe (\S+)", job["entrypoint"])
    cluster = job["rayClusterSpec"]
    groups = [(1, cluster["headGroupSpec"]), *((g["replicas"], g) for g in cluster["workerGroupSpecs"])]
    gpus = 0
    for pods, group in groups:
        (container,) = group["template"]["spec"]["containers"]
        assert group["rayStartParams"]["num-gpus"] == container["resources"]["limits"]["nvidia.com/gpu"]
        gpus += pods * int(group["rayStartParams"]["num-gpus"])
    assert gpus == read_recipe(name).gpus
    slurm = (FOLDER / "slurm.sh").read_text(encoding="utf-8")
    asked = dict(re.findall(r"^#SBATCH --(nodes|gpus-per-node)=(\d+)", slurm, re.MULTILINE))
    (shown,) = re.findall(r"slurm.sh (\S+) /shared", slurm)
    assert int(asked["nodes"]) * int(asked["gpus-per-node"]) == read_recipe(shown).gpus
