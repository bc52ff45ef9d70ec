"""What one request asks of the sampler and when it wants to stop.

A frozen value that crosses from the front end to the engine process. Every field was validated before
it got here (`mambad.server.convert`); the engine trusts it. No torch.
"""

import msgspec

from mambad.engine.grammar_spec import Grammar


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and stopping of one choice of one prompt.

    Attributes:
        max_tokens: most tokens to generate; 0 scores the prompt and generates nothing.
        min_tokens: eos and stop ids are masked until this many tokens were generated.
        temperature: 0 is greedy.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        min_p: drop tokens below this share of the most likely token's probability; 0 drops none.
        repetition_penalty: divides positive and multiplies negative logits of tokens of prompt and output.
        presence_penalty: subtracted from logits of tokens seen in the output.
        frequency_penalty: subtracted once per occurrence in the output.
        logit_bias: (token id, added to its logit) pairs.
        stop_token_ids: ids that end the request besides the model's own end-of-sequence ids.
        ignore_eos: the model's own end-of-sequence ids do not end the request.
        allowed_token_ids: ascending ids of which alone one may be drawn; empty allows all.
        bad_words: token sequences whose last token is masked where it would complete them in the output.
        seed: drawn by the front end when the client gave none.
        prompt_index, choice_index: with seed and position, the key of the random draw.
        num_logprobs: -1 none, 0 the chosen token only, k the k most likely as well.
        num_prompt_logprobs: the same for the tokens of the prompt.
        grammar: what the text must look like; None lets it be anything.
        has_stop_strings: the front end looks for stop strings, so the engine does not run this request ahead.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    prompt_index: int = 0
    choice_index: int = 0
    num_logprobs: int = -1
    num_prompt_logprobs: int = -1
    grammar: Grammar | None = None
    has_stop_strings: bool = False

    @property
    def has_penalties(self) -> bool:
        """Whether tokens so far change logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def reads_tokens(self) -> bool:
        """Whether the next draw depends on the tokens so far."""
        return self.has_penalties or any(len(word) > 1 for word in self.bad_words)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken without a draw."""
        return self.temperature < 1e-5
