"""What grammars mean for requests: who waits for one, who goes on with a token, who ends.

Works for the scheduler, on its thread: opens a grammar for each request that wants one, puts the request in
line when that is compiled, ends those whose grammar can't be compiled or leads nowhere, and shows each drawn
token to its request's grammar. A request with a grammar is never run ahead, and being preempted changes
nothing: the grammar stands where the known tokens end. No torch.
"""

from msgspec.structs import replace

from mambad.engine.grammar_compiler import GrammarCompiler
from mambad.engine.lifecycle import Lifecycle
from mambad.engine.outputs import RequestOutput
from mambad.engine.request import Request, RequestStatus, Submission


class Constraints:
    """The requests' grammars.

    Args:
        requests: all requests.
        eos_token_ids: ids that end a sequence.
        compiler: of grammars; None when this engine has none: who wants one is refused.
    """

    def __init__(
        self, requests: Lifecycle, eos_token_ids: frozenset[int], compiler: GrammarCompiler | None
    ) -> None:
        self._requests = requests
        self._eos_token_ids = eos_token_ids
        self._compiler = compiler or GrammarCompiler(None, "the engine has no tokenizer")
        self._compiling: list[Request] = []

    def add(self, submission: Submission) -> None:
        """Put a submission in line, with its grammar."""
        params = submission.params
        grammar = None if params.grammar is None else self._compiler.open(params.grammar, params.ignore_eos)
        self._requests.add(submission, grammar)
        request = self._requests.by_id(submission.request_id)
        if request is not None and request.status is RequestStatus.COMPILING and request.grammar is grammar:
            self._compiling.append(request)

    def settle(self) -> None:
        """Put the requests in line whose grammars have been compiled; end those for which that failed."""
        if not self._compiling:
            return
        waiting, self._compiling = self._compiling, []
        for request in waiting:
            grammar = request.grammar
            if grammar is None or request.status is not RequestStatus.COMPILING:
                continue
            if grammar.error is not None:
                self._refuse(request, grammar.error, grammar.error_code)
            elif grammar.is_ready:
                self._requests.enqueue(request)
            else:
                self._compiling.append(request)

    def follow(self, request: Request, token_id: int, output: RequestOutput) -> bool:
        """Show a drawn token to a request's grammar.

        Args:
            request: whose grammar.
            token_id: what was drawn.
            output: what else the step gave, to be delivered if the request ends.

        Returns:
            Whether the request goes on with the token; if not, it has ended without it.
        """
        grammar = request.grammar
        if grammar is None:
            return True
        if grammar.error is None and token_id not in self._eos_token_ids:
            grammar.consume(token_id)
        if grammar.error is None:
            return True
        if grammar.error_code == "grammar_dead_end" and grammar.is_accepting:
            self._requests.finish(request, "stop", output=replace(output, ends_in_text=True))
        else:
            self._refuse(request, grammar.error, grammar.error_code)
        return False

    def is_completed_by(self, request: Request, token_id: int) -> bool:
        """Whether nothing may follow this token, which is text and was shown to the request's grammar."""
        grammar = request.grammar
        if grammar is None or token_id in self._eos_token_ids or token_id in request.params.stop_token_ids:
            return False
        return grammar.is_complete

    def _refuse(self, request: Request, error: str, code: str) -> None:
        self._requests.finish(request, "error", error=f"the request's grammar: {error}", error_code=code)
