"""Pictures on their way to vLLM and to the models: nothing of them is lost, and every path reads the same."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ppo_utils.experience import Experience, split_experience_batch
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from PIL import Image
from vllm import SamplingParams

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.inference import ImageSpan
from ragen_agent.inference.vision import ImageProcessor, ImageTable, Vision, vision_of
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.models.small_model import build_model, build_tokenizer
from ragen_agent.openrlhf.episode import ContractError
from ragen_agent.openrlhf.executor import AgentExecutor
from ragen_agent.openrlhf.experience import EpisodeGenerator, pad_rows
from ragen_agent.openrlhf.launch import suppressed_ids
from ragen_agent.openrlhf.pictures import GRIDS, PIXELS, copy_processor, packed, unpacked, visual_rows
from ragen_agent.openrlhf.processes import VARIABLE, RunContext
from ragen_agent.openrlhf.prompt_dataset import train_rows
from ragen_agent.openrlhf.ray_actors import SampledActor
from ragen_agent.openrlhf.supported import check_sees
from ragen_agent.openrlhf.trainer import ActorDiagnostics
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.batches import Batch
from tests.ragen_agent.openrlhf.test_ray_actors import Engine, adapt, scored

pytestmark = pytest.mark.filterwarnings("default")

CONFIG = with_settings(
    Config(),
    {
        "small_model": {"kind": "vision", "hidden": 32, "layers": 1, "feed_forward": 32},
        "env_options": {"size": 4},
        "turns": {"observation": "image", "max_turns": 3, "max_tokens_per_turn": 12, "max_tokens_per_episode": 300},
        "training": {"algo": "grpo", "iterations": 1, "groups": 2, "group_size": 2},
    },
)


@pytest.fixture(scope="module")
def agent() -> Policy:
    return Policy.build(CONFIG)


@pytest.fixture(scope="module")
def folder(agent: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("seeing") / "model"
    save_checkpoint(agent.model, agent.tokenizer, path)
    return path


@pytest.fixture(scope="module")
def vision(agent: Policy) -> Vision:
    found = vision_of(agent.model)
    assert found is not None
    return found


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    """That of this process."""
    context = RunContext(CONFIG, OpenRLHF(), "/nowhere", *suppressed_ids(folder), str(folder))
    monkeypatch.setenv(VARIABLE, context.to_json())
    return context


@pytest.fixture(scope="module")
def played(agent: Policy) -> list[Trajectory]:
    """Episodes of two levels, of unlike lengths."""
    levels = [Instance(seed, noise) for seed in (1, 2) for noise in (0, 1)]
    return agent.play(agent.processes("train", 4), levels, 1.0, seed=3)


def rows_of(played: list[Trajectory], vision: Vision | None) -> list[Any]:
    generator = EpisodeGenerator.__new__(EpisodeGenerator)
    generator.vision = vision
    return [row for trajectory in played for row in generator.rows(trajectory)]


def test_pictures_arrive_as_they_were_sent() -> None:
    processor = ImageProcessor(min_pixels=56 * 56)
    draw = np.random.default_rng(0)
    sizes = [(112, 140), (28, 28), (90, 61)]  # as they are, too small, and of no whole tiles
    pictures = [draw.integers(256, size=(*size, 3), dtype=np.uint8) for size in sizes]
    images = [ImageSpan(0, processor.grid(pixels), pixels) for pixels in pictures]
    first, second = packed(images[:2], processor), packed(images[2:], processor)
    assert packed([], processor) is None
    assert first is not None
    assert first[PIXELS].dtype == torch.uint8
    merged = merge_mm_train_inputs([[first, None], second], "cpu")
    back = unpacked(merged, processor)
    assert len(back) == len(pictures)
    for pixels, found in zip(pictures, back, strict=True):
        np.testing.assert_array_equal(found, processor.resized(pixels))
        np.testing.assert_array_equal(processor.patches(found), processor.patches(pixels))


def test_rows_have_their_pictures_again(played: list[Trajectory], vision: Vision) -> None:
    rows = rows_of(played, vision)
    batch = Experience.concat_experiences(rows, 0)
    keys, table = visual_rows(batch.sequences, merge_mm_train_inputs(batch.mm_train_inputs, "cpu"), vision)
    whole = Batch.of(played)
    assert torch.equal(keys, whole.ids)
    assert table is not None
    assert whole.images is not None
    assert [image.digest for image in table.pictures] == [image.digest for image in whole.images.pictures]
    for one, trajectory in zip(split_experience_batch(batch), played, strict=True):
        ((inputs,),) = [one.mm_train_inputs]
        assert len(inputs[GRIDS]) == len(trajectory.images), "a row keeps its own where minibatches are cut"
    sequences = torch.tensor([[1, 2, 3]])
    assert visual_rows(sequences, {}, vision) == (sequences, None)


def test_a_copy_of_the_processor_reads_as_the_model(
    folder: Path, agent: Policy, vision: Vision, tmp_path: Path
) -> None:
    copy_processor(folder, tmp_path)
    assert Vision.from_folder(agent.model.config, tmp_path) == vision
    copy_processor(tmp_path / "nothing", tmp_path)


def test_padding_keeps_the_pictures(played: list[Trajectory], vision: Vision) -> None:
    rows = rows_of(played[:1], vision)
    blank = pad_rows(rows, 4)[-1]
    assert torch.equal(blank.sequences, rows[0].sequences)
    assert not bool(blank.action_mask.any())
    assert blank.mm_train_inputs == rows[0].mm_train_inputs
    assert blank.rollout_log_probs.shape == blank.action_mask.shape == rows[0].action_mask.shape


def actor_of(folder: Path, *, whole: bool, frozen: bool = False) -> Any:
    """OpenRLHF's actor in float32, adapted."""
    actor = Actor(str(folder), attn_implementation="sdpa", temperature=0.7, freeze_visual_encoder=frozen).float()
    actor.model = Engine(actor.model)
    adapt(actor, whole=whole)
    return actor


@pytest.mark.parametrize("frozen", [False, True])
def test_scores_and_gradients_are_those_of_openrlhfs_own_pass(
    frozen: bool, folder: Path, played: list[Trajectory], run: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures that are shared are computed once here; there their patches go to the model as ``transformers`` says."""
    monkeypatch.setattr("openrlhf.models.actor.compute_entropy", lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1))
    batch = Experience.concat_experiences(rows_of(played, run.vision), 0)
    some, whole = (actor_of(folder, whole=w, frozen=frozen) for w in (False, True))
    assert isinstance(some, SampledActor)
    assert not isinstance(whole, SampledActor)
    inputs = merge_mm_train_inputs(batch.mm_train_inputs, "cpu")
    found, expected = (
        scored(actor, batch.sequences, batch.action_mask, batch.attention_mask, **inputs) for actor in (some, whole)
    )
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)
    assert bool(expected[0].any())
    assert set(found[2]) == set(expected[2])
    assert any("visual" in name for name in found[2]) is not frozen
    for name, gradient in expected[2].items():
        torch.testing.assert_close(found[2][name], gradient, rtol=1e-3, atol=1e-4, msg=name)


class Answers:
    """Answers as vLLM does, having read ``surplus`` more tokens than it was given."""

    def __init__(self, agent: Policy, surplus: int = 0) -> None:
        self.said = [*agent.tokenizer.encode("<answer>Right</answer>", add_special_tokens=False), agent.chat.end_id]
        self.surplus, self.shown = surplus, list[list[Image.Image]]()

    async def generate(self, ids: list[int], parameters: Any, multi_modal_data: Any = None) -> Any:
        await asyncio.sleep(0)
        self.shown.append(multi_modal_data["image"])
        said = self.said[: parameters.max_tokens]
        logprobs = [{token: SimpleNamespace(logprob=-0.25)} for token in said]
        answer = SimpleNamespace(token_ids=tuple(said), logprobs=logprobs)
        return SimpleNamespace(prompt_token_ids=[*ids, *[5] * self.surplus], outputs=[answer])


def test_vllm_is_shown_the_pictures_of_the_whole_prefix(run: RunContext, agent: Policy) -> None:
    engine, row = Answers(agent), next(train_rows(CONFIG))
    response = asyncio.run(AgentExecutor().execute("name", row.label, SamplingParams(), 300, agent.tokenizer, engine))
    trajectory = Trajectory.from_dict(json.loads(response["label"])["trajectory"])
    assert trajectory.failure is None
    assert [len(shown) for shown in engine.shown] == list(range(1, len(trajectory.images) + 1))
    for image, shown in zip(trajectory.images, engine.shown[-1], strict=True):
        np.testing.assert_array_equal(np.asarray(shown), image.pixels)
    assert {agent.model.config.image_token_id, agent.model.config.video_token_id} <= set(run.suppressed_ids)


def test_a_vllm_that_cuts_pictures_in_another_way_ends_the_run(run: RunContext, agent: Policy) -> None:
    engine, row = Answers(agent, surplus=3), next(train_rows(CONFIG))
    with pytest.raises(ContractError, match=r"vLLM read \d+ tokens where \d+ were recorded: it cuts"):
        asyncio.run(AgentExecutor().execute("name", row.label, SamplingParams(), 300, agent.tokenizer, engine))


def test_diagnostics_send_the_pictures_along(played: list[Trajectory], vision: Vision) -> None:
    table = ImageTable()
    rows = [(table.keys(t.ids, t.images).tolist(), [5, 6]) for t in played]
    diagnostics = ActorDiagnostics(SimpleNamespace(), vision)  # type: ignore[arg-type]
    ids, actions, attention, inputs = diagnostics._batch(rows, table)
    assert [row[: len(t.ids)].tolist() for row, t in zip(ids, played, strict=True)] == [t.ids.tolist() for t in played]
    assert actions.sum(1).tolist() == [2] * len(played)
    assert attention.sum(1).tolist() == [len(t.ids) + 2 for t in played]
    for found, trajectory in zip(inputs, played, strict=True):
        expected = packed(trajectory.images, vision.processor)
        assert found is not None
        assert expected is not None
        assert torch.equal(found[PIXELS], expected[PIXELS])


def test_a_model_that_reads_text_only_is_refused_before_anything_starts(folder: Path, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    save_checkpoint(build_model(CONFIG.small_model, tokenizer, 0), tokenizer, tmp_path / "text")
    text = tmp_path / "text"
    with pytest.raises(ValueError, match=r"a message holds a picture, but the model .* reads text only"):
        check_sees(CONFIG, text, RunContext(CONFIG, OpenRLHF(), "/nowhere", (), 1, str(text)))
    check_sees(CONFIG, folder, RunContext(CONFIG, OpenRLHF(), "/nowhere", (), 1, str(folder)))
