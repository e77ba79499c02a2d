"""The games in verl (0.7.1 to 0.9) as an agent loop: whole conversations, of which the sampled ids are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen_gym.integrations.requirement import requirement
from ragen_gym.integrations.rollout import Rollout, episode_name, noise_seed_of
from ragen_gym.integrations.token_rollout import TokenRollout

with requirement("verl"):
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
    from verl.utils.profiler import simple_timer


class GameLoop(AgentLoopBase):
    """One episode, of the level that ``extra_info`` of the row names; see ``ragen_gym.integrations.rollout.verl_rows``.

    The reward is the return. ``data.max_response_length`` is the limit of all replies and messages after the prompt.

    Args:
        arguments: of ``AgentLoopBase``.
        options: of the game and of its turns; see ``Rollout``. Those that the rows were written with.
        further: of ``AgentLoopBase``.
    """

    def __init__(self, *arguments: Any, options: Mapping[str, Any] | None = None, **further: Any) -> None:
        super().__init__(*arguments, **further)
        self._options: Any = OmegaConf.to_container(OmegaConf.create(dict(options or {})))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play the episode.

        Raises:
            ValueError: the row is none of these rows, or was written with other options of the game, or its prompt is
                longer than ``data.max_prompt_length``.
        """
        name = episode_name()
        rollout = self._begin(row, name)
        tokens = TokenRollout(rollout, self.tokenizer, **self.config.data.get("apply_chat_template_kwargs", {}))
        longest, limit = self.config.data.max_prompt_length, self.config.data.max_response_length
        if len(tokens.prompt) > longest:
            raise ValueError(f"the prompt has {len(tokens.prompt)} tokens, data.max_prompt_length={longest}: raise it.")
        metrics: dict[str, float] = {}
        steps: list[dict[str, Any]] = []  # of training, in which the replies were sampled
        while True:
            with simple_timer("generate_sequences", metrics):
                output = await self.server_manager.generate(
                    request_id=name,
                    prompt_ids=tokens.prompt + tokens.ids,
                    sampling_params={**sampling_params, "max_tokens": limit - len(tokens.ids)},
                )
            steps.append(output.extra_fields)
            if not tokens.reply(output.token_ids, output.log_probs, limit):
                break
        oldest = {name: value for name, value in steps[0].items() if name == "min_global_steps"}
        values = rollout.metrics()
        return AgentLoopOutput(
            prompt_ids=tokens.prompt,
            response_ids=tokens.ids,
            response_mask=tokens.mask,
            response_logprobs=tokens.log_probs if output.log_probs else None,
            multi_modal_data={},
            reward_score=rollout.total,
            num_turns=len(rollout.messages),
            metrics=metrics,
            extra_fields={
                **steps[-1],
                **oldest,
                "turn_scores": rollout.rewards,
                "tool_rewards": [],
                "reward_extra_info": {"acc": values["success"], **values},
            },
        )

    def _begin(self, row: dict[str, Any], name: str) -> Rollout:
        level = row.get("extra_info") or {}
        if not {"game", "split", "seed"} <= level.keys():
            raise ValueError(
                f"extra_info of the row names no level, with game, split and seed: {level}. Write the rows with "
                "ragen_gym.integrations.rollout.verl_rows."
            )
        noise_seed = level.get("noise_seed")
        rollout = Rollout(level["game"], split=level["split"], **self._options)
        rollout.begin(level["seed"], noise_seed_of(name) if noise_seed is None else noise_seed)
        begun = [message["content"] for message in rollout.messages]
        if [message["content"] for message in row["raw_prompt"]] != begun:
            raise ValueError(
                f"the prompt is not that of seed {level['seed']}: were the rows written with other options of the game?"
            )
        return rollout
