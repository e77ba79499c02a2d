"""What needs the distributed stack is collected only where it is installed: `make test-openrlhf`."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("openrlhf") is None:
    collect_ignore = ["test_advantages.py", "test_executor.py", "test_training.py"]
else:
    from ragen_agent.openrlhf import cpu

    if cpu.needed("auto"):
        cpu.prepare()
