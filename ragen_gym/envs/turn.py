"""The games one turn at a time: an action is a model's whole reply, an observation is the message it answers."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from copy import copy, deepcopy
from dataclasses import asdict, replace
from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from ragen_gym.core.levels import Level
from ragen_gym.core.text import EDGE
from ragen_gym.core.turn_config import TurnConfig, split_turn_options, turn_config
from ragen_gym.envs import prompts, ragen_v1
from ragen_gym.envs.board_view import TextSpace
from ragen_gym.envs.budget import within
from ragen_gym.envs.messages import IMAGE, parts_of
from ragen_gym.envs.reply import Problem, Reply
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.state import StateScore, StateText
from ragen_gym.envs.step import InnerGenerator, StepEnv
from ragen_gym.games.game import Game, Solution

if TYPE_CHECKING:
    from ragen_gym.render.canvas import Pixels
    from ragen_gym.render.images import BoardImages

_LONGEST_REPLY = 4096
_LONGEST_RETOLD = 100  # characters of a retold turn around its board, and of each of its moves
_LONGEST_FRAME = 400, 800  # characters of a message around its board, plainly and with a form of boards in it


#: The modules of ``ragen_gym.core.turn_config.PROMPTS``; the budgets that their functions are given are the game's.
_PROMPTS: dict[str, Any] = {"default": prompts, "ragen-v1": ragen_v1}


class TurnEnv(InnerGenerator, ReplyEnv):
    """A game of the suite, one reply an action.

    ## Description
    A reply such as ``<think>The goal is above.</think><answer>Up || Left</answer>`` is read by ``parse_reply`` and up
    to ``max_actions_per_turn`` of its moves are played. Unknown names are left out; a reply that breaks the form plays
    nothing. Both are malformed.

    ## Action Space
    ``Text``: the reply. Any string is taken; one that is not a reply is a malformed reply. Halves of surrogate pairs,
    which UTF-8 cannot hold, are read as U+FFFD.

    ## Observation Space
    ``Text``: the next user message, with the turn, the board, what is left and how to reply; after a turn, its reward.
    ``instructions`` is the system message that goes before the first one. With ``observation="image"`` or ``"both"``
    ``Dict``: ``text``, the same with ``<image>`` where the picture stands, and ``image``, ``Box`` of uint8 (height,
    width, 3).

    ## Starting State
    As in ``StepEnv``: ``reset(seed=s, options={"level": …, "noise_seed": …})``.

    ## Rewards
    The sum of the rewards of the moves played, plus ``format_penalty`` if the reply is malformed or names an unknown
    action, plus for a reply without fault ``state_reward`` / 2 times the score of its observation and of its
    prediction, compared with the true boards before and after the moves.

    ## Episode End
    Terminated when the game is over, or when the last turn of a game that is bounded by its rules (a bandit) has gone
    by. Truncated after ``max_turns`` turns or ``max_actions`` actions.

    ## Information
    ``messages`` (tuple of {"role", "content"}, the whole conversation), ``reply`` (``Reply``, None at reset; it holds
    the stated ``budget`` where one is asked for), ``actions`` (ids played this turn), ``rewards`` (of each of them),
    ``success`` (bool), ``level_id`` (str), ``turn`` (turns taken), ``actions_left``; where they are asked for,
    ``observation_right`` and ``prediction_right`` (bool), ``observation_score`` and ``prediction_score`` (float, 0 to
    1, by ``state_score``) and ``budget`` (the fewest and the most moves that the reply states, all of them if it states
    none, and the moves that were left); with pictures, ``images``: a list of uint8 (height, width, 3), one for each
    image part of the newest user message.

    With ``regret`` (an argument of the ``StepEnv``): ``regret``, what the turn gave away of the highest expected return
    of the game's own rewards, penalties and state rewards left out, and ``turn_value``, a
    ``ragen_gym.games.values.TurnValue`` with all else; NaN where unknown. The moves that are left are those that the
    budgets allow, also where ``regret`` is a number. On slippery ice part of a turn's regret cannot be avoided by any
    reply, which fixes its moves before it has seen what they do.

    With pictures the ``content`` of every message is a list of parts, ``{"type": "text", "text": …}`` or ``{"type":
    "image"}``, the shape that the chat templates of Hugging Face and the API of OpenAI share.

    ## Arguments
    env: a ``StepEnv``.
    config: a ``TurnConfig``, the options of a turn; a game that is shorter by its rules lowers the budgets: a bandit of
    one pull has one turn.
    options: fields of ``TurnConfig``, over those of ``config``.

    Raises:
        ValueError: an unknown option or one out of range; see ``TurnConfig``.

    ## Version History
    v0: first release.
    """

    metadata: dict[str, Any] = StepEnv.metadata

    def __init__(self, env: StepEnv, config: TurnConfig | None = None, **options: Any) -> None:
        self.config = config = turn_config(config, options)
        self.env, self.has_blind = env, env.game.blind is not None
        longest = env.game.longest or max(config.max_turns, config.max_actions)
        self._bounded = env.game.longest is not None and min(config.max_turns, config.max_actions) >= longest
        #: The budgets as the game's rules lower them.
        self._budgets = replace(
            config,
            max_turns=min(config.max_turns, longest),
            max_actions_per_turn=min(config.max_actions_per_turn, longest),
            max_actions=min(config.max_actions, longest),
        )
        # Read several times a turn: attributes, not properties.
        self.max_turns, self.max_actions = self._budgets.max_turns, self._budgets.max_actions
        self.max_actions_per_turn, self._state_parts = self._budgets.max_actions_per_turn, config.state_parts
        self.render_mode = env.render_mode
        self.instructions = self._prompt.instructions(env.game, env.vocabulary, self._budgets)
        self._write_states()
        if config.example and self._prompt.example:
            board = self.state_text.write(_example_board(env.game)) if env.game.layout == "grid" else ""
            self.instructions += f"\n{self._prompt.example(env.game, self._budgets, board or env.game.example_board)}"
        self._pictures: BoardImages | None = None
        charset, _, longest = env.charset
        characters = frozenset(string.printable) | charset
        frame = _LONGEST_FRAME[config.sees or config.state_format != "text"]
        retold = config.summary * (longest + _LONGEST_RETOLD * (1 + self.max_actions_per_turn))
        self.observation_space: spaces.Space[Any] = TextSpace(longest + frame + retold, charset=characters)
        if config.sees:
            env.check_one_size(f"observation={config.observation!r}")
            from ragen_gym.render.images import BoardImages  # only where there are pictures

            self._pictures = BoardImages(env.game, config.image_style, env.vocabulary)
            picture = spaces.Box(0, 255, self._pictures.shape, np.uint8)
            self.observation_space = spaces.Dict({"text": self.observation_space, "image": picture})
        self.action_space = spaces.Text(_LONGEST_REPLY, charset=characters, min_length=0)
        self._turn, self._played, self._over = 0, 0, True
        self._regret = env.value_by_turns()
        self.message_text = ""
        self._images: list[Pixels] = []
        self._past: list[tuple[str, list[str], float]] = []  # board, moves and shown reward of each turn, to be retold

    @property
    def _prompt(self) -> Any:
        return _PROMPTS[self.config.prompt]  # a module, which no pickle can hold

    @property
    def game(self) -> Game:
        """The game with its options."""
        return self.env.game

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the actions in a reply, in the order of their ids."""
        return self.env.action_names

    @property
    def board(self) -> str:
        """The board as it stands, as text."""
        return self.env.text

    @property
    def name(self) -> str:
        """The game's name, as in its id."""
        return self.env.game_spec.name

    @property
    def images(self) -> tuple[Pixels, ...]:
        """The pictures of the conversation so far, uint8 (height, width, 3), in the order of its image parts."""
        return tuple(self._images)

    @property
    def level(self) -> Level:
        """The level of this episode."""
        return self.env.level

    @property
    def state_id(self) -> str:
        """A hash of the level and of the game's state as it stands, without the turns and moves that are left."""
        board, numbers = self.env.state
        content = f"{self._info['level_id']} {','.join(map(str, numbers))} ".encode() + board
        return blake2b(content, digest_size=8).hexdigest()

    def level_families(self, seeds: Iterable[int]) -> list[int]:
        """See ``StepEnv.level_families``."""
        return self.env.level_families(seeds)

    @property
    def action_budget(self) -> int:
        """The most moves of an episode, within all budgets and the game's own limit."""
        return self._budgets.action_budget

    @property
    def actions_left(self) -> int:
        """Moves that the budgets of turns and of actions still allow."""
        return self._left(self._played)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the first message, and the information of the class's list."""
        _, self._info = self.env.reset(seed=seed, options=options)
        if self.state_text.game is not self.game:
            self._write_states()
        self._turn, self._played, self._over = 0, 0, False
        self._messages: list[dict[str, Any]] = []
        self._images, self._past = [], []
        self._add("system", self.instructions)
        said, info = self._say(None), self._report(None, (), ())
        if self._regret:
            info |= self._regret.begin(self.env.state, self.action_budget)
        return said, info

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a reply.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over, or none was started.
            ValueError: the reply is not a string.
        """
        reply = self.parse(self._checked_reply(action))
        self._add("assistant", reply.text)
        budget = min(self.max_actions_per_turn, self.max_actions - self._played)
        actions: list[int] = []
        rewards: list[float] = []
        terminated, before = False, self.env.state[0] if self._state_parts else b""
        board = self.board if self.config.summary else ""
        regret, left = self._regret, self.actions_left
        if regret:
            regret.start(self.env.state, left)
        for move in reply.actions[:budget]:
            _, reward, terminated, _, self._info = self.env.step(move)
            actions.append(move)
            rewards.append(reward)
            if regret:
                regret.move(move, reward, self.env.state, over=terminated, success=self._info["success"])
            if terminated:
                break
        self._turn += 1
        self._played += len(actions)
        scores = self._scores(reply, before)
        earned = sum(score.score for score in scores.values()) * self.config.state_reward / 2
        judged: dict[str, Any] = {f"{part}_right": score.right for part, score in scores.items()}
        judged |= {f"{part}_score": score.score for part, score in scores.items()}
        if regret:
            planned = reply.actions[:budget]
            judged |= regret.info(planned, self.actions_left, self._left(self._played + len(planned) - len(actions)))
        if self.config.budget:
            judged["budget"] = (*within(reply.budget or (0.0, inf), left), left)
        total = sum(rewards) + (self.config.format_penalty if reply.problem else earned)
        spent = self._turn == self.max_turns or self._played == self.max_actions
        terminated |= spent and self._bounded
        truncated = spent and not terminated
        self._over = terminated or truncated
        shown = total if self._prompt.SHOWS_PENALTY else sum(rewards)
        if self.config.summary:
            self._past.append((board, [self.action_names[move] for move in actions], shown))
        said = self._say(shown)
        return said, total, terminated, truncated, self._report(reply, tuple(actions), tuple(rewards)) | judged

    def parse(self, text: str) -> Reply:
        """Parsed reply, by the options of the turn and the names of the actions; plays nothing."""
        if self.spells_forbidden(text):
            return Reply(text, problem=Problem.FORBIDDEN_TEXT)
        reply: Reply = self._prompt.parse(text, self.action_names, self._budgets)
        return reply

    def reseed_noise(self, noise_seed: int) -> None:
        """Draw the transition noise of the turns to come from another seed; see ``StepEnv.reseed_noise``."""
        self.env.reseed_noise(noise_seed)

    def twin(self) -> TurnEnv:
        """An environment of the same arguments, to ``follow`` this one."""
        other = copy(self)
        other.env = self.env.twin()
        return other

    def follow(self, other: TurnEnv, noise_seed: int) -> None:
        """Stand where another environment of the same arguments does, with other noise; see ``StepEnv.follow``."""
        self.env.follow(other.env, noise_seed)
        if self.state_text.game is not self.game:
            self._write_states()
        self._turn, self._played, self._over = other._turn, other._played, other._over
        self.message_text, self._info = other.message_text, dict(other._info)
        self._messages, self._images = [*map(dict, other._messages)], list(other._images)
        self._past = list(other._past)

    def stand_at(
        self, board: bytes, state: Sequence[int], *, turn: int, played: int, earned: float | None, total: float | None
    ) -> Any:
        """Stand before a turn of this episode's level, as if other replies had led there; the message of that turn.

        With ``summary`` the message retells nothing: the turns before are unknown.

        Args:
            board: of a state in which the game goes on.
            state: its integers.
            turn: turns taken.
            played: moves played.
            earned: the game's rewards in the last turn; None before the first.
            total: the reward of the last turn; None before the first.

        Raises:
            gymnasium.error.ResetNeeded: no episode was started.
        """
        self.env.stand_at(board, state)
        self._turn, self._played, self._over = turn, played, False
        self._messages, self._images, self._past = [], [], []
        self._add("system", self.instructions)
        return self._say(total if self._prompt.SHOWS_PENALTY else earned)

    def render(self) -> Any:
        """Rendering of the environment of single moves: text, a picture, or None."""
        return self.env.render()

    def close(self) -> None:
        """Close the window, if there is one."""
        self.env.close()

    def solution(self) -> Solution:
        """The oracle of this episode's level."""
        return self.env.solution()

    def oracle_action(self) -> int:
        """A best action here, with the actions that are left."""
        return self.env.oracle_action(self.actions_left)

    def _write_states(self) -> None:
        env, config = self.env, self.config
        #: How the boards in the thinking are written and scored.
        self.state_text = StateText(env.game, env.vocabulary, env.text_format, config.state_format, config.state_score)

    def _scores(self, reply: Reply, before: bytes) -> dict[str, StateScore]:
        if not self._state_parts:
            return {}
        boards = {"observation": before, "prediction": self.env.state[0]}
        return {part: self.state_text.compare(getattr(reply, part), boards[part]) for part in self._state_parts}

    def _say(self, reward: float | None) -> Any:
        """Add the next user message; the observation that it is."""
        board = IMAGE if self.config.observation == "image" else self.board
        if self.config.observation == "both":
            board = f"{board}\n{IMAGE}"
        if self._over:
            text = self._prompt.last_message(board, reward)
        else:
            text = self._prompt.message(self._budgets, board, self._turn + 1, self.actions_left, reward)
            if past := self._past[-self.config.summary :]:
                text = prompts.retold(self._turn, past) + text
        self.message_text = text
        self._add("user", text)
        if self._pictures is None:
            return text
        self._images.append(self._pictures.image(self.env.state[0]))
        return {"text": text, "image": self._images[-1].copy()}

    def _add(self, role: str, text: str) -> None:
        content = text if self._pictures is None else parts_of(text, picture=role == "user")
        self._messages.append({"role": role, "content": content})

    def _report(self, reply: Any, actions: tuple[int, ...], rewards: tuple[float, ...]) -> dict[str, Any]:
        copied = dict if self._pictures is None else deepcopy
        report = {
            "messages": tuple(map(copied, self._messages)),
            "reply": reply,
            "actions": actions,
            "rewards": rewards,
            "success": self._info["success"],
            "level_id": self._info["level_id"],
            "turn": self._turn,
            "actions_left": 0 if self._over else self.actions_left,
        }
        if self._pictures is not None:
            report["images"] = [self._images[-1].copy()]
        return report

    def _left(self, played: int) -> int:
        """Moves that the budgets allow after so many moves and the turns taken."""
        return min(self.max_actions - played, (self.max_turns - self._turn) * self.max_actions_per_turn)


def _example_board(game: Game) -> bytes:
    """A board of the game's size with the player in the upper left corner and nothing else."""
    row = bytes([max(game.ground_tiles)]) * game.width
    board = bytearray(bytes([EDGE]).join([row] * game.height))
    board[0] = min(game.player_tiles, default=board[0])
    return bytes(board)


def make_turn(name: str, config: TurnConfig | None = None, **options: Any) -> TurnEnv:
    """A ``TurnEnv`` over the ``StepEnv`` of that name or id.

    Args:
        name: such as ``"FrozenLake"`` or ``"ragen/FrozenLake-v0"``.
        config: the options of a turn.
        options: fields of ``TurnConfig`` over those of ``config``, and the arguments of ``StepEnv``.

    Raises:
        ValueError: an unknown name or option, or a value out of range; the message says what is allowed.
    """
    turn_options, env_options = split_turn_options(options)
    env = TurnEnv(StepEnv(name, **env_options), config, **turn_options)
    arguments = {"name": name, **asdict(env.config), **env_options}
    env.spec = EnvSpec(f"ragen/{env.env.game_spec.name}-turn-v0", "ragen_gym.envs.turn:make_turn", kwargs=arguments)
    return env
