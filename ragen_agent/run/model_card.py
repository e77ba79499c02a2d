"""Model card of a run's checkpoint: its measured rates, how it was made, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen_agent.config import Config
from ragen_agent.config.settings import model_name, pretrained
from ragen_agent.models.catalogue import NAMED_MODELS
from ragen_agent.run.console import ROWS, episode_counts, measured_on
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import write_atomic

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [ragen-gym, reinforcement-learning]
---

# A language model that plays {games}

Trained by `ragen-agent train` with {rule} ({algo}), seed {seed}.
{tables}
One episode on each of n {levels}, at temperature {temperature:g}; Wilson's 95 % interval. The model was measured
on nothing else.

## How it was made

- Start: {start}.
- Imitation: {imitation}.
- Reinforcement: {iterations} iterations of {groups} groups of {group_size} episodes, learning rate {learning_rate:g}.
- Versions: {versions}.

`ragen-agent train --config config.toml` repeats the run; `config.toml` lies in the run's folder, beside this one.

## Use

`ragen-agent eval FOLDER --game {game}` plays levels with the model in this folder, and `transformers` loads it as any
causal language model. `seen.npy`, if it is here, records the levels that it was trained on.

## Licence

The owner of the weights chooses it, and adds it above as `license`. {licence}
"""


def write_model_card(config: Config, summary: Mapping[str, Any], folder: RunFolder) -> None:
    """Writes ``README.md`` into the run's checkpoint, if there is one, from the run's own records.

    A card whose first lines the owner of the weights has changed, for a licence, stays as it is.

    Args:
        config: the run's settings.
        summary: the run's rates, as in ``summary.json``.
        folder: the run's folder.
    """
    path = folder.checkpoint / "README.md"
    header = CARD.partition("\n#")[0]
    if not folder.checkpoint.is_dir() or (path.is_file() and not path.read_text("utf-8").startswith(header)):
        return
    training, how = config.training, config.demonstrations
    games = {config.game: summary, **summary.get("games", {})}
    base = NAMED_MODELS.get(Path(config.model).name)
    noted = folder.read_versions()
    packages = noted[-1].get("packages", {}) if noted else {}
    card = CARD.format(
        games=" and ".join(games),
        game=config.game,
        rule="StarPO-S" if training.starpo_s else "StarPO",
        algo=training.algo,
        seed=config.seed,
        tables="".join(_table(game, rates) for game, rates in games.items()),
        levels=measured_on(config.evaluation.split),
        temperature=config.evaluation.temperature,
        start=_start(config),
        imitation=f"{config.warm_start.epochs} epochs of {how.episodes:,} scripted demonstrations"
        if config.warm_start.epochs
        else "none",
        iterations=training.iterations,
        groups=training.groups,
        group_size=training.group_size,
        learning_rate=training.learning_rate,
        versions=", ".join(f"{name} {version}" for name, version in packages.items()) or "not recorded",
        licence=f"The base model's licence is {base.licence}."
        if base
        else "The licence of the base model applies too."
        if pretrained(config.model)
        else "No other model's weights are in it.",
    )
    write_atomic(path, card)


def _table(game: str, rates: Mapping[str, Any]) -> str:
    lines = [f"\n| {game} | success, % | 95 % interval | n | meaning |", "|---|---|---|---|---|"]
    for row, meaning in ROWS.items():
        if row in rates:
            rate = Rate.from_dict(rates[row])
            about = meaning + episode_counts(rate.failed, rate.overflowed)
            interval = f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"
            lines.append(f"| {row.replace('_', ' ')} | {100 * rate.rate:.1f} | {interval} | {rate.n} | {about} |")
    return "\n".join(lines) + "\n"


def _start(config: Config) -> str:
    if not config.model:
        return "a small model from scratch"
    return f"the model `{model_name(config.model)}`"
