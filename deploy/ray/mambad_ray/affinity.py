"""Which replica a request should go to, so that a conversation finds what a replica keeps of it.

Pure functions: a request's key, and which replicas a key wants in which order (rendezvous hashing: a replica
that comes or goes takes only its own share with it). Knows neither Ray nor HTTP; reads what hostile clients
write.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

SESSION_HEADER = "x-session-id"
KEY_FIELDS = ("prompt_cache_key", "safety_identifier", "user")
PREFIX_LENGTH = 1024
"""Characters, or tokens, of a prompt that make its key."""
SESSION, PREFIX = "session:", "prefix:"
"""What keys begin with: a conversation must find its replica, a prompt had better."""


def key_of(headers: Mapping[str, str], body: object) -> str | None:
    """Return what keeps a request together with others; None: it may go anywhere.

    The header `X-Session-ID` counts first, then the fields that OpenAI has for it, then the beginning of the
    prompt: of a chat everything up to its first user message, which later turns repeat.

    Args:
        headers: by lower-case name.
        body: the parsed body, whatever it is.
    """
    session = headers.get(SESSION_HEADER, "").strip()
    if session:
        return SESSION + session
    if not isinstance(body, dict):
        return None
    for name in KEY_FIELDS:
        value = body.get(name)
        if isinstance(value, str) and value:
            return SESSION + value
    prefix = _prefix(body)
    return PREFIX + prefix if prefix else None


def ranked(key: str, replicas: Iterable[str]) -> list[str]:
    """Return the replicas in the order in which a key prefers them; whoever else is there changes nothing."""
    return sorted(replicas, key=lambda name: _weight(key, name), reverse=True)


def choices(key: str | None, replicas: Iterable[str]) -> list[list[str]]:
    """Return groups of replicas; the next group is for when all of the one before it are full.

    A conversation waits for its replica, which alone has its responses. A prompt goes on to the next one.
    """
    if key is None:
        return [list(replicas)]
    order = ranked(key, replicas)
    return [order[:1]] if key.startswith(SESSION) else [[name] for name in order]


def _weight(key: str, replica: str) -> bytes:
    text = f"{len(replica)}:{replica}{key}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def _prefix(body: Mapping[str, Any]) -> str:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return prompt[:PREFIX_LENGTH]
    if isinstance(prompt, list):
        return _prefix_of_list(prompt)
    said = body.get("messages", body.get("input"))
    head = [body["instructions"]] if isinstance(body.get("instructions"), str) else []
    if isinstance(said, str):
        return _joined([*head, f"user:{said}"])
    return _joined(head + _opening(said)) if isinstance(said, list) else ""


def _prefix_of_list(prompt: list[Any]) -> str:
    """Several prompts count as their first; one prompt may be token ids."""
    first = prompt[0] if prompt else None
    if isinstance(first, str):
        return first[:PREFIX_LENGTH]
    ids = first if isinstance(first, list) else prompt
    return json.dumps([token for token in ids[:PREFIX_LENGTH] if isinstance(token, int)])


def _opening(messages: list[Any]) -> list[str]:
    """Return the messages up to the first that a user wrote."""
    opening: list[str] = []
    for message in messages[:PREFIX_LENGTH]:
        if isinstance(message, dict):
            role = message.get("role")
            opening.append(f"{role if isinstance(role, str) else ''}:{_text(message.get('content'))}")
            if role == "user":
                break
    return opening


def _text(content: object) -> str:
    if isinstance(content, str):
        return content[:PREFIX_LENGTH]
    if isinstance(content, list):
        texts = [part.get("text") for part in content[:PREFIX_LENGTH] if isinstance(part, dict)]
        return "".join(text[:PREFIX_LENGTH] for text in texts if isinstance(text, str))[:PREFIX_LENGTH]
    return ""


def _joined(parts: list[str]) -> str:
    """Keep the beginning of every part: a long system prompt must not hide who speaks."""
    return "\n".join(part[:PREFIX_LENGTH] for part in parts[:16])
