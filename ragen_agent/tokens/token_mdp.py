"""The decision process at the level of tokens.

State: the exact token prefix. Action: one token id. The process records the sampled tokens, the ends of turns and each
turn's reward; training reads nothing else (StarPO over whole trajectories: RAGEN, arXiv 2504.20073, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Self, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ragen_agent.config import Turns
from ragen_agent.inference import ImageSpan
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.history import Encoded, History, Message
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo
from ragen_gym.core.failures import Failure
from ragen_gym.core.validation import check_number, plain_number
from ragen_gym.envs.step import InnerGenerator


class TokenMDP(InnerGenerator, gymnasium.Env[NDArray[np.int64], np.int64]):
    """A turn-taking game as a decision process over token ids.

    ## Description
    The policy writes its replies one token at a time. A turn ends when a stop token is sampled or a limit cuts the
    reply; the reply's text then goes to the turn environment, and its next message, formatted by the chat template, is
    appended to the prefix before the next action. Sampled ids stay in the prefix exactly as they were sampled. A
    picture in a message is a run of placeholder ids, one for each visual token, and an ``ImageSpan`` in ``images``; a
    model that reads pictures puts its visual tokens in their places.

    ## Action Space
    ``Discrete(vocabulary)``: the next token's id. Picture ids are not actions.

    ## Observation Space
    ``Sequence(Discrete(vocabulary), stack=True)``: the whole prefix, int64 (T,), T at most ``max_tokens_per_episode``.

    ## Starting State
    The prompt: the turn environment's instructions and its first message, up to where the reply begins.

    ## Rewards
    0 inside a turn; the turn environment's reward at the turn's last sampled token.

    ## Episode End
    Terminated when the game ends. Truncated when the turn environment's budgets end it, when the next message and one
    token no longer fit in ``max_tokens_per_episode``, or when it fails (``info["failure"]``).

    ## Information
    Inside a turn: ``sampled`` (int, tokens sampled this turn). At reset and at a turn's end, the turn environment's own
    entries; at a turn's end also ``reply_text`` (str), ``cut`` (None, "turn" or "episode": the limit that cut the
    reply) and, when something broke, ``failure`` (str). ``images`` are the turn environment's: the pictures of its
    last message.

    ## Arguments
    - ``env``: the turn environment (``ragen_gym.make_turn``); text in, text out, with the attribute ``instructions``.
    - ``chat``: the chat template.
    - ``max_tokens_per_turn``: length limit of a reply, its stop token included. A longer reply is cut: the end token is
      appended, not counted as sampled, and the cut reply goes to the environment.
    - ``max_tokens_per_episode``: length limit of the prefix, prompt and glue included.
    - ``history``: number of earlier turns in the prefix (the history window); -1 keeps all of them, 0 shows the current
      turn alone. When a turn leaves the window, a new prefix begins: the prompt with the first kept message, the ids of
      the kept turns, the next message. ``context`` counts the prefixes of an episode, from 0.
    - ``record_states``: True to record the game's state at the start of each turn, if the turn environment has a
      ``state_id``.
    - ``chat.drops_thinking``: if True, every prefix is the conversation as the template writes it, without the thinking
      of earlier replies, and a new prefix begins wherever that differs from the ids so far. A reply that spells a
      special token in ordinary tokens is then malformed: ``env.forbidden_texts`` of a ``TurnEnv`` is set.

    ## Batched rollouts
    An engine that decodes many episodes at once calls ``begin`` instead of ``reset``. Instead of ``step(token)`` it
    calls ``append_reply(ids, log_probs)`` once a turn, or ``append(token, log_prob)``; they return the ids to feed
    next, with pictures from ``images_of(count)``. When ``done``, it takes ``trajectory()``.

    ## Attributes
    - ``ids``: the prefix.
    - ``images``: the pictures in it, counted from its first id.
    - ``context``: the number of this prefix, from 0.
    - ``done``: True if the episode has ended or none has begun.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        chat: ChatFormat,
        *,
        max_tokens_per_turn: int = 128,
        max_tokens_per_episode: int = 2048,
        history: int = -1,
        record_states: bool = False,
    ) -> None:
        if not isinstance(env, gymnasium.Env) or not env.has_wrapper_attr("instructions"):
            raise ValueError(f"env is {env!r}; give an environment of whole replies, as ragen_gym.make_turn('Bandit')")
        if not isinstance(chat, ChatFormat):
            raise ValueError(f"chat is a {type(chat).__name__}; give ChatFormat.from_tokenizer(tokenizer)")
        self.env = env
        self.chat = chat
        self.max_tokens_per_turn = plain_number(max_tokens_per_turn)
        self.max_tokens_per_episode = plain_number(max_tokens_per_episode)
        self.history = plain_number(history)
        for name, least in (("max_tokens_per_turn", 1), ("max_tokens_per_episode", 1), ("history", -1)):
            check_number("TokenMDP", name, getattr(self, name), least, whole=True)
        self.record_states = record_states
        if chat.drops_thinking and env.has_wrapper_attr("forbidden_texts"):
            env.set_wrapper_attr("forbidden_texts", chat.special_texts)
        self._vocabulary = chat.vocabulary_size
        self.action_space = spaces.Discrete(self._vocabulary)
        prefix = spaces.Sequence(spaces.Discrete(self._vocabulary), stack=True)
        self.observation_space = cast("spaces.Space[NDArray[np.int64]]", prefix)
        self.metadata = env.metadata
        self.render_mode = env.render_mode
        self.ids: list[int] = []
        self.images: list[ImageSpan] = []
        self.context = 0
        self.done = True

    @classmethod
    def from_settings(
        cls, env: gymnasium.Env[str, str], chat: ChatFormat, turns: Turns, *, record_states: bool = False
    ) -> Self:
        """A process with the token limits and the history window of a run's settings."""
        return cls(
            env,
            chat,
            max_tokens_per_turn=turns.max_tokens_per_turn,
            max_tokens_per_episode=turns.max_tokens_per_episode,
            history=turns.history,
            record_states=record_states,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Start an episode; see ``begin``."""
        info = self.begin(seed=seed, options=options)
        return self._observation(), info

    def begin(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Start an episode, for engines, which read the prefix from ``ids``; see ``reset`` of the turn environment.

        Raises:
            ValueError: the prompt leaves no room for a token, or holds pictures that the model cannot read. The turn
                environment's errors are passed on.
        """
        self.ids, self.images, self.done = [], [], True
        observation, info = self.env.reset(seed=seed, options=options)
        instructions = str(self.env.get_wrapper_attr("instructions"))
        self._history = History(self.chat, instructions, self.history, Message.of(observation, info))
        prompt, images = self._history.prompt()
        if len(prompt) >= self.max_tokens_per_episode:
            seen = sum(image.tokens for image in images)
            shown = f" ({seen} of them visual: a smaller turns.image_tile_size needs fewer)" if seen else ""
            raise ValueError(
                f"the prompt has {len(prompt)} tokens{shown}, which leaves none for a reply within "
                f"max_tokens_per_episode={self.max_tokens_per_episode}; raise it"
            )
        self.ids, self.images, self.done = prompt, images, False
        self._start = len(prompt)
        self._seed = None if seed is None else int(seed)
        self._level_id = str(info.get("level_id", ""))
        self._messages: tuple[Mapping[str, Any], ...] = tuple(info.get("messages", ()))
        self.context = 0
        self._past: list[int] = []  # the prefixes before this one
        self._past_images: list[ImageSpan] = []
        self._contexts = [0]
        self._spans: list[tuple[int, int]] = []
        self._log_probs: list[float] = []
        self._rewards: list[float] = []
        self._infos: list[TurnInfo] = []
        self._board = _text_of(self.env, "board")
        self._state = self._state_id()
        self._terminated = self._truncated = self._success = self._overflowed = False
        self._failure: str | None = None
        self._info: dict[str, Any] = info
        return info

    def step(self, action: int | np.int64) -> tuple[NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        """Append one token as sampled (its log-probability is recorded as 0); see the class for the rest.

        Raises:
            ValueError: not an id of the tokenizer's vocabulary, or a picture id.
        """
        self._check_running()
        turns = len(self._rewards)
        try:
            token = index(action)
        except TypeError:
            raise ValueError(f"action={action!r} is not a token id: give an integer.") from None
        self.append(token, 0.0)
        reward = self._rewards[-1] if len(self._rewards) > turns else 0.0
        truncated = self._truncated or self._failure is not None
        return self._observation(), reward, self._terminated, truncated, self._info

    def append(self, token: int, log_prob: float) -> list[int]:
        """Append one sampled token and, if it ends a turn, everything up to the next reply.

        Args:
            token: the sampled id, at least 0 and below the vocabulary's size.
            log_prob: the log-probability with which it was sampled.

        Returns:
            the unsampled ids after it. After a turn: the end token, unless it was sampled, and the glue. None inside a
            turn, at the episode's end (``done``), and if a new prefix begins (``context``), which is then ``ids``.

        Raises:
            ValueError: an id outside the vocabulary, for example of a padded output layer, or a
                log-probability that is not finite.
            gymnasium.error.ResetNeeded: the episode is over, or none has begun.
        """
        self._check_running()
        self._check(token, log_prob)
        self.ids.append(token)
        self._log_probs.append(log_prob)
        length = len(self.ids) - self._start
        self._info = {"sampled": length}
        room = length < self.max_tokens_per_turn and len(self.ids) < self.max_tokens_per_episode
        return [] if room and token not in self.chat.stop_ids else self._end_turn()

    def append_reply(self, ids: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """Append a whole reply at once, like ``append`` token by token, after checking it.

        Args:
            ids: the sampled ids of one turn, a list, array or tensor; only the last one may end the turn.
            log_probs: their log-probabilities, likewise.

        Returns:
            the ids that follow, see ``append``.

        Raises:
            ValueError: see ``append``; or the turn ends before or after the last id. Nothing is appended then.
            gymnasium.error.ResetNeeded: the episode is over, or none has begun.
        """
        self._check_running()
        try:
            ids, log_probs = list(map(index, ids)), list(map(float, log_probs))
        except (TypeError, ValueError) as error:
            raise ValueError(f"a reply is token ids and as many log-probabilities: {error}") from None
        room = min(self.max_tokens_per_turn, self.max_tokens_per_episode - self._start)
        stops = self.chat.stop_ids
        ends = bool(ids) and (ids[-1] in stops or len(ids) == room)
        if len(ids) != len(log_probs) or not ends or len(ids) > room or not stops.isdisjoint(ids[:-1]):
            raise ValueError(
                f"a reply of {len(ids)} tokens and {len(log_probs)} log-probabilities is not one whole turn; it must "
                f"end with its first stop token or its {room}th token"
            )
        known = min(ids) >= 0 and max(ids) < self._vocabulary and self.chat.reserved_ids.isdisjoint(ids)
        if not known or not all(map(math.isfinite, log_probs)):
            for token, log_prob in zip(ids, log_probs, strict=True):
                self._check(token, log_prob)
        self.ids += ids
        self._log_probs += log_probs
        return self._end_turn()

    def images_of(self, count: int) -> list[ImageSpan]:
        """The pictures in the last ``count`` ids of the prefix, counted from the first of these."""
        first = len(self.ids) - count
        return [image.moved(-first) for image in self.images if image.start >= first]

    def fail(self, reason: str) -> None:
        """End a running episode as a failure from outside; ``reason`` is "kind: details"."""
        assert reason, "a failure says what broke"
        if self.done:
            return
        if len(self.ids) > self._start:
            self._spans.append(self._span())
        self._failure = reason
        self.done = True

    def trajectory(self) -> Trajectory:
        """The record of the episode that has ended.

        Raises:
            gymnasium.error.ResetNeeded: none has begun, or its reset failed.
            ValueError: the episode is still running.
        """
        if not self.ids:
            self._check_running()
        if not self.done:
            raise ValueError("the episode is still running: step() until done, or fail() it, before its record.")
        ids = self._past + self.ids
        sampled = np.zeros(len(ids), dtype=np.bool_)
        for start, end in self._spans:
            sampled[start:end] = True
        log_probs = np.zeros(len(ids), dtype=np.float32)
        log_probs[sampled] = self._log_probs
        return Trajectory(
            ids=np.array(ids, dtype=np.int64),
            sampled=sampled,
            log_probs=log_probs,
            turn_ends=tuple(end - 1 for _, end in self._spans[: len(self._rewards)]),
            turn_rewards=tuple(self._rewards),
            terminated=self._terminated,
            truncated=self._truncated,
            success=self._success,
            failure=self._failure,
            level_id=self._level_id,
            seed=self._seed,
            messages=self._messages,
            contexts=tuple(self._contexts) if self.context else (),
            images=(*self._past_images, *(image.moved(len(self._past)) for image in self.images)),
            turn_infos=tuple(self._infos) if len(self._infos) == len(self._rewards) else (),
            overflowed=self._overflowed,
        )

    def render(self) -> Any:
        """The turn environment's rendering."""
        return self.env.render()

    def close(self) -> None:
        """Close the turn environment."""
        self.env.close()

    def _check(self, token: int, log_prob: float) -> None:
        if not 0 <= token < self._vocabulary:
            raise ValueError(
                f"token id {token} is outside the tokenizer's vocabulary of {self._vocabulary}; "
                "suppress these ids when sampling"
            )
        if token in self.chat.reserved_ids:
            raise ValueError(
                f"token id {token} is a picture id, which replies must not hold (later pictures would be misread); "
                "suppress these ids when sampling"
            )
        if not math.isfinite(log_prob):
            raise ValueError(f"the log-probability of a sampled token is {log_prob}; the model's logits are broken")

    def _check_running(self) -> None:
        if self.done:
            begun = "the episode is over" if self.ids else "no episode has begun"
            raise gymnasium.error.ResetNeeded(f"{begun}: call reset() before the next token.")

    def _end_turn(self) -> list[int]:
        """Pass the reply to the environment; append and return the ids after it."""
        full = len(self.ids) >= self.max_tokens_per_episode
        cut = None if self.ids[-1] in self.chat.stop_ids else "episode" if full else "turn"
        reply = self.chat.decode_reply(self.ids[self._start :])
        self._spans.append(self._span())
        self._info = {"reply_text": reply, "cut": cut}
        written = {"role": "assistant", "content": reply}
        follow, anew = Encoded([], []), False
        try:
            observation, reward, terminated, truncated, info = self.env.step(reply)
            if not math.isfinite(reward):
                raise ValueError(f"the turn's reward is {reward}")
            if goes_on := not (terminated or truncated):
                follow, anew = self._history.next(self.ids, self._start, reply, Message.of(observation, info))
        except Exception as error:  # a game's error fails its own episode, never the run
            self._failure = f"{Failure.ENVIRONMENT_ERROR}: {type(error).__name__}: {error}"
            self._info["failure"] = self._failure
            self._messages = (*self._messages, written)
            self.done = True
            return []
        self._info = {**info, **self._info}
        self._rewards.append(float(reward))
        before, self._board = self._board, _text_of(self.env, "board")
        turn_info = TurnInfo.of(info, before, self._board, bool(terminated), self._state)
        self._state = self._state_id()
        self._infos += [turn_info] if turn_info is not None else []
        self._messages = tuple(info["messages"]) if "messages" in info else (*self._messages, written)
        self._success = bool(info.get("success", False))
        length = len(follow.ids) + (0 if anew else len(self.ids))
        overflows = goes_on and length >= self.max_tokens_per_episode
        self._terminated = bool(terminated)
        self._truncated = not terminated and (bool(truncated) or overflows)
        self._overflowed = cut == "episode" or overflows
        self.done = self._terminated or self._truncated
        if self.done:
            return []
        if anew:
            self._past_images += [image.moved(len(self._past)) for image in self.images]
            self._past += self.ids
            self._contexts.append(len(self._past))
            self.context += 1
            self.ids, self.images = follow
        else:
            self.images += [image.moved(len(self.ids)) for image in follow.images]
            self.ids += follow.ids
        self._start = len(self.ids)
        return [] if anew else follow.ids

    def _span(self) -> tuple[int, int]:
        """Range of the turn's sampled ids in the trajectory."""
        return len(self._past) + self._start, len(self._past) + len(self.ids)

    def _state_id(self) -> str | None:
        return _text_of(self.env, "state_id") if self.record_states else None

    def _observation(self) -> NDArray[np.int64]:
        return np.array(self.ids, dtype=np.int64)


def _text_of(env: gymnasium.Env[str, str], name: str) -> str | None:
    """The board as text, or another attribute, of an environment that has one."""
    try:
        return str(env.get_wrapper_attr(name))
    except AttributeError:
        return None
