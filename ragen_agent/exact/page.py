"""Page of an exact evaluation: the figures, pass@k, and the distribution over replies in the states of each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_agent.exact.results import REFERENCES, SAMPLES
from ragen_gym import __version__
from ragen_gym.bench.report.html_page import plural, render_page

__all__ = ["page", "shown_interval"]

_TERMS = (
    (
        "success",
        "Chance that an episode on the level succeeds, summed over all replies that the policy is likely to give.",
    ),
    ("interval", "Holds the true number with certainty; its width is what unlikely replies, left out, could change."),
    ("levels' interval", "95 % confidence for the mean over all levels of the split, of which these are a sample."),
    ("pass@k", "Mean over levels of 1 - (1 - p)^k: the chance that one of k episodes succeeds."),
    ("reached", "Chance that an episode comes to this state."),
    ("Q", "Expected success or return after a reply, if the policy goes on by itself."),
    ("random, blind", "Exact success of uniformly drawn moves, and of a script that ignores obstacles."),
    ("optimal", "Exact success of an oracle that looks after every move; a policy looks after every reply."),
)


def shown_interval(ends: Sequence[float], scale: float = 100.0, digits: int = 2) -> str:
    """An interval as text: one number where both ends round to it."""
    low, high = (f"{scale * end:.{digits}f}" for end in ends)
    return low if low == high else f"{low} to {high}"


def page(about: Mapping[str, Any], found: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """The text of the page.

    Args:
        about: what was asked; see ``ExactFolder``.
        found: the summary.
        records: of the levels.
    """
    turns = len(records[0]["success_by_turn"])
    return render_page(
        "exact.html",
        None,
        folder=Path(__file__).with_name("templates"),
        kind="Exact evaluation",
        title=f"{about['model']} on {about['game']}",
        lede=f"Values of the policy at temperature {about['temperature']:g}, summed over its replies: no episode was "
        "sampled.",
        counts=[plural(found["levels"], "level"), plural(found["tokens"], "token")],
        findings=_findings(found),
        rows=[("policy", shown_interval(found["success"]), shown_interval(found["levels_interval"], digits=1))]
        + [(name, f"{100 * found[name]:.2f}", "") for name in REFERENCES if name in found],
        samples=SAMPLES,
        turns=range(1, turns + 1),
        passes={k: [shown_interval(ends) for ends in found["pass_at_k"][k]] for k in SAMPLES},
        levels=sorted(records, key=lambda each: -sum(each["success"])),
        references=[name for name in REFERENCES if name in found],
        shown=shown_interval,
        terms=_TERMS,
        colophon=[f"ragen-gym {__version__}.", f"Mass left out of an episode's replies: at most {about['mass']:g}."],
    )


def _findings(found: Mapping[str, Any]) -> list[str]:
    said = [
        f"The policy solves {shown_interval(found['success'])} % of these levels; optimal play "
        f"{100 * found['optimal']:.2f} %.",
        f"Malformed: {shown_interval(found['malformed_share'])} % of its replies. Moves of an episode: "
        f"{shown_interval(found['moves'], 1.0)}.",
    ]
    if "blind" in found and found["success"][1] <= found["blind"]:
        said.append(f"That is at most what the blind script reaches, {100 * found['blind']:.2f} %.")
    return said
