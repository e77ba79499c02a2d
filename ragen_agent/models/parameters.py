"""Trainable parameters (full model or LoRA adapter) and their AdamW optimiser.

With an adapter the model's weights stay fixed, and the files are:

- ``state.pt`` holds only the adapter and its optimiser; ``--resume`` applies them to the model in ``warm/``.
- ``adapter/`` is the last adapter in peft's format, for servers that load adapters.
- ``checkpoint/`` is a whole model with the adapter merged into its weights, readable by every command.

A merged weight is W + (alpha / rank) B A in one number, so it is rounded: in float32 the log-probs differ in the sixth
digit, in bfloat16 in the second or third. An adapter's change of a weight is lost if it is less than half the distance
to the next number. ``rounding_notice`` reports this.

A step of fine-tuning changes a weight by a millionth, but bfloat16 resolves only about a hundredth: added to the weight
itself, most steps would round to nothing. So the master copy is kept in float32, and the playing weights are its
rounding. (An autocast over float32 weights would do the same arithmetic, but round all weights anew for every sampled
token.) An adapter is float32 itself and needs no copies.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ragen_agent.config import Lora
from ragen_agent.config.consent import load_problem
from ragen_agent.inference.weights import move
from ragen_agent.models.checkpoint import load_checkpoint, save_checkpoint
from ragen_gym.core.storage import atomic_folder

if TYPE_CHECKING:
    from peft import PeftModel

WEIGHTS_AT_ONCE = 2**24
"""``Float32AdamW`` steps this many numbers, plus one weight, at a time."""

ALL_LINEAR = "all-linear"
ADAPTER_CONFIG = "adapter_config.json"


def peft_library() -> Any:
    """The library peft; raises an ImportError with the install command."""
    try:
        import peft
    except ImportError as error:
        raise ImportError("LoRA (lora.rank above 0) needs peft: pip install 'ragen-gym[sft]'") from error
    return peft


def check_targets(model: PreTrainedModel, settings: Lora) -> None:
    """Raises a ValueError if a target is not a layer of the model, an ImportError without peft."""
    if not settings.rank:
        return
    peft_library()
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    for target in settings.targets:
        if target != ALL_LINEAR and not any(name == target or name.endswith(f".{target}") for name in linear):
            known = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in linear}))
            raise ValueError(f"lora.targets names {target!r}, which no linear layer of this model is called: {known}.")
    if ALL_LINEAR in settings.targets and len(settings.targets) > 1:
        raise ValueError(f"lora.targets is {settings.targets}; give {ALL_LINEAR!r} alone, or the layers by name.")


def adapt(model: PreTrainedModel, settings: Lora, seed: int) -> PeftModel:
    """Puts an adapter into ``model``, in place, and returns peft's handle; only the adapter then requires gradients.

    ``model`` itself then uses the adapter, except within ``disable_adapter()``.
    """
    peft = peft_library()
    # Without dropout, since tokens are scored as they were sampled.
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=ALL_LINEAR if settings.targets == [ALL_LINEAR] else list(settings.targets),
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2 and similar models
        task_type="CAUSAL_LM",
    )
    model.zero_grad(set_to_none=True)  # warm-start gradients of frozen weights would count in every later norm
    # A is drawn from torch's global state, on the CPU: seed it, then restore it.
    with torch.random.fork_rng(devices=[]):  # without devices it would take memory on every GPU
        torch.default_generator.manual_seed(seed)
        adapter: PeftModel = peft.get_peft_model(model, config)  # which keeps the adapter in float32
    adapter.eval()
    return adapter


@torch.no_grad()
def rounding_notice(adapter: PeftModel, dtype: torch.dtype | None = None) -> str:
    """A sentence if a merge into weights of ``dtype`` (None: their own) loses a tenth of the update or more, else "".

    Of an update D = (alpha / rank) B A the merged weights have R = round(W + D) - W, and 1 - <R, D> / <D, D> is lost.
    """
    added = kept = 0.0
    for layer in adapter.modules():
        if isinstance(layer, peft_library().tuners.lora.LoraLayer):
            weight = layer.get_base_layer().weight
            dtype = dtype or weight.dtype
            weight = weight.to(dtype).float()
            update = sum(layer.get_delta_weight(name).float() for name in layer.active_adapters)
            rounded = (weight + update).to(dtype).float() - weight
            added += float((update * update).sum(dtype=torch.float64))
            kept += float((rounded * update).sum(dtype=torch.float64))
    if kept >= 0.9 * added:
        return ""
    name = str(dtype).removeprefix("torch.")
    return (
        f"{name} rounds away {1 - kept / added:.0%} of what the adapter adds to the weights, which are too coarse for "
        "changes so small: a server that loads adapters keeps all of it; give it the model and the adapter, not the "
        "merged model."
    )


def merge(adapter: PeftModel) -> PreTrainedModel:
    """Merges the adapter into the weights, in place; the model then has no adapter."""
    model = adapter.merge_and_unload()
    assert isinstance(model, PreTrainedModel)
    # peft writes to .data, which leaves versions unchanged: engines, which cache weights by version, would miss it.
    for weight in model.parameters():
        torch.autograd.graph.increment_version(weight)
    return model


def merge_adapter(adapter: Path, out: Path, base: Path | None = None) -> tuple[Path, str]:
    """Writes the model with the merged adapter and the tokenizer to ``out``, in the dtype of the base's folder.

    Args:
        adapter: folder in peft's format, or a folder with an ``adapter/`` in this format.
        out: a new folder.
        base: folder of the adapter's base model; None for the one named in the adapter.

    Returns:
        The folder of the base, and the ``rounding_notice``.

    Raises:
        ValueError: a folder that does not fit.
        ImportError: peft is missing.
    """
    peft = peft_library()
    folder = adapter if (adapter / ADAPTER_CONFIG).is_file() else adapter / "adapter"
    if not (folder / ADAPTER_CONFIG).is_file():
        raise ValueError(f"{adapter} holds no adapter (no {ADAPTER_CONFIG}); give the adapter/ of a run with LoRA.")
    if out.exists():
        raise ValueError(f"--out {out} exists already; choose another folder.")
    named = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    if base is None and not (named and Path(named).is_dir()):
        raise ValueError(f"the adapter was made for {named}, which is not here; give --base the model's folder.")
    base = base or Path(named)
    model, tokenizer = load_checkpoint(base)
    dtype = (
        getattr(AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False), "dtype", None)
        or torch.float32
    )
    try:
        adapted = peft.PeftModel.from_pretrained(model, str(folder))
        notice, merged = rounding_notice(adapted, dtype), merge(adapted)
    except (RuntimeError, KeyError, OSError, pickle.UnpicklingError) as error:
        raise ValueError(f"{folder} does not fit the model in {base}: {load_problem(error)}") from error
    out.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(move(merged, "cpu", dtype), tokenizer, out)
    return base, notice


def save_adapter(adapter: PeftModel, folder: Path, base: Path) -> None:
    """Writes the adapter in peft's format; ``base`` is the folder of its base model."""
    for config in adapter.peft_config.values():
        config.base_model_name_or_path = str(base.resolve())
    with atomic_folder(folder) as new:
        adapter.save_pretrained(str(new), save_embedding_layers=False)


def trained(module: nn.Module) -> Mapping[str, Tensor]:
    """The trained state of a module, by name: all of it, or, if weights are frozen, only the others."""
    if not _frozen(module):
        return module.state_dict()
    return {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}


def load_trained(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Restores the state from ``trained``; raises a RuntimeError if it is from another module."""
    frozen = _frozen(module)
    if frozen and state.keys() != trained(module).keys():
        raise RuntimeError(f"the names of the trained weights differ, such as {next(iter(state), None)}")
    module.load_state_dict(state, strict=not frozen)


def load_policy(model: PreTrainedModel, settings: Lora, state: Mapping[str, Tensor]) -> None:
    """Loads a policy's ``trained`` weights into the model of ``warm/``; an adapter is merged."""
    if not settings.rank:
        model.load_state_dict(state)
        return
    adapter = adapt(model, settings, 0)
    load_trained(model, state)
    merge(adapter)


def _frozen(module: nn.Module) -> bool:
    return any(not parameter.requires_grad for parameter in module.parameters())


def adamw(module: nn.Module, learning_rate: float, **how: Any) -> torch.optim.Optimizer:
    """AdamW over the weights that require gradients; torch's own if all of them are float32."""
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if all(weight.dtype == torch.float32 for weight in weights):
        return torch.optim.AdamW(weights, lr=learning_rate, **how)
    return Float32AdamW(weights, learning_rate, **how)


@torch.no_grad()
def restore_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restores the result of ``state_dict``, after the weights; the run may have begun with another dtype."""
    optimiser.load_state_dict(state)
    if "copies" in state and not isinstance(optimiser, Float32AdamW):  # the weights were rounded copies
        weights = [weight for group in optimiser.param_groups for weight in group["params"]]
        for weight, saved in zip(weights, state["copies"], strict=True):
            weight.copy_(saved)


class Float32AdamW(torch.optim.AdamW):
    """AdamW on float32 copies of ``weights``; each step ends by rounding the copies into the weights."""

    def __init__(self, weights: list[nn.Parameter], learning_rate: float, **how: Any) -> None:
        self.weights = weights
        self.copies = [weight.detach().float().clone() for weight in weights]
        ends = accumulate(weight.numel() for weight in weights)
        self.parts: dict[int, list[tuple[nn.Parameter, Tensor]]] = {}
        for end, pair in zip(ends, zip(weights, self.copies, strict=True), strict=True):
            self.parts.setdefault(end // WEIGHTS_AT_ONCE, []).append(pair)
        # Fused: one pass over the memory of all weights; the default takes one for each operation.
        super().__init__(self.copies, lr=learning_rate, fused=True, **how)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the weights' gradients."""
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Steps the copies by the weights' gradients, and rounds them into the weights.

        It takes a part of them at a time, to limit the memory of float32 gradients.
        """
        for some in self.parts.values():
            for weight, copy in some:
                copy.grad = None if weight.grad is None else weight.grad.float()
            super().step()  # the copies that have a gradient now
            for weight, copy in some:
                weight.copy_(copy)
                copy.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state with the copies."""
        return {**super().state_dict(), "copies": self.copies}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the result of ``state_dict``, or of torch's own AdamW in a run that began in float32."""
        groups = [{**group, "fused": True} for group in state_dict["param_groups"]]
        super().load_state_dict({"state": state_dict["state"], "param_groups": groups})
        for copy, saved in zip(self.copies, state_dict.get("copies", self.weights), strict=True):
            copy.copy_(saved)
