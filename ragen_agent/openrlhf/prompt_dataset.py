"""The prompt dataset of a run: a list of level seeds.

OpenRLHF draws prompts from a dataset and samples each of them several times. All samples of a prompt get the same
label, so the label names the level and a group shares its level by construction. The text of a row is only a name: the
prompt's tokens are made from the level when it is played.

Iteration i of a run plays rows i * groups to (i + 1) * groups - 1, every row once, so the position in the list after a
resume follows from the iteration. Seeds are drawn as in the local trainer: both play the same levels with the same
``seed``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ragen_agent.config import Config, Turns, with_settings
from ragen_agent.run.evaluation import evaluated_levels
from ragen_agent.tasks.tasks import SeedStream, all_settings, derive_seed, draw_games, games_at, level_seeds, make_env
from ragen_gym.core.storage import write_atomic
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.games.registry import own_module


@dataclass(frozen=True)
class PromptRow:
    """One prompt: a level of a game. ``iteration`` is -1 for evaluation, whose rows have their own ``noise_seed``."""

    iteration: int
    prompt: int
    game: str
    env_options: dict[str, Any]
    turns: dict[str, Any]
    seed: int
    split: str
    noise_seed: int | None = None

    @property
    def label(self) -> str:
        """The row as JSON; ``from_label`` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_label(cls, label: str) -> PromptRow:
        """The row of a label; raises a ValueError if it is not one."""
        try:
            return cls(**json.loads(label))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the label {label!r} is not a row of a prompt dataset: {error}") from error

    @property
    def environment(self) -> str:
        """Rows with an equal value are played in equal environments."""
        return json.dumps([self.game, self.env_options, self.turns, self.split])

    def noise(self, seed: int, member: int, shared: bool = False) -> int:
        """The noise seed of one sample of the group; ``seed`` is the run's, ``shared`` is ``training.shared_noise``."""
        if self.noise_seed is not None:
            return self.noise_seed
        if shared:
            return self.seed
        return derive_seed(seed, SeedStream.REMOTE_NOISE, self.iteration, self.prompt, member)

    def request(self, seed: int, member: int, turn: int) -> int:
        """The seed with which one reply is sampled; for evaluation it is the same in every run."""
        if self.iteration < 0:
            return derive_seed(0, SeedStream.REMOTE_SAMPLING, 0, self.prompt, member, turn)
        return derive_seed(seed, SeedStream.REMOTE_SAMPLING, 1 + self.iteration, self.prompt, member, turn)


def train_rows(config: Config) -> Iterator[PromptRow]:
    """The rows of a run: ``iterations`` times ``groups``, new levels of the training split in every iteration."""
    for iteration in range(config.training.iterations):
        yield from rows_of_iteration(config, iteration, config.training.groups)


def rows_of_iteration(config: Config, iteration: int, groups: int, refill: int = 0) -> Iterator[PromptRow]:
    """So many rows of an iteration; ``refill`` as of ``level_seeds``. Rows of further rounds are in no dataset."""
    levels = level_seeds(config.seed, iteration, groups, refill)
    shares = games_at(config, iteration)
    chosen = draw_games(shares, config.seed, iteration, groups, refill)
    first = refill * config.training.groups
    for prompt, (seed, index) in enumerate(zip(levels, chosen, strict=True), first):
        game = shares[int(index)].config
        yield PromptRow(iteration, prompt, game.game, dict(game.env_options), asdict(game.turns), seed, "train")


def evaluation_rows(config: Config) -> list[PromptRow]:
    """The fixed levels on which every run is evaluated, the same as in the local trainer."""
    _, instances = evaluated_levels(config)
    how = config.game, dict(config.env_options), asdict(config.turns)
    return [
        PromptRow(-1, number, *how, i.seed, config.evaluation.split, i.noise_seed) for number, i in enumerate(instances)
    ]


def env_of(row: PromptRow, config: Config) -> ReplyEnv:
    """The environment in which a row is played.

    Raises:
        ValueError: an unknown game or option, or a game of a module that the run's settings do not name.
    """
    if own_module(str(row.game)) not in {"", *(own_module(game.game) for game in all_settings(config))}:
        raise ValueError(
            f"a row of the prompt dataset plays {row.game}, a game of a module that the run's settings do not name: "
            "name it there (game, or in [[games]]), if you trust who wrote the rows."
        )
    settings = replace(config, game=row.game, env_options=dict(row.env_options), turns=turns_of(row, config))
    return make_env(settings, row.split)


def families_of_rows(rows: Iterable[PromptRow], config: Config) -> set[int]:
    """The families (``ragen_gym.games.game.Game.family``) of the levels of rows."""
    seeds: dict[str, list[int]] = {}
    first: dict[str, PromptRow] = {}
    for row in rows:
        first.setdefault(row.environment, row)
        seeds.setdefault(row.environment, []).append(row.seed)
    envs = {name: env_of(row, config) for name, row in first.items()}
    return {family for name, env in envs.items() for family in env.level_families(seeds[name])}


def turns_of(row: PromptRow, config: Config) -> Turns:
    """The settings of a row's turns."""
    return with_settings(config.turns, row.turns, "games.turns.")


def write_rows(path: Path, rows: Iterable[PromptRow]) -> None:
    """Writes the dataset as lines of ``{"prompt", "label"}``."""
    lines = [
        json.dumps({"prompt": f"{row.game}, level seed {row.seed}", "label": row.label}, ensure_ascii=False) + "\n"
        for row in rows
    ]
    write_atomic(path, "".join(lines))
