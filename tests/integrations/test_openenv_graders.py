"""The registered checks in the real OpenEnv: on its template, on our package, and on servers with planted faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.library import export, needs, serving

needs("openenv", "openenv")

ROOT = Path(__file__).parents[2]
OURS = {each.name for each in entry_points(group="openenv.validation.graders")}
SEMANTIC = {name for name in OURS if name.startswith("semantic.")}
#: What each planted fault fails. The semantic checks need deterministic episodes.
FAULTS = {
    "": set(),
    "unseeded": {"runtime.seed_control", "runtime.episode_determinism"},
    "counts a session's episodes": {"runtime.episode_isolation"},
    "one word for all sessions": {"runtime.episode_isolation"},
    "declares another number of tasks": {"runtime.task_declaration_accuracy"},
    "pays half": {"semantic.oracle_max"},
    "pays for nothing": {"semantic.floor_gap"},
    "pays who asks": {"semantic.canary_floor"},
    "shows the solution": {"semantic.no_solution_leakage"},
    "pays by its mood": {"semantic.verifier_determinism"},
    "counts the server's episodes": {"semantic.replayability"},
}
#: Environments of other libraries, as the audit names them: two replies, and the range of rewards.
OTHERS: dict[str, tuple[list[str], list[float]]] = {
    "reasoning-gym:leg_counting": (["4", "6"], [0.0, 1.0]),
    "reasoning-gym:knights_knaves": (["Both are knights.", "Both are knaves."], [0.0, 1.0]),
    "textarena:FrozenLake-v0": (["[down]", "[right]"], [-1.0, 1.0]),
    "textarena:Minesweeper-v0": (["[0 0]", "[7 7]"], [-1.0, 1.0]),
    "Blackjack-v1": (["1", "0"], [-1.0, 1.0]),
}


def statuses(folder: Path, url: str) -> dict[str, str]:
    from ragen_gym.integrations.graders.validate import validate

    return {result.check_id: result.status.value for result in validate(folder, url).results}


def write(folder: Path, fault: str, **capabilities: Any) -> Path:
    """A package of the faulty server."""
    from tests.integrations.faulty_openenv import LAST_SEED, NAME, TASKS

    options = {"fault": fault}
    oracle = {"reset": {**options, "injected_state": "hgabhgab"}, "actions": [{"text": "hgabhgab"}]}
    canaries = [{"reset": {**options, "seed": 0}, "actions": [{"text": "Reward: 1."}]}]
    replies = [{"text": "hgab"}, {"text": "abcdefgh"}]
    plan = {
        "plan_schema_version": "1",
        "reset": {"episode_id": "plan", "seed": LAST_SEED, "options": options},
        "actions": replies,
    }
    declared = {
        "verifier": {"kind": "reward_channel"},
        "oracle": {"form": "injected_state", "location": "oracle.json"},
        "set_state": True,
        "canaries": "canaries.json",
        "declared_task_count": {"train": TASKS + (fault == "declares another number of tasks")},
        **capabilities,
    }
    manifest = {
        "spec_version": 1,
        "name": NAME,
        "validation": {
            "execution": {"probe_path": "plan.json"},
            "reward": {"range": [0.0, 1.0], "oracle_tolerance": 0.05, "floor_margin": 0.5},
            "resources": {"cpu": 1.0, "memory_mb": 512, "disk_mb": 512, "episode_timeout_s": 60.0},
            "capabilities": declared,
            "types": {"tags": ["text"]},
        },
    }
    for name, content in (("openenv.yaml", manifest), ("plan.json", plan)):  # JSON is YAML
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    for name, data in (("oracle.json", oracle), ("canaries.json", canaries)):
        (folder / name).write_text(json.dumps(data), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(ROOT, "tests.integrations.faulty_openenv:app") as url:
        yield url


def test_openenv_finds_the_graders_by_their_ids_beside_its_own() -> None:
    from openenv.validation import ENTRY_POINT_GROUP, Grader, GraderRegistry, load_policy, runner

    assert ENTRY_POINT_GROUP == "openenv.validation.graders"
    registry = GraderRegistry()
    assert registry.load_entry_points() >= len(OURS) == 10
    for name in OURS:
        grader = registry.get(name)
        assert isinstance(grader, Grader)
        assert (grader.check_id, grader.level) == (name, load_policy("v2").entries_for_lane("local")[name].level)
    core = runner.default_grader_registry(load_policy("v2"))
    assert not [name for name in OURS if core.get(name)]


def test_the_guide_names_every_check_of_the_policy_once() -> None:
    from openenv.validation import load_policy

    guide = (ROOT / "docs/guides/with_other_libraries.md").read_text(encoding="utf-8")
    table = guide.partition("## OpenEnv's validation")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:static|runtime|semantic|hub|statistical)\.[a-z_]+)`", table)
    assert sorted(named) == sorted(entry.check_id for entry in load_policy("v2").entries)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_its_check_alone(fault: str, url: str, tmp_path: Path) -> None:
    found = statuses(write(tmp_path, fault), url)
    assert {name for name in OURS if found[name] == "fail"} == FAULTS[fault], found
    if not fault:
        assert {found[name] for name in OURS} == {"pass"}, found
    if fault == "unseeded":
        assert {found[name] for name in SEMANTIC} == {"skip"}


def test_a_solution_among_choices_is_neither_a_leak_nor_a_pass(url: str, tmp_path: Path) -> None:
    found = statuses(write(tmp_path, "offers choices"), url)
    assert {name for name in OURS if found[name] != "pass"} == {"semantic.no_solution_leakage"}
    assert found["semantic.no_solution_leakage"] == "skip"


def test_what_is_not_declared_never_passes(url: str, tmp_path: Path) -> None:
    bare: dict[str, Any] = {"oracle": None, "canaries": None, "declared_task_count": {}}
    found = statuses(write(tmp_path, "", **bare), url)
    unknown = ("canary_floor", "no_solution_leakage", "verifier_determinism")
    assert {found[f"semantic.{name}"] for name in unknown} == {"skip"}
    assert (found["runtime.task_declaration_accuracy"], found["semantic.oracle_max"]) == ("skip", "fail")


def test_openenvs_own_template_is_answered(tmp_path: Path) -> None:
    """It echoes without an oracle or a use of its seed, and serves one session unless its app is changed."""
    subprocess.run([sys.executable, "-m", "openenv.cli", "init", "echo"], cwd=tmp_path, check=True, capture_output=True)
    folder, plan = tmp_path / "echo", {"plan_schema_version": "1", "reset": {"episode_id": "plan", "seed": 0}}
    (folder / "plan.json").write_text(json.dumps({**plan, "actions": [{"message": "Hello"}, {"message": "there"}]}))
    manifest, app = folder / "openenv.yaml", folder / "server" / "app.py"
    manifest.write_text(
        manifest.read_text().replace("validation:\n", "validation:\n  execution: {probe_path: plan.json}\n")
    )
    with serving(folder) as url:
        found = statuses(folder, url)
    assert {found[name] for name in OURS} == {"skip"}, found
    app.write_text(app.read_text().replace("max_concurrent_envs=1", "max_concurrent_envs=16"))
    with serving(folder) as url:
        found = statuses(folder, url)
    assert {name for name in OURS if found[name] == "fail"} == {"semantic.oracle_max"}
    passed = {
        "runtime.episode_determinism",
        "runtime.episode_isolation",
        "semantic.floor_gap",
        "semantic.replayability",
    }
    assert {name for name in OURS if found[name] == "pass"} == passed


@pytest.mark.parametrize("target", OTHERS)
def test_environments_of_others_get_what_the_guide_says(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle of reasoning-gym is the answer that its data set holds; the others declare none."""
    from ragen_gym.integrations.graders.validate import validate

    replies, rewards = OTHERS[target]
    write(tmp_path, "", oracle=None, canaries=None, declared_task_count={})
    plan = {"plan_schema_version": "1", "reset": {"episode_id": "plan", "seed": 3, "options": {}}}
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "actions": [{"text": reply} for reply in replies]}))
    manifest = json.loads((tmp_path / "openenv.yaml").read_text())
    manifest["validation"]["reward"]["range"] = rewards
    if (solution := solved(target, seed=3)) is not None:
        manifest["validation"]["capabilities"]["oracle"] = {"form": "injected_state", "location": "oracle.json"}
        actions = [{"text": reply} for reply in solution]
        (tmp_path / "oracle.json").write_text(json.dumps({"reset": {"seed": 3}, "actions": actions}))
    (tmp_path / "openenv.yaml").write_text(json.dumps(manifest))
    monkeypatch.setenv("FOREIGN", target)
    with serving(ROOT, "tests.integrations.foreign_openenv:app") as url:
        results = validate(tmp_path, url).results
    found = {each.check_id: each.status.value for each in results if each.evidence != ["no registered grader applies"]}
    guide = (ROOT / "docs/guides/with_other_libraries.md").read_text(encoding="utf-8")
    table = guide.partition("## Environments of other libraries under these checks")[2].partition("\n## ")[0]
    lines = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip(" `") for cell in line] for line in lines)
    said = {row[0]: row[head.index(target)].partition(":")[0] for row in rows}
    assert said == found, "\n".join(f"{each.check_id} {each.status.value} {each.evidence}" for each in results)


def solved(target: str, seed: int) -> list[str] | None:
    """The environment's own solution of a seed."""
    from ragen_gym.audit.worker.main import open_target

    env = open_target(target, {}, []).make()
    env.reset(seed)
    return env.oracle()


def test_our_package_passes_by_the_command_and_openenvs_runner_runs_what_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openenv.validation import Level, run_validation, runner
    from openenv.validation.types import ProviderCapability

    folder = export(tmp_path / "package", "openenv", "--option", "max_turns=3")
    with serving(folder) as url:
        command = [sys.executable, "-m", "ragen_gym.integrations.graders", str(folder), url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

        class Running:
            base_url = url

            def inspect(self) -> dict[str, Any]:
                return {}

            def stop(self) -> None:
                """The server is the test's."""

        class Provider:
            name = "process"
            capabilities = frozenset({ProviderCapability.IMAGE_BUILD})
            supported_network_modes = frozenset({"public"})

            def build(self, root: Path, execution: Any) -> str:
                return "sha256:" + "0" * 64

            def start(self, spec: Any) -> Running:
                return Running()

        core = runner.default_grader_registry

        def loaded(policy: Any) -> Any:
            registry = core(policy)
            registry.load_entry_points()
            return registry

        monkeypatch.setattr(runner, "default_grader_registry", loaded)
        report = run_validation(folder, max_level=Level.SEMANTIC, provider=Provider())
    passed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("pass ")}
    assert (done.returncode, OURS - passed) == (0, set()), done.stdout + done.stderr
    found = {result.check_id: result.status.value for result in report.results}
    assert {found[name] for name in OURS - SEMANTIC} == {"pass"}
    assert {found[name] for name in SEMANTIC} == {"skip"}, "OpenEnv runs semantic checks now: say so in the guide"
