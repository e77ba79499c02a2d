"""The schedule of playing ahead of training, and the simulation of what it saves."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent.openrlhf.ahead import Phases, PlayAhead, describe_gain, splits


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

    ahead = PlayAhead(play, 3, 1)
    assert ahead.take(0).found == 0
    ahead.wait()
    with pytest.raises(OSError, match="lost"):
        ahead.take(1)
    ahead.close()


def test_a_run_that_stops_plays_no_further_iteration() -> None:
    calls, may_end = list[int](), threading.Event()

    def play(iteration: int) -> int:
        calls.append(iteration)
        assert iteration == 0 or may_end.wait(60)
        return iteration

    ahead = PlayAhead(play, 10, 5)
    ahead.take(0)
    later = [ahead._begun[number] for number in range(2, 6)]
    closing = threading.Thread(target=ahead.close)
    closing.start()
    while not all(future.cancelled() for future in later):
        time.sleep(0.001)
    may_end.set()  # close waits for the one that is being played, if it was begun
    closing.join()
    assert calls in ([0], [0, 1])


def test_phases_are_the_medians_of_iterations_that_updated() -> None:
    one = {"seconds_rollout": 4.0, "seconds_score": 1.0, "seconds_train": 2.0, "seconds_synchronise": 0.5}
    records = [one, {"seconds_rollout": 99.0}, one, one | {"seconds_rollout": 8.0, "seconds_train": 9.0}]
    assert Phases.measured(records) == Phases(play=4.0, update=3.0, send=0.5)
    assert Phases.measured([{"seconds_rollout": 99.0}]) is None


def test_the_simulation_by_hand() -> None:
    """12 GPU seconds of play and 12 of updates, 1 second to send: the best division of 8 is 4 and 4."""
    found = splits(Phases(play=6.0, update=12.0, send=1.0), playing=2, training=1, gpus=8)
    assert [row.playing for row in found] == list(range(1, 8))
    assert all(row.playing + row.training == 8 for row in found)
    four = found[3]
    assert (four.in_turn, four.ahead) == (3.0 + 3.0 + 1.0, 3.0 + 1.0)
    assert found[0].ahead == 12.0 + 1.0, "one engine sets the pace"
    said = " ".join(describe_gain(Phases(6.0, 12.0, 1.0), 2, 1))
    assert "in turn 7.00 s an iteration (4 play, 4 train)" in said
    assert "(openrlhf.staleness=1) 4.00 s (4 play, 4 train), 1.75 times as fast" in said
    assert "All 8 shared in turn (openrlhf.colocate) would take 4.00 s" in said


seconds = st.floats(0.01, 1e4)


@given(seconds, seconds, seconds, st.integers(1, 8), st.integers(1, 8), st.integers(2, 64))
def test_playing_ahead_never_costs_and_at_most_halves(
    play: float, update: float, send: float, playing: int, training: int, gpus: int
) -> None:
    for row in splits(Phases(play, update, send), playing, training, gpus):
        assert row.ahead <= row.in_turn <= 2 * row.ahead
