"""How the terms of many tokens become one number: worked examples, and parts that add up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent import algo
from ragen_agent.config.algorithms import AGGREGATIONS
from tests.ragen_agent.algo.tensors import ONE, YES, close, masks, tensors


def test_what_a_token_weighs_by_hand() -> None:
    """A row of one token (4) and one of three (1 each), and a masked row: its sum is 0, and it has no mean."""
    x = torch.tensor([[4.0, 9.0, 9.0], [1.0, 1.0, 1.0], [9.0, 9.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    close(algo.aggregate(x, mask), 7 / 4)
    close(algo.aggregate(x, mask, "sequence_mean"), (4 + 1) / 2)
    close(algo.aggregate(x, mask, "sequence_sum"), (4 + 3 + 0) / 3)
    close(algo.aggregate(x, mask, "constant", length=10), (4 + 3 + 0) / 30)


@given(
    data=st.data(),
    shape=st.tuples(st.integers(2, 4), st.integers(1, 9)),
    how=st.sampled_from(sorted(AGGREGATIONS)),
)
def test_parts_add_up_in_every_aggregation(data: st.DataObject, shape: tuple[int, int], how: str) -> None:
    x, mask = data.draw(tensors(shape)), data.draw(masks(shape, some=True))
    count = algo.loss_count(mask, how)
    parts = [algo.aggregate(x[[r]], mask[[r]], how, length=5, count=count) for r in range(shape[0])]
    close(torch.stack(parts).sum(), algo.aggregate(x, mask, how, length=5))


def test_bad_input_is_told() -> None:
    for how in AGGREGATIONS:
        with pytest.raises(ValueError, match="one shape"):
            algo.aggregate(ONE, torch.ones(1, 2, dtype=torch.bool), how, length=1)
        with pytest.raises(ValueError, match="the mask selects no token"):
            algo.aggregate(ONE, ~YES, how, length=1)
    with pytest.raises(ValueError, match="how is 'mean'; it must be one of token_mean"):
        algo.aggregate(ONE, YES, "mean")
    with pytest.raises(ValueError, match="length is None; 'constant' divides by it"):
        algo.aggregate(ONE, YES, "constant")
    with pytest.raises(ValueError, match="as \\(rows, T\\)"):
        algo.aggregate(torch.ones(3), torch.ones(3, dtype=torch.bool), "sequence_sum")
