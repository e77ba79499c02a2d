"""Settings of the environments' tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The same examples in every run, so that a red run can be repeated; `HYPOTHESIS_PROFILE=search` looks for new ones.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("repeatable", _COMMON, derandomize=True, database=None, max_examples=50)
settings.register_profile("search", _COMMON, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
