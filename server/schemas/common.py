"""What the wire models share: strictness, and the fields that are known but not supported.

A field is honoured, or refused by name, or (if nobody knows it) ignored with a warning. A field that would
change the answer is never ignored.
"""

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from mambad.server.errors import ApiError, invalid

logger = logging.getLogger(__name__)

MAX_NAMES_WARNED = 100
MAX_NAME_CHARS = 64

# Name → values that ask for nothing. Null always does.
UNSUPPORTED_FIELDS: dict[str, tuple[Any, ...]] = {
    # other shapes of the answer
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json_object": (False,),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "grammar": (),
    "structural_tag": (),
    "stop_regex": (),
    "no_stop_trim": (False,),
    # other ways to draw
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "logprob_token_ids": (),
    "repetition_detection": (),
    "thinking_token_budget": (),
    "custom_logit_processor": (),
    "logits_processors": (),
    "n_predict": (-1,),
    "repeat_penalty": (1, 1.0),
    "typical_p": (1, 1.0),
    "tfs_z": (1, 1.0),
    "top_n_sigma": (-1, -1.0),
    "mirostat": (0,),
    "dynatemp_range": (0, 0.0),
    "dry_multiplier": (0, 0.0),
    "xtc_probability": (0, 0.0),
    "samplers": ([],),
    # other inputs and outputs
    "messages": (),
    "tools": (),
    "tool_choice": ("none",),
    "functions": (),
    "function_call": ("none",),
    "prompt_embeds": (),
    "max_completion_tokens": (),
    "max_new_tokens": (),
    "top_logprobs": (),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "session_id": (),
    "session_params": (),
    "lora_path": (),
    "lora": ([],),
    "image_data": ([],),
    "n_probs": (0,),
    "n_indent": (0,),
    "id_slot": (-1,),
    "t_max_predict_ms": (0, -1),
    "kv_transfer_params": (),
    "vllm_xargs": (),
}

REPLACEMENTS = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_json_object": "structured_outputs.json_object",
    "guided_whitespace_pattern": "structured_outputs.whitespace_pattern",
    "json_schema": "response_format.json_schema",
    "regex": "structured_outputs.regex",
    "ebnf": "structured_outputs.grammar",
    "grammar": "structured_outputs.grammar",
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "n_probs": "logprobs",
}
"""What asks for the same here."""


class WireModel(BaseModel):
    """A JSON object from a client: no value is converted, fields that nobody knows are kept apart."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)


class FieldPolicy:
    """Decides what happens to fields that a wire model does not have.

    Args:
        is_strict: refuse unknown fields.
    """

    def __init__(self, is_strict: bool = False) -> None:
        self._is_strict = is_strict
        self._warned: set[str] = set()

    def check(self, extra: Mapping[str, Any]) -> None:
        """Look at the fields that are not in the model.

        Raises:
            ApiError: 400 naming a field that can't be honoured, or that is unknown under the strict policy.
        """
        for name, value in extra.items():
            if name in UNSUPPORTED_FIELDS:
                if not asks_for_nothing(value, UNSUPPORTED_FIELDS[name]):
                    raise _unsupported(name)
            elif self._is_strict:
                shown = name[:MAX_NAME_CHARS]
                raise invalid(shown, f"Unknown parameter: `{shown}`.", "unknown_parameter")
            else:
                self._warn(name[:MAX_NAME_CHARS])

    def _warn(self, name: str) -> None:
        """Say once that a field is ignored."""
        if name not in self._warned and len(self._warned) < MAX_NAMES_WARNED:
            self._warned.add(name)
            logger.warning("ignoring the unknown request field %r", name)


def _unsupported(name: str) -> ApiError:
    instead = f" Use `{REPLACEMENTS[name]}`." if name in REPLACEMENTS else ""
    return invalid(name, f"`{name}` is not supported by this server.{instead}", "unsupported_parameter")


def asks_for_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether a field may stay unsupported: it is null or one of its neutral values."""
    return value is None or any(type(value) is type(other) and value == other for other in neutral)
