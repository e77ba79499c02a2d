"""Evaluation through the benchmark's runner: the suite of a run's fixed levels, and the policy as its agent.

The training loop's own evaluation plays (``play_fixed``), and the runner is then given the replies that the games got.
It plays them again, scores them and keeps the records, so both measure the same episodes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium

from ragen_agent.config import Config
from ragen_agent.config.settings import pretrained
from ragen_agent.run.console import Display
from ragen_agent.run.evaluation import evaluated_levels, play_fixed
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.metrics import turn_spans
from ragen_gym.bench.agent import AgentFailure, Answer, Message, Task
from ragen_gym.bench.suites import SUITE_FILE, Suite, load_suite, without_levels
from ragen_gym.bench.suites.freeze import write_frozen
from ragen_gym.bench.suites.table import Problem
from ragen_gym.core.failures import Failure, failure_kind
from ragen_gym.core.levels import Level
from ragen_gym.core.settings import declared
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.turn import TurnEnv


def evaluation_suite(games: Sequence[Config], folder: Path) -> Suite:
    """The suite of the levels on which these games of a run are evaluated, written into a folder.

    Args:
        games: the settings of each game; see ``measured_settings``.
        folder: of the suite; its files are replaced.

    Raises:
        ValueError: see ``evaluated_levels``; or a level that cannot be read back from its text.
    """
    import tomli_w

    folder.mkdir(parents=True, exist_ok=True)
    rows, found = [], []
    for place, config in enumerate(games):
        env, instances = evaluated_levels(config)
        levels: list[Level | Problem] = []
        for instance in instances:
            said, info = env.reset(seed=instance.seed)
            levels.append(env.level if isinstance(env, TurnEnv) else Problem(instance.seed, info["level_id"], said))
        options = {name: value for name, value in config.env_options.items() if value is not None}
        if isinstance(env, TurnEnv):
            options = without_levels(config.game, options)
        else:
            options["split"] = config.evaluation.split
        file = f"{place}.{'txt' if isinstance(env, TurnEnv) else 'jsonl'}"
        write_frozen(folder / file, levels)
        turns = config.turns.of_environment(states_limit=pretrained(config.model))
        usual = {name: each.default for name, each in declared(TurnConfig).items()}
        budgets = {name: value for name, value in asdict(turns).items() if value != usual[name]}
        rows.append({"name": config.game, "env": config.game, "levels": file, "env_options": options})
        rows[-1]["budgets"] = budgets
        found.append(levels)
    evaluation = games[0].evaluation
    table = {
        "name": f"{'+'.join(config.game for config in games)}-{evaluation.split}-{evaluation.levels}",
        "temperature": evaluation.temperature,
        "noise": "index",
        "splits": rows,
    }
    write_atomic(folder / SUITE_FILE, tomli_w.dumps(table))
    suite = load_suite(folder)
    for split, levels in zip(suite.splits, found, strict=True):
        if [*split.levels] != levels:
            raise ValueError(
                f"a level of {split.env} is another one when its text is read again, so it cannot be evaluated on "
                "fixed levels: see `ragen-gym check`."
            )
    return suite


class PlayedAgent:
    """A policy that has played; it gives the runner the replies of its episodes again.

    Args:
        name: as it stands in the results.
        policy: plays.
        games: the settings of each split of the suite, in order.
        weights: what tells its weights from others, such as a hash.
        seen: path of the record of the levels that it was trained on, or None.
    """

    whole_replies = True  # what the template begins is in the text already, as the token process decodes it

    def __init__(
        self, name: str, policy: Policy, games: Sequence[Config], weights: Mapping[str, Any], seen: Path | None = None
    ) -> None:
        self.name, self.policy, self.seen = name, policy, seen
        turns = games[0].turns
        limits = {each.game: [each.turns.max_tokens_per_turn, each.turns.max_tokens_per_episode] for each in games}
        self.settings = {
            "weights": dict(weights),
            "dtype": str(policy.model.dtype).removeprefix("torch."),
            "max_tokens": limits,
            "history": {each.game: each.turns.history for each in games},
            "keep_thinking": turns.keep_thinking,
            "template": turns.template_options,
            "program": games[0].program.command,
        }
        self.circumstances = {"device": policy.model.device.type, "batch": games[0].evaluation.batch}
        self._answers: dict[tuple[str, int], Iterator[Answer]] = {}

    def play(self, config: Config, display: Display, kept: Container[int] = ()) -> None:
        """Play the levels of one of the games, but for those ``kept``; raises as ``Policy.play``.

        What was played before an exception, such as Ctrl-C's, can be asked for like the rest.
        """
        policy, instances = replace(self.policy, config=config), evaluated_levels(config)[1]
        numbers = [number for number in range(len(instances)) if number not in kept]
        replies: dict[int, list[str]] = {}
        processes = policy.processes(config.evaluation.split, min(config.evaluation.batch, len(numbers)))
        for process in processes:
            process.env = _ReplyRecorder(process.env, replies)
        played: dict[int, Trajectory] = {}
        try:
            play_fixed(policy, instances, display, processes=processes, numbers=numbers, over=played.update)
        finally:
            for index, trajectory in played.items():
                answers = self._answers_of(trajectory, replies.get(instances[index].noise_seed, []))
                self._answers[config.game, index] = answers

    def has_played(self, split: str, index: int) -> bool:
        """True if the runner may ask for this episode."""
        return (split, index) in self._answers

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """The policy's reply; raises an ``AgentFailure`` where the episode ended without one."""
        for answer in self._answers[task.split, task.index]:
            return answer
        raise AgentFailure(Failure.AGENT_ERROR, "the program ended the episode before its end")

    def _answers_of(self, played: Trajectory, replies: Sequence[str]) -> Iterator[Answer]:
        """The replies of an episode, with their tokens unless a program wrote them; then raises what ended it."""
        spans = turn_spans(played) if not self.settings["program"] else []
        for turn, reply in enumerate(replies):
            if turn >= len(spans):
                yield Answer(reply)
                continue
            first, end = spans[turn]
            begins = max((context for context in played.contexts if context <= first), default=0)
            reason = "stop" if int(played.ids[end - 1]) in self.policy.chat.stop_ids else "length"
            yield Answer(reply, prompt_tokens=first - begins, completion_tokens=end - first, finish_reason=reason)
        if played.failure is not None:
            kind, _, detail = played.failure.partition(": ")
            raise AgentFailure(failure_kind(kind), detail)
        if played.overflowed:
            detail = "the conversation has outgrown turns.max_tokens_per_episode"
            raise AgentFailure(Failure.CONTEXT_OVERFLOW, detail)


class _ReplyRecorder(gymnasium.Wrapper[Any, str, Any, str]):
    """Keeps the replies that a game gets, a list for each noise seed: a program's are not always as sampled."""

    def __init__(self, env: gymnasium.Env[Any, str], replies: dict[int, list[str]]) -> None:
        super().__init__(env)
        self._replies, self._played = replies, list[str]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert options is not None
        self._played = self._replies[options["noise_seed"]] = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._played.append(action)
        return self.env.step(action)
