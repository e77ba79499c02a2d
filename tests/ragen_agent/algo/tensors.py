"""What the tests of the algorithms draw: tensors, masks and turns, small and in double precision."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

# Returns of games are sums of a few rewards, so ties and equal groups come up as they do in training.
RETURNS = st.sampled_from([-0.5, -0.1, 0.0, 0.1, 0.3, 0.9, 1.0, 10.0])
GROUPS = st.tuples(st.integers(1, 6), st.integers(1, 6))
ROWS = st.tuples(st.integers(1, 4), st.integers(1, 9))
NUMBERS = st.floats(-3, 3)
ONE = torch.ones(1, 1)
YES = torch.ones(1, 1, dtype=torch.bool)


def tensors(shape: tuple[int, int], elements: st.SearchStrategy[float] = NUMBERS) -> st.SearchStrategy[Tensor]:
    return hnp.arrays(np.float64, shape, elements=elements).map(torch.from_numpy)


def masks(shape: tuple[int, int], some: bool = False) -> st.SearchStrategy[Tensor]:
    arrays = hnp.arrays(np.bool_, shape).filter(lambda mask: bool(mask.any()) or not some)
    return arrays.map(torch.from_numpy)


@st.composite
def turns(draw: st.DrawFn, mask: Tensor) -> list[list[int]]:
    """For each row, turn ends at masked tokens, the last of them at the row's last."""
    ends = []
    for row in mask:
        places = row.nonzero().flatten().tolist()
        ends.append(sorted(draw(st.sets(st.sampled_from(places))) | {places[-1]}) if places else [])
    return ends


def close(value: Tensor, expected: object) -> None:
    torch.testing.assert_close(value, torch.as_tensor(expected, dtype=value.dtype), rtol=1e-9, atol=1e-9)
