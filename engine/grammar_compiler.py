"""Compiles grammars beside the steps, and keeps the newest ones compiled.

A request whose grammar is known begins at once with a copy; any other one waits, without keeping a step
waiting, until the compiler's thread is done. No torch.
"""

import logging
import queue
import threading
from collections import OrderedDict

from llguidance import LLMatcher

from mambad.engine.grammar import GrammarError, RequestGrammar, Vocabulary
from mambad.engine.grammar_spec import Grammar

logger = logging.getLogger(__name__)

MAX_KEPT = 128
MAX_KEPT_CHARS = 4 << 20

_Key = tuple[str, str, str]


class GrammarCompiler:
    """Opens grammars for requests. `open` and `close` are for the engine's thread.

    Args:
        vocabulary: of the model; None when its tokens' bytes aren't known.
        reason: why there is no vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary | None, reason: str = "") -> None:
        self._vocabulary = vocabulary
        self._reason = reason
        self._kept: OrderedDict[_Key, LLMatcher] = OrderedDict()
        self._num_chars = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Grammar, RequestGrammar]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_able(self) -> bool:
        """Whether answers can be constrained at all."""
        return self._vocabulary is not None

    def open(self, grammar: Grammar, ignore_eos: bool = False) -> RequestGrammar:
        """Return a request's own progress through a grammar: ready, failed, or soon one of the two."""
        opened = RequestGrammar(ignore_eos)
        if self._vocabulary is None:
            opened.fail(f"this model's answers can't be constrained: {self._reason}", "invalid_grammar")
            return opened
        with self._lock:
            matcher = self._kept.get(grammar.key)
            if matcher is not None:
                self._kept.move_to_end(grammar.key)
        if matcher is not None:
            opened.begin(self._vocabulary, matcher.deep_copy())
            return opened
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="compile-grammars", daemon=True)
            self._thread.start()
        self._jobs.put((grammar, opened))
        return opened

    def _work(self) -> None:
        while True:
            grammar, opened = self._jobs.get()
            try:
                self._compile(grammar, opened)
            except GrammarError as error:
                opened.fail(str(error), "invalid_grammar")
            except Exception as error:
                logger.exception("a grammar can't be compiled")
                opened.fail(f"the grammar can't be compiled: {type(error).__name__}", "invalid_grammar")

    def _compile(self, grammar: Grammar, opened: RequestGrammar) -> None:
        assert self._vocabulary is not None
        with self._lock:
            matcher = self._kept.get(grammar.key)
        if matcher is None:
            matcher = self._vocabulary.compile(grammar)
            self._keep(grammar.key, matcher)
        opened.begin(self._vocabulary, matcher.deep_copy())

    def _keep(self, key: _Key, matcher: LLMatcher) -> None:
        with self._lock:
            self._kept[key] = matcher
            self._num_chars += len(key[1])
            while len(self._kept) > MAX_KEPT or self._num_chars > MAX_KEPT_CHARS:
                (_, text, _), _ = self._kept.popitem(last=False)
                self._num_chars -= len(text)
