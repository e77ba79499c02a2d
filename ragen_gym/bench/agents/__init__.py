"""Agents by name, such as ``openai:MODEL``, and how to write your own.

``make_agent`` makes one of ``random``, ``blind``, ``oracle``, ``budget:POLICY``, ``openai:MODEL``, ``hf:PATH``,
``python:module:callable``, ``cmd:PROGRAM`` and ``sb3:PATH``; the module of each says what it can do.

An agent is an object with a ``name`` and one of two methods. One that answers messages has ``reply``, one that chooses
moves has ``act``; either may be a coroutine, or a plain method, which ``python:`` calls in a thread of its own. This is
a whole one::

    from ragen_gym.bench.agent import Answer


    class Persistent:
        name = "persistent"

        def __init__(self, first: str = "Down") -> None:
            self.settings = {"first": first}

        async def reply(self, messages, task):
            \"\"\"Says the same in every turn: messages[0] is the system's, messages[-1] the user's.\"\"\"
            text = f"<think>On we go.</think><answer>{self.settings['first']}</answer>"
            return Answer(text, prompt_tokens=0, completion_tokens=0)

        # An agent that moves has this instead, and no ``reply``:
        # def act(self, observation, info, task):
        #     return int(info["action_mask"].argmax())

Saved as ``my_agent.py``, it plays with ``ragen-gym bench run --agent python:my_agent:Persistent --set first=Up …``.
What else the runner looks for, none of it needed:

===================  ================================================================================================
``settings``         dict, plain JSON: what decides the answers. Written into the run, which cannot go on with others.
``circumstances``    dict, plain JSON: what may change between two sessions of a run, such as a server's address.
``observation``      what an agent that moves is shown: ``"text"`` (the default), ``"grid"`` or ``"rgb"``.
``concurrency``      the most episodes it can play at a time.
``batch``            how many questions it answers together: how many episodes ``bench run`` plays at a time by default.
``seen``             path of the record of the levels that it saw in training (``ragen_gym.core.seen``), or None.
``keeps_time``       True where it sees to the limit of a single request by itself.
``whole_replies``    True where its replies hold what their prompts began. If not, ``Answer.reasoning`` is the thinking
                     of a reply without ``<think>``, and one with ``</think>`` alone completes an open ``<think>``.
``has_played``       function (split, index) of an agent that has played already: False leaves the episode out for now.
``start()``          called before the first episode; a ValueError ends the run, a str that it returns is shown.
``task_reply``       of an agent that moves: what it has in place of ``reply`` where a split plays a text task.
``refuses(env)``     called before the first episode of a split: the reason why it cannot be played, or "".
``begin(task)``      called before each episode.
``end(task, rec)``   called after each episode with its ``EpisodeRecord``.
``close()``          called after the last episode, however the run ended.
===================  ================================================================================================

Where a split shows pictures, the content of every message is a list of parts, with pictures as arrays; see
``ragen_gym.bench.agent.Message``.

All methods may be coroutines. Whatever ``begin``, ``reply`` or ``act`` raises ends its episode, not the run: an
``AgentFailure`` says how, a TimeoutError is a ``Failure.TIMEOUT``, anything else a ``Failure.AGENT_ERROR``. What
``end`` raises is kept in the record's ``detail``, and changes no outcome. Many episodes are in play at once, so what an
agent remembers it keeps by ``(task.split, task.index, task.rollout)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from pkgutil import resolve_name
from typing import Any

from ragen_gym.bench.agent import ReplyAgent, StepAgent
from ragen_gym.core.validation import shown

__all__ = ["KINDS", "Kind", "make_agent", "settings_of"]


@dataclass(frozen=True)
class Kind:
    """One kind of agent."""

    maker: str  # what makes it, ``"module:callable"``, imported when it is needed
    target: str  # what stands behind the colon, or "" if nothing does
    about: str  # one line for a list


_HERE = "ragen_gym.bench.agents."
_MODELS = "ragen_agent.agents."

KINDS: dict[str, Kind] = {
    "random": Kind(_HERE + "builtin:RandomAgent", "", "moves drawn uniformly"),
    "blind": Kind(_HERE + "builtin:BlindAgent", "", "straight for the goal, ignoring what is in the way"),
    "oracle": Kind(_HERE + "builtin:OracleAgent", "", "optimal moves, by looking into the game"),
    "budget": Kind(_HERE + "builtin:BudgetAgent", "POLICY", "random, blind or oracle moves with a stated budget"),
    "openai": Kind(_HERE + "openai:OpenAIAgent", "MODEL", "a model behind an OpenAI-compatible server"),
    "hf": Kind(_MODELS + "hf:HFAgent", "PATH", "a transformers model in this process"),
    "python": Kind(_HERE + "python:load", "module:callable", "Python code of yours"),
    "cmd": Kind(_HERE + "cmd:load", "PROGRAM", "a program in any language, lines of JSON"),
    "sb3": Kind(_HERE + "sb3:SB3Agent", "PATH", "a policy of Stable-Baselines3"),
}


#: By the annotation of a setting: what it is called, and whether a value is such a one.
_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a text", lambda value: isinstance(value, str)),
    "int": ("a whole number", lambda value: type(value) is int),
    "float": ("a number", lambda value: type(value) in (int, float)),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "Mapping[str, Any]": ("an object", lambda value: isinstance(value, Mapping)),
    "None": ("null", lambda value: value is None),
}


def make_agent(spec: str, **settings: Any) -> ReplyAgent | StepAgent:
    """The agent that a name such as ``"openai:Qwen/Qwen3-4B"`` stands for.

    Args:
        spec: a kind of ``KINDS``, with its target behind a colon if it has one.
        settings: arguments of what makes it; ``settings_of`` lists them.

    Raises:
        ValueError: an unknown kind or setting, or one that is not allowed; the message says what is.
        ImportError: an optional library is missing; the message names the extra that brings it.
    """
    kind, target = _kind(spec)
    known = _parameters(kind)
    if not kind.target.startswith("module"):  # Python code has settings of its own, which it checks by itself
        for name, value in settings.items():
            if name not in known:
                has = ", ".join(known) or "none"
                raise ValueError(f"{spec} has no setting {name!r}; it has: {has}.")
            types = str(known[name].annotation).split(" | ")
            if not any(_TYPES[each][1](value) for each in types):
                raise ValueError(
                    f"{spec}: {name}={shown(value)} must be {' or '.join(_TYPES[each][0] for each in types)}."
                )
    agent: ReplyAgent | StepAgent = resolve_name(kind.maker)(*([target] if kind.target else []), **settings)
    return agent


def settings_of(spec: str) -> dict[str, Any]:
    """The settings that a kind of agent takes, with their defaults.

    Raises:
        ValueError: an unknown kind.
    """
    return {name: parameter.default for name, parameter in _parameters(_kind(spec)[0]).items()}


def _parameters(kind: Kind) -> dict[str, Parameter]:
    parameters = list(signature(resolve_name(kind.maker)).parameters.values())[bool(kind.target) :]
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return {parameter.name: parameter for parameter in parameters if parameter.kind in named}


def _kind(spec: str) -> tuple[Kind, str]:
    name, colon, target = spec.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        names = ", ".join(f"{name}:{kind.target}" if kind.target else name for name, kind in KINDS.items())
        raise ValueError(f"there is no agent {spec!r}: choose one of {names}.")
    if bool(kind.target) != bool(target):
        form = f"{name}:{kind.target}" if kind.target else name
        raise ValueError(f"{spec!r} is not how this agent is written: give {form}.")
    assert colon or not target
    return kind, target
