"""The page on agents that see: its figures are of the episodes, and it is written from its results."""

from __future__ import annotations

import json

from benchmarks import vision
from ragen_agent.config import Config, with_settings
from ragen_agent.rollout import Instance
from ragen_agent.training.policy import Policy


def test_the_page_is_of_its_results() -> None:
    results = json.loads((vision.HERE / "vision.json").read_text(encoding="utf-8"))
    assert (vision.HERE / "vision.md").read_text(encoding="utf-8") == vision._page(results)


def test_the_figures_are_those_of_the_episodes() -> None:
    settings = {
        "small_model": {"kind": "vision", "hidden": 32, "layers": 1, "feed_forward": 32},
        "env_options": {"size": 4},
        "turns": {"observation": "image", "grounding": True, "max_turns": 2, "max_tokens_per_turn": 8},
    }
    config = with_settings(Config(), settings)
    policy = Policy.build(config)
    played = policy.play(policy.processes("test", 3), [Instance(seed, seed) for seed in range(3)], 1.0, seed=0)
    figures = vision._figures(played, config)
    boards = [turn.observation_right for t in played for turn in t.turn_infos]
    assert figures["success"]["n"] == 3
    assert (figures["boards"]["n"], figures["boards"]["rate"]) == (len(boards), 0.0), "nobody taught it"
    assert figures["planned"] is None
    run = {"trained_on": "image", "levels": 3, "shown": {"image": figures}}
    run |= {"random": figures["success"], "optimal": figures["success"]}
    page = vision._page({"speed": [], "machine": "here", "runs": {"mine": run}})
    assert "| mine | image | image | 0.0 (0 to 56) | 0.0 (0 to" in page
    assert "| - |" in page
