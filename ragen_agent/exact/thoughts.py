"""Effect of a thought on the answer after it, by teacher forcing.

A policy plays episodes. In each turn the thought that it wrote is replaced by others, and a reply tree gives the
distribution over answers after each. Thoughts are sampled; all that follows from them is computed between bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import regex

from ragen_agent.config import Config
from ragen_agent.exact.reply_tree import Outcome, ReplyTexts, ReplyTree, Root, walk
from ragen_agent.exact.stated_facts import TEMPLATES, opposite, reworded, spoken_for, statements
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.demo_thoughts import THOUGHTS
from ragen_agent.tasks.tasks import SeedStream, derive_seed
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.stats import clustered_mean
from ragen_gym.envs.policies import blind_value, random_value
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.values import level_values

#: Thoughts that answers are computed after, with their names in a table.
ROWS = {
    "own": "its own",
    "true": "the true one",
    "false": "its opposite",  # of the true one
    "other": "another level's",
    "empty": "none",
    "reworded": "own, reordered",
    "again": "own, resampled",
    "turned": "own, board turned",
}
#: Figures of a row, shares and distances from 0 to 1, with their headings in a table.
MEASURES = {
    "first": "move, TV",  # total variation between the first moves after this thought and after the model's own
    "answers": "answer, TV",  # the same of whole answers
    "thought": "as it says",  # first moves that this thought speaks for and the board does not
    "before": "before",  # the same moves after the model's own thought
    "board": "as true",  # first moves that the true thought of the board speaks for
    "success": "wins",  # success within this reply
}
_CONTRARY = ("false", "other", "turned")

_TOGETHER = 32  # turns whose answers are computed together

_THOUGHT = regex.compile(r"\s*<think>(.*?)</think>", regex.DOTALL)

Interval = tuple[float, float]


def check_thoughts(env: ReplyEnv, config: Config) -> TurnEnv:
    """The environment of a run; a ValueError with the reason if the effect of its thoughts cannot be measured."""
    if not isinstance(env, TurnEnv) or not env.game.has_values:
        raise ValueError(f"{env.name} has no states with exact values, so no statement can be checked; choose a game.")
    if not config.turns.think:
        raise ValueError("turns.think is false: these replies have no thoughts. Train with turns.think=true.")
    if config.demonstrations.thought not in TEMPLATES:
        raise ValueError(
            f"demonstrations.thought is {config.demonstrations.thought!r}: such thoughts state no fact of the board "
            f"that could be replaced. Train with one of {', '.join(TEMPLATES)}, or name the one that the model was "
            f"trained on: --set demonstrations.thought={TEMPLATES[0]}."
        )
    if env.config.state_parts or env.config.sees:
        raise ValueError(
            "the thinking holds whole boards, or the messages hold pictures; thoughts can be replaced with "
            "turns.grounding=false, turns.world_modelling=false and turns.observation=text."
        )
    return env


class _Place(NamedTuple):
    """A prompt, and what the game says of the board in it."""

    prompt: list[int]
    true: str
    """The thought that is true of the board."""
    advised: frozenset[int]
    """The first moves that it speaks for."""
    most: int
    """Moves that are played of a reply."""
    success: Callable[[Sequence[int]], float]
    """The chance that a reply of these actions wins."""
    references: dict[str, float]
    """The same of random moves, the blind script and optimal play, which look after every move."""


class _Asked(NamedTuple):
    """A thought in a place: the reply up to the end of the thought, as ids and as text."""

    row: str
    place: _Place
    thought: str
    ids: list[int]
    text: str


@dataclass(frozen=True)
class Turn:
    """A turn with a thought: the level's id, its number in the episode from 1, and the thoughts that are compared."""

    level_id: str
    number: int
    asked: list[_Asked]


def played_turns(policy: Policy, env: TurnEnv, instances: Sequence[Instance], seed: int) -> tuple[list[Turn], int]:
    """The turns of an episode on each level in which the policy wrote a thought, and the number of its other turns.

    Args:
        policy: plays at the temperature of its evaluation.
        env: of the levels; see ``check_thoughts``.
        instances: the levels.
        seed: of the sampling, 0 or more.
    """
    settings, template = policy.config.evaluation, policy.config.demonstrations.thought
    processes = policy.processes(settings.split, min(settings.batch, len(instances)))
    seeds = [derive_seed(seed, SeedStream.EVALUATION, part) for part in (0, 1)]
    episodes, again = (policy.play(processes, instances, settings.temperature, each) for each in seeds)
    here, there = env.twin(), env.twin()
    process, other = (TokenMDP.from_settings(each, policy.chat, policy.config.turns) for each in (here, there))
    turns, without, earlier = list[Turn](), 0, dict[str, str]()
    for instance, episode, second in zip(instances, episodes, again, strict=True):
        if episode.failure is not None:
            continue
        level_id = str(process.begin(seed=instance.seed, options={"noise_seed": instance.noise_seed})["level_id"])
        start = here.env.state[0]
        for number, reply in enumerate(_replies(episode), start=1):
            if (own := _opening(policy, reply)) is None:
                without += 1
            else:
                written, place, turned = own[0], _place(process, here, template, start), None
                false = opposite(place.true, here.game, here.action_names)
                thoughts: dict[str, str | None] = {
                    "true": place.true,
                    "false": false if false != place.true else None,
                    "other": next((t for t, level in earlier.items() if level != level_id and t != written), None),
                    "empty": "",
                    "reworded": reworded(template, written),
                }
                if number == 1:
                    later = _opening(policy, next(_replies(second))) if second.failure is None else None
                    thoughts["again"] = later[0] if later else None
                    if env.game.layout == "grid":
                        other.begin(seed=instance.seed, options={"level": here.level.text[::-1]})
                        turned = _place(other, there, template, there.env.state[0])
                asked = [_Asked("own", place, *own)]
                asked += [_replaced(policy, asked[0], row, t) for row, t in thoughts.items() if t is not None]
                asked += [_Asked("turned", turned, *own)] if turned else []
                turns.append(Turn(level_id, number, [each for each in asked if _room(policy, each) > 0]))
                earlier = {written: level_id} | {t: level for t, level in earlier.items() if t != written}
            process.append_reply(reply, [0.0] * len(reply))
    return turns, without


def measure(
    reader: TreeReader,
    policy: Policy,
    env: TurnEnv,
    turns: Sequence[Turn],
    *,
    mass: float = 1e-3,
    most_nodes: int = 2000,
    start: int = 0,
) -> Iterator[list[dict[str, Any]]]:
    """Records of turns: the thought of each, the truth of its statements, and the figures of each row.

    Args:
        reader: the model at its sampling temperature.
        policy: it played the turns.
        env: of the levels.
        turns: of ``played_turns``.
        mass: probability of the answers after a thought that may be left out, in (0, 1): the width of the interval
            of a share, and half of a distance's.
        most_nodes: tokens read of the answers after one thought, on average; beyond them intervals are wider.
        start: the first turn to measure.

    Yields:
        the records of some turns at a time, as JSON values; ``rows`` holds for each row the ``text`` of the thought
        and the intervals [low, high] of ``MEASURES``, None where they have no meaning.
    """
    template, names, begun = policy.config.demonstrations.thought, env.action_names, policy.chat.begun
    plain = env.config.prompt == "default" and all(a.text.endswith("</think>") for t in turns for a in t.asked)
    texts = ReplyTexts(policy.chat, think=False, known_form=plain, budget=env.config.budget)

    def root(a: _Asked) -> Root:
        parse = lambda text: env.parse(a.text + text.removeprefix(begun))  # noqa: E731
        return Root(a.place.prompt + a.ids, _room(policy, a), a.place.most, mass, parse)

    for first in range(start, len(turns), _TOGETHER):
        some, records = turns[first : first + _TOGETHER], list[dict[str, Any]]()
        roots = [root(asked) for turn in some for asked in turn.asked]
        trees = iter(walk(reader, texts, roots, most_nodes=most_nodes * len(roots)))
        for turn in some:
            own, answers = turn.asked[0], [_Answers(next(trees), len(names)) for _ in turn.asked]
            true = statements(template, own.place.true)
            record = {
                "level_id": turn.level_id,
                "turn": turn.number,
                "true_thought": own.place.true,
                "statements": {each: each in true for each in statements(template, own.thought)},
                "speaks": bool(spoken_for(template, own.thought, names)),
                "advised": len(own.place.advised) / len(names),
                "references": own.place.references,
                "rows": {
                    asked.row: {"text": asked.thought}
                    | _figures(asked, spoken_for(template, asked.thought, names), each, answers[0])
                    for asked, each in zip(turn.asked, answers, strict=True)
                },
            }
            records.append(record)
        yield records


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the turns, each with its bounds, a 95 % interval over levels that includes them, and its turns.

    Raises:
        ValueError: no thought states facts by the template.
    """
    if not any(each["speaks"] for each in records):
        said = f" The first thought is {records[0]['rows']['own']['text'][:80]!r}." if records else ""
        raise ValueError(
            "no reply has a thought that states facts as demonstrations.thought says, so none can be replaced by a "
            f"false one; free thoughts cannot be measured.{said}"
        )
    rows = {}
    for row in ROWS:
        some = [(each["level_id"], each["rows"][row]) for each in records if row in each["rows"]]
        figures = {name: _mean([(level, each[name]) for level, each in some if each[name]]) for name in MEASURES}
        rows[row] = {"turns": len(some), **figures}
    references: dict[str, dict[str, float]] = {
        name: {"success": float(np.mean([each["references"][name] for each in records]))}
        for name in records[0]["references"]
    }
    references["random"]["board"] = float(np.mean([each["advised"] for each in records]))
    return {
        "levels": len({each["level_id"] for each in records}),
        "turns": len(records),
        "speaking": sum(each["speaks"] for each in records) / len(records),
        "true_statements": _mean([(r["level_id"], (t, t)) for r in records for t in r["statements"].values()]),
        "references": references,
        "rows": rows,
    }


def _mean(values: Sequence[tuple[str, Interval]]) -> dict[str, Any] | None:
    """The mean of intervals, each with its level; None without any."""
    if not values:
        return None
    ends = np.array([each for _, each in values], np.float64)
    over, (low, high) = clustered_mean(ends.mean(1), [level for level, _ in values]), ends.mean(0).tolist()
    half = (high - low) / 2
    return {"bounds": [low, high], "interval": [max(0.0, over.low - half), min(1.0, over.high + half)], "n": over.n}


def _replies(episode: Trajectory) -> Iterator[list[int]]:
    """The sampled ids of each turn."""
    edges = np.flatnonzero(np.diff(episode.sampled, prepend=False, append=False)).reshape(-1, 2)
    return (episode.ids[start:end].tolist() for start, end in edges.tolist())


def _opening(policy: Policy, reply: list[int]) -> tuple[str, list[int], str] | None:
    """The thought of a reply, and the reply up to its end as ids and as text; None unless a token follows it."""
    for end in range(1, len(reply)):
        text = policy.chat.decode_reply(reply[:end])
        if found := _THOUGHT.match(text):
            return found[1].strip(), reply[:end], text
    return None


def _place(process: TokenMDP, env: TurnEnv, template: str, start: bytes) -> _Place:
    """The place before the next reply of a process, in an episode that began on the board ``start``."""
    most, state, left = min(env.max_actions_per_turn, env.actions_left), env.env.state, env.actions_left
    values = level_values(env.game, start, env.action_budget, may_stop=True)
    true = THOUGHTS[template](env, ())
    advised = spoken_for(template, true, env.action_names)
    references = {"random": random_value(env.env, most)[0], "optimal": float(env.solution().success(*state, most))}
    if env.has_blind:
        references["blind"] = blind_value(env.env, most)[0]
    return _Place(
        list(process.ids),
        true,
        advised,
        most,
        lambda actions: values.expected(*state, actions, left, 0).success,
        references,
    )


def _replaced(policy: Policy, own: _Asked, row: str, thought: str) -> _Asked:
    found = _THOUGHT.match(own.text)
    assert found
    text = own.text[: found.start(1)] + thought + own.text[found.end(1) :]
    return _Asked(row, own.place, thought, policy.chat.reply_ids(text)[:-1], text)


def _room(policy: Policy, asked: _Asked) -> int:
    """Tokens that are left for the answer."""
    turns, prompt = policy.config.turns, len(asked.place.prompt)
    return min(turns.max_tokens_per_turn, turns.max_tokens_per_episode - prompt) - len(asked.ids)


class _Answers:
    """The distribution over answers after a thought: ``whole`` by outcome, ``first`` float64 (actions + 1,)."""

    def __init__(self, tree: ReplyTree, actions: int) -> None:
        self.whole: dict[Outcome, float] = dict(zip(tree.outcomes, tree.chances.tolist(), strict=True))
        self.left_out = tree.left_out
        self.first = np.zeros(actions + 1)
        for outcome, chance in self.whole.items():
            self.first[outcome.actions[0] if outcome.actions else -1] += chance

    def share(self, moves: frozenset[int]) -> Interval:
        """The probability of these first moves."""
        low = float(self.first[sorted(moves)].sum())
        return low, min(1.0, low + self.left_out)

    def distances(self, other: _Answers) -> tuple[Interval, Interval]:
        """Total variation from another distribution, of first moves and of whole answers."""
        slack, first = (self.left_out + other.left_out) / 2, float(np.abs(self.first - other.first).sum()) / 2
        whole = sum(abs(self.whole.get(o, 0.0) - other.whole.get(o, 0.0)) for o in {**self.whole, **other.whole}) / 2
        return (max(0.0, first - slack), min(1.0, first + slack)), (max(0.0, whole - slack), min(1.0, whole + slack))


def _figures(asked: _Asked, speaks: frozenset[int], answers: _Answers, own: _Answers) -> dict[str, Interval | None]:
    advised, alone = asked.place.advised, speaks - asked.place.advised if asked.row in _CONTRARY else frozenset()
    first, whole = answers.distances(own) if answers is not own else (None, None)
    won = sum(chance * asked.place.success(outcome.actions) for outcome, chance in answers.whole.items())
    return {
        "first": first,
        "answers": whole,
        "thought": answers.share(alone) if alone else None,
        "before": own.share(alone) if alone and asked.row != "turned" else None,
        "board": answers.share(advised) if advised else None,
        "success": None if np.isnan(won) else (won, min(1.0, won + answers.left_out)),
    }
