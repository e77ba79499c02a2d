"""The schedule of playing ahead of training."""

from __future__ import annotations

import threading

import pytest

from ragen_agent.run.loop import PlayAhead


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("staleness", [0, 1, 2, 3, 20])
def test_an_iteration_is_played_by_the_weights_of_so_many_updates_before(staleness: int, first: int) -> None:
    """As the trainer goes about it: take, update, wait for the engines, send."""
    sent, calls = first, list[int]()

    def play(iteration: int) -> tuple[int, int]:
        calls.append(iteration)
        return iteration, sent

    ahead, end = PlayAhead(play, 10, staleness), 10
    for iteration in range(first, end):
        assert ahead.take(iteration).found == (iteration, max(first, iteration - staleness))
        ahead.wait()
        sent += 1
    assert calls == list(range(first, end)), "each once, in their order, and none beyond the last"
    ahead.close()


def test_the_next_iteration_is_played_while_this_one_is_trained() -> None:
    trained = threading.Event()

    def play(iteration: int) -> int:
        if iteration:
            assert trained.wait(60)  # only after the first was taken
        return iteration

    ahead = PlayAhead(play, 2, 1)
    assert ahead.take(0).found == 0
    trained.set()
    assert ahead.take(1).found == 1
    ahead.close()


def test_an_error_is_raised_where_its_iteration_is_taken() -> None:
    def play(iteration: int) -> int:
        if iteration == 1:
            raise OSError("lost")
        return iteration

    ahead = PlayAhead(play, 9, 3)

    def run() -> None:
        with ahead:
            assert ahead.take(0).found == 0
            ahead.wait()
            ahead.take(1)

    with pytest.raises(OSError, match="lost"):
        run()
    assert not ahead._begun, "and nothing further is played"
