"""Adapters for libraries of text games and tasks: TextArena, GEM and reasoning-gym."""

from __future__ import annotations

import random  # noqa: TID251  # a generator of its own; the global one is audited, not used
import re
from collections.abc import Mapping
from typing import Any

from .protocol import AuditedEnv, Step, Target, keywords

_BRACKETS = re.compile(r"\[[^\[\]\n]{1,24}\]")
_BOXED = re.compile(r"\\boxed\{[^{}\n]{1,24}\}")
#: Attributes that do not belong to the state of a game.
_UNRELATED = re.compile(r"(time|clock|uuid|_id$|path|rng|random|seed|log|hist|render|window|cache|episode)", re.I)
_ANSWERS = ["", "0", "1", "2", "yes", "no", "True", "False", "A", "B"]
_PLAIN_DEPTH = 4


class TextEnv(AuditedEnv):
    """Common part of the environments of text libraries: replies from a menu, and copies by ``deepcopy``."""

    env: Any
    menu: list[Any]
    text = ""  # the last observation, where replies are looked for

    def actions(self) -> list[Any]:
        return self.menu or bracketed(self.text)

    def sample(self, seed: int) -> Any:
        menu = self.actions()
        return random.Random(seed).choice(menu) if menu else super().sample(seed)

    def state(self) -> Any:
        return plain_state(self.env)


class TextArenaEnv(TextEnv):
    """A game of TextArena; one player of it plays for all."""

    def __init__(self, env: Any, menu: list[Any], players: int) -> None:
        self.env, self.menu, self.players, self.over = env, menu, players, False

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        self.env.reset(num_players=self.players, seed=seed)
        self.over = False
        self.text = str(self.env.get_observation()[1])
        return self.text, {}

    def step(self, action: Any) -> Step:
        done, info = self.env.step(action)
        rewards = {} if self.over else self.env.state.rewards or {}  # they are kept after the end
        self.over = bool(done)
        if not done:
            self.text = str(self.env.get_observation()[1])
        return Step(self.text, rewards.get(0, 0.0) or 0.0, bool(done), False, dict(info or {}))

    def state(self) -> Any:
        return self.env.state.game_state


class TextArenaTarget(Target):
    """A TextArena name, such as ``textarena:Hangman-v0``."""

    library = "textarena"

    def __init__(self, name: str, options: dict[str, Any], menu: list[Any]) -> None:
        self.name, self.options, self.menu = name, dict(options), menu
        self.players = int(self.options.pop("num_players", 1))
        self.code = (
            f"import textarena; new = lambda **k: textarena.make({name!r}, {keywords(self.options)}); "
            f"start = lambda e, s: (e.reset(num_players={self.players}, seed=s), str(e.get_observation()[1]), "
            f"str(e.state.game_state))[1:]; act = lambda e, a: (lambda d: ((str(d or "
            f"e.get_observation()[1]), str(e.state.game_state)), (e.state.rewards or {{0: 0}})[0], d))(e.step(a)[0])"
        )
        self.make().reset(0)

    def make(self, **options: Any) -> TextArenaEnv:
        import textarena  # type: ignore[import-not-found, unused-ignore]

        return TextArenaEnv(textarena.make(self.name, **{**self.options, **options}), self.menu, self.players)


class GemEnv(TextEnv):
    """An environment of GEM; what it shows stands in its observation and in the suffix beside it."""

    def __init__(self, env: Any, menu: list[Any]) -> None:
        self.env, self.menu = env, menu

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed)
        self.text = f"{observation}\n{info.get('suffix', '')}"
        return self.text, info

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.text = f"{observation}\n{info.get('suffix', '')}"
        return Step(self.text, reward, bool(terminated), bool(truncated), info)

    def sample(self, seed: int) -> Any:
        if self.menu:
            return super().sample(seed)
        state = random.getstate()
        try:  # it draws from the global generator
            random.seed(seed)
            return self.env.sample_random_action()
        except NotImplementedError:
            return super().sample(seed)
        finally:
            random.setstate(state)

    def actions(self) -> list[Any]:
        if self.menu:
            return self.menu
        space = getattr(self.env.unwrapped, "action_space", None)
        if isinstance(space, list) and all(isinstance(each, str) for each in space):
            return [f"\\boxed{{{each}}}" for each in space]
        return []

    def oracle(self) -> list[Any] | None:
        answer = getattr(self.env.unwrapped, "answer", None)
        return [f"\\boxed{{{answer}}}"] if isinstance(answer, (str, int, float)) else None


class GemTarget(Target):
    """A GEM name, such as ``gem:game:Sokoban-v0``."""

    library = "gem"

    def __init__(self, name: str, options: dict[str, Any], menu: list[Any]) -> None:
        self.name, self.options, self.menu = name, options, menu
        self.code = (
            f"import gem; new = lambda **k: gem.make({name!r}, {keywords(options)}); start = lambda e, s: e.reset(seed=s); "
            "act = lambda e, a: (lambda r: (f\"{r[0]} {r[4].get('suffix')}\", *r[1:4]))(e.step(a))"
        )
        self.make().reset(0)

    def make(self, **options: Any) -> GemEnv:
        import gem  # type: ignore[import-not-found, unused-ignore]

        return GemEnv(gem.make(self.name, **{**self.options, **options}), self.menu)


class ReasoningGymEnv(TextEnv):
    """One question of a data set; the reply is its answer."""

    def __init__(self, name: str, options: dict[str, Any], menu: list[Any]) -> None:
        self.name, self.options, self.menu = name, dict(options), menu or _ANSWERS
        self.first_seed = self.options.pop("first_seed", None)
        self.entry: dict[str, Any] = {}

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        import reasoning_gym  # type: ignore[import-not-found, unused-ignore]

        if self.first_seed is None:
            self.data = reasoning_gym.create_dataset(self.name, size=1, seed=seed, **self.options)
            self.entry = self.data[0]
        else:  # question number ``seed`` of the data set that one seed makes
            if not hasattr(self, "data"):
                self.data = reasoning_gym.create_dataset(self.name, size=100_000, seed=self.first_seed, **self.options)
            self.entry = self.data[seed or 0]
        return self.entry["question"], {}

    def step(self, action: Any) -> Step:
        return Step("", self.data.score_answer(answer=action, entry=self.entry), True, False, {})

    def state(self) -> Any:
        return None

    def oracle(self) -> list[Any] | None:
        return [self.entry["answer"]]


class ReasoningGymTarget(Target):
    """A data set of reasoning-gym, such as ``reasoning-gym:countdown``.

    Its splits are what a user makes of two neighbouring seeds: question k of seed 0, and question k of seed 1.
    """

    library = "reasoning_gym"

    def __init__(self, name: str, options: dict[str, Any], menu: list[Any]) -> None:
        self.name, self.options, self.menu = name, options, menu
        config = {option: value for option, value in options.items() if option != "first_seed"}
        self.code = (
            f"import reasoning_gym; new = lambda **k: [None, k.get('first_seed', {options.get('first_seed')!r})]; "
            f"data = lambda e, s: reasoning_gym.create_dataset({name!r}, size=1 if e[1] is None else 100000, "
            f"seed=s if e[1] is None else e[1], **{config!r}); "
            f"start = lambda e, s: (e.__setitem__(0, (data(e, s), 0 if e[1] is None else s)), e[0][0][e[0][1]]['question'])[1]; "
            f"act = lambda e, a: ('', e[0][0].score_answer(answer=a, entry=e[0][0][e[0][1]]), True, False)"
        )
        self.make().reset(0)

    def make(self, **options: Any) -> ReasoningGymEnv:
        return ReasoningGymEnv(self.name, {**self.options, **options}, self.menu)

    def splits(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"first_seed": 0}, {"first_seed": 1}


def bracketed(text: str) -> list[str]:
    """The replies that a prompt shows in brackets or boxes."""
    shown = _BRACKETS.findall(text) or _BOXED.findall(text)
    return sorted({each for each in shown if not each.startswith(("[GAME", "[Player", "[ "))})


def plain_state(env: Any) -> Any:
    """The public plain attributes of an environment: numbers, texts, and containers and arrays of them."""
    core = getattr(env, "unwrapped", env)
    found = {}
    for name, value in vars(core).items():
        if not name.startswith("__") and not _UNRELATED.search(name) and _plain(value):
            found[name] = value
    return found


def _plain(value: Any, depth: int = 0) -> bool:
    if value is None or isinstance(value, (bool, int, float, str)) or hasattr(value, "tobytes"):
        return True
    if depth > _PLAIN_DEPTH:
        return False
    if isinstance(value, Mapping):
        return len(value) < 1000 and all(_plain(each, depth + 1) for each in value.values())
    if isinstance(value, (list, tuple, set)):
        return len(value) < 1000 and all(_plain(each, depth + 1) for each in value)
    return False
