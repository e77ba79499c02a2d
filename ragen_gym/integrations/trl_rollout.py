"""The games in TRL's ``GRPOTrainer`` (1.16) as whole conversations, through its ``rollout_func``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ragen_gym.integrations.rollout import METRICS, Rollout
from ragen_gym.integrations.token_rollout import TokenRollout
from ragen_gym.integrations.trl import unused_noise_seed


def game_return(completions: list[Any], log_metric: Callable[[str, float], None], **columns: Any) -> list[float]:
    """The reward of what ``rollout_func`` played: ``GRPOTrainer(reward_funcs=[game_return])``. Logs the metrics."""
    for name in METRICS:
        log_metric(f"game/{name}", sum(columns[name]) / len(completions))
    return list(columns["game_return"])


def rollout_func(
    rows: Iterable[Mapping[str, Any]], max_tokens: int | None = None, **options: Any
) -> Callable[..., Any]:
    """Argument for ``GRPOTrainer(rollout_func=…)``: whole conversations, whose sampled ids are kept as they are.

    Args:
        rows: those of all data sets, as ``ragen_gym.integrations.rows`` gives them; a prompt says which row it is.
        max_tokens: after which an episode stops, unfinished; None for as many replies as the game allows. A reply has
            at most ``max_completion_length`` tokens.
        options: those that the rows were made with.
    """
    begins = {row["prompt"][-1]["content"]: (row["game"], row["split"], row["seed"]) for row in rows}

    def play(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        if not {prompt[-1]["content"] for prompt in prompts} <= begins.keys():
            raise ValueError("a prompt is that of no row: give rollout_func the rows of eval_dataset too.")
        chosen = [begins[prompt[-1]["content"]] for prompt in prompts]
        rollouts = [Rollout(game, split=split, **options) for game, split, _ in chosen]
        for rollout, (_, _, seed) in zip(rollouts, chosen, strict=True):
            rollout.begin(seed, unused_noise_seed())
        tokens = [TokenRollout(rollout, trainer.processing_class) for rollout in rollouts]
        live, probs = tokens, None
        while live:
            sampled, probs = trainer._generate_single_turn([row.prompt + row.ids for row in live], None, {}, 1)
            given = zip(live, sampled, probs or [None] * len(live), strict=True)
            live = [row for row, ids, log_probs in given if row.reply(ids, log_probs, max_tokens)]
        metrics = {name: [rollout.metrics()[name] for rollout in rollouts] for name in METRICS}
        played: dict[str, Any] = {
            "prompt_ids": [row.prompt for row in tokens],
            "completion_ids": [row.ids for row in tokens],
            "logprobs": [row.log_probs for row in tokens] if probs else None,
            "env_mask": [row.mask for row in tokens],
        }
        return played | metrics | {"game_return": [rollout.total for rollout in rollouts]}

    return play
