"""How the viewer draws the boards of each game: which sprites of ``templates/tiles.svg`` lie in a cell."""

from __future__ import annotations

from typing import Any

from ragen_gym.envs.step import StepEnv
from ragen_gym.games.bandit import Bandit
from ragen_gym.games.grid import GridGame

__all__ = ["SPRITES", "look"]

#: By the name of the game and of the tile, from the bottom up; ``*`` marks a piece that glides when it moves.
SPRITES: dict[str, dict[str, list[str]]] = {
    "Sokoban": {
        "WALL": ["wall"],
        "FLOOR": ["floor"],
        "TARGET": ["floor", "target"],
        "BOX": ["floor", "*box"],
        "BOX_ON_TARGET": ["floor", "target", "*box:done"],
        "PLAYER": ["floor", "*worker"],
        "PLAYER_ON_TARGET": ["floor", "target", "*worker"],
    },
    "FrozenLake": {
        "ICE": ["ice"],
        "HOLE": ["ice", "hole"],
        "GOAL": ["ice", "flag"],
        "PLAYER": ["ice", "*penguin"],
        "PLAYER_IN_HOLE": ["ice", "hole", "*penguin:swims"],
        "PLAYER_ON_GOAL": ["ice", "flag-reached", "*penguin"],
    },
}


def look(env: StepEnv) -> dict[str, Any]:
    """The look of an environment's boards in its vocabulary, as ``templates/board.js`` takes it.

    A game on a grid that has no sprites is drawn with its symbols.
    """
    game = env.game
    if isinstance(game, Bandit):
        return {"kind": "arms"}
    if not isinstance(game, GridGame):
        return {"kind": "text"}
    sprites = SPRITES.get(game.name, {})
    symbols = zip(env.vocabulary.symbols, game.Tile, strict=True)
    return {"kind": "grid", "cells": {symbol: sprites.get(tile.name, [f"@{symbol}"]) for symbol, tile in symbols}}
