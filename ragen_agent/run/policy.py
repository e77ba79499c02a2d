"""A playing model: weights, tokenizer, chat format and engine."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ragen_agent.config import Config
from ragen_agent.config.settings import pretrained
from ragen_agent.inference.torch_engine import TorchEngine
from ragen_agent.inference.vision import vision_of
from ragen_agent.inference.vllm_engine import VllmEngine
from ragen_agent.inference.weights import move
from ragen_agent.models.checkpoint import check_context, load_checkpoint
from ragen_agent.models.named_models import model_folder
from ragen_agent.models.parameters import check_targets
from ragen_agent.models.resources import cpu_threads
from ragen_agent.models.small_model import build_model, check_known
from ragen_agent.models.small_vision_model import build_vision_model, small_tokenizer
from ragen_agent.programs.rollout import play_programs
from ragen_agent.tasks.tasks import SeedStream, all_settings, derive_seed, make_env, records_states
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.rollout import Instance, play
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.threads import bfloat16_units


def device_and_dtype(config: Config) -> tuple[str, torch.dtype]:
    """The device and dtype of the playing weights; see ``Config``.

    Raises:
        ValueError: a device unknown to torch.
    """
    large = pretrained(config.model)
    device = config.device
    if device == "auto":
        device = "cuda" if large and torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        here = ", ".join(["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))])
        said = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"device {device!r} cannot be used: {said}. Torch finds here: {here}; name one of these, or see what "
            "ragen-agent doctor says of the GPU."
        ) from error
    if device.startswith("cuda"):
        fast = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        fast = device == "cpu" and bool(bfloat16_units())
    if config.dtype == "bfloat16" and not fast:
        warnings.warn(
            f"dtype=bfloat16, but {device} has no units for it (AMX-BF16 or AVX512-BF16, on a GPU compute capability "
            "8.0): expect to wait several times as long as with dtype=float32.",
            stacklevel=2,
        )
    half = config.dtype == "bfloat16" or (config.dtype == "auto" and large and fast)
    return device, torch.bfloat16 if half else torch.float32


@cache
def _settle() -> None:
    """``gc.freeze()`` after the imports, so that permanent objects are not scanned.

    A full collection over them would take a quarter of a second in the middle of a rollout.
    """
    gc.collect()
    gc.freeze()


@dataclass
class Policy:
    """See the module; ``engine`` reads the model's current weights."""

    config: Config
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    chat: ChatFormat
    engine: TorchEngine | VllmEngine

    @classmethod
    def build(cls, config: Config, folder: Path | None = None) -> Policy:
        """The policy of a Hugging Face folder, or the small model from scratch if none is given.

        Raises:
            ValueError: settings with pictures for a model or chat template without pictures; see also
                ``load_checkpoint``, ``ChatFormat.from_tokenizer``, ``device_and_dtype``, ``check_context``,
                ``check_targets`` and ``VllmEngine``.
            ImportError: LoRA without peft.
        """
        torch.set_num_threads(cpu_threads(config))
        _settle()
        device, dtype = device_and_dtype(config)
        if folder is None and config.model:
            folder = model_folder(config.model)
        if folder is not None:
            model, tokenizer = load_checkpoint(folder, device, dtype)
        else:
            tokenizer = small_tokenizer(config)
            build = build_vision_model if config.small_model.kind == "vision" else build_model
            seed = derive_seed(config.seed, SeedStream.MODEL)
            model = move(build(config.small_model, tokenizer, seed), device, dtype)
        check_context(model.config, config)
        check_targets(model, config.lora)
        chat = ChatFormat.from_settings(tokenizer, config.turns, vision_of(model))
        if chat.image_refusal and any(game.turns.sees for game in all_settings(config)):
            raise ValueError(chat.image_refusal)
        engine: TorchEngine | VllmEngine
        if config.engine == "vllm":
            length = max(game.turns.max_tokens_per_episode for game in all_settings(config))
            engine = VllmEngine(model, chat.stop_ids, len(tokenizer), length=length, memory=config.vllm_memory)
        else:
            engine = TorchEngine(model, chat.stop_ids, len(tokenizer))
        return cls(config, model, tokenizer, chat, engine)

    def processes(self, split: str | None, count: int) -> list[TokenMDP]:
        """``count`` token processes, one per concurrent episode."""
        states = records_states(self.config, split)
        return [
            TokenMDP.from_settings(make_env(self.config, split), self.chat, self.config.turns, record_states=states)
            for _ in range(count)
        ]

    def play(
        self,
        processes: Sequence[TokenMDP],
        instances: Sequence[Instance],
        temperature: float,
        seed: int,
        over: Callable[[Mapping[int, Trajectory]], None] = lambda played: None,
        numbers: Sequence[int] | None = None,
    ) -> list[Trajectory]:
        """Episodes of this policy; see ``ragen_agent.tokens.rollout.play``.

        Raises:
            ValueError: a text with words unknown to the policy's tokenizer; or see ``play_programs``.
        """
        program, check = self.config.program, partial(check_known, self.tokenizer)
        player: Callable[..., list[Trajectory]] = partial(play_programs, program=program) if program.command else play
        return player(
            self.engine,
            processes,
            instances,
            temperature=temperature,
            seed=seed,
            check=check,
            over=over,
            numbers=numbers,
        )
