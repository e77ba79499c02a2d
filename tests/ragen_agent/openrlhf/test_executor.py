"""The agent executor between OpenRLHF and vLLM: what it asks vLLM for, and what it hands to OpenRLHF."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from vllm import SamplingParams

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.episode import ContractError
from ragen_agent.openrlhf.executor import AgentExecutor
from ragen_agent.openrlhf.processes import VARIABLE, RunContext
from ragen_agent.openrlhf.prompt_dataset import PromptRow, train_rows
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.trajectory import Trajectory

pytestmark = pytest.mark.filterwarnings("default")

CONFIG = with_settings(
    Config(),
    {
        "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
        "env_options": {"size": 4, "success_rate": 0.5},
        "turns": {"max_turns": 3, "max_tokens_per_turn": 12, "max_tokens_per_episode": 200},
        "training": {"iterations": 2, "groups": 2, "group_size": 4},
    },
)
MEMBERS = CONFIG.training.group_size


@pytest.fixture(scope="module")
def agent() -> Policy:
    return Policy.build(CONFIG)


@pytest.fixture
def executor(agent: Policy, monkeypatch: pytest.MonkeyPatch) -> AgentExecutor:
    run = RunContext(CONFIG, OpenRLHF(), "/nowhere", (1, 2), len(agent.tokenizer))
    monkeypatch.setenv(VARIABLE, run.to_json())
    return AgentExecutor()


class Engine:
    """Answers as vLLM does, always with the same reply, and keeps what it was asked."""

    def __init__(self, reply: Sequence[int]) -> None:
        self.reply, self.asked = list(reply), list[tuple[list[int], Any]]()

    async def generate(self, ids: list[int], parameters: Any, multi_modal_data: Any = None) -> Any:
        self.asked.append((ids, parameters))
        await asyncio.sleep(0)
        said = self.reply[: parameters.max_tokens]
        logprobs = [{token: SimpleNamespace(logprob=-0.25)} for token in said]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(said), logprobs=logprobs)])


def sample(executor: AgentExecutor, agent: Policy, engine: Engine, row: PromptRow, given: Any) -> list[dict[str, Any]]:
    async def all_members() -> list[dict[str, Any]]:
        asked = [
            executor.execute("name", row.label, given, 200, agent.tokenizer, engine)
            for _ in range(MEMBERS if row.iteration >= 0 else 1)
        ]
        return await asyncio.gather(*asked)

    return asyncio.run(all_members())


def played(response: dict[str, Any]) -> Trajectory:
    return Trajectory.from_dict(json.loads(response["label"])["trajectory"])


def right(agent: Policy) -> list[int]:
    return [
        *agent.tokenizer.encode("<think></think><answer>Right</answer>", add_special_tokens=False),
        agent.chat.end_id,
    ]


def test_requests_have_parameters_of_their_own(executor: AgentExecutor, agent: Policy) -> None:
    engine, given = Engine(right(agent)), SamplingParams(temperature=0.7, top_p=0.9, max_tokens=None)
    row = next(train_rows(CONFIG))
    responses = sample(executor, agent, engine, row, given)
    assert given.max_tokens is None
    parameters = [p for _, p in engine.asked]
    assert len({id(p) for p in parameters}) == len(parameters) == len({p.seed for p in parameters})
    assert all(p.temperature == 0.7 and p.top_p == 0.9 for p in parameters)
    assert all(set(p.stop_token_ids) == agent.chat.stop_ids and p.ignore_eos for p in parameters)
    assert all(set(p.logit_bias) == {1, 2} for p in parameters)
    assert all(0 < p.max_tokens <= min(12, 200 - len(ids)) for ids, p in engine.asked)
    assert sorted(json.loads(r["label"])["member"] for r in responses) == list(range(MEMBERS))
    again = Engine(right(agent))
    repeated = sample(executor, agent, again, row, given)
    assert [r["label"] for r in repeated] == [r["label"] for r in responses], "a group that is played again repeats"
    assert sorted(p.seed for _, p in again.asked) == sorted(p.seed for p in parameters)


def test_openrlhf_reads_the_row_as_it_was_sampled(executor: AgentExecutor, agent: Policy) -> None:
    engine = Engine(right(agent))
    response = sample(executor, agent, engine, next(train_rows(CONFIG)), SamplingParams())[0]
    generator = SamplesGenerator.__new__(SamplesGenerator)
    experience = generator._process_response_into_experience(response, max_len=200)
    trajectory = played(response)
    assert experience.sequences[0].tolist() == trajectory.ids.tolist()
    assert experience.action_mask[0].bool().tolist() == trajectory.sampled[1:].tolist()
    assert torch.equal(experience.rollout_log_probs[0], torch.tensor(trajectory.log_probs[1:]))
    assert float(experience.rewards[0]) == pytest.approx(trajectory.total_reward)
    asked = [ids for ids, p in engine.asked if ids == trajectory.ids.tolist()[: len(ids)]]
    assert len({len(ids) for ids in asked}) == len(trajectory.turn_ends), "every prompt is the row as it stands"


def test_a_failed_episode_is_a_row_without_loss(executor: AgentExecutor, agent: Policy) -> None:
    class Dead(Engine):
        async def generate(self, ids: list[int], parameters: Any, multi_modal_data: Any = None) -> Any:
            raise RuntimeError("engine lost")

    response = sample(executor, agent, Dead([]), next(train_rows(CONFIG)), SamplingParams())[0]
    assert str(played(response).failure).startswith("engine_error: RuntimeError")
    generator = SamplesGenerator.__new__(SamplesGenerator)
    experience = generator._process_response_into_experience(response, max_len=200)
    assert int(experience.action_mask.sum()) == 0
    assert float(experience.rewards[0]) == 0.0


def test_what_no_episode_can_be_played_with_ends_the_run(executor: AgentExecutor, agent: Policy) -> None:
    row = next(train_rows(CONFIG))
    broken = PromptRow(row.iteration, 7, "FrozenLake", {"no_such_option": 1}, row.turns, 1, "train")
    with pytest.raises(ContractError, match="no_such_option"):
        sample(executor, agent, Engine(right(agent)), broken, SamplingParams())
    with pytest.raises(ValueError, match="is not a row of a prompt dataset"):
        asyncio.run(executor.execute("name", "no json", SamplingParams(), 200, agent.tokenizer, Engine([])))


def test_a_request_that_vllm_refuses_ends_the_run(executor: AgentExecutor, agent: Policy) -> None:
    """Every other request would be refused too; vLLM's error is no ValueError from 0.29 on."""
    from vllm.exceptions import VLLMValidationError

    class Strict(Engine):
        async def generate(self, ids: list[int], parameters: Any, multi_modal_data: Any = None) -> Any:
            raise VLLMValidationError("too long", parameter="max_tokens", value=9)

    with pytest.raises(ContractError, match=r"vLLM refuses a request: too long \(parameter=max_tokens, value=9\)"):
        sample(executor, agent, Strict([]), next(train_rows(CONFIG)), SamplingParams())
