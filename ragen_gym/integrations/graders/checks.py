"""The checks that the audit and replays answer; the first line of each says what is compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx

from ragen_gym.audit import AuditSettings, audit
from ragen_gym.audit.worker.protocol import NotApplicable
from ragen_gym.integrations.graders.replay import Package, texts
from ragen_gym.integrations.graders.validate import Answer, Grader

_SEEDS, _REPLAYS = range(8), 3
_SHORTEST = 4  # characters of a text that tells something when it is found


def _grader(name: str, fix: str, *after: str, needs: tuple[str, ...] = ()) -> Callable[[Any], Grader]:
    first = "runtime.startup" if name.startswith("runtime.") else "runtime.episode_determinism"
    return lambda answer: Grader(name, answer, fix, (first, *after), frozenset(needs))


def _audited(package: Package, *checks: str) -> Answer:
    """All of some checks of the audit, whose environments are sessions of the server."""
    reset, target = package.plan.reset, "ragen_gym.integrations.graders.replay:Session"
    options = {"url": package.url, "arguments": {**reset.options, "episode_id": reset.episode_id}}
    settings = AuditSettings(options, package.plan.actions, checks, seeds=len(_SEEDS))
    try:
        results = audit(target, settings).results
    except ValueError as error:
        raise NotApplicable(str(error)) from error
    said = {each.check.id: each.detail for each in results}
    if findings := [each.detail for each in results if each.status == "finding"]:
        return Answer(False, "; ".join(findings), said)
    if unknown := [each.detail for each in results if each.status != "passed"]:
        raise NotApplicable("; ".join(unknown))
    return Answer(True, "; ".join(said.values()), said)


@_grader("runtime.seed_control", "Draw every level from a generator that reset(seed=...) makes.")
def seed_control(package: Package) -> Answer:
    """Level of a seed, the same in all sessions, among seeds that differ."""
    found = _audited(package, "group_level")
    if found.holds and len({*map(str, package.beginnings(_SEEDS))}) == 1:
        raise NotApplicable(f"{len(_SEEDS)} seeds begin alike, so that nothing is seen to depend on a seed")
    return found


@_grader("runtime.episode_determinism", "Draw all that happens from a generator that reset(seed=...) makes.")
def episode_determinism(package: Package) -> Answer:
    """Episodes of a seed and fixed actions in two new sessions."""
    return _audited(package, "seed_repeats")


@_grader("runtime.episode_isolation", "Keep the state of an episode in its session, and make it anew in reset.")
def episode_isolation(package: Package) -> Answer:
    """Episodes after others in a session, and beside others in threads."""
    return _audited(package, "reset_clean", "seed_threads")


@_grader("runtime.task_declaration_accuracy", "Declare what num_tasks returns.", needs=("declared_task_count",))
def task_declaration_accuracy(package: Package) -> Answer:
    """Number of tasks of each declared split."""
    manifest = package.subject.manifest
    declared, url = manifest.capabilities.declared_task_count, f"{package.url}/{manifest.name}/num_tasks"
    replies = {split: httpx.post(url, json={"split": split}, timeout=30) for split in declared}
    if wrong := [reply.status_code for reply in replies.values() if not reply.is_success]:
        raise NotApplicable(f"{url} answers with status {wrong[0]}")
    served = {split: reply.json()["num_tasks"] for split, reply in replies.items()}
    return Answer(served == declared, f"declared are {declared}, the server has {served}", served)


@_grader("semantic.oracle_max", "Declare an oracle whose last reward is the most of the declared range.")
def oracle_max(package: Package) -> Answer:
    """Last reward of the declared oracle."""
    reward = package.subject.manifest.reward
    if package.subject.manifest.capabilities.oracle is None:
        return Answer(False, "no oracle is declared")
    last = package.rewards(package.oracle)[-1]
    measured = {"oracle_reward": last, "declared_tolerance": reward.oracle_tolerance}
    return Answer(last >= reward.range[1] - reward.oracle_tolerance, f"the oracle earns {last:g}", measured)


@_grader("semantic.floor_gap", "Let a reset and empty texts earn nothing.")
def floor_gap(package: Package) -> Answer:
    """Distance from the most that doing nothing earns to the most of the range."""
    reward, floor = package.subject.manifest.reward, package.floor(_SEEDS)
    measured = {"measured_floor": floor, "declared_margin": reward.floor_margin}
    return Answer(reward.range[1] - floor >= reward.floor_margin, f"doing nothing earns up to {floor:g}", measured)


@_grader("semantic.canary_floor", "Score canaries as doing nothing.", "semantic.floor_gap", needs=("canaries",))
def canary_floor(package: Package) -> Answer:
    """Most that a declared canary earns."""
    floor, best = package.floor(_SEEDS), max(max(package.rewards(plan)) for plan in package.canaries)
    return Answer(best <= floor, f"canaries earn up to {best:g}, doing nothing {floor:g}", {"canary_reward": best})


@_grader("semantic.no_solution_leakage", "Take the solution out of the observations.", "semantic.oracle_max")
def no_solution_leakage(package: Package) -> Answer:
    """Texts of the oracle's actions, verbatim in what is shown before them; a choice that is offered is no leak."""
    actions, shown = package.oracle[1], package.episode(*package.oracle)[0]
    others = ["\n".join(texts(begun)) for begun in package.beginnings(_SEEDS)]
    solution = "\n".join(texts(list(actions)))
    wrong = {text for text in texts(package.plan.actions) if len(text) >= _SHORTEST and text not in solution}
    looked, unsure = 0, ""
    for place, action in enumerate(actions):
        before = "\n".join(texts(shown[: place + 1]))
        offered = any(text in before for text in wrong)
        whole = {*texts(action)}
        for text in whole | {part for each in whole for part in re.split(r"<[^>]*>", each)}:
            if len(text) < _SHORTEST or all(text in other for other in others):
                continue  # too short to tell, or words of every instruction
            looked += 1
            if text in before and text in whole and not offered:
                return Answer(False, f"the oracle's {text!r} is shown before it is given")
            unsure = text if text in before else unsure
    if unsure or not looked:
        raise NotApplicable(
            f"{unsure!r} is shown, as a choice or a leak" if unsure else "the oracle has no text to find"
        )
    return Answer(True, f"{looked} texts of the oracle are not shown, as they stand, before they are given")


@_grader("semantic.verifier_determinism", "Make the reward a function of the state and the action.")
def verifier_determinism(package: Package) -> Answer:
    """Rewards of the oracle and the canaries when they are replayed."""
    plans = [*package.canaries, *([package.oracle] if package.subject.manifest.capabilities.oracle else [])]
    if not plans:
        raise NotApplicable("neither an oracle nor canaries are declared")
    wrong = sum(len({str(package.rewards(plan)) for _ in range(_REPLAYS)}) > 1 for plan in plans)
    return Answer(not wrong, f"{_REPLAYS} replays earn other rewards in {wrong} of {len(plans)} episodes")


@_grader("semantic.replayability", "Let the same reset and actions give the same episode.")
def replayability(package: Package) -> Answer:
    """Two records of the runtime plan's episode."""
    records = [package.record().exchanges for _ in range(2)]
    one, other = ([each.response_json for each in record if each.operation != "state"] for record in records)
    return Answer(one == other, f"{len(one)} answers to the runtime plan are {'' if one == other else 'not '}repeated")
