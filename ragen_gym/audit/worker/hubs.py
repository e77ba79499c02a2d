"""Adapters for environments of hubs: OpenEnv, as a class or as a server, and verifiers."""

from __future__ import annotations

import asyncio
import copy
import inspect
import itertools
import random  # noqa: TID251  # a generator of its own; the global one is audited, not used
import typing
from collections.abc import Mapping
from typing import Any

from .gym_like import accepts_seed, load, settled
from .protocol import AuditedEnv, NotApplicable, Step, Target, copied, keywords
from .text_libraries import TextEnv, bracketed

__all__ = ["OpenEnvTarget", "VerifiersTarget"]

#: Fields of a state that belong to the bookkeeping of a session.
_BOOKKEEPING = {"episode_id", "step_count", "session_id", "last_info"}
_MOST_ACTIONS = 64
_REPLIES = ["0", "1", "42", "yes", "no", "True", "A"]


class OpenEnvEnv(AuditedEnv):
    """An environment of OpenEnv: actions are dicts of the fields of its action model."""

    def __init__(self, env: Any, target: OpenEnvTarget) -> None:
        self.env, self.target = env, target
        self.text = ""

    def reset(self, seed: int | None, noise: int | None = None) -> tuple[Any, dict[str, Any]]:
        return self._seen(self.env.reset(**({"seed": seed} if self.target.takes_seed else {})))[0], {}

    def step(self, action: Any) -> Step:
        model = self.target.action_model
        made = model(**action) if model and isinstance(action, Mapping) else action
        observation, reward, done = self._seen(self.env.step(made))
        return Step(observation, 0.0 if reward is None else reward, bool(done), False, {})

    def _seen(self, result: Any) -> tuple[Any, Any, Any]:
        result = settled(result)
        observation = getattr(result, "observation", result)  # a client's answer holds the observation
        data = observation if isinstance(observation, dict) else observation.model_dump(mode="json")
        self.text = str(data)
        reward = data.pop("reward", None)
        done = data.pop("done", False)
        if observation is not result:
            reward, done = result.reward, result.done
        return data, reward, done

    def close(self) -> None:
        if hasattr(self.env, "close"):
            settled(self.env.close())

    def actions(self) -> list[Any]:
        if self.target.menu:
            return self.target.menu
        if self.target.text_field:
            return [{self.target.text_field: reply} for reply in bracketed(self.text)]
        return self.target.listed

    def sample(self, seed: int) -> Any:
        menu = self.actions()
        return random.Random(seed).choice(menu) if menu else super().sample(seed)

    def idle_actions(self) -> list[Any]:
        return [{self.target.text_field: ""}] if self.target.text_field else []

    def state(self) -> Any:
        state = getattr(self.env, "state", None)
        state = settled(state() if callable(state) else state)
        if state is None:
            return None
        data = state if isinstance(state, dict) else state.model_dump()
        return {name: value for name, value in data.items() if name not in _BOOKKEEPING}

    def clone(self) -> AuditedEnv:
        if self.target.remote:
            raise NotApplicable("an environment on a server cannot be copied")
        twin = copy.copy(self)  # with the text that its actions are read from
        twin.env = copied(self.env)
        return twin


class OpenEnvTarget(Target):
    """``openenv:module:Class``, the environment class of a server, or ``openenv:http://HOST:PORT``, the server itself."""

    kind = "openenv"
    library = "openenv"
    shown = "x[0] if isinstance(x, tuple) else x"  # a tuple has the hidden state in it

    def __init__(self, name: str, options: dict[str, Any], menu: list[Any]) -> None:
        self.name, self.options, self.menu = name, options, menu
        self.remote = name.startswith(("http://", "https://"))
        self.thread_safe = not self.remote
        self.action_model: Any = None
        if self.remote:
            if options:
                raise ValueError("the server makes its environments itself: leave --option out")
            schema = _get_json(f"{name}/schema").get("action", {})
            self.code = (
                f"from openenv.core.generic_client import GenericEnvClient; new = lambda: GenericEnvClient(base_url={name!r})"
                ".sync().__enter__(); start = lambda e, s: (e.reset(seed=s).observation, e.state()); "
                "act = lambda e, a: (lambda r: (r.observation, r.reward or 0, r.done))(e.step(a))"
            )
        else:
            self.factory = load(name)
            self.takes_seed = bool(accepts_seed(getattr(self.factory, "reset", None) or self.factory().reset))
            self.action_model = _action_model(self.factory)
            schema = self.action_model.model_json_schema() if self.action_model else {}
            module, _, attribute = name.partition(":")
            seed = "seed=s" if self.takes_seed else ""
            model = self.action_model
            state = f"{{k: v for k, v in dict(e.state).items() if k not in {sorted(_BOOKKEEPING)!r}}}"
            self.code = (
                f"import {module} as m; from {model.__module__} import {model.__name__} as A; "
                f"new = lambda **k: m.{attribute}({keywords(options)}); "
                f"start = lambda e, s: (str(e.reset({seed})), str({state})); "
                "act = lambda e, a: (lambda r: (str(r), r.reward or 0, r.done))(e.step(A(**a)))"
            )
        self.text_field, self.listed = _menu(schema)
        env = self.make()
        env.reset(0)
        env.close()

    def make(self, **options: Any) -> OpenEnvEnv:
        if not self.remote:
            return OpenEnvEnv(self.factory(**{**self.options, **options}), self)
        from openenv.core.generic_client import (  # type: ignore[import-not-found, unused-ignore]
            GenericEnvClient,
        )

        client = GenericEnvClient(base_url=self.name).sync()
        client.connect()
        return OpenEnvEnv(client, self)


def _action_model(factory: Any) -> Any:
    try:
        found = typing.get_type_hints(factory.step).get("action")
    except NameError:
        found = None
    if found is None or not hasattr(found, "model_json_schema"):
        for base in getattr(factory, "__orig_bases__", ()):
            for argument in typing.get_args(base):
                if getattr(argument, "__name__", "").endswith("Action"):
                    return argument
        raise ValueError(f"{factory.__name__}.step does not say the class of its action: annotate it.")
    return found


def _menu(schema: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """(the field that holds a text, or "", the actions where they are few)."""
    definitions = schema.get("$defs", {})
    values: dict[str, list[Any]] = {}
    for name, field in schema.get("properties", {}).items():
        if name == "metadata":
            continue
        field = definitions.get(field.get("$ref", "").rpartition("/")[2], field)
        if "enum" in field:
            values[name] = list(field["enum"])
        elif field.get("type") == "boolean":
            values[name] = [False, True]
        elif field.get("type") == "integer" and "maximum" in field:
            low, high = field.get("minimum", 0), field["maximum"]
            values[name] = list(range(low, min(high, low + _MOST_ACTIONS) + 1))
        elif field.get("type") == "string" and name in schema.get("required", ()):
            return name, []
    names = list(values)
    rows = itertools.islice(itertools.product(*values.values()), _MOST_ACTIONS) if names else iter(())
    return "", [dict(zip(names, row, strict=True)) for row in rows]


def _get_json(url: str) -> dict[str, Any]:
    import json
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=20) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except (URLError, OSError, ValueError) as error:
        raise ValueError(
            f"{url} gives no schema of the actions ({error}): is an OpenEnv server running there? Start it, or correct "
            "the address."
        ) from None


class VerifiersEnv(TextEnv):
    """One task of a taskset: the seed is its place, and one reply ends it."""

    def __init__(self, target: VerifiersTarget) -> None:
        self.target, self.menu = target, target.menu or _REPLIES
        self.task: Any = None

    def reset(self, seed: int | None, noise: int | None = None) -> tuple[Any, dict[str, Any]]:
        self.task = self.target.task(seed or 0)
        return self.task.data.prompt_text, {}

    def step(self, action: Any) -> Step:
        return Step("", self.target.score(self.task, str(action)), True, False, {})

    def state(self) -> Any:
        return {name: value for name, value in self.task.data.model_dump().items() if name not in ("idx", "id", "name")}

    def clone(self) -> AuditedEnv:
        return copy.copy(self)


class VerifiersTarget(Target):
    """``verifiers:module`` that exports a taskset, or ``verifiers:module:Class``; options are fields of its config."""

    kind = "verifiers"
    library = "verifiers"
    levels_listed = True

    def __init__(self, name: str, options: dict[str, Any], menu: list[Any]) -> None:
        import importlib

        self.name, self.options, self.menu = name, options, menu
        module, _, attribute = name.partition(":")
        exported = importlib.import_module(module)
        found = [
            each
            for each in (getattr(exported, other) for other in ([attribute] if attribute else exported.__all__))
            if inspect.isclass(each) and hasattr(each, "task_type")
        ]
        if len(found) != 1:
            raise ValueError(f"{name} exports {len(found)} tasksets: name one as verifiers:module:Class.")
        self.taskset = self._configured(found[0])
        self._tasks: list[Any] = []
        self._rest = iter(self.taskset)
        self.code = (
            f"import asyncio, itertools, typing, {module} as m; from verifiers.v1.graph import MessageNode; "
            "from verifiers.v1.trace import Trace; from verifiers.v1.types import AssistantMessage; "
            f"C = typing.get_args(m.{found[0].__name__}.__orig_bases__[0])[1]; "
            f"new = lambda **k: [*itertools.islice(m.{found[0].__name__}(C({keywords(options)})), {_MOST_TASKS + 1}), "
            "None]; "
            "start = lambda e, s: (e.__setitem__(-1, e[s % (len(e) - 1)]), "
            "e[-1].data.model_dump(exclude={'idx', 'id', 'name'}))[1]; "
            "trace = lambda a: Trace.model_construct(root_reply=a, rewards={}, metrics={}, info={}, "
            "nodes=[MessageNode(message=AssistantMessage(content=a), sampled=True)]); "
            "act = lambda e, a: (lambda t: (asyncio.run(e[-1].score(t)), ('', sum(r.value for r in t.rewards.values() if r), "
            "True))[1])(trace(a))"
        )
        self.task(0)

    def _configured(self, taskset: Any) -> Any:
        arguments = typing.get_args(taskset.__orig_bases__[0])
        if len(arguments) < 2:
            from verifiers.v1 import TasksetConfig  # type: ignore[import-not-found, unused-ignore]

            return taskset(TasksetConfig(**self.options))
        return taskset(arguments[1](**self.options))

    def task(self, place: int) -> Any:
        """The task of a place; a finite taskset begins again after its last one."""
        while len(self._tasks) <= min(place, _MOST_TASKS):
            following = next(self._rest, None)
            if following is None:
                break
            self._tasks.append(following)
        if not self._tasks:
            raise NotApplicable("the taskset is empty")
        return self._tasks[place % len(self._tasks)]

    def score(self, task: Any, reply: str) -> float:
        """Reward of a reply; raises NotApplicable where scoring needs more than the reply."""
        from verifiers.v1.graph import MessageNode  # type: ignore[import-not-found, unused-ignore]
        from verifiers.v1.trace import Trace  # type: ignore[import-not-found, unused-ignore]
        from verifiers.v1.types import AssistantMessage  # type: ignore[import-not-found, unused-ignore]

        answer = MessageNode(message=AssistantMessage(content=reply), sampled=True)
        trace = Trace.model_construct(root_reply=reply, nodes=[answer], rewards={}, metrics={}, info={})
        asyncio.run(task.score(trace))
        if not trace.rewards:
            raise NotApplicable("the taskset scores no reply by itself: its rewards need a runtime or a judge")
        return float(sum(reward.value for reward in trace.rewards.values() if reward is not None))

    def make(self, **options: Any) -> VerifiersEnv:
        return VerifiersEnv(VerifiersTarget(self.name, {**self.options, **options}, self.menu) if options else self)


_MOST_TASKS = 2000
