"""vLLM in the trainer's process against the model that is trained: its distribution, weights, seeds and limits."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import TopKLogitsWarper, TopPLogitsWarper

from ragen_agent.config import Config, Lora, Program, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.inference import Engine, Sampled
from ragen_agent.inference.sampling import SUPPRESSED
from ragen_agent.inference.torch_engine import TorchEngine
from ragen_agent.local.run import train
from ragen_agent.models.parameters import adamw, adapt, merge
from ragen_agent.programs.rollout import play_programs
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.rollout import group
from ragen_agent.update.batches import Batch
from ragen_agent.update.scoring import sampled_scores
from ragen_gym.core.storage import read_json_lines
from tests.pages import ROOT, script_of
from tests.ragen_agent.displays import Interrupting, quiet

if find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: make test-openrlhf has it", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

CONFIG = with_settings(
    Config(),
    {
        "engine": "vllm",
        "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
        "env_options": {"size": 4},
        "turns": {"max_turns": 3, "max_tokens_per_turn": 7, "max_tokens_per_episode": 240},
    },
)
PROMPT = [1, 2, 3]


@pytest.fixture
def agent() -> Policy:
    """A new model that prefers some ids, with likelier ends, so that turns of one batch differ in length."""
    agent = Policy.build(CONFIG)
    with torch.no_grad():
        for weight in agent.model.parameters():
            weight.mul_(2.0)
    agent.engine.bias[agent.chat.end_id] += 5.0
    return agent


def truth(agent: Policy, rows: list[list[int]], temperature: float) -> torch.Tensor:
    """The logits after each row, from the model itself."""
    with torch.no_grad():
        logits = [agent.model(torch.tensor([ids])).logits[0, -1] for ids in rows]
    return (torch.stack(logits) + agent.engine.bias) / temperature


def replies(engine: Engine, prompts: list[list[int]], limits: list[int], seed: int, **how: Any) -> list[Sampled]:
    session = engine.start(prompts, **{"temperature": 1.0, "seed": seed, **how})
    found = [reply for reply in session.reply(limits) if reply is not None]
    session.close()
    assert len(found) == len(prompts)
    return found


def apart(agent: Policy, before: list[int], reply: Sampled) -> float:
    """The largest distance of a reply's log-probs from the model's own after the ids before it."""
    rows = [[*before, *reply.ids[:end]] for end in range(len(reply.ids))]
    expected = truth(agent, rows, 1.0).log_softmax(-1).gather(1, torch.tensor(reply.ids)[:, None])[:, 0]
    return float((torch.tensor(reply.log_probs) - expected).abs().max())


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_log_probs_over_several_turns_are_those_of_training(agent: Policy, temperature: float) -> None:
    played = agent.play(agent.processes("train", 6), group([1, 2, 3, 4, 5], 4), temperature, seed=3)
    assert len({len(t.ids) for t in played}) > 2, "rows of different length, or batches are not tried"
    assert {len(t.turn_ends) for t in played} == {3}
    batch = Batch.of(played)
    with torch.no_grad():
        log_probs = sampled_scores(agent.model, batch, agent.engine.bias, temperature).log_probs
    assert torch.allclose(log_probs, batch.log_probs, atol=1e-4)
    assert (batch.log_probs[batch.sampled] < 0).all()


def test_log_probs_are_of_the_nucleus_that_was_drawn_from(agent: Policy) -> None:
    engine = agent.engine
    engine.top_p, engine.top_k = 0.8, 12
    found = replies(engine, [PROMPT] * 64, [1] * 64, 0, temperature=2.0)
    scores = truth(agent, [PROMPT], 2.0)
    kept = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(12)(None, scores)).log_softmax(-1)[0]
    assert 1 < int(kept.isfinite().sum()) < 12
    expected = [float(kept[reply.ids[0]]) for reply in found]
    assert [reply.log_probs[0] for reply in found] == pytest.approx(expected, abs=1e-4)


def test_suppressed_ids_are_never_drawn_however_likely(agent: Policy) -> None:
    engine = agent.engine
    likely = truth(agent, [PROMPT], 1.0)[0].topk(20).indices
    engine.bias[likely] = SUPPRESSED
    found = replies(engine, [PROMPT] * 400, [4] * 400, 0, temperature=2.0)
    drawn = {token for reply in found for token in reply.ids}
    assert len(drawn) > 50
    assert not drawn & set(likely.tolist())
    expected = truth(agent, [PROMPT], 2.0).log_softmax(-1)[0]
    firsts = [float(expected[reply.ids[0]]) for reply in found]
    assert [reply.log_probs[0] for reply in found] == pytest.approx(firsts, abs=1e-4)


@pytest.mark.parametrize("rank", [0, 4])
def test_each_session_has_the_weights_after_the_last_step(agent: Policy, rank: int) -> None:
    """Of an adapter too, which is merged on the way, and after it has been merged for good.

    The prompt fills blocks of vLLM's cache, which would be of the weights before.
    """
    prompt = list(range(1, 200))
    said = replies(agent.engine, [prompt], [6], 0)[0]
    adapter = adapt(agent.model, Lora(rank=rank), 0) if rank else None

    def distance() -> float:
        return apart(agent, prompt, replies(agent.engine, [prompt], [6], 1)[0])

    optimiser = adamw(agent.model, 0.05, weight_decay=0.0)
    for _ in range(2):
        before = truth(agent, [prompt], 1.0)
        (-agent.model(torch.tensor([[*prompt, *said.ids]])).logits.log_softmax(-1)[0, :, 7].mean()).backward()
        optimiser.step()
        optimiser.zero_grad()
        assert (truth(agent, [prompt], 1.0) - before).abs().max() > 0.1, "a step that changes what the model says"
        assert distance() < 1e-3
    if adapter is not None:
        merge(adapter)
        assert distance() < 1e-3


def test_two_models_of_one_shape_take_turns(agent: Policy) -> None:
    other = Policy.build(replace(CONFIG, seed=1))
    for policy in (agent, other, agent):
        assert all(apart(policy, PROMPT, reply) < 1e-4 for reply in replies(policy.engine, [PROMPT] * 4, [2] * 4, 0))


def test_equal_seeds_give_equal_samples_and_others_do_not(agent: Policy) -> None:
    def ids(seed: int) -> list[list[int]]:
        return [t.ids.tolist() for t in agent.play(agent.processes("train", 4), group([1], 4), 1.0, seed)]

    assert ids(0) == ids(0) != ids(1)
    rows = [reply.ids for reply in replies(agent.engine, [PROMPT] * 8, [6] * 8, 0)]
    assert len({tuple(row) for row in rows}) == 8, "episodes draw on their own"
    alone = replies(agent.engine, [PROMPT], [6], 0, episodes=[5])
    assert alone[0].ids == rows[5], "beside others and alone"


def test_replies_end_at_their_limit_or_at_a_stop_id_and_at_no_other(agent: Policy) -> None:
    end = agent.chat.end_id
    limits = [1, 2, 3, 30] * 16
    for reply, limit in zip(replies(agent.engine, [PROMPT] * 64, limits, 0), limits, strict=True):
        assert len(reply.ids) == len(reply.log_probs)
        assert end not in reply.ids[:-1]
        assert len(reply.ids) == limit or reply.ids[-1] == end
    assert agent.model.config.eos_token_id is not None
    agent.engine.stop_ids = ()
    agent.engine.bias[agent.model.config.eos_token_id] += 6.0
    endless = replies(agent.engine, [PROMPT] * 8, [20] * 8, 0)
    assert {len(reply.ids) for reply in endless} == {20}
    assert any(agent.model.config.eos_token_id in reply.ids[:-1] for reply in endless)


def test_first_tokens_are_as_frequent_as_they_are_probable(agent: Policy) -> None:
    """Both engines; the distribution is the model's."""
    probabilities = truth(agent, [PROMPT], 1.0).softmax(-1)[0].double().numpy()
    torch_engine = TorchEngine(agent.model, agent.chat.stop_ids, len(agent.tokenizer))
    torch_engine.bias = agent.engine.bias
    for engine in (agent.engine, torch_engine):
        counts = np.bincount(
            [reply.ids[0] for reply in replies(engine, [PROMPT] * 4000, [1] * 4000, 0)], minlength=len(probabilities)
        )
        common = 4000 * probabilities >= 5
        assert 20 < common.sum() < len(common), "the rare ones are counted together"
        observed, expected = ([*each[common], each[~common].sum()] for each in (counts, 4000 * probabilities))
        assert chisquare(observed, np.array(expected) / sum(expected) * 4000).pvalue > 0.001


def test_rows_leave_go_on_and_join(agent: Policy) -> None:
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8], [9]]
    session = agent.engine.start(prompts, temperature=1.0, seed=3)
    first = [reply.ids for reply in session.reply([3, 1, 2, 3]) if reply is not None]
    session.feed([1, 3], [[10, 11], [12]])
    session.join([[13, 14]], [9])
    rows = [[*prompts[1], *first[1], 10, 11], [*prompts[3], *first[3], 12], [13, 14]]
    for before, reply in zip(rows, session.reply([4, 3, 2]), strict=True):
        assert reply is not None
        assert apart(agent, before, reply) < 1e-4


def test_a_program_plays_with_it(agent: Policy, tmp_path: Path) -> None:
    script_of(ROOT / "docs" / "guides" / "your_own_agent.md", "python", tmp_path)
    command = shlex.join([sys.executable, str(tmp_path / "my_agent.py")])
    instances = group([1, 2], 2)
    played = play_programs(
        agent.engine, agent.processes("train", 2), instances, Program(command, workers=2), temperature=1.0, seed=5
    )
    assert all(t.failure is None for t in played), [t.failure for t in played]
    batch = Batch.of(played)
    with torch.no_grad():
        log_probs = sampled_scores(agent.model, batch, agent.engine.bias, 1.0).log_probs
    assert torch.allclose(log_probs, batch.log_probs, atol=1e-4)


TINY = {
    "engine": "vllm",
    "demonstrations": {"episodes": 2500},
    "training": {"iterations": 2, "groups": 4, "group_size": 8, "minibatch": 8},
    "evaluation": {"levels": 12},
}


@pytest.mark.parametrize("lora", [{}, {"rank": 4}], ids=["weights", "lora"])
def test_a_run_that_is_interrupted_and_resumed_equals_an_unbroken_one(lora: dict[str, Any], tmp_path: Path) -> None:
    config = with_settings(Config(), merged(default_settings("Bandit"), {"game": "Bandit", **TINY, "lora": lora}))
    whole = train(config, RunFolder.create(tmp_path / "whole", config), quiet())
    with pytest.raises(KeyboardInterrupt):
        train(config, RunFolder.create(tmp_path / "broken", config), Interrupting(1))
    folder, again = RunFolder.reopen(tmp_path / "broken")
    assert again.engine == "vllm"
    resumed = train(again, folder, quiet())
    clock = ("seconds", "seconds_rollout", "tokens_per_s", "diagnostics_s")
    one, other = (
        [{k: v for k, v in record.items() if k not in clock} for record in read_json_lines(run / "metrics.jsonl")]
        for run in (tmp_path / "whole", folder.path)
    )
    assert one == other
    assert len(one) == 2
    assert one[0]["updates"], "or both iterations play with the same weights"
    assert whole["after"] == resumed["after"]
    weights = [(run / "checkpoint" / "model.safetensors").read_bytes() for run in (tmp_path / "whole", folder.path)]
    assert weights[0] == weights[1]


def test_pictures_heat_and_models_that_vllm_does_not_know_are_refused() -> None:
    sees = {"small_model": {"kind": "vision"}, "turns": {"observation": "image"}}
    with pytest.raises(ValueError, match="reads pictures; use engine=torch"):
        Policy.build(with_settings(CONFIG, sees))
    agent = Policy.build(CONFIG)
    with pytest.raises(ValueError, match=r"temperature is 3\.0; with engine=vllm it must be from 0\.01 to 2"):
        agent.engine.start([PROMPT], temperature=3.0, seed=0)
    type(agent.model).__name__, name = "Unheard", type(agent.model).__name__
    try:
        with pytest.raises(ValueError, match=r"vLLM does not start with this model: (?s:.*) use engine=torch"):
            agent.engine.start([PROMPT], temperature=1.0, seed=0)
    finally:
        type(agent.model).__name__ = name
