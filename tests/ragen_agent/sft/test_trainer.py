"""The loop: the figures of a step worked out by hand, in one piece and in parts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config

from ragen_agent.sft.trainer import fit
from ragen_agent.tokens.trajectory import Trajectory


class Bigram(nn.Module):
    """Logits of the next token by the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.config = GPT2Config(vocab_size=4)
        self.table = nn.Parameter(torch.zeros(4, 4))

    def forward(self, input_ids: Tensor, *, use_cache: bool, logits_to_keep: int) -> Any:
        return SimpleNamespace(logits=self.table[input_ids][:, -logits_to_keep:])


def row(ids: list[int], sampled: list[int]) -> Trajectory:
    mask = np.array(sampled, dtype=bool)
    return Trajectory(
        ids=np.array(ids, dtype=np.int64),
        sampled=mask,
        log_probs=np.zeros(len(ids), dtype=np.float32),
        turn_ends=(int(np.flatnonzero(mask)[-1]),),
        turn_rewards=(0.0,),
        terminated=True,
        truncated=False,
        success=True,
        failure=None,
        level_id="",
        seed=None,
    )


ROWS = [row([0, 1, 2], [0, 1, 1]), row([0, 1, 3, 1], [0, 0, 0, 1]), row([2, 1], [0, 1])]
"""Sampled after what: 1 after 0, 2 after 1, 1 after 3, 1 after 2."""


def fitted(**how: Any) -> tuple[Bigram, list[dict[str, float]]]:
    model, found = Bigram(), list[dict[str, float]]()
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    how = {"details": True, **how}
    fit(
        cast(Any, model),
        optimiser,
        [ROWS, ROWS],
        torch.zeros(4),
        after_step=lambda step, figures: found.append({"step": step, **figures}),
        **how,
    )
    return model, found


@pytest.mark.parametrize("micro_batch", [None, 1, 2])
def test_a_step_is_the_gradient_of_the_mean_over_the_sampled_tokens(micro_batch: int | None) -> None:
    model, (first, second) = fitted(micro_batch=micro_batch)
    # Logits are 0: each of the 4 sampled tokens costs log 4, and its row of the table gets (1/4 - chosen) / 4. The
    # most likely token of equal ones is the first, which was never sampled.
    assert first["loss"] == pytest.approx(math.log(4), rel=1e-6)
    assert first["entropy"] == pytest.approx(math.log(4), rel=1e-6)
    assert (first["step"], first["accuracy"], first["learning_rate"]) == (1, 0.0, 1.0)
    assert first["tokens"] == (9 if micro_batch == 1 else 7), "two rows begin alike"
    assert first["grad_norm"] == pytest.approx(math.sqrt(4 * (0.75**2 + 3 * 0.25**2)) / 4, rel=1e-6)
    # After it: logits 3/16 of the chosen token, -1/16 of the three others.
    chosen = math.exp(3 / 16) / (math.exp(3 / 16) + 3 * math.exp(-1 / 16))
    assert second["loss"] == pytest.approx(-math.log(chosen), rel=1e-6)
    assert (second["step"], second["accuracy"]) == (2, 1.0)
    for last, token in ((0, 1), (1, 2), (2, 1), (3, 1)):
        assert int(model.table[last].argmax()) == token


def test_the_learning_rate_follows_its_schedule_and_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragen_agent.sft.trainer.MAX_GRAD_NORM", 0.1)
    model, found = fitted(first=3, rate=lambda step: step / 10)
    assert [(figures["step"], figures["learning_rate"]) for figures in found] == [(4, 0.3), (5, 0.4)]
    assert found[0]["grad_norm"] > 0.1, "as it was before it was scaled down"
    assert float(model.table.detach().norm()) == pytest.approx(0.1 * 0.7, rel=0.01), "in one direction, nearly"


def test_a_gradient_that_is_not_finite_ends_the_training_and_changes_no_weight() -> None:
    model = Bigram()
    with torch.no_grad():
        model.table[0, 1] = torch.nan
    before = model.table.detach().clone()
    with pytest.raises(ValueError, match="step 8: the gradient is not finite, at a loss of nan"):
        fit(cast(Any, model), torch.optim.SGD(model.parameters(), lr=1.0), [ROWS], torch.zeros(4), first=7)
    torch.testing.assert_close(model.table.detach(), before, equal_nan=True)
