"""The settings of ``ragen-agent sft train``; apart from ``fine_tune`` so that a command line is read without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragen_agent.config import Lora
from ragen_agent.config.game_defaults import pretrained
from ragen_gym.core.settings import check_settings, setting

__all__ = ["FineTuning"]


@dataclass(frozen=True)
class FineTuning:
    """The options of ``ragen-agent sft train``; ``data_sha256`` is filled in when it begins."""

    data: str = setting("", "file of conversations, as ragen-agent sft data writes them")
    model: str = setting("", "folder of a Hugging Face causal LM; without one, the small model from scratch")
    epochs: int = setting(1, "passes over the data", low=1)
    batch: int = setting(32, "conversations a step", low=1)
    accumulate: int = setting(1, "parts in which a step is computed, to save memory", low=1)
    learning_rate: float = setting(
        0.0, "peak learning rate; 0 for 1e-5, with LoRA 2e-4, for the small model 3e-3", low=0, below=1e3
    )
    save_every: int = setting(100, "steps between checkpoints", low=1)
    max_tokens: int = setting(4096, "longer conversations are left out", low=1, unit="tokens")
    successes_only: bool = setting(False, "leave failed episodes out")
    seed: int = setting(0, "of the order of the data and of the adapter", low=0)
    device: str = setting("auto", "cpu, cuda or auto")
    threads: int = setting(1, "CPU threads", low=1)
    lora: Lora = field(default_factory=Lora)
    data_sha256: str = ""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.batch % self.accumulate:
            raise ValueError(f"batch is {self.batch}; it must be a multiple of accumulate, {self.accumulate}.")

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate with its default resolved."""
        large = 2e-4 if self.lora.rank else 1e-5
        return self.learning_rate or (large if pretrained(self.model) else 3e-3)
