"""Pictures as patches, numbers and positions, against transformers' own processor and model."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ragen_agent.config import Config, with_settings
from ragen_agent.inference import ImageSpan
from ragen_agent.inference.vision import ImageProcessor, ImageTable, Vision, vision_of
from ragen_agent.models.checkpoint import load_checkpoint, save_checkpoint
from ragen_agent.run.policy import Policy

qwen2_vl = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")

SETTINGS = {"small_model": {"kind": "vision", "hidden": 64, "layers": 2, "feed_forward": 64}}


def picture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(256, size=(height, width, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def agent() -> Policy:
    return Policy.build(with_settings(Config(), SETTINGS))


@given(
    height=st.integers(20, 200),
    width=st.integers(20, 200),
    most=st.sampled_from([28 * 28 * 9, 28 * 28 * 1024]),
    merge=st.sampled_from([1, 2]),
)
def test_patches_are_those_of_transformers(height: int, width: int, most: int, merge: int) -> None:
    """Scaled or not, in the same order, with the same values."""
    own = ImageProcessor(merge_size=merge, min_pixels=28 * 28 * 4, max_pixels=most)
    other = qwen2_vl.Qwen2VLImageProcessorPil(min_pixels=28 * 28 * 4, max_pixels=most, merge_size=merge)
    pixels = picture(height, width)
    found = other(images=[pixels], return_tensors="np")
    assert np.allclose(own.patches(pixels), found["pixel_values"], atol=1e-6)
    assert (1, *(merge * side for side in own.grid(pixels))) == tuple(found["image_grid_thw"][0])


def test_settings_are_read_as_transformers_writes_and_reads_them(tmp_path: Path) -> None:
    own = ImageProcessor(14, 2, 2, 28 * 28, 28 * 28 * 7, (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(own.settings()))
    other = qwen2_vl.Qwen2VLImageProcessorPil.from_pretrained(tmp_path)
    pixels = picture(80, 90)
    assert np.allclose(own.patches(pixels), other(images=[pixels], return_tensors="np")["pixel_values"], atol=1e-6)
    other.save_pretrained(tmp_path / "again")
    written = json.loads((tmp_path / "again" / "preprocessor_config.json").read_text())
    assert ImageProcessor.from_settings(written) == own


@pytest.mark.parametrize(
    ("pixels", "said"),
    [
        (np.zeros((28, 28), np.uint8), r"uint8 of shape \(28, 28\)"),
        (np.zeros((28, 28, 3), np.float32), "float32"),
        (np.zeros((1, 2000, 3), np.uint8), "too narrow"),
    ],
)
def test_what_is_no_picture_is_refused(pixels: NDArray[np.uint8], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ImageProcessor().grid(pixels)


def row_of(agent: Policy, words: list[int], grids: list[tuple[int, int]]) -> tuple[list[int], list[ImageSpan]]:
    """Words and pictures in turn: as many words as the list says, then a picture, and so on; words end it."""
    vision = vision_of(agent.model)
    assert vision is not None
    ids: list[int] = []
    spans = []
    for number, count in enumerate(words):
        ids += [5 + number] * count
        if number < len(grids):
            rows, columns = grids[number]
            spans.append(ImageSpan(len(ids), (rows, columns), picture(28 * rows, 28 * columns, number % 2)))
            ids += [vision.image_id] * (rows * columns)
    return ids, spans


CASES = [([3, 2, 4], [(4, 4), (2, 5)]), ([1, 1, 1], [(1, 1), (1, 1)]), ([2, 0, 3], [(3, 2), (2, 3)]), ([7], [])]


@pytest.mark.parametrize(("words", "grids"), CASES)
def test_positions_are_those_of_transformers(agent: Policy, words: list[int], grids: list[tuple[int, int]]) -> None:
    ids, spans = row_of(agent, words, grids)
    table, model = ImageTable(), agent.model
    keys = torch.from_numpy(table.keys(ids, spans))
    row = torch.tensor([ids])
    kinds = (row == model.config.image_token_id).int()
    if all(a.end < b.start for a, b in pairwise(spans)):  # transformers takes neighbours for one picture
        sizes = torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in grids]).view(-1, 3)
        expected, _ = model.model.get_rope_index(row, kinds, sizes)
        assert torch.equal(table.positions(keys[None]), expected)
    for cut in range(len(ids) + 1):  # read in two parts
        first, second = keys[:cut], keys[cut:]
        inside = any(span.start < cut < span.end for span in spans)
        if not inside:
            ahead = table.length(first.tolist())
            both = torch.cat([table.positions(first), table.positions(second) + ahead], 1)
            assert torch.equal(both, table.positions(keys))


@pytest.mark.parametrize(("words", "grids"), [case for case in CASES if case[0][1:2] != [0]])
def test_inputs_give_the_logits_of_transformers(agent: Policy, words: list[int], grids: list[tuple[int, int]]) -> None:
    """The model run as its users run it, with pixel values next to the ids."""
    ids, spans = row_of(agent, words, grids)
    table, model, vision = ImageTable(), agent.model, vision_of(agent.model)
    assert vision is not None
    row = torch.tensor([ids])
    pixels: dict[str, torch.Tensor] = {}
    if spans:
        pixels["pixel_values"] = torch.cat([torch.from_numpy(vision.processor.patches(s.pixels)) for s in spans])
        pixels["image_grid_thw"] = torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in grids])
        pixels["mm_token_type_ids"] = (row == vision.image_id).int()
    with torch.no_grad():
        expected = model(row, use_cache=False, **pixels).logits
        found = model(**table.inputs(model, torch.from_numpy(table.keys(ids, spans))[None]), use_cache=False).logits
    assert torch.allclose(found, expected, atol=1e-5)


def test_equal_pictures_share_their_numbers_and_others_do_not() -> None:
    table, one, other = ImageTable(), picture(56, 56, 1), picture(56, 56, 2)
    row = table.keys([1, 9, 9, 9, 9, 2], [ImageSpan(1, (2, 2), one)])
    same = table.keys([9, 9, 9, 9, 2], [ImageSpan(0, (2, 2), one.copy())])
    differs = table.keys([9, 9, 9, 9], [ImageSpan(0, (2, 2), other)])
    assert row.tolist() == [1, -1, -2, -3, -4, 2]
    assert same.tolist() == [-1, -2, -3, -4, 2]
    assert differs.tolist() == [-5, -6, -7, -8]
    assert (len(table.pictures), table.tokens) == (2, 8)


def test_gradients_reach_the_vision_encoder(agent: Policy) -> None:
    ids, spans = row_of(agent, [2, 2], [(2, 2)])
    table = ImageTable()
    keys = torch.from_numpy(table.keys(ids, spans))[None]
    agent.model(**table.inputs(agent.model, keys), use_cache=False).logits.sum().backward()
    gradients = {name: p.grad for name, p in agent.model.model.visual.named_parameters()}
    assert all(g is not None and bool(g.abs().sum() > 0) for name, g in gradients.items() if "bias" not in name)
    agent.model.zero_grad(set_to_none=True)


def test_a_checkpoint_brings_its_image_processor(agent: Policy, tmp_path: Path) -> None:
    save_checkpoint(agent.model, agent.tokenizer, tmp_path / "model")
    model, tokenizer = load_checkpoint(tmp_path / "model")
    assert vision_of(model) == vision_of(agent.model)
    assert tokenizer.get_vocab() == agent.tokenizer.get_vocab()
    same = dict(agent.model.state_dict())
    assert all(torch.equal(weight, same[name]) for name, weight in model.state_dict().items())
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match=r"without image processor settings .*; copy the image processor's file"):
        load_checkpoint(tmp_path / "model")


def test_patches_that_are_not_the_models_are_refused(agent: Policy) -> None:
    with pytest.raises(ValueError, match=r"= \(16, 2, 2\), but the model reads \(14, 2, 2\)"):
        Vision.from_config(agent.model.config, ImageProcessor(patch_size=16))


@pytest.mark.parametrize("package", ["ragen_gym", "ragen_agent", "ragen_agent.inference", "ragen_agent.cli"])
def test_an_import_changes_nothing(package: str) -> None:
    code = (
        "import os, sys; before = [*sys.meta_path], dict(os.environ), [*sys.path]; "
        f"import {package}; assert before == ([*sys.meta_path], dict(os.environ), [*sys.path])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
