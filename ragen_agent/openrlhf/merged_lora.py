"""LoRA adapters (arXiv 2106.09685), merged into the weights that vLLM and the final checkpoint get.

OpenRLHF 0.11 sends vLLM the parameters of the wrapped model under PEFT's names, which vLLM does not know, and saves
only the adapters. Here both get the weights of the plain model with the adapters added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from ragen_agent.inference.weights import merged_parameters
from ragen_agent.models.parameters import rounding_notice, save_adapter


def send_merged(trainer: Any, model: PeftModel) -> None:
    """Makes OpenRLHF's policy trainer send ``merged_parameters`` to vLLM; the model itself is not changed."""
    send = trainer.broadcast_to_vllm
    shown: Any = model

    def broadcast_to_vllm() -> None:
        shown.named_parameters = lambda *args, **kwargs: merged_parameters(model)
        try:
            send()
        finally:
            del shown.named_parameters

    trainer.broadcast_to_vllm = broadcast_to_vllm


def save_merged(model: PeftModel, tokenizer: Any, folder: Path, adapter: Path, base: Path) -> None:
    """Writes the model with its adapters merged, in Hugging Face format; the model has no adapters afterwards.

    Before that the adapters are written to the folder ``adapter``, as made for the model in ``base``. Of the processes
    that train it only rank 0 writes.
    """
    if torch.distributed.is_initialized() and torch.distributed.get_rank():
        return
    save_adapter(model, adapter, base)
    if notice := rounding_notice(model):
        print(notice, flush=True)
    plain: Any = model
    plain.merge_and_unload().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
