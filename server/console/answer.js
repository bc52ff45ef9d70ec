// The answer's panel: text that grows, figures, log probabilities, and what a screen reader says meanwhile.

import { byId, make, set } from './text.js';

const MOST_ROWS = 300;
const EMPTY = 'The answer appears here, token by token.';
const share = logprob => logprob < Math.log(0.0005) ? '< 0.1 %' : `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const FIGURES = ['ttft', 'speed', 'prompt-tokens', 'answer-tokens', 'finish'];

export class Answer {
  constructor() {
    this.output = byId('output');
    this.frame = 0;
    this.clear();
  }

  clear() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.output.replaceChildren(make('p', 'empty', EMPTY));
    byId('error').hidden = true;
    byId('tokens').hidden = true;
    for (const id of FIGURES) set(byId(id), '–');
  }

  // `given`: the prompt of a completion, or the message that is answered.
  begin(given, isChat) {
    byId('error').hidden = true;
    byId('tokens').hidden = true;
    byId('tokens').tBodies[0].replaceChildren();
    for (const node of this.output.querySelectorAll('.empty, .dropped')) node.remove();
    if (!isChat) this.output.replaceChildren();
    this.added = isChat ? [this.turn('you', given), this.turn('model')] : [this.turn('', '', given)];
    this.thought = null;
    this.text = document.createTextNode('');
    this.added.at(-1).append(this.text);
    this.output.append(...this.added);
    this.waiting = '';
    this.unspoken = '';
    this.numUnlisted = 0;
    this.figures = { start: performance.now(), first: 0, last: 0, atFirst: 0, usage: null, finish: '' };
    this.output.scrollTop = this.output.scrollHeight;
    this.output.scrollIntoView({ block: 'nearest' });
    this.showFigures();
  }

  turn(who, text, given) {
    const node = make('p');
    if (who) node.append(make('span', 'who', who));
    if (text) node.append(text);
    if (given) node.append(make('span', 'given', given));
    return node;
  }

  take(chunk) {
    const { figures } = this;
    if (chunk.usage) figures.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const piece = choice.text ?? choice.delta?.content ?? '';
    const thought = choice.delta?.reasoning_content ?? '';
    figures.last = performance.now();
    if (!figures.first && (piece || thought)) {
      figures.first = figures.last;
      figures.atFirst = chunk.usage?.completion_tokens ?? 1;
    }
    if (choice.finish_reason) figures.finish = choice.finish_reason;
    if (thought) this.think(thought);
    if (choice.logprobs) this.addTokens(choice.logprobs);
    this.frame ||= requestAnimationFrame(() => this.flush());
    this.waiting += piece;
    this.unspoken += piece;
  }

  think(thought) {
    if (!this.thought) {
      this.thought = make('span', 'thought');
      this.text.before(this.thought);
    }
    this.thought.append(thought);
  }

  // Once a frame, however many tokens came in between.
  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { output } = this;
    const isAtEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
    this.text.appendData(this.waiting);
    this.waiting = '';
    if (isAtEnd) output.scrollTop = output.scrollHeight;
    this.showFigures();
    if (/[.!?\n]\s*$/.test(this.unspoken) || this.unspoken.length > 200) this.speak();
  }

  // In sentences: a live region that grows by tokens is not to be listened to.
  speak() {
    if (this.unspoken.trim()) byId('spoken').replaceChildren(this.unspoken);
    this.unspoken = '';
  }

  // `error`: what went wrong, or null. Returns the text; an answer without any leaves no turn behind.
  end(finish, error) {
    this.figures.finish = finish || this.figures.finish;
    this.flush();
    this.speak();
    set(byId('error'), error || '');
    byId('error').hidden = !error;
    if (error && !this.text.data && !this.thought) {
      for (const node of this.added) node.remove();
      if (!this.output.children.length) this.output.append(make('p', 'empty', EMPTY));
    }
    return this.text.data;
  }

  // Marks the last turn as one that later requests don't send; one without any text goes.
  drop() {
    const isEmpty = !this.text.data && !this.thought;
    for (const node of this.added) {
      if (isEmpty) node.remove();
      else node.classList.add('dropped');
    }
    if (!isEmpty) this.added.at(-1).append(make('span', 'who', 'not part of the conversation'));
    if (!this.output.children.length) this.output.append(make('p', 'empty', EMPTY));
  }

  showFigures() {
    const { start, first, last, atFirst, usage, finish } = this.figures;
    const after = usage ? usage.completion_tokens - atFirst : 0;
    set(byId('ttft'), first ? `${Math.round(first - start)} ms` : '–');
    set(byId('speed'), after > 0 && last > first ? (after * 1000 / (last - first)).toFixed(0) : '–');
    const cached = usage?.prompt_tokens_details?.cached_tokens;
    set(byId('prompt-tokens'), usage ? usage.prompt_tokens + (cached ? ` (${cached} cached)` : '') : '–');
    set(byId('answer-tokens'), usage ? String(usage.completion_tokens) : '–');
    set(byId('finish'), finish || '–');
  }

  addTokens(logprobs) {
    const rows = logprobs.content
      ? logprobs.content.map(each => [each.token, each.logprob,
        (each.top_logprobs || []).map(other => [other.token, other.logprob])])
      : logprobs.tokens.map((token, i) => [token, logprobs.token_logprobs[i],
        Object.entries(logprobs.top_logprobs?.[i] || {})]);
    byId('tokens').hidden = false;
    const body = byId('tokens').tBodies[0];
    for (const row of rows) {
      if (body.rows.length < MOST_ROWS) body.append(this.row(...row));
      else this.numUnlisted++;
    }
    const isCut = this.numUnlisted > 0;
    byId('tokens').tFoot.hidden = !isCut;
    if (isCut) set(byId('unlisted'), `and ${this.numUnlisted} more tokens, which are not listed`);
  }

  row(token, logprob, others) {
    const node = make('tr');
    const alternatives = others.filter(([other]) => other !== token)
      .map(([other, value]) => `${JSON.stringify(other)} ${share(value)}`);
    node.append(make('td', '', JSON.stringify(token)), make('td', '', logprob === null ? '–' : share(logprob)),
      make('td', '', alternatives.join('  ')));
    return node;
  }
}
