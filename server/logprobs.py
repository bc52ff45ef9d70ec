"""Log-probabilities as `/v1/completions` shows them. Pure."""

from collections.abc import Sequence
from typing import Any

from mambad.server.choice import AlignedToken
from mambad.server.tokenizer import TextTokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON can't say."""


def completion_logprobs(
    aligned: Sequence[AlignedToken], text: TextTokenizer, tokens_as_ids: bool
) -> dict[str, list[Any]]:
    """Return the four parallel lists of a completion's `logprobs`.

    A token that the model drew is always among the most likely ones, under the same name and with the same
    number. Tokens that look alike share an entry: the chosen one's, else the more likely one's.
    """
    names = [_id_name(token.token_id) if tokens_as_ids else token.text for token in aligned]
    return {
        "tokens": names,
        "token_logprobs": [json_logprob(token.logprobs.logprob) for token in aligned],
        "top_logprobs": [
            _top(token, name, text, tokens_as_ids) for token, name in zip(aligned, names, strict=True)
        ],
        "text_offset": [token.offset for token in aligned],
    }


def json_logprob(value: float | None) -> float | None:
    """Return a number that JSON has; None for the first token of a prompt."""
    if value is None or value > LOWEST:
        return value
    return LOWEST  # NaN too


def _top(token: AlignedToken, name: str, text: TextTokenizer, tokens_as_ids: bool) -> dict[str, Any] | None:
    if token.logprobs.logprob is None:
        return None
    names = _id_name if tokens_as_ids else text.token_text
    top: dict[str, Any] = {}
    for token_id, logprob in token.logprobs.top:
        top.setdefault(name if token_id == token.token_id else names(token_id), json_logprob(logprob))
    top[name] = json_logprob(token.logprobs.logprob)
    return top


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"
