"""The games in TRL's ``GRPOTrainer`` (1.16) as whole conversations, through its ``rollout_func``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ragen_gym.integrations.rollout import METRICS, Rollout
from ragen_gym.integrations.trl import unused_noise_seed

__all__ = ["game_return", "rollout_func"]

_MARK = "@@reply@@"


def game_return(completions: list[Any], log_metric: Callable[[str, float], None], **columns: Any) -> list[float]:
    """The reward of what ``rollout_func`` played: ``GRPOTrainer(reward_funcs=[game_return])``. Logs the metrics."""
    for name in METRICS:
        log_metric(f"game/{name}", sum(columns[name]) / len(completions))
    return list(columns["game_return"])


def rollout_func(
    rows: Iterable[Mapping[str, Any]], max_tokens: int | None = None, **options: Any
) -> Callable[..., Any]:
    """What ``GRPOTrainer(rollout_func=…)`` takes: whole conversations, of which the sampled ids are kept as they are.

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
        tokenizer, chosen = trainer.processing_class, [begins[prompt[-1]["content"]] for prompt in prompts]
        rollouts = [Rollout(game, split=split, **options) for game, split, _ in chosen]
        for rollout, (_, _, seed) in zip(rollouts, chosen, strict=True):
            rollout.begin(seed, unused_noise_seed())
        starts = [tokenizer.apply_chat_template(p, add_generation_prompt=True, return_dict=False) for p in prompts]
        ids: list[list[int]] = [list(start) for start in starts]
        mask: list[list[int]] = [[] for _ in prompts]
        log_probs: list[list[float]] = [[] for _ in prompts]
        live, probs = list(range(len(prompts))), None
        while live:
            sampled, probs = trainer._generate_single_turn([ids[i] for i in live], None, {}, 1)
            for place, i in enumerate(live):
                message = rollouts[i].reply(tokenizer.decode(sampled[place], skip_special_tokens=True))
                glue = [] if rollouts[i].over else _glue(tokenizer, message, sampled[place])
                ids[i] += [*sampled[place], *glue]
                mask[i] += [1] * len(sampled[place]) + [0] * len(glue)
                log_probs[i] += [*(probs[place] if probs else ()), *[0.0] * len(glue)]
            live = [i for i in live if not rollouts[i].over and (max_tokens is None or len(mask[i]) < max_tokens)]
        metrics = {name: [rollout.metrics()[name] for rollout in rollouts] for name in METRICS}
        played: dict[str, Any] = {
            "prompt_ids": starts,
            "completion_ids": [i[len(s) :] for i, s in zip(ids, starts, strict=True)],
        }
        played |= {"logprobs": log_probs if probs else None, "env_mask": mask}
        return played | metrics | {"game_return": [rollout.total for rollout in rollouts]}

    return play


def _glue(tokenizer: Any, message: str, sampled: list[int]) -> list[int]:
    """The ids between a reply, as it was sampled, and the next one: the end of the turn and the user message."""
    turns = [{"role": "user", "content": "."}, {"role": "assistant", "content": _MARK}]
    turns.append({"role": "user", "content": message})
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False).partition(_MARK)[2]
    if sampled and sampled[-1] == tokenizer.eos_token_id:
        text = text.removeprefix(tokenizer.eos_token)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
