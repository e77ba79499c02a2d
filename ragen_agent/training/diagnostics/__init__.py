"""What an iteration says about the health of a run: pure functions of trajectories, histories and tensors.

`replies`: how long, how alike, how often malformed, how often of any effect. `reasoning`: which tokens are the
thinking. `information`: whether the thinking depends on the prompt (RAGEN-2). `echo_trap`: the alarm. What needs
passes of the model (entropies, gradient norms, scores under other prompts) is made by each backend; the local one's
is `ragen_agent.training.diagnostics.probes`.
"""

from ragen_agent.training.diagnostics.alarm import FOLLOWS, Alarm, Sign, signs_at
from ragen_agent.training.diagnostics.information import Information, information
from ragen_agent.training.diagnostics.reasoning import piece_decoder, reasoning_spans, reply_parts
from ragen_agent.training.diagnostics.reply_statistics import reply_figures

__all__ = [
    "FOLLOWS",
    "Alarm",
    "Information",
    "Sign",
    "information",
    "piece_decoder",
    "reasoning_spans",
    "reply_figures",
    "reply_parts",
    "signs_at",
]
