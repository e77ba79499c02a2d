"""What is sampled from against the warpers of transformers, and drawing against the inversion of the whole sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import TopKLogitsWarper, TopPLogitsWarper

from ragen_agent.inference.sampling import (
    LARGE_VOCABULARY,
    SUPPRESSED,
    draw,
    draw_at,
    keep_likeliest,
)


@pytest.mark.parametrize("width", [5, 256, 3000])
@pytest.mark.parametrize(
    ("top_p", "top_k"), [(1.0, 0), (0.9, 0), (0.01, 0), (1.0, 1), (1.0, 40), (0.5, 3), (0.99999, 0)]
)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_what_is_kept_is_what_transformers_keeps(width: int, top_p: float, top_k: int, scale: float) -> None:
    logits = torch.randn(6, width, generator=torch.Generator().manual_seed(width)) * scale
    expected, ids = logits, torch.zeros(6, 1, dtype=torch.long)
    if top_k:
        expected = TopKLogitsWarper(top_k)(ids, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(ids, expected)
    kept, theirs = keep_likeliest(logits, top_p, top_k), expected.isfinite()
    # An id whose sum is the share but for rounding may fall to either side.
    differing = (kept.isfinite() != theirs).sum(-1)
    assert differing.max() <= (0 if top_p in (1.0, 0.9, 0.5, 0.01) and scale > 0.01 else width * 2e-3 + 1)
    assert torch.equal(kept[kept.isfinite()], logits[kept.isfinite()])


def test_ids_as_likely_as_the_last_one_are_kept() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0]])
    assert keep_likeliest(logits, 1.0, 1).isfinite().tolist() == [[False, True, True, False, True]]
    assert keep_likeliest(logits, 0.3, 0).isfinite().tolist() == [[False, True, True, False, True]]


@given(st.integers(1, 1200), st.integers(0, 2**32 - 1), st.floats(0, 1, exclude_max=True))
@example(2, 0, 1 - 2**-52)  # a block's sum in float32 is above its ids' sums in float64
def test_drawing_inverts_the_sums(width: int, seed: int, number: float) -> None:
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.normal(0, 3, (3, width)).astype(np.float32))
    logits[torch.from_numpy(random.random((3, width)) < 0.3)] = -torch.inf
    logits[:, random.integers(width)] = 0.0  # one at least
    drawn, _ = draw(logits, torch.arange(3), torch.full((3,), number, dtype=torch.float64))
    for row, token in zip(logits, drawn.tolist(), strict=True):
        sums = np.cumsum(row.double().softmax(-1).numpy())
        before, after = (sums[token - 1] if token else 0.0), sums[token]
        assert row[token] > -torch.inf, "what is suppressed is never drawn"
        assert before - 1e-5 <= number * sums[-1] <= after + 1e-5


@pytest.mark.parametrize("number", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_unit_interval(number: float) -> None:
    logits = torch.full((1, 700), -torch.inf)
    logits[0, [300, 301, 513]] = 0.0
    expected = 300 if number == 0 else 513
    assert draw(logits, torch.tensor([0]), torch.tensor([number], dtype=torch.float64))[0].tolist() == [expected]


@pytest.mark.parametrize("width", [700, 5000])  # one sum, and sums over blocks
@pytest.mark.parametrize("number", [0.0, 1.0])  # what is below 1 may be rounded up to it
def test_a_suppressed_id_is_never_drawn_at_a_temperature(width: int, number: float) -> None:
    logits, bias = torch.zeros(1, width), torch.full((width,), SUPPRESSED)
    bias[[300, 301, 513]] = 0.0
    ids, log_probs = draw_at(0.5, logits, bias, torch.tensor([0]), torch.tensor([number]))
    assert ids.item() in ([300] if number == 0 else [300, 301, 513])
    assert log_probs.item() == pytest.approx(-math.log(3))
    assert not logits.any(), "they are left as they were"


@pytest.mark.parametrize("width", [700, LARGE_VOCABULARY])
def test_only_likely_ids_are_drawn(width: int) -> None:
    logits = torch.randn(1, width, generator=torch.Generator().manual_seed(0))
    numbers = torch.linspace(0, 1, 401, dtype=torch.float64)[:-1]
    ids, log_probs = draw_at(1.0, logits, torch.zeros(width), torch.zeros(400, dtype=torch.long), numbers, 0.9, 20)
    kept = keep_likeliest(logits, 0.9, 20)[0]
    assert set(ids.tolist()) <= set(kept.isfinite().nonzero()[:, 0].tolist())
    torch.testing.assert_close(log_probs, kept.log_softmax(-1)[ids], atol=1e-5, rtol=0)


def test_rows_that_share_logits_draw_as_each_would_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(3, 700, generator=generator)
    of_draw = torch.tensor([2, 0, 0, 2, 1])
    numbers = torch.rand(5, generator=generator, dtype=torch.float64)
    ids, log_probs = draw(logits, of_draw, numbers)
    assert torch.equal(ids, draw(logits[of_draw], torch.arange(5), numbers)[0])
    torch.testing.assert_close(log_probs, logits.log_softmax(-1)[of_draw, ids])
