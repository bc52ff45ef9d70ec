"""Which tokens end a message of a conversation: behind each of them a prefill may be split.

A cut there lets a later prompt that repeats the conversation so far take up a state exactly where the
message ended. Reads tokenizer.json; no torch.
"""

from pathlib import Path

from mambad.engine.models.vocabulary import read_json

END_OF_MESSAGE_TOKENS = frozenset(
    {
        "</s>",
        "<end_of_turn>",
        "<|end_of_text|>",
        "<|end|>",
        "<|endoftext|>",
        "<|eom|>",
        "<|eot_id|>",
        "<|im_end|>",
    }
)
"""How the chat templates of the families served here, and their relatives, end a message."""


def find_end_of_message_ids(folder: Path) -> frozenset[int]:
    """Return the ids of the folder's added tokens that end a message; none without a tokenizer.json."""
    tokenizer = read_json(folder / "tokenizer.json") or {}
    return frozenset(
        token["id"]
        for token in tokenizer.get("added_tokens") or []
        if isinstance(token, dict) and token.get("content") in END_OF_MESSAGE_TOKENS and "id" in token
    )
