"""Prepacked weights multiply like the weights themselves, whatever happens to those."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ragen_agent.inference import weights
from ragen_agent.inference.weights import PrepackedLinears
from ragen_gym.core.threads import bfloat16_units

SHAPES = [(40,), (1, 40), (3, 5, 40), (200, 40)]


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 72), nn.ReLU(), nn.Linear(72, 24, bias=False)).bfloat16()


def outputs(model: nn.Module) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        return [model(torch.randn(shape, generator=rng).bfloat16()) for shape in SHAPES]


@pytest.mark.skipif(not bfloat16_units(), reason="no units for bfloat16 here")
def test_products_are_those_of_the_weights_before_and_after_they_change() -> None:
    model = layers()
    linears = PrepackedLinears(model)
    last = None
    for _ in range(3):
        plain = outputs(model)
        with linears.in_use():
            assert all("forward" in layer.__dict__ for layer in (model[0], model[2]))
            packed = outputs(model)
        assert not any("forward" in layer.__dict__ for layer in model)
        for ours, theirs in zip(packed, plain, strict=True):
            torch.testing.assert_close(ours, theirs)
        assert last is None or not torch.equal(packed[0], last)
        last = packed[0]
        with torch.no_grad():
            model.get_parameter("0.weight").mul_(1.5)


@pytest.mark.skipif(not bfloat16_units(), reason="no units for bfloat16 here")
def test_an_error_within_leaves_the_layers_as_they_were() -> None:
    model = layers()
    with pytest.raises(RuntimeError, match="interrupted"), PrepackedLinears(model).in_use():
        raise RuntimeError("interrupted")
    assert not any("forward" in layer.__dict__ for layer in model)
    assert outputs(model)[0].shape == (24,)


@pytest.mark.parametrize("why", ["no units", "float32"])
def test_other_models_are_left_alone(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers()
    if why == "no units":
        monkeypatch.setattr(weights, "bfloat16_units", lambda: "")
    else:
        model.float()
    with PrepackedLinears(model).in_use():
        assert not any("forward" in layer.__dict__ for layer in model)
