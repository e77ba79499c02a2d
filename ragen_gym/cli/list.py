"""``ragen-gym list`` and ``ragen-gym info``: the games of the suite, and one of them in detail."""

from __future__ import annotations

import argparse
from typing import Any

from ragen_gym.cli.command import add_seed, wrapped
from ragen_gym.cli.env_options import add_environment_options, chosen_environment, describe, options_of, sections
from ragen_gym.cli.episodes import success_rates
from ragen_gym.core.command_line import add_command, print_json
from ragen_gym.envs.policies import action_budget
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.registry import TABLE, load_task

_EXAMPLES = """\
examples:
  ragen-gym info FrozenLake
  ragen-gym info Sokoban --preset hard --split test -n 1000
  ragen-gym info FrozenLake --option success_rate=1 --json
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the two commands."""
    parser = add_command(commands, "list", "every game", _list, description="Every game of the suite, one a line.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser = add_command(
        commands,
        "info",
        "what a game is: spaces, actions, rewards, options, success of random, blind and optimal play",
        _info,
        _EXAMPLES,
        "What a game is, and how well random play, a blind script and optimal play do on its levels.",
    )
    add_environment_options(parser)
    parser.add_argument(
        "-n",
        "--measure",
        type=int,
        default=256,
        metavar="N",
        help="episodes in which success is measured (default: 256; 0: none)",
    )
    add_seed(parser, "those levels")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _list(arguments: argparse.Namespace) -> int:
    if arguments.json:
        rows = [
            {"id": spec.id, "name": spec.name, "summary": spec.summary, "horizon": spec.horizon}
            for spec in TABLE.values()
        ]
        print_json(rows)
        return 0
    width = max(len(spec.id) for spec in TABLE.values())
    for spec in TABLE.values():
        print(f"{spec.id:{width}}  {spec.summary}")
    return 0


def _info(arguments: argparse.Namespace) -> int:
    if load_task(arguments.id) is not None:
        raise ValueError(f"{arguments.id} is a text task, and info is about games: `ragen-gym check` plays it.")
    spec, chosen = chosen_environment(arguments)
    env = StepEnv(spec.name, **chosen)
    game = env.game
    facts: dict[str, Any] = {
        "id": spec.id,
        "name": spec.name,
        "summary": spec.summary,
        "description": game.description,
        "height": game.height,
        "width": game.width,
        "sizes": [f"{each.height} x {each.width}" for each in env.games],
        "horizon": spec.horizon,
        "budget": action_budget(env),
        "stochastic": game.stochastic,
        "observation_space": repr(env.observation_space),
        "action_space": repr(env.action_space),
        "actions": {action.name.capitalize(): action.value for action in game.Action},
        "rewards": dict(game.rewards()),
        "episode_end": " ".join(sections(type(game)).get("Episode End", "").split()),
        "symbols": dict(game.legend(env.vocabulary)),
        "vocabularies": {name: "".join(v.symbols) for name, v in game.vocabularies.items()},
        "options": {
            each.name: {"type": each.type, "default": each.default, "doc": each.doc} for each in options_of(spec)
        },
        "presets": {name: dict(options) for name, options in spec.game_class.presets.items()},
    }
    rates = success_rates(spec, chosen, arguments.measure, arguments.seed) if arguments.measure else {}
    if rates:
        facts |= {player: rate.to_dict() for player, rate in rates.items()}
        facts["measured_on"] = {"levels": arguments.measure, "seed": arguments.seed, "split": env.split}
    if arguments.json:
        print_json(facts)
        return 0
    _print(facts)
    if rates:
        where = f"{_count(arguments.measure, 'episode')}, within {_count(facts['budget'], 'action')}"
        print(f"\nSuccess in {where} (95 % Wilson interval)")
        for player, rate in rates.items():
            print(f"  {player + ' play':13} {rate!s:>24}")
    return 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _print(facts: dict[str, Any]) -> None:
    print(wrapped(f"{facts['id']}: {facts['summary']}") + "\n\n" + wrapped(facts["description"]) + "\n")
    horizon = f"truncated after {facts['horizon']} steps" if facts["horizon"] else "ended by its rules alone"
    rows = {
        "Board": f"{', '.join(facts['sizes'])}, {horizon}",
        "Actions": ", ".join(f"{value} {name}" for name, value in facts["actions"].items()),
        "Observation": facts["observation_space"].replace("\n", "\\n"),
        "Symbols": ", ".join(f"{symbol} {meaning}" for symbol, meaning in facts["symbols"].items()),
        "Rewards": "; ".join(f"{value:g} {what}" for what, value in facts["rewards"].items()),
        "Vocabularies": ", ".join(f"{name} {symbols}" for name, symbols in facts["vocabularies"].items() if symbols),
    }
    for name, text in rows.items():
        if text:
            print(wrapped(text, f"{name:14}"))
    print("\nOptions")
    names = max(map(len, facts["options"]))
    for name, option in facts["options"].items():
        meaning = option["doc"].replace("``", "").rstrip(".")
        print(wrapped(f"{meaning} (default: {describe(option['default'])})", f"  {name:{names}}  "))
    if facts["presets"]:
        print("\nPresets")
        for name, options in facts["presets"].items():
            shown = ", ".join(f"{key}={describe(value)}" for key, value in options.items())
            print(wrapped(shown, f"  {name:{names}}  "))
