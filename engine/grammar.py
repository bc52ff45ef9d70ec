"""Matches what a request generates against its grammar, and masks the tokens that may not come next.

The one module that knows the library that does it, llguidance, and the limits that it is held to. A matcher
belongs to one request: the scheduler's thread shows it each drawn token, the runner's thread asks it for the
next mask, never both at once, because a request with a grammar is not run ahead. No torch.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark
from numpy.typing import NDArray

from mambad.engine.grammar_spec import Grammar

MAX_STEP_ITEMS = 20_000
MAX_ROW_ITEMS = 1_000
MAX_LEXER_STATES = 50_000
FREE_CPU_S = 0.5
CPU_S_PER_TOKEN = 0.005
"""A request may spend FREE_CPU_S on its grammar, and on average this much more for each token."""

MAX_MESSAGE_CHARS = 500
NUM_TRIAL_TOKENS = 64

_NUM_BYTES = 256
_ASCII_CLASSES = "d"
"""Of a regular expression: digits are 0 to 9; letters and spaces are Unicode's."""
_PLAIN_ERRORS = {"": "it can't be matched", "NoExtensionBias": "no text matches it"}


class GrammarError(Exception):
    """A grammar that can't be compiled within the limits; the message is for the client."""


class Vocabulary:
    """The tokens' bytes, prepared for matching.

    Args:
        tokenizer: the library's form of a tokenizer.
        eos_token_ids: ids that end a sequence; a grammar that is satisfied allows them.
    """

    def __init__(self, tokenizer: LLTokenizer, eos_token_ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.eos_token_ids = tuple(id for id in eos_token_ids if id < tokenizer.vocab_size)
        self._limits = LLParserLimits(
            step_max_items=MAX_STEP_ITEMS,
            max_items_in_row=MAX_ROW_ITEMS,
            max_lexer_states=MAX_LEXER_STATES,
            verbose_errors=False,
        )

    @classmethod
    def from_folder(cls, folder: Path, eos_token_ids: Sequence[int]) -> "Vocabulary":
        """Return the vocabulary of a folder's `tokenizer.json`.

        Raises:
            GrammarError: there is none, or it is of a kind whose tokens' bytes aren't known.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise GrammarError("the model has no tokenizer.json")
        try:
            text = path.read_text(encoding="utf-8")
            return cls(LLTokenizer(text, eos_token=list(eos_token_ids) or None), eos_token_ids)
        except (ValueError, OSError) as error:
            raise GrammarError(str(error)) from error

    @classmethod
    def of_bytes(cls) -> "Vocabulary":
        """Return a vocabulary of the 256 bytes: enough to try out a grammar."""
        return cls(LLTokenizer(_ByteTokenizer()), (_NUM_BYTES,))  # type: ignore[arg-type]

    def compile(self, grammar: Grammar) -> LLMatcher:
        """Return a matcher at the beginning of a text.

        Raises:
            GrammarError: the grammar is wrong, too large, or matches nothing.
        """
        matcher = LLMatcher(self.tokenizer, _library_text(grammar), log_level=0, limits=self._limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarError(_first_lines(matcher.get_error()))
        return matcher

    def try_out(self, grammar: Grammar) -> None:
        """Compile a grammar and follow it for a few tokens, to see whether that can be done.

        Raises:
            GrammarError: as `compile`.
        """
        matcher = self.compile(grammar)
        mask = np.zeros(-(-self.tokenizer.vocab_size // 32), dtype=np.int32)
        for step in range(NUM_TRIAL_TOKENS):
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            if not matcher.is_error() and matcher.is_stopped():
                return
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            allowed = np.setdiff1d(allowed, self.eos_token_ids)
            if not matcher.is_error() and not allowed.size:
                return
            if matcher.is_error() or not matcher.consume_token(int(allowed[(7 * step) % allowed.size])):
                raise GrammarError(_first_lines(matcher.get_error()))


class RequestGrammar:
    """One request's progress through its grammar.

    Args:
        ignore_eos: an end-of-sequence token is allowed only when nothing else is.

    Attributes:
        error: why the request can't go on, for the client; None while it can.
        error_code: `invalid_grammar`, `grammar_dead_end` or `grammar_too_complex`.
    """

    def __init__(self, ignore_eos: bool = False) -> None:
        self._ignores_eos = ignore_eos
        self._vocabulary: Vocabulary | None = None
        self._matcher: LLMatcher | None = None
        self._mask = np.empty(0, dtype=np.int32)
        self._cpu_s_left = FREE_CPU_S
        self.error: str | None = None
        self.error_code = ""

    def begin(self, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        """Take a matcher of its own; from now on the request can be computed."""
        self._vocabulary = vocabulary
        self._mask = np.zeros(-(-vocabulary.tokenizer.vocab_size // 32), dtype=np.int32)
        self._matcher = matcher

    def fail(self, message: str, code: str) -> None:
        """Say why the request can't go on; the first reason counts."""
        if self.error is None:
            self.error_code = code
            self.error = message

    @property
    def is_ready(self) -> bool:
        """Whether `begin` was called."""
        return self._matcher is not None

    @property
    def is_accepting(self) -> bool:
        """Whether what was generated so far satisfies the grammar."""
        return self._matcher is not None and self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Whether the grammar is satisfied and nothing can follow."""
        matcher = self._matcher
        return matcher is not None and not matcher.is_error() and matcher.is_stopped()

    def allowed(self, num_tokens: int) -> NDArray[np.bool_]:
        """Return (num_tokens,) for each token whether it may come next; nothing, if that can't be said."""
        matcher, vocabulary = self._matcher, self._vocabulary
        assert matcher is not None
        assert vocabulary is not None
        start_s = time.thread_time()
        matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._spend(time.thread_time() - start_s - CPU_S_PER_TOKEN)
        allowed = np.zeros(num_tokens, dtype=np.bool_)
        if matcher.is_error():
            self.fail(_first_lines(matcher.get_error()), "grammar_too_complex")
            return allowed
        num_known = min(vocabulary.tokenizer.vocab_size, num_tokens)
        bits = np.unpackbits(self._mask.view(np.uint8), count=num_known, bitorder="little")
        allowed[:num_known] = bits.view(np.bool_)
        if self._ignores_eos:
            ends = list(vocabulary.eos_token_ids)
            is_end_allowed = allowed[ends]
            allowed[ends] = False
            if not allowed.any():
                allowed[ends] = is_end_allowed
        return allowed

    def consume(self, token_id: int) -> None:
        """Take in a drawn token."""
        matcher = self._matcher
        assert matcher is not None
        start_s = time.thread_time()
        is_taken = matcher.consume_token(token_id)
        self._spend(time.thread_time() - start_s)
        if not is_taken:
            self.fail(_first_lines(matcher.get_error()), "grammar_too_complex")

    def _spend(self, cpu_s: float) -> None:
        self._cpu_s_left = min(self._cpu_s_left - cpu_s, FREE_CPU_S)
        if self._cpu_s_left < 0:
            self.fail("the grammar takes too long to match", "grammar_too_complex")


class _ByteTokenizer:
    """What the library needs to know of a tokenizer: here, that every byte is a token."""

    is_tokenizer_wrapper = True
    eos_token_id = _NUM_BYTES
    bos_token_id = None
    special_token_ids = (_NUM_BYTES,)
    tokens = (*(bytes([byte]) for byte in range(_NUM_BYTES)), b"<eos>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _library_text(grammar: Grammar) -> str:
    """Return a grammar in the library's own form."""
    if grammar.kind == "regex":
        return "start: /" + regex_to_lark(grammar.text, _ASCII_CLASSES) + "/"
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    try:
        if grammar.kind == "gbnf":
            return LLMatcher.grammar_from_lark(any_to_lark(grammar.text))
        options: dict[str, Any] = {"lenient": False, "coerce_one_of": False}
        if grammar.space:
            options |= {"whitespace_flexible": True, "whitespace_pattern": grammar.space}
        else:
            options |= {"whitespace_flexible": False, "whitespace_pattern": None}
        return LLMatcher.grammar_from_json_schema(grammar.text, overrides=options)  # type: ignore[arg-type]
    except Exception as error:  # the converter raises exceptions of its own and bare ones
        raise GrammarError(_first_lines(str(error))) from error


def _first_lines(message: str) -> str:
    """Return the part of the library's message that says what is wrong, without its view of the parser."""
    text = message.split("<state>", 1)[0].split("<non-verbose/>", 1)[0].strip()
    if text.startswith("oneOf constraints"):
        return "`oneOf` needs branches that plainly exclude each other, or a `discriminator`"
    return _PLAIN_ERRORS.get(text, text)[:MAX_MESSAGE_CHARS]
