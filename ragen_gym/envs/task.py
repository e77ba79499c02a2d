"""Text tasks: any ``gymnasium.Env[str, str]`` with ``instructions``, played and trained on as the games are.

A task is a class (or a function that makes an environment) in a module, named ``module:Name`` and not registered
anywhere. What it must have:

- ``instructions`` (str): the system message; the empty text for none.
- ``observation_space`` and ``action_space``, such as ``gymnasium.spaces.Text``.
- ``reset(seed=…, options=…)``, which gives the first message and ``info``, and ``step(reply)``, which gives the next
  message, the reward of the turn, ``terminated``, ``truncated`` and ``info``. Equal seeds give equal first messages,
  which the episodes of a rollout group share. What happens later may depend on ``options["noise_seed"]``, which differs
  between them.

What it may have:

- ``info["success"]`` (bool) after a step. Without it an episode succeeds if the sum of its rewards is above 0.
- ``info["level_id"]`` (str) at reset: what problem this is, where the first message does not say it, or says one
  problem in several ways. Splits are made by a hash of it: 80 % of all problems are in ``train``, 10 % in each of the
  others.
- a parameter ``split``, for a task that makes its splits itself.
- a parameter ``turn_config``, for a task that reads the options of a turn (``TurnConfig``) itself, and an attribute
  ``max_turns``, the most turns of its episode.
- ``optimal_reply() -> str``: a best reply here. With it there are an optimal rate and demonstrations.
- ``random_reply(rng) -> str``: a reply of the right form drawn at random, by a ``numpy.random.Generator``. With it
  there is a random rate.
- ``risky_returns`` (bool): see ``ragen_gym.games.game.Game.risky_returns``.

A score says which of the two rates it lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from ragen_gym.core.levels import check_split, split_of_hash, text_hash
from ragen_gym.core.seeding import Stream, episode_key, stream_key
from ragen_gym.core.turn_config import TurnConfig, split_turn_options, turn_config
from ragen_gym.core.validation import check_number, did_you_mean, plain_number, shown
from ragen_gym.envs.board_view import TextSpace
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.step import InnerGenerator
from ragen_gym.envs.turn import make_turn
from ragen_gym.games.registry import load, load_task

_TRIES = 1000  # seeds for a problem of a split


class TaskEnv(InnerGenerator, ReplyEnv):
    """A text task with the conversation, the budget of turns and the splits that training and benchmark need.

    ## Arguments
    name: ``module:Name`` of the task.
    config: a ``TurnConfig``. Of its options ``max_turns`` truncates the episode; how a reply is read is the task's.
    split: ``train``, ``validation`` or ``test``, or None for every problem; a seed then finds a problem of the split.
    options: keyword arguments of the task.

    ## Information
    What the task gives, and over it the entries of ``ReplyEnv``: ``reply`` is None and ``actions`` is empty, since
    nobody but the task reads replies.

    Raises:
        ValueError: no such task, an argument that it does not take, no ``instructions``, an option of turns that only
            games have, or at reset a split that has none of its problems.
    """

    def __init__(
        self, name: str, config: TurnConfig | None = None, /, *, split: str | None = None, **options: Any
    ) -> None:
        make = load_task(name)
        if make is None:
            raise ValueError(f"{name!r} is not a text task: name a class as module:Name (see ragen_gym.envs.task).")
        self._name, self._make, self._split = name, make, check_split(split)
        self.config = turn_config(config, {})
        known, takes_any = _parameters(make)
        reads_turns = "turn_config" in known
        of_games = ("grounding", "world_modelling", "budget", "summary", "prompt", "observation")
        for option in () if reads_turns else of_games:
            if (value := getattr(self.config, option)) != getattr(TurnConfig, option):
                raise ValueError(f"{option}={value!r} is for games: {name} is a text task.")
        for option in options:
            if option not in known and not takes_any:
                others = ", ".join(known) or "none"
                hint = did_you_mean(option, known)
                if split_turn_options({option: None})[0]:
                    hint = f" {option} is an option of turns: give TurnConfig({option}=…) as the second argument."
                raise ValueError(f"{name} has no option {option!r}: it has {others}.{hint}")
        self._makes_splits = "split" in known
        plain = {name: plain_number(value) for name, value in options.items()}
        self._options = plain | ({"split": split} if self._makes_splits and split is not None else {})
        self._options |= {"turn_config": self.config} if reads_turns else {}
        try:
            signature(make).bind(**self._options)
        except TypeError as error:
            raise ValueError(f"{name}: {error}; give it as an option of the task.") from None
        self.env: gymnasium.Env[str, str] = self._made()
        self._probe: gymnasium.Env[str, str] | None = None
        own_turns = self._optional("max_turns") if reads_turns else None
        self.max_turns = own_turns or self.config.max_turns
        self.metadata, self.render_mode = self.env.metadata, self.env.render_mode
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        if isinstance(text := self.observation_space, gymnasium.spaces.Text):
            self.observation_space = TextSpace(text.max_length, min_length=text.min_length, charset=text.character_set)
        self._random_reply: Callable[[np.random.Generator], str] | None = self._optional("random_reply")
        self._optimal_reply: Callable[[], str] | None = self._optional("optimal_reply")
        self.has_random_replies, self.has_oracle = self._random_reply is not None, self._optimal_reply is not None
        self.risky_returns: bool = bool(self._optional("risky_returns"))

    @property
    def name(self) -> str:
        """The name of the task's class."""
        return self._name.rpartition(":")[2]

    @property
    def instructions(self) -> str:  # type: ignore[override]
        """The system message."""
        return str(self.env.get_wrapper_attr("instructions"))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; the first message, and the information of the class's list.

        Raises:
            ValueError: the message is no string, or no seed tried gives a problem of the split.
        """
        self._over = True
        message, info, family = self._begin(self.env, seed, options)
        self._level_id = f"{family:016x}"
        self._turn, self._over, self._total = 0, False, 0.0
        self.message_text = message
        self._messages = [{"role": "system", "content": self.instructions}, {"role": "user", "content": message}]
        return message, self._report(info, (), success=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give the task a reply; one with a forbidden text reaches it empty.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over, or none was started.
            ValueError: the reply or the next message is not a string, or the reward is not finite.
        """
        reply = self._checked_reply(action)
        message, earned, terminated, truncated, info = self.env.step("" if self.spells_forbidden(reply) else reply)
        reward = self._checked(message, earned)
        self._turn += 1
        self._total += reward
        terminated = bool(terminated)
        truncated = not terminated and (bool(truncated) or self._turn >= self.max_turns)
        self._over = terminated or truncated
        self._messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": message}]
        self.message_text = message
        success = bool(info["success"]) if "success" in info else self._over and self._total > 0
        return message, reward, terminated, truncated, self._report(info, (reward,), success=success)

    def optimal_reply(self) -> str:
        """A best reply here.

        Raises:
            ValueError: the task has no oracle.
        """
        if self._optimal_reply is None:
            raise ValueError(
                f"{self._name} has no oracle, so there is neither an optimal rate nor a demonstration: give the task a "
                "method optimal_reply(), which returns a best reply."
            )
        return self._optimal_reply()

    def random_reply(self, rng: np.random.Generator) -> str:
        """A reply of the right form drawn at random.

        Raises:
            ValueError: the task draws none.
        """
        if self._random_reply is None:
            raise ValueError(
                f"{self._name} draws no replies, so there is no random rate: give the task a method random_reply(rng), "
                "which returns a reply of the right form."
            )
        return self._random_reply(rng)

    def level_families(self, seeds: Iterable[int]) -> list[int]:
        """See ``ReplyEnv``; asks a second environment of the task."""
        if self._probe is None:
            self._probe = self._made()
        return [self._begin(self._probe, seed, None)[2] for seed in seeds]

    def render(self) -> Any:
        """Rendering of the task."""
        return self.env.render()

    def close(self) -> None:
        """Close the task."""
        for env in (self.env, self._probe):
            if env is not None:
                env.close()

    def _made(self) -> gymnasium.Env[str, str]:
        env = self._make(**self._options)
        if not isinstance(env, gymnasium.Env):
            raise ValueError(
                f"{self._name} makes {shown(env)}, which is no gymnasium.Env: a text task is one, with instructions; a "
                "game is registered by ragen_gym.register in its module."
            )
        instructions = env.get_wrapper_attr("instructions") if env.has_wrapper_attr("instructions") else None
        if not isinstance(instructions, str):
            raise ValueError(
                f"{self._name} has no instructions (found {shown(instructions)}): give the class or the environment a "
                'text `instructions`, the system message that says what is asked and how to reply; "" for none.'
            )
        return env

    def _optional(self, method: str) -> Any:
        return self.env.get_wrapper_attr(method) if self.env.has_wrapper_attr(method) else None

    def _begin(
        self, env: gymnasium.Env[str, str], seed: int | None, options: dict[str, Any] | None
    ) -> tuple[str, dict[str, Any], int]:
        """The first message, the task's information, and the hash of the problem, which is of the split."""
        seed = plain_number(seed)
        check_number("reset", "seed", seed, 0, whole=True, none=True)
        first = seed
        # A key has 64 bits; a longer seed is hashed to one.
        key = stream_key(seed, Stream.LEVEL) if seed is not None and seed >= 2**64 else seed
        found = set[int]()
        for attempt in range(_TRIES):
            if key is not None and self._split is not None:
                # 31 bits, which every generator takes; the same for all splits but for which of them are taken.
                first = episode_key(key, attempt - 1) >> 33
            message, info = env.reset(seed=first, options=options)
            self._checked(message)
            family = text_hash(self.name, str(info.get("level_id", message)))
            if self._split is None or self._makes_splits or split_of_hash(family) == self._split:
                return message, dict(info), family
            found.add(family)
        raise ValueError(
            f"{self._name} has no problem of the split {self._split!r}: {_TRIES} seeds gave {len(found)} different "
            "problems, and none is in it. Say in info['level_id'] which problem a seed gives, give the task a "
            "parameter split, or ask for another split (evaluation.split)."
        )

    def _checked(self, message: Any, reward: SupportsFloat = 0.0) -> float:
        if not isinstance(message, str):
            raise ValueError(f"{self._name} gave {shown(message)} as a message, which must be a string.")
        try:
            number = float(reward)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{self._name} gave the reward {shown(reward)}, which must be a finite number.")
        return number

    def _report(self, info: dict[str, Any], rewards: tuple[float, ...], *, success: bool) -> dict[str, Any]:
        return {
            **info,
            "messages": tuple(map(dict, self._messages)),
            "reply": None,
            "actions": (),
            "rewards": rewards,
            "success": success,
            "level_id": self._level_id,
            "turn": self._turn,
        }


def make_reply_env(name: str, config: TurnConfig | None = None, /, **options: Any) -> ReplyEnv:
    """A game's ``TurnEnv``, or the ``TaskEnv`` of a text task ``module:Name``, whose module is imported.

    Args:
        name: of the game or the task.
        config: the options of a turn.
        options: fields of ``TurnConfig`` over those of ``config``, and the arguments of the game or the task.

    Raises:
        ValueError: see ``make_turn`` and ``TaskEnv``.
    """
    if load_task(name) is None:
        load(name)
        return make_turn(name, config, **options)
    turn_options, task_options = split_turn_options(options)
    return TaskEnv(name, turn_config(config, turn_options), **task_options)


def _parameters(make: Callable[..., Any]) -> tuple[list[str], bool]:
    parameters = signature(make).parameters.values()
    named = [each.name for each in parameters if each.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    return named, any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
