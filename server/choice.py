"""One choice of an answer: engine outputs in, text and log-probabilities out.

The one code path behind streamed and whole answers: a whole answer is all deltas joined. Joins the
detokenizer, the stop matcher and the alignment of log-probabilities to text. Pure: no HTTP, no clock.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mambad.engine.outputs import RequestOutput, TokenLogprobs
from mambad.server.detokenizer import make_detokenizer
from mambad.server.stop_strings import StopMatcher
from mambad.server.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How a choice's text is made; the same for all choices of a request.

    Attributes:
        stops: stop strings.
        is_stop_included: whether a stop string or stop token shows in the text.
        skip_special_tokens: whether generated special tokens show no text.
        min_tokens: stop strings within the first so many tokens don't count.
        echo: whether the prompt comes first.
        visible_ids: special tokens that show their text all the same.
        num_logprobs: -1 none, else as in SamplingParams; prompt tokens have them too under `echo`.
        num_prompt_logprobs: the same for a list of their own; -1 none.
    """

    stops: tuple[str, ...] = ()
    is_stop_included: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    echo: bool = False
    visible_ids: frozenset[int] = frozenset()
    num_logprobs: int = -1
    num_prompt_logprobs: int = -1


@dataclass(frozen=True, slots=True)
class PromptText:
    """The prompt of a choice.

    Attributes:
        token_ids: its tokens.
        num_hidden: how many of the first ones the server added itself: `echo` shows no text for them.
    """

    token_ids: Sequence[int]
    num_hidden: int = 0


@dataclass(frozen=True, slots=True)
class AlignedToken:
    """One token as clients see it.

    Attributes:
        token_id: its id.
        text: what it adds to the text; a token that shows nothing has its own spelling here, and one that
            ends within a code point nothing.
        offset: characters of the choice's text before it.
        logprobs: as the engine gave them.
    """

    token_id: int
    text: str
    offset: int
    logprobs: TokenLogprobs


class Delta(NamedTuple):
    """What one or more engine outputs add to a choice.

    Attributes:
        text: text that may be shown now.
        token_ids: generated tokens, whether or not their text may be shown.
        aligned: tokens whose text is shown, if log-probabilities were asked for.
        finish_reason: `stop` or `length` in the last delta, else None.
        stop_reason: the stop string, or the id of the request's stop token.
        prompt_logprobs: of the prompt's next tokens, if a list of them was asked for.
        ends: for each of `token_ids`, characters of the choice's text up to its own last one.
    """

    text: str = ""
    token_ids: Sequence[int] = ()
    aligned: Sequence[AlignedToken] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    ends: Sequence[int] = ()


@dataclass(slots=True)
class _Pending:
    """A token whose text may still turn out to be part of a stop string."""

    token_id: int
    text: str
    offset: int
    end: int
    logprobs: TokenLogprobs


@dataclass(slots=True)
class _Turn:
    """What one call of `feed` has gathered so far."""

    shown: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


class ChoiceText:
    """Makes the deltas of one choice.

    Attributes:
        num_tokens: generated tokens so far, the one that ended the choice included and none after it.
        is_finished: whether the last delta was made.
        matched_stop: the stop string that ended it: the engine has to be told.
    """

    def __init__(self, text: TextTokenizer, options: TextOptions, prompt: PromptText) -> None:
        self._text = text
        self._options = options
        self._prompt = prompt
        self._num_prompt_done = 0 if options.echo else len(prompt.token_ids)
        self._detokenizer = make_detokenizer(text, () if options.echo else prompt.token_ids)
        self._hidden_ids = (
            text.special_ids - options.visible_ids if options.skip_special_tokens else frozenset()
        )
        self._matcher = StopMatcher(options.stops, options.is_stop_included)
        self._pending: deque[_Pending] = deque()
        self._num_chars = 0  # of all pieces, stop strings included
        self._num_shown_chars = 0
        self.num_tokens = 0
        self.is_finished = False

    @property
    def matched_stop(self) -> str | None:
        """See the class."""
        return self._matcher.matched

    def feed(self, output: RequestOutput) -> Delta:
        """Take an output of the engine. Its finish reason, if any, is None, `stop` or `length`."""
        turn = _Turn()
        self._feed_prompt(output, turn)
        self._feed_tokens(output, turn)
        stop_reason: str | int | None = self.matched_stop
        finish_reason = "stop" if stop_reason is not None else output.finish_reason
        if finish_reason is not None:
            self.is_finished = True
            if stop_reason is None:
                stop_reason = output.stop_token_id
                turn.shown += self._matcher.flush(), self._detokenizer.flush()
        text = "".join(turn.shown)
        self._num_shown_chars += len(text)
        scores = output.prompt_logprobs if self._options.num_prompt_logprobs >= 0 else ()
        aligned = self._take_aligned()
        return Delta(text, turn.token_ids, aligned, finish_reason, stop_reason, scores, turn.ends)

    def _feed_prompt(self, output: RequestOutput, turn: _Turn) -> None:
        """Echo the prompt: all at once, or as far as its log-probabilities have come."""
        token_ids, start, num_hidden = self._prompt.token_ids, self._num_prompt_done, self._prompt.num_hidden
        if start == len(token_ids):
            return
        if self._options.num_logprobs < 0:
            text = self._detokenizer.push_all(token_ids[num_hidden:])
            self._num_chars += len(text)
            turn.shown.append(text)
            self._num_prompt_done = len(token_ids)
            return
        for index, logprobs in enumerate(output.prompt_logprobs, start):
            if len(logprobs.top) > self._options.num_logprobs:  # a list of their own may be longer
                top = logprobs.top[: self._options.num_logprobs]
                logprobs = TokenLogprobs(logprobs.token_id, logprobs.logprob, top)
            turn.shown.append(self._piece(token_ids[index], index < num_hidden, logprobs))
        self._num_prompt_done += len(output.prompt_logprobs)

    def _feed_tokens(self, output: RequestOutput, turn: _Turn) -> None:
        """Take generated tokens until one completes a stop string."""
        options, last = self._options, len(output.token_ids) - 1
        for index, token_id in enumerate(output.token_ids):
            is_stop_token = output.finish_reason == "stop" and index == last and not output.ends_in_text
            is_hidden = token_id in self._hidden_ids or (is_stop_token and not options.is_stop_included)
            logprobs = output.logprobs[index] if options.num_logprobs >= 0 else None
            piece = self._piece(token_id, is_hidden, logprobs)
            self.num_tokens += 1
            turn.token_ids.append(token_id)
            turn.ends.append(self._num_chars)
            turn.shown.append(self._matcher.push(piece) if self.num_tokens > options.min_tokens else piece)
            if self.matched_stop is not None:
                return

    def _piece(self, token_id: int, is_hidden: bool, logprobs: TokenLogprobs | None) -> str:
        """Return the text of a token, and remember its log-probabilities until that text is shown."""
        piece = "" if is_hidden else self._detokenizer.push(token_id)
        offset = self._num_chars
        self._num_chars += len(piece)
        if logprobs is not None:
            text = self._text.token_text(token_id) if is_hidden else piece
            self._pending.append(_Pending(token_id, text, offset, self._num_chars, logprobs))
        return piece

    def _take_aligned(self) -> list[AlignedToken]:
        """Return the tokens whose text is shown; at the end all, none behind the end of the text."""
        aligned = []
        while self._pending and (self.is_finished or self._pending[0].end <= self._num_shown_chars):
            token = self._pending.popleft()
            offset = min(token.offset, self._num_shown_chars)
            aligned.append(AlignedToken(token.token_id, token.text, offset, token.logprobs))
        return aligned
