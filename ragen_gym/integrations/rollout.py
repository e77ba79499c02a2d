"""One episode as every adapter plays it: a row in, messages out, replies in, a reward and metrics out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from ragen_gym.core.levels import text_hash
from ragen_gym.core.validation import check_number, plain_number
from ragen_gym.envs.messages import read_answer
from ragen_gym.envs.policies import plan_moves, reply_for
from ragen_gym.envs.reply import whole_reply
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.task import TaskEnv, make_reply_env
from ragen_gym.envs.turn import TurnEnv

#: What ``Rollout.metrics`` counts, besides the return.
METRICS = {
    "success": "1 if the game was won, else 0",
    "turns": "replies taken",
    "actions": "moves played",
    "malformed_replies": "replies that are not of the form asked for, or that name an unknown action",
    "truncated": "1 if a budget of the game ended the episode, else 0",
    "unfinished": "1 if the library stopped before the episode was over, else 0",
}

_SEEDS_TRIED = 1000


class Rollout:
    """A game or a text task with its return and its metrics. One object plays one episode at a time.

    Objects share nothing, so any number of them may play in one process.

    Args:
        game: name or id; ``my_module:MyGame`` for a game or text task of your own, whose module is imported.
        split: ``"train"``, ``"validation"`` or ``"test"``, which have no level in common; None for all levels.
        options: fields of ``TurnConfig``, options of the game or the task, arguments of ``StepEnv`` such as ``preset``.

    Raises:
        ValueError: an unknown game, option or split, or messages with pictures, which these libraries cannot take.
    """

    def __init__(self, game: str, /, *, split: str | None = "train", **options: Any) -> None:
        self.env: ReplyEnv = make_reply_env(game, split=split, **options)
        if self.env.config.sees:
            raise ValueError(
                f"observation={self.env.config.observation!r} puts pictures into the messages: only text is passed on "
                "here, so leave it at 'text'."
            )
        self._info: dict[str, Any] | None = None
        #: The reward of each turn.
        self.rewards: list[float] = []

    @property
    def instructions(self) -> str:
        """The system message."""
        return self.env.instructions

    @property
    def info(self) -> dict[str, Any]:
        """Last message of the environment.

        Raises:
            gymnasium.error.ResetNeeded: no episode was started.
        """
        if self._info is None:
            raise ResetNeeded("no episode was started: call begin(seed) first.")
        return self._info

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation so far, ``{"role": …, "content": …}`` each."""
        return [dict(message) for message in self.info["messages"]]

    @property
    def over(self) -> bool:
        """True if the episode has ended."""
        return self.env.over

    @property
    def total(self) -> float:
        """The return so far: the sum of the turns' rewards."""
        return sum(self.rewards)

    @property
    def level_id(self) -> str:
        """Content hash of the level."""
        return str(self.info["level_id"])

    def begin(self, seed: int | None, noise_seed: int | None = None) -> str:
        """Start an episode; the first user message.

        Args:
            seed: of the level; equal seeds give equal levels in every process. None draws one, which ``seed`` tells.
            noise_seed: of the transition noise; the members of a rollout group share the seed and differ in this.

        Raises:
            ValueError: a negative seed.
        """
        self.seed = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        options = None if noise_seed is None else {"noise_seed": noise_seed}
        message, self._info = self.env.reset(seed=self.seed, options=options)
        self.rewards, self._played, self._malformed, self._truncated = [], 0, 0, False
        return str(message)

    def reply(self, text: str, reasoning: str | None = None, *, begun: str | None = None) -> str:
        """Take the model's reply, whatever it says; the next user message.

        Args:
            text: the reply as the model's server or tokenizer gave it.
            reasoning: what a server returned apart from the reply as its reasoning.
            begun: the end of the prompt that the reply completes, such as an open ``<think>``; None where it is not
                known: then a reply with one ``</think>`` and no ``<think>`` completes one.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over, or none was started.
        """
        whole = whole_reply(text, reasoning, begun=begun, think=self.env.config.think)
        message, reward, _, self._truncated, self._info = self.env.step(whole)
        self.rewards.append(float(reward))
        self._played += len(self.info["actions"])
        self._malformed += bool(self.info["reply"] and self.info["reply"].problem)
        return str(message)

    def reply_message(self, message: Any) -> str:
        """Take a server's message as the reply, its reasoning as the thinking; see ``reply`` and ``read_answer``."""
        return self.reply(*read_answer(message))

    def play(self, write: Callable[[], str]) -> list[str]:
        """Give replies until the episode is over; what they were."""
        replies: list[str] = []
        while not self.over:
            replies.append(write())
            self.reply(replies[-1])
        return replies

    def metrics(self) -> dict[str, float]:
        """The values of ``METRICS``."""
        values = (
            self.info["success"],
            len(self.rewards),
            self._played,
            self._malformed,
            self._truncated,
            not self.over,
        )
        return {name: float(value) for name, value in zip(METRICS, values, strict=True)}

    def best_reply(self) -> str:
        """A reply with moves of the oracle, with one move where moves may go astray and replies suffice; or the task's.

        Raises:
            ValueError: the text task has no oracle.
        """
        env = self.env
        if isinstance(env, TaskEnv):
            return env.optimal_reply()
        assert isinstance(env, TurnEnv)
        careful = env.game.stochastic and env.actions_left <= env.max_turns - env.turn
        return reply_for(env, plan_moves(env, 1 if careful else env.max_actions_per_turn))

    def optimal_success(self) -> float | None:
        """The highest probability of success from here; None for a text task without oracle.

        Of a text task the oracle's episode is played to its end.
        """
        env = self.env
        if isinstance(env, TurnEnv):
            return env.solution().success(*env.env.state, env.actions_left)
        assert isinstance(env, TaskEnv)
        if not env.has_oracle:
            return None
        self.play(self.best_reply)
        return float(self.info["success"])

    def demonstration(self, first_seed: int = 0) -> dict[str, Any]:
        """The first episode that the oracle wins: its ``seed``, ``noise_seed``, ``replies`` and ``total``.

        Raises:
            ValueError: ``first_seed`` is no seed, or none of 1,000 episodes is won.
        """
        for seed in _seeds(first_seed, _SEEDS_TRIED):
            self.begin(seed, noise_seed=seed)
            replies = self.play(self.best_reply)
            if self.info["success"]:
                return {"seed": seed, "noise_seed": seed, "replies": replies, "total": self.total}
        raise ValueError(f"optimal play wins none of the episodes of {_SEEDS_TRIED} seeds: give it more turns.")


def episode_name() -> str:
    """A name that no other episode has, in whatever process, where the library gives it none; 32 hexadecimal digits."""
    return f"{np.random.SeedSequence().entropy:032x}"


def noise_seed_of(name: str) -> int:
    """The noise seed of a rollout that has a name of its own, such as a trace's id; 0 to 2**63 - 1."""
    return text_hash("rollout", name) >> 1


def rows(
    game: str, count: int, /, *, split: str | None = "train", first_seed: int = 0, **options: Any
) -> Iterator[Any]:
    """Rows of a data set: one for each seed, with what a rollout of it begins with.

    Args:
        game: see ``Rollout``.
        count: of rows.
        split: see ``Rollout``.
        first_seed: seed of the first row; the rest follow.
        options: see ``Rollout``.

    Yields:
        Dicts of ``prompt`` (the system message and the first user message), ``game``, ``split``, ``seed`` and
        ``level_id``. Two seeds may give one level where the game has few.

    Raises:
        ValueError: ``count`` or ``first_seed`` is no integer from 0 on; see also ``Rollout``.
    """
    rollout = Rollout(game, split=split, **options)
    for seed in _seeds(first_seed, count):
        rollout.begin(seed)
        yield {
            "prompt": rollout.messages,
            "game": game,
            "split": split,
            "seed": seed,
            "level_id": rollout.level_id,
        }


def verl_rows(game: str, count: int, agent: str, /, **options: Any) -> Iterator[dict[str, Any]]:
    """Rows as verl reads them from JSON lines or Parquet files, one for each seed.

    Args:
        game: see ``rows``.
        count: of rows.
        agent: name of the agent loop, as in verl's file of agent loops.
        options: ``split``, ``first_seed`` and further arguments of ``rows``.
    """
    for index, row in enumerate(rows(game, count, **options)):
        level = {name: row[name] for name in ("game", "split", "seed", "level_id")}
        yield {
            "data_source": f"{game}/{row['split'] or 'all'}",  # verl logs the validation by it
            "agent_name": agent,
            "prompt": row["prompt"],
            "ability": "game",
            "reward_model": {"style": "rule", "ground_truth": row["level_id"]},
            "extra_info": {"index": index, **level},
        }


def _seeds(first: int, count: int) -> range:
    first, count = plain_number(first), plain_number(count)
    check_number("rows", "first_seed", first, 0, whole=True)
    check_number("rows", "count", count, 0, whole=True)
    return range(first, first + count)
