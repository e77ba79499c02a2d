"""``hf:`` with a tiny visual model: its draws depend on the picture alone, and bad input is named."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ragen_agent.config import Config
from ragen_agent.inference.vision import vision_of
from ragen_agent.run.policy import Policy
from ragen_gym.bench.agent import AgentFailure, Answer, Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.results import load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.core.failures import Failure
from ragen_gym.envs.messages import with_images
from ragen_gym.envs.turn import make_turn

LAKE = "P__O\n____\n_O__\n___G"
BLIND = "{% for message in messages %}{{ message['role'] }}{% endfor %}"
TABLE = """
name = "seen"
[budgets]
observation = "image"
max_turns = 2
[[splits]]
name = "lake"
env = "FrozenLake"
levels = "lake.txt"
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small visual model, untrained, as a run of ``ragen-agent`` saves it; pictures count for more."""
    config = Config()
    shape = replace(config.small_model, kind="vision")
    config = replace(config, small_model=shape)
    policy, folder = Policy.build(config), tmp_path_factory.mktemp("model")
    with torch.no_grad():
        policy.model.get_parameter("model.visual.merger.mlp.2.weight").mul_(50)  # else hardly a word depends on it
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    vision = vision_of(policy.model)
    assert vision is not None
    vision.save(folder)
    return folder


def ask(agent: Any, *boards: str, repeat: int = 1) -> list[Answer]:
    """The first replies on these boards, asked for together."""

    async def all_of_them() -> list[Answer]:
        asked = []
        for board in boards * repeat:
            env = make_turn("FrozenLake", observation="image")
            _, info = env.reset(options={"level": board})
            messages = with_images(info["messages"], env.images)
            asked.append(agent.reply(messages, Task("s", "lake", 0, 0, 1, 1.0, env)))
        try:
            return list(await asyncio.gather(*asked))
        finally:
            await agent.close()

    return asyncio.run(all_of_them())


def test_it_plays_a_suite_of_pictures(model: Path, tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(TABLE, encoding="utf-8")
    (tmp_path / "lake.txt").write_text(LAKE + "\n\n" + LAKE[::-1] + "\n", encoding="utf-8")
    from ragen_gym.bench.suites import load_suite

    agent = make_agent(f"hf:{model}", max_tokens=8)
    run_suite(load_suite(tmp_path), agent, tmp_path / "run")
    records = load_results(tmp_path / "run", tmp_path).records
    assert len(records) == 2
    for record in records:
        assert record.failure is None, record.detail
        assert len(record.turns) == 2
        first, second = (turn.prompt_tokens for turn in record.turns)
        assert first is not None
        assert second is not None
        assert second > first + 16  # the second picture of 4 x 4 tokens, and the words between


def test_what_is_drawn_depends_on_the_picture_and_not_on_the_batch(model: Path) -> None:
    alone = ask(make_agent(f"hf:{model}", max_tokens=12, batch=1), LAKE)[0]
    agent = make_agent(f"hf:{model}", max_tokens=12, batch=4)
    together = ask(agent, LAKE, LAKE[::-1], repeat=3)
    assert [answer.text for answer in together[::2]] == [alone.text] * 3
    assert together[1].text != alone.text, "the same words around another picture"
    assert {answer.prompt_tokens for answer in together} == {alone.prompt_tokens}


def test_a_conversation_that_is_too_long(model: Path) -> None:
    agent: Any = make_agent(f"hf:{model}")
    agent._context = 40
    with pytest.raises(AgentFailure, match="16 of them of pictures, leave no room in a context of 40") as raised:
        ask(agent, LAKE)
    assert raised.value.failure is Failure.CONTEXT_OVERFLOW


@pytest.mark.parametrize("observation", ["image", "text"])
def test_a_reply_that_spells_a_placeholder_shows_no_picture(model: Path, observation: str) -> None:
    agent: Any = make_agent(f"hf:{model}", max_tokens=4)
    env = make_turn("FrozenLake", observation=observation)
    env.reset(seed=0)
    info = env.step("<think><|image_pad|></think><answer>Up</answer>")[-1]
    messages = with_images(info["messages"], env.images)
    ids, spans, _ = agent._read(messages)
    assert len(spans) == len(env.images)
    assert ids.count(agent._vision.image_id) == sum(span.tokens for span in spans)
    assert "< |image_pad|>" in agent._tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("pixels", "template", "said"),
    [
        (np.zeros((4, 4), np.uint8), None, "it must be uint8"),
        (
            np.zeros((28, 28, 3), np.uint8),
            BLIND,
            "show 0 pictures, but 1",
        ),
    ],
)
def test_a_picture_that_cannot_be_read_costs_its_episode(
    pixels: np.ndarray[Any, Any], template: str | None, said: str, model: Path
) -> None:
    agent: Any = make_agent(f"hf:{model}")
    agent._tokenizer.chat_template = template or agent._tokenizer.chat_template
    env = make_turn("FrozenLake", observation="image")
    _, info = env.reset(seed=0)
    with pytest.raises(AgentFailure, match=said):
        asyncio.run(agent.reply(with_images(info["messages"], [pixels]), Task("s", "lake", 0, 0, 1, 1.0, env)))
