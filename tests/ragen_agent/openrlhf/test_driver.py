"""What a run says of an error that was raised somewhere in the cluster."""

from __future__ import annotations

import pytest
from ray.exceptions import OutOfMemoryError, RayTaskError

from ragen_agent.openrlhf.driver import explanation

MEMORY = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2, ID: eca4) was "
    "22.37GB / 23.54GB (0.950438), which exceeds the memory usage threshold of 0.950000; Object store memory usage: "
    "[- objects spillable: 0]; Top 10 memory users: PID\tMEM(GB)\tCOMMAND, 3410\t6.02\tpython other.py --a, 7284\t4.08"
    "\tray::PolicyActor, 7748\t1.88\tVLLM::Worker, 7286\t0.78\tray::RolloutRayActor, Refer to the documentation on how"
)


@pytest.mark.filterwarnings("default")
def test_memory_that_ran_out_is_said_in_one_sentence_with_what_to_do() -> None:
    said = explanation(OutOfMemoryError(MEMORY))
    assert said.startswith("the machine's memory ran out (22.37GB / 23.54GB in use), so Ray ended a process of the run")
    assert "process 3410 has 6.02 GB (python other.py --a), process 7284 has 4.08 GB (ray::PolicyActor)" in said
    assert "end other programs, lower openrlhf.micro_batch" in said
    assert len(said) < 500
    assert "memory ran out (nearly all in use)" in explanation(OutOfMemoryError("Ray's words changed"))


@pytest.mark.filterwarnings("default")
def test_the_first_error_is_the_one_that_is_told() -> None:
    inner = RayTaskError("f", "traceback", ValueError("the game says no"))
    outer = RayTaskError("g", "traceback", inner)
    assert explanation(outer) == "ValueError: the game says no"
    assert explanation(KeyError()) == "KeyError"
