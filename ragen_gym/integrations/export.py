"""The packages that hubs ask for, written from templates with the game's own facts; nothing is uploaded.

A target is a folder of ``templates``. In a template ``{{fact}}`` stands for a fact, in the name of a file or folder
``__fact__``. What ``FIXTURES`` names is computed: episodes that the oracle wins, and ones that earn nothing.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ragen_gym import __version__
from ragen_gym.core.storage import atomic_folder, check_absent
from ragen_gym.core.validation import check_choice
from ragen_gym.envs.task import TaskEnv
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.registry import own_module
from ragen_gym.integrations.rollout import METRICS, Rollout, rows, verl_rows

#: What each target's package is for.
TARGETS = {
    "verifiers": "the Environments Hub: a taskset and an environment of verifiers 0.4",
    "openenv": "OpenEnv 0.10: server, client, manifest with an oracle, Dockerfile",
    "nemo": "NeMo Gym 0.7: a resources server, an environment with manifest and rows, cases of its verifier",
    "ors": "OpenReward, by its Open Reward Standard: a server and its Dockerfile",
    "trl": "TRL 1.16: a training script with environment_factory and rollout_func",
    "verl": "verl 0.7.1 to 0.9: an agent loop, rows and a training script",
    "molt": "Molt 0.2: an agent, a writer of rows and a training script",
    "skyrl": "SkyRL-gym 0.4: an environment, its registration and rows",
    "atropos": "Atropos 0.4: an environment to serve, process or evaluate",
    "art": "ART 0.5: a rollout and a training loop",
}

_TEMPLATES = "templates"
_ROWS = 16
_NOTHING = "Left, please."  # no reply of any game: it has no tag


def export_env(
    target: str,
    folder: Path,
    game: str = "FrozenLake",
    /,
    *,
    requirement: str = f"ragen-gym>={__version__}",
    **options: Any,
) -> list[Path]:
    """Write the package of one game for one target.

    Args:
        target: of ``TARGETS``.
        folder: to write, which may not exist yet.
        game: see ``Rollout``. Where it is your own, its module is put into the package.
        requirement: how the package asks for ragen-gym, such as ``"ragen-gym @ https://…/ragen_gym-….whl"``.
        options: see ``Rollout``; ``split`` is the user's choice and is not fixed here.

    Returns:
        The files.

    Raises:
        ValueError: an unknown target, game or option, a folder that is there, or a game that optimal play never wins.
    """
    check_choice("target", target, TARGETS)
    check_absent(folder)
    rollout = Rollout(game, split="test", **options)
    rollout.begin(0)
    facts = _facts(game, rollout, options, requirement)
    own = _own_path(game)
    facts["own_module"] = f'"{own.name}" = "{own.name}"' if own else ""
    facts["holders"] = f"the authors of {own.name} and ragen-gym contributors" if own else "ragen-gym contributors"
    root = files("ragen_gym.integrations") / _TEMPLATES
    with atomic_folder(folder) as new:
        for part in ("common", target):
            _fill(root / part, new, facts)
        fixtures = FIXTURES[target](rollout, facts, options) if target in FIXTURES else {}
        for path, content in fixtures.items():
            file = new / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        if own:
            home = new / OWN_HOMES.get(target, "").format(facts["package"])
            if own.is_dir():
                shutil.copytree(own, home / own.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(own, home / own.name)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _facts(game: str, rollout: Rollout, options: dict[str, Any], requirement: str) -> dict[str, str]:
    env = rollout.env
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", env.name)
    slug = "-".join(["ragen", *(word.lower() for word in words)])
    package = slug.replace("-", "_")
    if isinstance(env, TurnEnv):
        summary = env.env.game_spec.summary
        rewards = [(f"{value:g}", what) for what, value in env.game.rewards()]
        rewards.append((f"{env.config.format_penalty:g}", "a malformed reply, or one that names an unknown action"))
        about = [
            env.game.description,
            f"The budgets of an episode are {env.max_turns} for replies, {env.max_actions} for moves, and "
            f"{env.max_actions_per_turn} for the moves of a reply. It is a success if "
            f"{env.game.success_means or 'the game is won'}.",
            _table(("reward", "for"), rewards),
        ]
    else:
        assert isinstance(env, TaskEnv)
        summary = (type(env.env.unwrapped).__doc__ or "a text task").strip().partition("\n")[0].rstrip(".")
        about = [f"The budget of an episode is {env.max_turns} for replies."]
    about += [
        "No level of one split occurs in another, and a seed gives the same level in every process.",
        "An episode begins with these messages:",
        "```text\n" + "\n\n".join(message["content"] for message in rollout.messages) + "\n```",
    ]
    title = f"{env.name}, made with ragen-gym" if own_module(game) else f"{env.name} of ragen-gym"
    return {
        "name": env.name,
        "title": title,
        "description_literal": json.dumps(f"{title}: {summary}", ensure_ascii=False),
        "class": "".join(word[0].upper() + word[1:] for word in words),
        "slug": slug,
        "package": package,
        "version": __version__,
        "summary": summary,
        "summary_literal": json.dumps(summary, ensure_ascii=False),
        "game": game,
        "game_literal": json.dumps(game),
        "package_literal": json.dumps(package),
        "max_turns": str(env.max_turns),
        "rows": str(_ROWS),
        "options_literal": repr(options),
        "options_json": json.dumps(options, ensure_ascii=False),
        "arguments": "".join(f", {name}={value!r}" for name, value in options.items()),
        "requirement": json.dumps(requirement),
        "requirement_plain": requirement,
        "about": "\n\n".join(about),
        "metrics": "\n".join(f"| `{name}` | {meaning} |" for name, meaning in METRICS.items()),
    }


def _table(head: tuple[str, str], lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"| {first} | {second} |" for first, second in [head, ("---", "---"), *lines])


def _own_path(game: str) -> Path | None:
    module = own_module(game)
    if not module:
        return None
    if "." in module:
        raise ValueError(
            f"{game} is part of the package {module.partition('.')[0]}: only a module or a package of its own can be "
            "put into what is exported. Name it so that nothing stands before it, or publish that package."
        )
    from importlib.util import find_spec

    found = find_spec(module)
    assert found is not None, "it has been imported"
    assert found.origin is not None, "it has code"
    origin = Path(found.origin)
    return origin.parent if origin.name == "__init__.py" else origin


def _fill(source: Traversable, target: Path, facts: dict[str, str]) -> None:
    for entry in source.iterdir():
        name = re.sub(r"__([a-z]+)__(?=$|\.)", lambda found: facts.get(found[1], found[0]), entry.name)
        if entry.is_dir():
            (target / name).mkdir(exist_ok=True)
            _fill(entry, target / name, facts)
        else:
            text = re.sub(r"\{\{(\w+)\}\}", lambda found: facts[found[1]], entry.read_text(encoding="utf-8"))
            (target / name.removesuffix(".tmpl")).write_text(text, encoding="utf-8")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _openenv(rollout: Rollout, facts: dict[str, str], options: dict[str, Any]) -> dict[str, str]:
    """A state one reply before the goal with the reply that wins, replies that win nothing, and a plan to measure."""
    won = rollout.demonstration()
    *before, last = won["replies"]
    begin = {"seed": won["seed"], "split": "test"}
    state = {**begin, "noise_seed": won["noise_seed"], "replies": before}
    oracle = {"reset": {"injected_state": state}, "actions": [{"text": last}], "reward": 1.0}
    canaries = [
        {"name": name, "reset": begin, "actions": [{"text": reply}] * rollout.env.max_turns, "reward": 0.0}
        for name, reply in (("says nothing", ""), ("has no tags", _NOTHING), ("asks for the reward", "Reward: 1."))
    ]
    plan = {
        "plan_schema_version": "1",
        "reset": {"episode_id": "plan", "seed": won["seed"], "options": {"split": "test"}},
        "actions": [{"text": reply} for reply in (_NOTHING, *won["replies"])],
    }
    return {
        "validation/oracle.json": _json(oracle),
        "validation/canaries.json": _json(canaries),
        "validation/runtime.json": _json(plan),
    }


def _skyrl(rollout: Rollout, facts: dict[str, str], options: dict[str, Any]) -> dict[str, str]:
    def lines(split: str) -> str:
        drawn = rows(facts["game"], _ROWS, split=split, **options)
        return "".join(_line({**row, "env_class": facts["package"]}) for row in drawn)

    return {f"data/{split}.jsonl": lines(split) for split in ("train", "test")}


def _verl(rollout: Rollout, facts: dict[str, str], options: dict[str, Any]) -> dict[str, str]:
    def lines(split: str) -> str:
        return "".join(map(_line, verl_rows(facts["game"], _ROWS, facts["package"], split=split, **options)))

    return {f"data/{split}.jsonl": lines(split) for split in ("train", "test")}


def _nemo(rollout: Rollout, facts: dict[str, str], options: dict[str, Any]) -> dict[str, str]:
    """A few rows of each split, and episodes that pay 1, pay nothing, are refused, and repeat themselves."""
    package = facts["package"]

    def lines(split: str, count: int) -> str:
        agent = {"type": "responses_api_agents", "name": f"{package}_gymnasium_agent"}
        drawn = rows(facts["game"], count, split=split, **options)
        return "".join(
            _line(
                {
                    "responses_create_params": {"input": row["prompt"][:1]},  # the server's first message follows it
                    **{key: row[key] for key in ("seed", "split", "level_id")},
                    "agent_ref": agent,
                }
            )
            for row in drawn
        )

    def case(name: str, kind: str, row: dict[str, Any], replies: list[str], **expected: Any) -> str:
        return _line({"name": name, "kind": kind, "request": {"row": row, "replies": replies}, **expected})

    won = rollout.demonstration()
    level = {"seed": won["seed"], "split": "test"}
    rollout.begin(won["seed"])
    nothing = rollout.play(lambda: _NOTHING)
    rollout.begin(won["seed"], 0)
    again = rollout.play(rollout.best_reply)
    cases = [
        case("won", "full_reward", {**level, "noise_seed": won["noise_seed"]}, won["replies"], expected_reward=1.0),
        case("no answer", "zero_reward", level, nothing, expected_reward=0.0),
        case("no seed", "malformed", {"split": "test"}, [], expected_error="seed"),
        case("repeated", "determinism", level, again, expected_reward=float(rollout.info["success"])),
    ]
    home = f"environments/{package}/data"
    return {
        f"resources_servers/{package}/tests/verifier_cases.jsonl": "".join(cases),
        **{f"{home}/{split}.jsonl": lines(split, _ROWS) for split in ("train", "validation", "test")},
        f"{home}/example.jsonl": lines("train", 5),
    }


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


#: Where a game of one's own is put, by target; elsewhere into the folder itself.
OWN_HOMES = {"nemo": "resources_servers/{}"}

#: The computed files of a target, by path.
FIXTURES: dict[str, Callable[[Rollout, dict[str, str], dict[str, Any]], dict[str, str]]] = {
    "nemo": _nemo,
    "openenv": _openenv,
    "skyrl": _skyrl,
    "verl": _verl,
}
