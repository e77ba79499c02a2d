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
