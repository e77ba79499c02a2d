"""Refusals of vLLM as an engine where it is not installed; what needs it is in tests/ragen_agent/openrlhf."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.run.policy import Policy


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_engine_is_refused_with_what_to_install() -> None:
    with pytest.raises(ValueError, match=r"pip install vllm on a machine with a GPU, .*or use engine=torch"):
        Policy.build(with_settings(Config(), {"engine": "vllm"}))


def test_a_share_that_no_engine_takes_is_refused() -> None:
    assert with_settings(Config(), {"engine": "vllm", "vllm_memory": 0.2}).vllm_memory == 0.2
    with pytest.raises(ValueError, match=r"vllm_memory is 0\.2, which has no effect with engine=torch"):
        with_settings(Config(), {"vllm_memory": 0.2})


def test_a_temperature_that_vllm_does_not_take_is_refused_before_the_run() -> None:
    with pytest.raises(ValueError, match=r"evaluation\.temperature is 0\.001; with vLLM it must be from 0\.01 to 2"):
        with_settings(Config(), {"engine": "vllm", "evaluation": {"temperature": 0.001}})
    assert with_settings(Config(), {"evaluation": {"temperature": 0.001}}).engine == "torch"
