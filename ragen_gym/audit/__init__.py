"""``ragen-gym audit``: whether an environment, of whatever library, is what it says.

``audit(target)`` opens the target in a child process, asks it every question of ``CHECKS``, and returns a ``Report``:
for each check *passed*, *finding* or *not applicable* with the reason. A finding holds what was seen, Python that ends
in a failing assertion, why it matters and how to fix it.

The child process (the package ``worker``) imports the standard library alone, so that it also runs in the interpreter
of another project: ``audit("textarena:Hangman-v0", python="/path/to/venv/bin/python")``.
"""

from ragen_gym.audit.report import Report, Result, audit
from ragen_gym.audit.sandbox import AuditSettings
from ragen_gym.audit.worker.main import CHECKS
from ragen_gym.audit.worker.protocol import SEVERITIES, Check

__all__ = ["CHECKS", "SEVERITIES", "AuditSettings", "Check", "Report", "Result", "audit"]
