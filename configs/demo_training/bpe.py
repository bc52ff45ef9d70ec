"""The demo model's tokenizer: a byte-level BPE with four reserved tokens, trained on the training plays.

Writes the files that Transformers and mambad read: tokenizer.json, tokenizer_config.json and
chat_template.jinja. Owns the chat template, a documented toy.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from mambad.configs.demo_training.corpus import ASSISTANT, END_OF_TEXT, END_OF_TURN, SPECIAL_TOKENS, USER

CHAT_TEMPLATE = """\
{#- A toy: a system message is the line above the scene, then speeches alternate. No tools, no images. -#}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{{ message['content'] }}
{% elif message['role'] == 'user' -%}
<|user|>{{ message['content'] }}<|end|>
{%- elif message['role'] == 'assistant' -%}
<|assistant|>{{ message['content'] }}<|end|>
{%- else -%}
{{ raise_exception('the demo template knows system, user and assistant, not ' + message['role']) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of exactly ``vocab_size`` tokens; ids 0 to 3 are the reserved ones."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, out: Path, max_length: int) -> None:
    """Write the three tokenizer files into the folder ``out``."""
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "additional_special_tokens": [USER, ASSISTANT, END_OF_TURN],
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
