"""The games for ART (0.5): a rollout that returns a ``Trajectory``, and the groups of a training step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ragen_gym.core.validation import check_number
from ragen_gym.integrations.requirement import requirement
from ragen_gym.integrations.rollout import Rollout, noise_seed_of

with requirement("openpipe-art"):
    import art


async def rollout(
    model: Any,
    game: str,
    seed: int,
    /,
    *,
    split: str | None = "train",
    noise_seed: int | None = None,
    max_tokens: int = 512,
    **options: Any,
) -> art.Trajectory:
    """Play one episode with a model of ART; its replies are kept as the choices that the server gave.

    Args:
        model: an ``art.Model`` or ``art.TrainableModel``.
        game: see ``Rollout``.
        seed: of the level.
        split: see ``Rollout``.
        noise_seed: of the transition noise, in which the members of a group differ.
        max_tokens: of a reply.
        options: see ``Rollout``.

    Returns:
        The reward is the return; the metrics are ``ragen_gym.integrations.METRICS``.
    """
    played = Rollout(game, split=split, **options)
    played.begin(seed, noise_seed)
    said: list[Any] = played.messages
    client, name = model.openai_client(), model.get_inference_name()
    while not played.over:
        answer = await client.chat.completions.create(model=name, messages=played.messages, max_tokens=max_tokens)
        message = played.reply_message(answer.choices[0].message)
        said += [answer.choices[0], *([] if played.over else [{"role": "user", "content": message}])]
    metadata = {"game": game, "split": str(split), "seed": seed, "level_id": played.level_id}
    return art.Trajectory(
        messages_and_choices=said, reward=played.total, metrics=dict(played.metrics()), metadata=metadata
    )


def groups(model: Any, game: str, seeds: Iterable[int], size: int, step: int = 0, /, **arguments: Any) -> list[Any]:
    """A group for each seed, for ``art.gather_trajectory_groups``: ``size`` episodes of one level with other noise.

    Args:
        model: see ``rollout``.
        game: see ``Rollout``.
        seeds: of the levels.
        size: of a group, from 1.
        step: of training; the noise of a level differs from step to step.
        arguments: of ``rollout``.

    Raises:
        ValueError: ``size`` is no whole number from 1.
    """
    check_number("groups", "size", size, 1, whole=True)
    return [
        art.TrajectoryGroup(
            rollout(model, game, seed, noise_seed=noise_seed_of(f"{step} {seed} {member}"), **arguments)
            for member in range(size)
        )
        for seed in seeds
    ]
