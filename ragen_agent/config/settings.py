"""Every setting of a training run: type, default, range, unit and meaning next to each field.

Later sources override earlier ones: the defaults here, the game's (``ragen_agent.config.presets``), a TOML file, the
command line. The result is written to the run folder's ``config.toml``, which repeats the run when
given to ``--config``.
"""

from __future__ import annotations

import json
import re
from dataclasses import field, fields, replace
from math import inf
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from ragen_agent.config.config_checks import check_config
from ragen_agent.config.table import Table
from ragen_agent.config.training import Training
from ragen_gym.core.levels import SPLITS
from ragen_gym.core.settings import setting
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.core.validation import shown


@dataclass(frozen=True)
class Turns(Table, TurnConfig):
    """The turn environment, its budgets and the conversation (RAGEN, arXiv 2504.20073, section 3)."""

    max_tokens_per_turn: int = setting(
        40, "length limit of a reply; the messages state it to a pretrained model", low=1, unit="tokens"
    )
    max_tokens_per_episode: int = setting(1024, "length limit of a whole conversation", low=1, unit="tokens")
    history: int = setting(
        -1, "earlier turns kept in a prompt; -1 keeps all, 0 shows the current turn alone", low=-1, unit="turns"
    )
    keep_thinking: bool = setting(True, "keep the thinking of earlier replies in later prompts")
    template_options: dict[str, Any] = setting(
        {}, "keyword arguments of the tokenizer's chat template", opens="nothing"
    )

    def of_environment(self, *, states_limit: bool) -> TurnConfig:
        """The environment's part; ``states_limit``: True if its messages state the length limit of a reply."""
        options = {each.name: getattr(self, each.name) for each in fields(TurnConfig)}
        return TurnConfig(**options | ({} if states_limit else {"max_tokens_per_turn": None}))

    @classmethod
    def _where(cls) -> str:
        return "turns."


@dataclass(frozen=True)
class Program(Table):
    """A user's agent program, in any language, that plays the episodes: see ``ragen_agent.programs``."""

    command: str = setting(
        "",
        "command that starts it; its environment holds OPENAI_BASE_URL, ANTHROPIC_BASE_URL and RAGEN_GYM_URL",
        empty="replies go to the game",
        opens="command",
    )
    workers: int = setting(8, "how many run at a time", low=1, unit="programs", needs="command")
    timeout: float = setting(
        600.0, "time limit of an episode, and until one begins", above=0, high=inf, unit="seconds", needs="command"
    )


@dataclass(frozen=True)
class SmallModel(Table):
    """Kind and shape of the transformer that is trained from scratch if no model is given."""

    hidden: int = setting(64, "width, a multiple of the head size, 32", low=32)
    layers: int = setting(2, "transformer blocks", low=1)
    feed_forward: int = setting(192, "width of the feed-forward layer", low=1)
    kind: str = setting(
        "text", "its input", choices={"text": "text only", "vision": "text and pictures, turns.observation"}
    )

    def __post_init__(self) -> None:
        if self.hidden % 32:
            raise ValueError(f"small_model.hidden is {self.hidden}; it must be a multiple of 32.")


@dataclass(frozen=True)
class Demonstrations(Table):
    """Demonstrations for the warm start: a faulty oracle on levels of the training split."""

    episodes: int = setting(4096, "how many are generated", low=1, unit="episodes")
    moves: list[float] = setting(
        [0.7, 0.2, 0.1], "weights of replies of 1, 2, 3, ... moves; a reply stops early if the episode ends"
    )
    mistakes: float = setting(
        0.0, "chance that a move is drawn uniformly instead of taken from the oracle", low=0, high=1
    )
    quality: float = setting(
        1.0, "chance that a reply follows the oracle; all moves of the rest are drawn uniformly", low=0, high=1
    )
    thought: str = setting(
        "none",
        "thinking of replies: relative (where goal, holes, boxes lie, or which arm pays), direction (of the goal), "
        "choose (between two arms), plan (effect of each move) or none",
        opens="nothing",
    )

    def __post_init__(self) -> None:
        if min(self.moves, default=0) < 0 or not sum(self.moves):
            raise ValueError(f"demonstrations.moves is {self.moves}; give chances such as [0.7, 0.2, 0.1].")


@dataclass(frozen=True)
class WarmStart(Table):
    """Supervised training on the demonstrations, before reinforcement learning."""

    epochs: int = setting(1, "passes over the demonstrations; 0 skips the warm start", low=0)
    batch: int = setting(32, "episodes in an optimiser step", low=1, unit="episodes")
    learning_rate: float = setting(3e-3, "of AdamW", above=0, high=1e3)


@dataclass(frozen=True)
class Lora(Table):
    """Low-rank adaptation (LoRA, arXiv 2106.09685, section 4.1).

    The adapted weights W stay fixed, and the policy uses W + (alpha / rank) B A, where A has ``rank`` rows, B ``rank``
    columns, and B starts at 0. Only A and B are trained, and the reference of a KL term is W alone. The warm start
    trains every weight; its result is then adapted.
    """

    rank: int = setting(0, "rank of the adapters; 0 trains every weight", low=0)
    alpha: float = setting(32.0, "adapters are scaled by alpha / rank", above=0, high=inf, needs="rank")
    targets: list[str] = setting(
        ["all-linear"],
        "layers to adapt, such as q_proj; all-linear: every linear layer but the output layer",
        needs="rank",
        opens="nothing",
    )

    def __post_init__(self) -> None:
        if not self.targets or "" in self.targets:
            raise ValueError(
                f'lora.targets is {self.targets}; name layers, such as ["q_proj", "v_proj"], or ["all-linear"].'
            )


@dataclass(frozen=True)
class Stops(Table):
    """Early stopping (RAGEN-2, arXiv 2604.06268); every rule is off at 0."""

    return_std_patience: int = setting(
        0,
        "stop after this many iterations in a row with a return std below a tenth of the first ten's mean; 0 never",
        low=0,
        unit="iterations",
    )
    validate_every: int = setting(0, "iterations between evaluations on the split validation", low=0, unit="iterations")
    validation_levels: int = setting(
        64, "fixed levels of this evaluation", low=1, unit="levels", needs="validate_every"
    )
    sampled_tokens: int = setting(
        0, "stop when the rollouts have sampled this many tokens, for runs at equal cost; 0 never", low=0, unit="tokens"
    )


@dataclass(frozen=True)
class Diagnostics(Table):
    """Extra measurements during training; every 0 turns a part off."""

    tensorboard: bool = setting(
        False, "write each iteration's metrics for TensorBoard too, into the run's tensorboard/"
    )
    wandb: str = setting(
        "",
        "project of Weights & Biases for each iteration's metrics; WANDB_MODE=offline keeps them here",
        empty="none",
        opens="nothing",
    )
    tables_every: int = setting(
        0,
        "iterations between tables of the recorded episodes' texts and of each group's return std in these two",
        low=0,
        unit="iterations",
    )
    information_every: int = setting(
        0,
        "iterations between estimates of the mutual information of reasoning and prompt (first turns: 8 prompts, 4 "
        "episodes each; all turns: one of each of 16 episodes)",
        low=0,
        unit="iterations",
    )


@dataclass(frozen=True)
class Hub(Table):
    """Uploads of a finished run to the Hugging Face Hub, by the token of ``hf auth login`` or ``HF_TOKEN``."""

    model: str = setting("", "repository of the checkpoint, OWNER/NAME", empty="not uploaded", opens="upload")
    dataset: str = setting(
        "",
        "repository of the run's settings, metrics and recorded episodes, OWNER/NAME",
        empty="not uploaded",
        opens="upload",
    )
    private: bool = setting(True, "a repository that is not there yet is made private")

    def __post_init__(self) -> None:
        for kind in ("model", "dataset"):
            name = getattr(self, kind)
            if name and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
                raise ValueError(f"hub.{kind} is {shown(name)}; give OWNER/NAME, such as me/frozen-lake, or nothing.")


@dataclass(frozen=True)
class Evaluation(Table):
    """The evaluation before and after training: one episode on each of some fixed, distinct levels."""

    levels: int = setting(256, "how many", low=1, unit="levels")
    split: str = setting("test", "split of the levels", choices=SPLITS)
    temperature: float = setting(0.5, "of sampling", above=0, high=10)
    batch: int = setting(256, "episodes at a time", low=1, unit="episodes")
    imitation: bool = setting(
        False,
        "after its result, a local run with a warm start also trains two baselines without reward: further imitation "
        "at the cost of the reinforcement learning, and imitation of an optimal demonstrator",
    )


@dataclass(frozen=True)
class Config(Table):
    """One run."""

    game: str = setting(
        "FrozenLake", "the game's name, see ragen-gym list; module:Name for one of your own", opens="module"
    )
    seed: int = setting(0, "seed of everything random", low=0)
    model: str = setting("", "folder of a Hugging Face causal LM", empty="the small model, from scratch", opens="data")
    device: str = setting(
        "auto",
        "cpu, cuda or cuda:N; auto: a GPU, if available, for a pretrained model, else the CPU",
        opens="nothing",
    )
    dtype: str = setting(
        "auto",
        "dtype of the playing weights; auto: bfloat16 for a pretrained model on a GPU or CPU with units for it "
        "(compute capability 8.0; AMX-BF16, AVX512-BF16), else float32; trained weights are also kept in float32",
        choices=("auto", "float32", "bfloat16"),
    )
    engine: str = setting(
        "torch",
        "engine of the local trainer's rollouts",
        choices={
            "torch": "the model itself",
            "vllm": "vLLM in the same process, for text; it needs vllm, and CUDA graphs make it faster on a GPU",
        },
    )
    vllm_memory: float = setting(
        0.4, "share of a GPU's memory for engine=vllm, beside the local trainer", low=0.01, high=1
    )
    threads: int = setting(
        0, "CPU threads of torch; 0: every free physical core for a pretrained model, 1 for the small model", low=0
    )
    env_options: dict[str, Any] = setting(
        {}, "the game's own options, such as size; see ragen-gym info", opens="nothing"
    )
    games: list[dict[str, Any]] = setting(
        [],
        "a mixture to train on: tables {game, weight, env_options, turns, thought}; levels are drawn by weight, a "
        "table inherits missing keys from the run, and each game is evaluated separately",
        opens="module",
    )
    curriculum: list[dict[str, Any]] = setting(
        [],
        "tables {iteration, env_options}, ascending: from that iteration on these options override the run's for "
        "drawn levels; evaluation uses the run's own options",
        opens="nothing",
    )
    turns: Turns = field(default_factory=Turns)
    program: Program = field(default_factory=Program)
    small_model: SmallModel = field(default_factory=SmallModel)
    demonstrations: Demonstrations = field(default_factory=Demonstrations)
    warm_start: WarmStart = field(default_factory=WarmStart)
    training: Training = field(default_factory=Training)
    lora: Lora = field(default_factory=Lora)
    stops: Stops = field(default_factory=Stops)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    hub: Hub = field(default_factory=Hub)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def __post_init__(self) -> None:
        check_config(self)


def pretrained(model: str) -> bool:
    """True for a foreign model: not empty, and not the folder of a checkpoint of the small model."""
    if not model:
        return False
    try:
        return "tokenizer_sha256" not in json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the loader reports the error
        return True


def model_name(model: str) -> str:
    """A model's name without the folders around it: OWNER/NAME if it is of the Hub's cache, else its folder's."""
    owner_and_name = [part.split("--")[1:] for part in Path(model).parts if part.startswith("models--")]
    return "/".join(owner_and_name[0]) if owner_and_name else Path(model).name


def shareable(config: Config) -> Config:
    """Settings to show to others: without the program, whose command may hold keys, and the folders of its files.

    The model and files of levels go by their names. Other options of a user's own game go as they are.
    """
    return replace(
        config,
        program=Program(),
        model=model_name(config.model),
        env_options=_by_names(config.env_options),
        games=[_by_names(game) for game in config.games],
        curriculum=[_by_names(stage) for stage in config.curriculum],
    )


def _by_names(options: dict[str, Any]) -> dict[str, Any]:
    """Options, or a table with ``env_options``, with the file of levels by its name."""
    named = {key: _by_names(inner) for key, inner in options.items() if key == "env_options"}
    levels = options.get("levels")
    return options | named | ({"levels": Path(levels).name} if isinstance(levels, str) else {})
