"""Log-probabilities as answers show them. Pure."""

from collections.abc import Sequence
from typing import Any

from mambad.engine.outputs import TokenLogprobs
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


def prompt_logprobs(
    entries: Sequence[TokenLogprobs], num_top: int, text: TextTokenizer
) -> list[dict[str, Any] | None]:
    """Return vLLM's `prompt_logprobs`: an object by token id for each token of a prompt, null for the first.

    The prompt's token comes first, then the most likely ones. Its `rank` is null if it is not among them.
    """
    return [_by_id(entry, entry.top[:num_top], text) for entry in entries]


def _by_id(
    entry: TokenLogprobs, top: Sequence[tuple[int, float]], text: TextTokenizer
) -> dict[str, Any] | None:
    if entry.logprob is None:
        return None
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(top, 1)}
    values = {entry.token_id: entry.logprob, **dict(top)}
    return {
        str(token_id): {
            "logprob": json_logprob(logprob),
            "rank": ranks.get(token_id),
            "decoded_token": text.token_text(token_id),
        }
        for token_id, logprob in values.items()
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


def chat_logprobs(
    aligned: Sequence[AlignedToken], text: TextTokenizer, hidden_ids: frozenset[int], tokens_as_ids: bool
) -> dict[str, Any]:
    """Return the `logprobs` of `/v1/chat/completions`: an entry for every token, of calls and thoughts too.

    Joined, `bytes` are the text as the model wrote it; a token that shows none has null.
    """

    def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": _id_name(token_id) if tokens_as_ids else text.token_text(token_id),
            "logprob": json_logprob(logprob),
            "bytes": None if token_id in hidden_ids else list(text.bytes_of(token_id)),
        }

    content = []
    for token in aligned:
        top = [entry(token_id, logprob) for token_id, logprob in token.logprobs.top]
        content.append(entry(token.token_id, token.logprobs.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def response_logprobs(
    aligned: Sequence[AlignedToken], text: TextTokenizer, hidden_ids: frozenset[int]
) -> list[dict[str, Any]]:
    """Return the `logprobs` of a text of `/v1/responses`: an entry for every token that shows text.

    Joined, `bytes` are the text; those of an alternative that would show none are empty.
    """
    shown = [token for token in aligned if token.token_id not in hidden_ids]
    entries: list[dict[str, Any]] = chat_logprobs(shown, text, hidden_ids, False)["content"]
    for entry in entries:
        for other in entry["top_logprobs"]:
            other["bytes"] = other["bytes"] or []
    return entries
