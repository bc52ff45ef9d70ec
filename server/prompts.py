"""Prompts on the wire → token ids that fit the model. Pure; may take long for long texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mambad.engine.errors import PromptTooLongError
from mambad.server.choice import PromptText
from mambad.server.errors import ApiError, invalid
from mambad.server.tokenizer import TextTokenizer, TooManyTokensError

IDS_AT_ONCE = 65536


@dataclass(frozen=True, slots=True)
class PromptRules:
    """What a prompt must keep to.

    Attributes:
        vocab_size: ids are below this.
        max_model_len: the model's context.
        max_prompt_tokens: longest prompt that leaves room for what was asked for.
        max_prompts: most prompts of a request.
        add_special_tokens: whether the tokenizer adds its own tokens to texts.
        truncate_to: cut prompts to this many tokens; None cuts nothing.
        keeps_end: cutting keeps the last tokens, else the first.
    """

    vocab_size: int
    max_model_len: int
    max_prompt_tokens: int
    max_prompts: int
    add_special_tokens: bool = True
    truncate_to: int | None = None
    keeps_end: bool = True


def read_prompts(value: Any, text: TextTokenizer, rules: PromptRules) -> list[PromptText]:
    """Return the prompts of a request.

    A string or a list of ids is one prompt; a list of strings or of lists of ids is several. An empty prompt
    becomes the token that begins a document.

    Raises:
        ApiError: 400 for another shape, an id outside the vocabulary, too many prompts.
        PromptTooLongError: one does not fit.
    """
    if isinstance(value, str):
        return [_encode(value, text, rules)]
    if not isinstance(value, list):
        raise invalid("prompt", "`prompt` must be a string, a list of strings, or token ids.")
    if not value:
        return [_checked([], text, rules)]
    if type(value[0]) is int:
        return [_checked(value, text, rules)]
    if len(value) > rules.max_prompts:
        message = (
            f"A request with this `n` may hold {rules.max_prompts} prompts, this one holds {len(value)}."
        )
        raise invalid("prompt", message)
    if all(isinstance(item, str) for item in value):
        return [_encode(item, text, rules) for item in value]
    if all(isinstance(item, list) for item in value):
        return [_checked(item, text, rules) for item in value]
    raise invalid("prompt", "`prompt` must be a string, a list of strings, or token ids, not a mixture.")


def check_token_ids(param: str, token_ids: Sequence[Any], vocab_size: int) -> None:
    """Make sure that these are ids of the model.

    Raises:
        ApiError: 400 naming `param`.
    """
    for start in range(0, len(token_ids), IDS_AT_ONCE):
        part = token_ids[start : start + IDS_AT_ONCE]
        if set(map(type, part)) != {int}:
            raise invalid(param, f"`{param}` must hold integers only.")
        if min(part) < 0 or max(part) >= vocab_size:
            raise invalid(param, f"`{param}` holds a token id outside the vocabulary: 0 to {vocab_size - 1}.")


def _encode(prompt: str, text: TextTokenizer, rules: PromptRules) -> PromptText:
    max_tokens = rules.max_prompt_tokens if rules.truncate_to is None else None
    try:
        token_ids = text.encode(prompt, rules.add_special_tokens, max_tokens)
    except TooManyTokensError as error:
        raise _too_long(error, rules) from None
    num_hidden = text.num_added_prefix if rules.add_special_tokens else 0
    return _fitted(token_ids, num_hidden, text, rules)


def _checked(token_ids: list[Any], text: TextTokenizer, rules: PromptRules) -> PromptText:
    if rules.truncate_to is None and len(token_ids) > rules.max_prompt_tokens:
        raise PromptTooLongError(len(token_ids), rules.max_model_len)
    check_token_ids("prompt", token_ids, rules.vocab_size)
    return _fitted(token_ids, 0, text, rules)


def _fitted(token_ids: list[int], num_hidden: int, text: TextTokenizer, rules: PromptRules) -> PromptText:
    """Cut a prompt if that was asked for, and give an empty one its first token."""
    limit = rules.truncate_to
    if limit is not None and len(token_ids) > limit:
        num_cut = len(token_ids) - limit
        token_ids = token_ids[num_cut:] if rules.keeps_end else token_ids[:limit]
        num_hidden = max(num_hidden - num_cut, 0) if rules.keeps_end else min(num_hidden, limit)
    if not token_ids:
        start_id = text.document_start_id
        if start_id is None:
            raise invalid("prompt", "The prompt is empty, and this model has no token to begin with.")
        token_ids, num_hidden = [start_id], 1
    if len(token_ids) > rules.max_prompt_tokens:
        raise PromptTooLongError(len(token_ids), rules.max_model_len)
    return PromptText(token_ids, num_hidden)


def _too_long(error: TooManyTokensError, rules: PromptRules) -> Exception:
    if error.is_exact:
        return PromptTooLongError(error.num_tokens, rules.max_model_len)
    message = (
        f"This model's maximum context length is {rules.max_model_len} tokens. However, your prompt contains "
        f"at least {error.num_tokens} input tokens. Please reduce the length of the input prompt."
    )
    return ApiError(400, message, "prompt", "context_length_exceeded")
