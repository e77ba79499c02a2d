"""What the viewer shows of recorded episodes: regret and pivots, replayed with the noise that they met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.report.episodes import EpisodeViews
from ragen_agent.report.runs import load_runs
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.storage import append_json_lines
from ragen_gym.games.values import TOLERANCE

SETTINGS = {
    "game": "FrozenLake",
    "env_options": {"success_rate": 0.6},
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "turns": {"think": False, "max_turns": 4, "max_actions_per_turn": 2},
}
REPLIES = ("Down || Right", "Left", "Right || Down", "Right")


def finished(process: TokenMDP, replies: tuple[str, ...]) -> Trajectory:
    for reply in replies:
        if not process.done:
            ids = process.chat.tokenizer.encode(f"<answer>{reply}</answer>", add_special_tokens=False)
            process.append_reply([*ids, process.chat.end_id], [-0.5] * (len(ids) + 1))
    return process.trajectory()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Trajectory, dict[str, Any]]]:
    """Episodes as a run writes them down, with what the viewer shows of them."""
    config = with_settings(Config(), SETTINGS)
    folder = RunFolder.create(tmp_path_factory.mktemp("runs") / "run", config)
    process = Policy.build(config).processes("train", 1)[0]
    played: list[Trajectory] = []
    for seed in range(12):
        process.begin(seed=seed, options={"noise_seed": 100 + seed})
        base = finished(process, REPLIES)
        played.append(base)
        extra = {"phase": "train", "iteration": 0, "kept": True, "noise_seed": 100 + seed}
        append_json_lines(folder.episodes, [{**extra, **base.to_dict()}])
    [run] = load_runs([folder.path])
    views = EpisodeViews(run, several=False)
    details = [entry.details() for group in views.groups() for entry in group]
    return list(zip(played, details, strict=True))


def test_every_move_has_its_regret_and_every_lost_level_its_pivot(
    shown: list[tuple[Trajectory, dict[str, Any]]],
) -> None:
    moves = [frame for _, details in shown for frame in details["frames"][1:]]
    assert moves
    assert all(frame["regret"][0] >= 0 for frame in moves)
    assert any(frame["regret"][1] > TOLERANCE for frame in moves)
    for trajectory, details in shown:
        pivots = [turn["pivot"] for turn in details["turns"] if "pivot" in turn]
        assert len(pivots) <= (0 if trajectory.success else 1)
    assert any("pivot" in turn for _, details in shown for turn in details["turns"])


def test_an_episode_is_replayed_with_the_noise_that_it_met(shown: list[tuple[Trajectory, dict[str, Any]]]) -> None:
    for trajectory, details in shown:
        said = [m["content"] for m in trajectory.messages if m["role"] == "user"]
        for turn, message in zip(details["turns"], said[1:], strict=False):
            assert details["frames"][turn["frames"][1] - 1]["board"] in message, "each turn led where it had led"
        assert len(details["turns"]) == len(trajectory.turn_ends)
        text = " ".join(details["facts"])
        assert "than the rules allow" not in text


@pytest.mark.parametrize(("game", "replayed"), [("FrozenLake", False), ("Sokoban", True)])
def test_an_episode_that_met_the_noise_of_several_seeds_is_shown_by_its_messages(
    game: str, replayed: bool, tmp_path: Path
) -> None:
    """Without a noise seed in its record; a deterministic game needs none."""
    config = with_settings(Config(), SETTINGS | {"game": game, "env_options": {}})
    folder = RunFolder.create(tmp_path / "run", config)
    [process] = Policy.build(config).processes("train", 1)
    process.begin(seed=0)
    record = {"phase": "train", "iteration": 0, "kept": True, "noise_seed": None}
    append_json_lines(folder.episodes, [{**record, **finished(process, REPLIES).to_dict()}])
    [[entry]] = EpisodeViews(load_runs([folder.path])[0], several=False).groups()
    assert ("not replayed" not in entry.details()["facts"]) is replayed
