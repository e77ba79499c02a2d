"""LoRA adapters (arXiv 2106.09685), merged into the weights that vLLM and the final checkpoint get.

OpenRLHF 0.11 sends vLLM the parameters of the wrapped model under PEFT's names, which vLLM does not know, and saves
only the adapters. Here both get the weights of the plain model with the adapters added.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import nn

from ragen_agent.models.parameters import rounding_notice, save_adapter

PREFIX, BASE = "base_model.model.", ".base_layer."


def merged_parameters(model: PeftModel) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of the plain model, by its own names, with the adapters added."""
    adapted = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    for name, parameter in nn.Module.named_parameters(model):
        if ".lora_" in name:
            continue
        plain = name.removeprefix(PREFIX).replace(BASE, ".")
        layer: Any = adapted.get(name.rpartition(BASE)[0])
        if layer is not None and name.endswith(f"{BASE}weight"):
            with torch.no_grad():
                added = sum(layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters)
                weight = (parameter.data.float() + added).to(parameter.dtype)
            parameter = nn.Parameter(weight, requires_grad=False)
        yield plain, parameter


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
