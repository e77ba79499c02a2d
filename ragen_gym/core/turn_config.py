"""The options of a turn and its pictures, declared once for environments, suites, server, clients and training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ragen_gym.core.settings import check_settings, declared, setting
from ragen_gym.core.validation import did_you_mean, plain_number, shown

#: Sets of tiles. Evaluating on a set not used in training tests visual generalisation.
TILE_SETS = {
    "pictures": "drawn things, as in the gallery: bricks, crates, a penguin, a flag",
    "shapes": "a plain shape in a colour of its own for each kind of tile; the system message says which is which",
    "letters": "the symbols of the vocabulary, dark on light",
}

#: Treatments of the colours. All are deterministic: one board has one picture.
PALETTES = {
    "plain": "flat colours, every tile of a kind the same",
    "photographic": "texture, uneven light and grain, as in a photograph; four versions of each tile",
}

#: Smallest and largest side of a tile in pixels.
TILE_SIZES = (8, 128)


def check_tile_size(tile_size: int) -> int:
    """Return ``tile_size`` as an int, or raise a ValueError that names the range."""
    tile_size = plain_number(tile_size)
    low, high = TILE_SIZES
    if isinstance(tile_size, bool) or not isinstance(tile_size, int) or not low <= tile_size <= high:
        raise ValueError(f"tile_size={tile_size!r} must be a whole number of pixels from {low} to {high}.")
    return tile_size


@dataclass(frozen=True)
class ImageStyle:
    """The look of a picture.

    Raises:
        ValueError: an option of another type or out of range.
    """

    tiles: str = setting("pictures", "set of tiles of the pictures", choices=TILE_SETS)
    tile_size: int = setting(
        28,
        "side of a tile in the pictures; 28 is one visual token a tile for patches of 14 that are merged 2 x 2",
        low=TILE_SIZES[0],
        high=TILE_SIZES[1],
        unit="pixels",
    )
    palette: str = setting("plain", "colours of the pictures", choices=PALETTES)
    coordinates: bool = setting(
        False, "whether the pictures have the numbers of the rows and columns, from 0 on, in a margin of one tile"
    )

    def __post_init__(self) -> None:
        check_settings(self, "image_")


#: Wordings of the messages, each with its grammar of replies.
PROMPTS = {
    "default": "full rules and rewards; replies must have exactly the requested form",
    "ragen-v1": "RAGEN's prompts (arXiv 2504.20073) and its lenient parser: see ragen_gym.envs.ragen_v1",
}

#: Forms of the board in a message.
OBSERVATIONS = {
    "text": "the board as text",
    "image": "a picture of the board",
    "both": "the board as text and, after it, as a picture",
}

#: Forms of the boards in the thinking of a reply (VAGEN, arXiv 2510.16907, compares the last three).
STATE_FORMATS = {
    "text": "like the boards in text messages",
    "symbols": "rows of symbols",
    "coordinates": "the places (row,column) of every kind of tile",
    "sentences": "sentences on where the player is, and every other thing as seen from it",
}

#: Scores of a board in the thinking, from 0 to 1.
STATE_SCORES = {
    "exact": "1 for the true board, else 0",
    "objects": "the share of the things on the board that are named in their places, less if others are named too",
    "f1": "the F1 of the places of each kind of tile (for sentences, of its relations), averaged over the kinds",
}


def _image_setting(name: str) -> Any:
    """The declaration of an option of ``ImageStyle``."""
    each = declared(ImageStyle)[name]
    return setting(each.default, each.doc, low=each.low, high=each.high, choices=each.choices, unit=each.unit)


@dataclass(frozen=True)
class TurnConfig:
    """Parsing, limits and rewards of a model's replies in ``ragen_gym.TurnEnv``.

    Raises:
        ValueError: an option out of range; grounding or world modelling without thinking or without the default
            prompt; a budget without the default prompt; a summary with pictures; a state option without either of the
            first two; a picture option without pictures.
    """

    max_turns: int = setting(5, "turns in an episode", low=1)
    max_actions_per_turn: int = setting(5, "moves played of one reply", low=1)
    max_actions: int = setting(10, "moves in an episode", low=1)
    format_penalty: float = setting(
        -0.1, "added to the reward of a turn whose reply is malformed or names an unknown action"
    )
    think: bool = setting(True, "whether a reply must think in <think> tags before it answers")
    max_tokens_per_turn: int | None = setting(
        None, "a length limit of a reply that the messages state; the sampler of the tokens enforces it", low=1
    )
    grounding: bool = setting(
        False, "whether the thinking must hold the board as it is, in <observation> tags (VAGEN, arXiv 2510.16907)"
    )
    world_modelling: bool = setting(
        False, "whether the thinking must hold the board expected after the moves, in <prediction> tags (VAGEN)"
    )
    budget: bool = setting(
        False,
        "whether a reply must state, in <budget> tags, how many actions it still needs or that success is impossible "
        "(BAGEN, arXiv 2606.00198)",
    )
    summary: int = setting(
        0,
        "earlier turns that each message retells, with their boards, moves and rewards, for a model that reads no "
        "earlier message",
        low=0,
        unit="turns",
    )
    state_reward: float = setting(
        0.0, "what a right observation and a right prediction earn together, half each, in proportion to their scores"
    )
    prompt: str = setting("default", "wording of the messages and grammar of the replies", choices=PROMPTS)
    example: bool = setting(
        False,
        "whether the system message of a game ends with an example reply, which solves no board; prompt='ragen-v1' has "
        "wording of its own and shows none",
    )
    observation: str = setting("text", "what the messages show of the board", choices=OBSERVATIONS)
    image_tiles: str = _image_setting("tiles")
    image_tile_size: int = _image_setting("tile_size")
    image_palette: str = _image_setting("palette")
    image_coordinates: bool = _image_setting("coordinates")
    state_format: str = setting("text", "how the thinking writes its boards", choices=STATE_FORMATS)
    state_score: str = setting("exact", "how an observation and a prediction are scored", choices=STATE_SCORES)

    def __post_init__(self) -> None:
        check_settings(self, self._where())
        if (self.grounding or self.world_modelling) and not self.think:
            raise ValueError(
                f"{self._where()}grounding and {self._where()}world_modelling are parts of the thinking; "
                f"they need {self._where()}think=True."
            )
        if (self.grounding or self.world_modelling) and self.prompt != "default":
            raise ValueError(
                f"{self._where()}prompt={self.prompt!r} has no board in the thinking; {self._where()}grounding "
                f"and {self._where()}world_modelling need {self._where()}prompt='default'."
            )
        if self.budget and self.prompt != "default":
            raise ValueError(
                f"{self._where()}prompt={self.prompt!r} has no budget in its replies; {self._where()}budget needs "
                f"{self._where()}prompt='default'."
            )
        if self.summary and self.sees:
            raise ValueError(
                f"{self._where()}summary={self.summary} retells boards as text; it needs {self._where()}"
                f"observation='text' (got {self.observation!r})."
            )
        if not self.sees:
            self._check_unread("image_", f"{self._where()}observation='image' or 'both'")
        if not self.state_parts:
            self._check_unread("state_", f"{self._where()}grounding=True or {self._where()}world_modelling=True")

    def _check_unread(self, prefix: str, reader: str) -> None:
        """Refuse options that differ from their defaults and that nothing reads."""
        for name, each in declared(type(self)).items():
            value = getattr(self, name)
            if name.startswith(prefix) and value != each.default:
                raise ValueError(
                    f"{self._where()}{name}={value!r} has no effect without {reader}: give that too, or leave it at "
                    f"{each.default!r}."
                )

    @property
    def action_budget(self) -> int:
        """Maximum moves of an episode, within all budgets; a game may be shorter, see ``TurnEnv.action_budget``."""
        return min(self.max_actions, self.max_turns * self.max_actions_per_turn)

    @property
    def reply_opening(self) -> str:
        """Prefix of every reply, written by the sampler instead of the model; may be empty."""
        if self.prompt != "ragen-v1":
            return ""
        return "<think>" if self.think else "<answer>"

    @property
    def sees(self) -> bool:
        """True if the messages hold pictures."""
        return self.observation != "text"

    @property
    def image_style(self) -> ImageStyle:
        """The look of the pictures."""
        return ImageStyle(self.image_tiles, self.image_tile_size, self.image_palette, self.image_coordinates)

    @property
    def state_parts(self) -> tuple[str, ...]:
        """The parts of the thinking that hold boards: ``observation``, ``prediction``, both or none."""
        asked = {"observation": self.grounding, "prediction": self.world_modelling}
        return tuple(part for part, is_asked in asked.items() if is_asked)

    @classmethod
    def _where(cls) -> str:
        """Prefix of option names in messages."""
        return ""


def turn_config(config: TurnConfig | None, options: Mapping[str, Any]) -> TurnConfig:
    """``config``, or the defaults, with some options replaced.

    Raises:
        ValueError: not a ``TurnConfig``, an unknown option, or one out of range.
    """
    if not isinstance(config, TurnConfig | None):
        raise ValueError(f"{shown(config)} is not a TurnConfig: give ragen_gym.core.turn_config.TurnConfig(...).")
    names = [each.name for each in fields(TurnConfig)]
    for name in options:
        if name not in names:
            raise ValueError(
                f"unknown option {name!r} of a turn.{did_you_mean(name, names)} Known are {', '.join(names)}."
            )
    return replace(config or TurnConfig(), **options)


def split_turn_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments of ``ragen_gym.make_turn``, split into those of ``TurnConfig`` and of the environment."""
    names = {each.name for each in fields(TurnConfig)}
    return (
        {name: value for name, value in options.items() if name in names},
        {name: value for name, value in options.items() if name not in names},
    )
