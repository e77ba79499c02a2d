"""The judge of what replies say of the board: its question, how its answer is read, what it earns, and its failures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import GAME_DEFAULTS
from ragen_agent.local.run import TrainingRun
from ragen_agent.rollout import Instance
from ragen_agent.sft.demonstrations import demonstrate
from ragen_agent.training.judge import Description, Judge, check_judge, descriptions, read_verdict
from ragen_agent.training.policy import Policy
from ragen_agent.training.run_folder import RunFolder
from ragen_agent.training.tasks import make_game_env
from ragen_agent.trajectory import Trajectory
from ragen_gym.core.storage import read_json_lines
from tests.ragen_agent.displays import quiet
from tests.ragen_gym.bench.bad_server import BadServer, completion

KEY = "sk-a-key-of-the-judge"
SETTINGS: dict[str, Any] = {
    "env_options": {"success_rate": 0.6},
    "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
    "turns": {"grounding": True, "world_modelling": True, "max_turns": 3, "max_tokens_per_turn": 90},
    "demonstrations": {"episodes": 64, "thought": "direction"},
    "training": {"iterations": 2, "groups": 2, "group_size": 2, "minibatch": 4, "filter": "none"},
    "evaluation": {"levels": 4},
    "judge": {"model": "judge", "key_env": "JUDGE_KEY", "retries": 0, "timeout": 20.0},
}

#: What a tiny model learns the form of in seconds.
EASY: dict[str, Any] = {
    "env_options": {"size": 3, "success_rate": 1.0},
    "turns": {"world_modelling": False, "max_turns": 1},
    "demonstrations": {"episodes": 1200, "thought": "none"},
    "warm_start": {"epochs": 4},
    "training": {"groups": 8},
}


class Server(BadServer):
    """Chat completions over HTTP, answered by a function of the question or in one of the ways of a ``BadServer``."""

    def __init__(self, answer: Callable[[str], str], delay: float = 0.01) -> None:
        super().__init__(self._way, delay, model="judge")
        self.text = answer
        self.keys: set[str | None] = set()

    def _way(self, number: int, body: dict[str, Any]) -> str:
        text = self.text(body["messages"][-1]["content"])
        self.answer = completion(text)
        return text if text == "echo 500" else "good"

    async def _answer(self, writer: asyncio.StreamWriter, headers: Mapping[str, str], body: dict[str, Any]) -> bool:
        self.keys.add(headers.get("authorization"))
        await asyncio.sleep(self.delay)
        return await super()._answer(writer, headers, body)


def faithful(question: str) -> str:
    """A judge that compares the two texts as they are."""
    truth, said = re.search(r"# True \w+ state\n(.*?)\n\n# \w+\n(.*?)\n\nThink step", question, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"<think>I compare.</think><answer>{'YES' if truth == said else 'NO'}</answer>"


def configure(url: str, **judge: Any) -> Config:
    settings = merged(SETTINGS, {"judge": {"base_url": url, **judge}})
    return with_settings(Config(), merged(GAME_DEFAULTS["FrozenLake"], settings))


@pytest.fixture(scope="module")
def episodes() -> list[Trajectory]:
    """Demonstrations on ice that slips: observations are right, predictions often not."""
    config = replace(configure("http://127.0.0.1/v1"), judge=Config().judge)
    policy = Policy.build(config)
    return demonstrate(
        policy.processes("train", 1)[0], [Instance(seed, 100 + seed) for seed in range(6)], config.demonstrations, 0
    )


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("<think>same</think><answer>YES</answer>", True),
        ("It differs in row 2.\n<answer> NO </answer>\n", False),
        ("<answer>NO</answer>", False),
        ("YES", None),
        ("", None),
        ("<answer>yes</answer>", None),
        ("<answer>MAYBE</answer>", None),
        ("<answer>YES</answer> or rather not", None),
        ("<answer>NO</answer><answer>YES</answer>", None),
        ("<answer>YES or NO</answer>", None),
    ],
)
def test_an_answer_is_read_strictly(answer: str, verdict: bool | None) -> None:
    assert read_verdict(answer) is verdict


def test_descriptions_are_those_of_the_episode_and_exactly_judged(episodes: list[Trajectory]) -> None:
    env = make_game_env(configure("http://host/v1"), "train")
    for seed, episode in enumerate(episodes):
        found = descriptions(episode, 100 + seed, env)
        assert [(each.turn, each.part) for each in found] == [
            (turn, part) for turn in range(len(episode.turn_ends)) for part in ("observation", "prediction")
        ]
        recorded = [(turn.observation_right, turn.prediction_right) for turn in episode.turn_infos]
        assert [each.right for each in found] == [right for pair in recorded for right in pair]
        assert all((each.said.strip() == each.truth) == each.right for each in found)
    assert not all(turn.prediction_right for episode in episodes for turn in episode.turn_infos), "the ice slips"
    changed = replace(episodes[0], turn_rewards=tuple(reward + 1 for reward in episodes[0].turn_rewards))
    with pytest.raises(ValueError, match="give the environment and the noise seed with which it was played"):
        descriptions(changed, 100, env)


def test_verdicts_earn_half_for_each_part_and_are_compared_with_the_truth(episodes: list[Trajectory]) -> None:
    server = Server(faithful)
    with server:
        judge = Judge(configure(server.url, reward=0.8, concurrency=3).judge)
        env = make_game_env(configure(server.url), "train")
        noise_seeds = [100 + seed for seed in range(len(episodes))]
        rewarded = judge.rewarded(episodes, noise_seeds, env)
        figures, asked = judge.take_figures(), len(server.bodies)
        assert judge.rewarded(episodes, noise_seeds, env)[0].turn_rewards == rewarded[0].turn_rewards
        assert len(server.bodies) == asked, "verdicts are remembered"
    for before, after in zip(episodes, rewarded, strict=True):
        assert after.failure is None
        expected = [
            reward + 0.4 * (bool(turn.observation_right) + bool(turn.prediction_right))
            for reward, turn in zip(before.turn_rewards, before.turn_infos, strict=True)
        ]
        assert after.turn_rewards == pytest.approx(expected)
    turns = [turn for episode in episodes for turn in episode.turn_infos]
    accepted = sum(bool(turn.observation_right) + bool(turn.prediction_right) for turn in turns)
    assert figures == {
        "judged": 2 * len(turns),
        "judge_failed": 0,
        "judge_yes": accepted / (2 * len(turns)),
        "judge_wrong": 0.0,
    }
    assert judge.take_figures()["judged"] == 2 * len(turns)
    assert server.most <= 3
    assert server.keys == {f"Bearer {KEY}"}
    assert {body["temperature"] for body in server.bodies} == {0}
    assert {body["max_tokens"] for body in server.bodies} == {400}


def test_an_episode_without_a_verdict_is_a_failure_and_earns_nothing(episodes: list[Trajectory]) -> None:
    def half(question: str) -> str:
        return "I would say YES." if "# Prediction" in question else "<answer>NO</answer>"

    env = make_game_env(configure("http://host/v1"), "train")
    noise_seeds = [100 + seed for seed in range(len(episodes))]
    lost = replace(episodes[0], failure="engine_error: gone")
    with Server(half) as server:
        judge = Judge(configure(server.url).judge)
        rewarded = judge.rewarded([lost, *episodes[1:]], noise_seeds, env)
    assert rewarded[0] is lost
    for before, after in zip(episodes[1:], rewarded[1:], strict=True):
        assert after.turn_rewards == before.turn_rewards
        assert after.failure is not None
        assert after.failure.startswith("model_error: the judge of the prediction in turn 1: no verdict at the end of")
    figures = judge.take_figures()
    assert figures["judge_failed"] == figures["judged"] / 2
    assert figures["judge_yes"] == 0
    shares = [turn.observation_right for episode in episodes[1:] for turn in episode.turn_infos]
    assert figures["judge_wrong"] == sum(map(bool, shares)) / len(shares)


@pytest.mark.parametrize(
    ("answer", "kind"), [("echo 500", "model_error: HTTP 500"), ("late", "timeout: no answer within 0.2 s")]
)
def test_a_judge_that_answers_nothing_stops_the_run(episodes: list[Trajectory], answer: str, kind: str) -> None:
    env = make_game_env(configure("http://host/v1"), "train")
    with Server(lambda question: answer, delay=0.6) as server:
        judge = Judge(configure(server.url, timeout=0.2 if answer == "late" else 20.0).judge)
        with pytest.raises(
            ValueError, match=f"the judge answered none of 2 questions, the first with {kind}"
        ) as caught:
            judge.rewarded([first_turn(episodes)], [100], env)
    assert KEY not in str(caught.value)


def first_turn(episodes: list[Trajectory]) -> Trajectory:
    """The shortest beginning of an episode: one turn of it."""
    episode, end = episodes[0], episodes[0].turn_ends[0] + 1
    assistants = [i for i, message in enumerate(episode.messages) if message["role"] == "assistant"]
    return replace(
        episode,
        ids=episode.ids[:end],
        sampled=episode.sampled[:end],
        log_probs=episode.log_probs[:end],
        turn_ends=episode.turn_ends[:1],
        turn_rewards=episode.turn_rewards[:1],
        turn_infos=episode.turn_infos[:1],
        messages=episode.messages[: assistants[0] + 1],
    )


def test_the_cache_has_a_bound() -> None:
    one, other = (Description(0, "observation", said, "truth", right=False) for said in ("one", "other"))
    with Server(faithful) as server:
        judge = Judge(configure(server.url, cache=1).judge)
        for description in (one, other, one):
            assert judge.ask([description, description])[1].accepted is False
        assert len(server.bodies) == 3


def test_a_server_that_is_not_there_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(faithful) as server:
        assert check_judge(configure(server.url).judge) is None
        assert "lists judge, not other" in str(check_judge(configure(server.url, model="other").judge))
    with pytest.raises(ValueError, match=r"cannot reach .*: start the server"):
        check_judge(configure(server.url).judge)
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(ValueError, match="the environment variable JUDGE_KEY holds no key"):
        check_judge(configure(server.url).judge)


def test_a_run_is_paid_by_its_judge(tmp_path: Path) -> None:
    with Server(lambda question: "<answer>YES</answer>") as server:
        config = configure(server.url)
        config = with_settings(config, EASY)
        folder = RunFolder.create(tmp_path / "run", config)
        run = TrainingRun(config, folder, quiet())
        run.warm_start()
        run.reinforce()
    records = read_json_lines(folder.metrics)
    assert [record["judge_failed"] for record in records] == [0, 0]
    judged = [record for record in records if record["judged"]]
    assert judged, "the warm start teaches the form"
    assert all(record["judge_yes"] == 1 for record in judged)
    assert not any(KEY.encode() in path.read_bytes() for path in folder.path.rglob("*") if path.is_file())
