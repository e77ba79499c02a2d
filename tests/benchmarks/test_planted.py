"""Planted environments have the faults that they are named for."""

from __future__ import annotations

import numpy as np

from benchmarks.planted import KINDS, NUMBERS, Planted


def test_planted_environments_have_their_faults() -> None:
    assert sorted(Planted(number).kind for number in NUMBERS) == sorted(KINDS * 10)
    for number in NUMBERS:
        env = Planted(number)
        optimal = []
        for seed in range(60):
            env.reset(seed=seed)
            over, total, success = False, 0.0, False
            while not over:
                _, reward, over, _, info = env.step(env.answer)
                total, success = total + reward / env.scale, info.get("success", False)
            optimal.append(total)
            assert success == env.tells
        mean = float(np.mean(optimal))
        if env.kind == "fine":
            assert mean > 0.8
        if env.fault in ("bonus", "dearer", "smaller"):
            env.reset(seed=0)
            assert env.step(env.extra[0])[1] >= env.scale / env.rounds
            assert (mean == 0) == (env.fault == "smaller")
        assert env.fault != "password" or mean == 0
        if env.fault in ("always", "mostly"):
            rights = [(env.reset(seed=seed), env.answer)[1] == env.choices[1] for seed in range(60)]
            assert np.mean(rights) > 0.8
