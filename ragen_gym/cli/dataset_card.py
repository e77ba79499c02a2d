"""Dataset card of a file of levels: how they were made, and random, blind and optimal play of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import ragen_gym
from ragen_gym.core.levels import Level
from ragen_gym.core.seeding import Stream, episode_key, stream_key
from ragen_gym.core.stats import wilson
from ragen_gym.envs.policies import action_budget, blind_value, hashed_draw, play_episode, random_policy
from ragen_gym.envs.step import StepEnv

if TYPE_CHECKING:
    from ragen_gym.cli.levels import LevelRecord

__all__ = ["dataset_card"]

BLIND = "| blind script | {:.1f} | exact | {} |\n"
SCRIPT = " The blind script goes for the goal and ignores what is in the way."
CARD = """\
---
{license}tags: [ragen-gym, reinforcement-learning]
configs:
- config_name: default
  data_files: {file}
---

# {n} levels of {game}

{summary}. All levels are different, and of {split}.

| policy | success, % | 95 % interval | n |
|---|---|---|---|
| random moves | {random} | {low} to {high} | {n} |
{blind}| optimal play | {optimal} | exact | {solved} |

Random: one episode a level of at most {actions} moves, Wilson's interval. Exact: the mean over levels of the chance of
success within as many moves.{script}

## How it was made

By ragen-gym {version}: `{command}`

## Fields

{fields}

## Licence

{licence}
"""
FIELDS = {
    ".jsonl": "A line a level: `id`, a hash of its content; `game`; `split`; `text`, its first board; `actions`, the\n"
    "moves allowed; `optimal_success` and `optimal_return`, of the oracle; `first_action`, a best one; `plan`, a best\n"
    "episode where nothing is random; `problem`, why the oracle gave no answer.",
    ".txt": "Boards, a blank line between two, under comments. `ragen-gym` reads them again with `--levels`.",
}


def dataset_card(
    env: StepEnv, levels: Sequence[Level], records: Sequence[LevelRecord], file: str, seed: int, command: str
) -> str:
    """The card's Markdown, with YAML for Hugging Face; ``env`` plays the levels, random play draws by ``seed``."""
    budget, key, successes = action_budget(env), stream_key(seed, Stream.DYNAMICS), 0
    blindly: list[float] = []
    for number, level in enumerate(levels):
        env.reset(seed=number, options={"level": level})
        blindly += [blind_value(env, budget)[0]] if env.game.blind else []
        policy = random_policy(hashed_draw(episode_key(key, number)))
        successes += play_episode(env, policy, budget).success
    rate = wilson(successes, len(levels))
    solved = [record.optimal_success for record in records if record.problem is None]
    ours = env._levels is None and env.game_spec.game.startswith("ragen_gym.")
    return CARD.format(
        license="license: mit\n" if ours else "",
        file=file,
        n=len(levels),
        game=env.game_spec.name,
        summary=env.game_spec.summary[:1].upper() + env.game_spec.summary[1:],
        split=f"the split {env.split}" if env.split else "any split",
        random=f"{100 * rate.rate:.1f}",
        low=f"{100 * rate.low:.1f}",
        high=f"{100 * rate.high:.1f}",
        blind=BLIND.format(100 * fmean(blindly), len(blindly)) if blindly else "",
        script=SCRIPT if blindly else "",
        optimal=f"{100 * fmean(solved):.1f}" if solved else "unknown",
        solved=len(solved),
        actions=budget,
        version=ragen_gym.__version__,
        command=command,
        fields=FIELDS[f".{file.rpartition('.')[2]}"],
        licence="MIT, as ragen-gym, whose generator made the levels."
        if ours
        else "The owner of the levels or of the game chooses it, and adds it above as `license`.",
    )
