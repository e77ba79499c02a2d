"""Making the environment that a request asks for."""

from __future__ import annotations

from ragen_gym.registry import Row, build_game
from ragen_gym.serve.batch import BatchGrain
from ragen_gym.serve.grains import Grain, Json
from ragen_gym.serve.refusals import library_errors, refuse
from ragen_gym.serve.requests import CreateRequest
from ragen_gym.serve.single import StepGrain, TurnGrain
from ragen_gym.text import Vocabulary

__all__ = ["make_grain"]


def make_grain(row: Row, request: CreateRequest, max_reply: int) -> Grain:
    """The environment that a request asks for.

    Raises:
        Refusal: the library refuses a value, or arguments of another grain were given.
    """
    for name, given, fits in (
        ("budgets", request.budgets is not None, request.grain == "turn"),
        ("num_envs", request.num_envs is not None, request.grain == "step"),
        ("max_episode_steps", request.max_episode_steps is not None, request.grain == "step"),
        ("autoreset", request.autoreset is not None, request.num_envs is not None),
        ("observation='grid'", request.observation == "grid", request.grain == "step"),
    ):
        if given and not fits:
            refuse("bad_value", f"{name} does not go with grain={request.grain!r}, num_envs={request.num_envs!r}.")
    arguments: Json = {
        **request.knobs,
        "split": request.split,
        "preset": request.preset,
        "levels": request.levels,
        "observation": request.observation,
        "text_format": request.text_format,
        "vocabulary": request.vocabulary,
        "tile_size": request.tile_size,
        "render_mode": "rgb_array" if request.render else None,
    }
    with library_errors():
        build_game(row, request.knobs, request.preset)  # refuses what is no knob, such as the path of a level file
        if request.vocabulary is not None and not isinstance(request.vocabulary, str):
            arguments["vocabulary"] = Vocabulary(request.vocabulary.name, request.vocabulary.symbols)
        if request.render:
            from ragen_gym.render.brush import load_pygame

            load_pygame()
        if request.grain == "turn":
            return TurnGrain(row, {**(request.budgets.model_dump() if request.budgets else {}), **arguments}, max_reply)
        if request.max_episode_steps is not None:
            arguments["max_episode_steps"] = request.max_episode_steps
        if request.num_envs is None:
            return StepGrain(row, arguments)
        return BatchGrain(row, request.num_envs, request.autoreset or "NextStep", arguments)
