"""The agent executor: from a prompt's label it plays an episode against vLLM and returns the row to train on.

OpenRLHF loads this file by its path (``--train.agent_func_path``) in the process that owns a vLLM engine, and calls
``execute`` once for each sample of a prompt, all concurrently. The module is loaded without an entry in
``sys.modules``, so it cannot define dataclasses; the trainer's end is in ``experience``.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from openrlhf.utils.agent import AgentExecutorBase

from ragen_agent.inference import ImageSpan, Sampled
from ragen_agent.inference.vllm_engine import request, sampled
from ragen_agent.models.small_model import check_known
from ragen_agent.openrlhf.episode import ContractError, Generate, play_episode, play_program, response_of
from ragen_agent.openrlhf.processes import RunContext
from ragen_agent.openrlhf.prompt_dataset import PromptRow, env_of, turns_of
from ragen_agent.programs.endpoint import Endpoint
from ragen_agent.tasks.tasks import records_states
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.threads import in_thread
from ragen_gym.envs.reply_env import ReplyEnv


class AgentExecutor(AgentExecutorBase):  # type: ignore[misc]
    """Plays episodes; keeps the chat format, and the token processes of finished episodes for reuse."""

    def __init__(self) -> None:
        self.run = RunContext.from_environment()
        self.bias = dict.fromkeys(self.run.suppressed_ids, -100.0)  # the lowest that vLLM takes; never drawn
        self.chat: ChatFormat | None = None
        self.members: Counter[str] = Counter()
        self.idle: defaultdict[str, list[TokenMDP]] = defaultdict(list)
        self.endpoint: Endpoint | None = None  # of programs, with as many at a time as the semaphore lets in
        self.programs: asyncio.Semaphore

    def env(self, row: PromptRow) -> ReplyEnv:
        """The environment of a row."""
        return env_of(row, self.run.config)

    async def execute(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """One episode of the level that ``label`` names, as the row that OpenRLHF's sample generator reads.

        The row's label becomes JSON of the sample's number in its group and the whole ``Trajectory``; ``updates`` is
        how many the engine's weights had received when the episode began.

        Raises:
            ContractError: see ``play_episode``; or a label, game or chat template that cannot be used.
        """
        row, member = PromptRow.from_label(label), self._member(label)
        config, updates = self.run.config, getattr(llm_engine, "updates", 0)
        if self.chat is None:
            self.chat = ChatFormat.from_settings(hf_tokenizer, config.turns, self.run.vision)
        process = await self._process(row, self.chat)
        generate = partial(self._generate, llm_engine, sampling_params)
        play = self._play_program if config.program.command else self._play
        trajectory = await play(process, generate, row, member)
        if trajectory.failure is None:  # a process that failed may still be held by a thread
            self.idle[row.environment].append(process)
        label = json.dumps({"member": member, "trajectory": trajectory.to_dict()})
        return response_of(trajectory, prompt, label) | {"updates": updates}

    async def _play(self, process: TokenMDP, generate: Generate, row: PromptRow, member: int) -> Trajectory:
        config, settings = self.run.config, self.run.settings
        return await play_episode(
            process,
            generate,
            seed=row.seed,
            noise_seed=row.noise(config.seed, member, config.training.shared_noise),
            request_seed=lambda turn: row.request(config.seed, member, turn),
            generation_timeout=settings.generation_timeout,
            environment_timeout=settings.environment_timeout,
            check=partial(check_known, process.chat.tokenizer),
        )

    async def _play_program(self, process: TokenMDP, generate: Generate, row: PromptRow, member: int) -> Trajectory:
        config, settings = self.run.config, self.run.settings
        if self.endpoint is None:
            self.endpoint, self.programs = Endpoint(), asyncio.Semaphore(config.program.workers)
            self.endpoint.start()
        async with self.programs:
            return await play_program(
                self.endpoint,
                config.program,
                process,
                generate,
                Instance(row.seed, row.noise(config.seed, member, config.training.shared_noise)),
                request_seed=lambda number: row.request(config.seed, member, number),
                generation_timeout=settings.generation_timeout,
                check=partial(check_known, process.chat.tokenizer),
            )

    def _member(self, label: str) -> int:
        """The number of this sample in its group, in the order in which they start."""
        member = self.members[label]
        self.members[label] = member + 1
        if member + 1 >= (1 if PromptRow.from_label(label).iteration < 0 else self.run.config.training.group_size):
            del self.members[label]
        return member

    async def _process(self, row: PromptRow, chat: ChatFormat) -> TokenMDP:
        idle = self.idle[row.environment]
        if idle:
            return idle.pop()

        def make() -> TokenMDP:
            config = self.run.config
            states = records_states(config, row.split)
            return TokenMDP.from_settings(self.env(row), chat, turns_of(row, config), record_states=states)

        try:
            return await in_thread(make, timeout=self.run.settings.environment_timeout)
        except Exception as error:  # which every episode needs
            raise ContractError(f"the environment of {row} cannot be made: {error}") from error

    async def _generate(
        self,
        engine: Any,
        sampling: Any,
        ids: Sequence[int],
        images: Sequence[ImageSpan],
        *,
        limit: int,
        seed: int,
    ) -> Sampled:
        """One reply of vLLM; the samples of a prompt share no parameters.

        Raises:
            ValueError: vLLM refuses the request, as it would every other; or it read other tokens than ``ids``, since
                it cuts pictures in another way.
        """
        from vllm.exceptions import VLLMValidationError

        assert self.chat is not None
        how = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        parameters = request(self.chat.stop_ids, limit, seed, self.bias, **how)
        try:
            answer = await engine.generate(list(ids), parameters, multi_modal_data=self._pictures(images))
        except VLLMValidationError as error:  # no ValueError itself from vLLM 0.29 on
            raise ValueError(f"vLLM refuses a request: {error}") from error
        if images and answer.prompt_token_ids != list(ids):
            raise ValueError(
                f"vLLM read {len(answer.prompt_token_ids)} tokens where {len(ids)} were recorded: it cuts pictures in "
                "another way than the image processor's file says; use the model's own file and the tested vLLM."
            )
        return sampled(answer)

    def _pictures(self, images: Sequence[ImageSpan]) -> dict[str, Any] | None:
        """Pictures as vLLM takes them: at the size at which the model reads them, so that it scales none."""
        if not images:
            return None
        from PIL import Image

        assert self.chat is not None
        assert self.chat.vision is not None
        resized = self.chat.vision.processor.resized
        return {"image": [Image.fromarray(resized(image.pixels)) for image in images]}
