"""The games in Molt (0.2) as a step environment: whole conversations, of which Molt keeps the sampled ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from ragen_gym.integrations.requirement import requirement
from ragen_gym.integrations.rollout import Rollout, episode_name, noise_seed_of, rows
from ragen_gym.integrations.token_rollout import TokenRollout

with requirement("molt-rl"):
    from molt.agents import Env, Result, StepEnvRunner, Trajectory


class GameEnv(Env):
    """One episode, of the level that the label of the row names; see ``molt_rows``.

    Args:
        game: see ``Rollout``.
        options: see ``Rollout``; those that the rows were written with.
        tokenizer: of the model, with a chat template.
    """

    def __init__(self, game: str, options: dict[str, Any], tokenizer: Any) -> None:
        super().__init__()
        self._game, self._options, self._tokenizer = game, options, tokenizer

    async def reset(self, state: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Start the episode.

        Raises:
            ValueError: the label names no level, or the prompt is not its level's first messages in the chat template.
        """
        try:
            level = json.loads(state["label"])
            split, seed, noise_seed = level["split"], level["seed"], level.get("noise_seed")
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"the label {state['label']!r} names no level by split and seed: write the rows with rows.py, and give "
                "--data.label_key label."
            ) from error
        self._rollout = Rollout(self._game, split=split, **self._options)
        self._rollout.begin(seed, noise_seed_of(episode_name()) if noise_seed is None else noise_seed)
        self._tokens = TokenRollout(self._rollout, self._tokenizer)
        if self._encode(state["observation"]) != self._tokens.prompt:
            raise ValueError(
                f"the prompt is not that of seed {seed}: were the rows written with other options of the game, or is "
                "--data.apply_chat_template missing?"
            )
        return state

    async def step(self, state: dict[str, Any], **_: Any) -> Result:
        """Take a reply; the observation is what the chat template puts between it and the next one."""
        sampled = self._encode(state["action_text"])
        before = len(self._tokens.ids) + len(sampled)
        self._tokens.reply(sampled)
        metrics, over = self._rollout.metrics(), self._rollout.over
        truncated = bool(metrics["truncated"])
        return Result(
            reward=self._rollout.rewards[-1],  # Molt sums them
            score=metrics["success"],  # its dynamic filtering keeps groups with scores between 0 and 1
            observation=self._tokenizer.decode(self._tokens.ids[before:], clean_up_tokenization_spaces=False),
            terminated=over and not truncated,
            truncated=truncated,
            info=metrics,
        )

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text=text, add_special_tokens=False)["input_ids"])


class GameRunner(StepEnvRunner):
    """Rollouts of one game; ``AgentRunner`` of the file that ``--train.agent_path`` names is a subclass."""

    game: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}  # see ``Rollout``

    def __init__(self) -> None:
        super().__init__(GameEnv)
        Rollout(self.game, **self.options)  # an unknown game or option is an error here, not in a rollout

    async def execute(self, *arguments: Any, hf_tokenizer: Any, **others: Any) -> Trajectory:
        """One episode; arguments as of ``StepEnvRunner``, which gives its environments no tokenizer."""
        self.env_cls = partial(GameEnv, self.game, self.options, hf_tokenizer)
        return await super().execute(*arguments, hf_tokenizer=hf_tokenizer, **others)


def molt_rows(game: str, count: int, /, **options: Any) -> Iterator[dict[str, Any]]:
    """Rows as Molt reads them from JSON lines, one for each seed. Arguments as of ``rows``."""
    for row in rows(game, count, **options):
        label = json.dumps({name: row[name] for name in ("split", "seed", "level_id")})
        yield {"input": row["prompt"], "label": label, "datasource": f"{game}/{row['split'] or 'all'}"}
