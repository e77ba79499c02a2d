"""What every test may count on: Ctrl-C reaches the programs that a test starts.

A shell lets what it starts with & ignore the interrupt signal, and every process passes that on to its children.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
