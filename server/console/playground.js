// The playground: a form becomes a request, its stream becomes text. Answers are only ever set as text.

import { ApiError, get, stream } from './api.js';

const NUMBERS = ['temperature', 'top_p', 'top_k', 'max_tokens', 'seed', 'presence_penalty', 'frequency_penalty',
  'repetition_penalty'];
const byId = id => document.getElementById(id);
const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

export class Playground {
  constructor() {
    this.form = byId('form');
    this.messages = [];
    this.aborter = null;
    this.form.addEventListener('submit', event => {
      event.preventDefault();
      this.send();
    });
    this.form.addEventListener('input', () => this.showCurl());
    this.form.addEventListener('keydown', event => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) this.send();
    });
    document.addEventListener('keydown', event => {
      if (event.key === 'Escape') this.stop();
    });
    byId('stop').addEventListener('click', () => this.stop());
    byId('clear').addEventListener('click', () => this.clear());
    byId('copy').addEventListener('click', () => this.copy());
    for (const radio of this.form.elements.kind) radio.addEventListener('change', () => this.clear());
    this.showCurl();
  }

  get isChat() {
    return this.form.elements.kind.value === 'chat';
  }

  async loadModels() {
    const { data } = await (await get('v1/models')).json();
    const options = data.map(model => new Option(model.id, model.id));
    byId('model').replaceChildren(...options);
    this.showCurl();
  }

  body() {
    const { elements } = this.form;
    const body = { model: elements.model.value };
    const text = elements.prompt.value;
    if (this.isChat) body.messages = [...this.messages, { role: 'user', content: text }];
    else body.prompt = text;
    for (const name of NUMBERS) {
      const value = elements[name].value.trim();
      if (value) body[name] = Number.isNaN(Number(value)) ? value : Number(value);
    }
    if (elements.stop.value) body.stop = elements.stop.value.replaceAll('\\n', '\n');
    return body;
  }

  path() {
    return this.isChat ? 'v1/chat/completions' : 'v1/completions';
  }

  showCurl() {
    const url = new URL(this.path(), document.baseURI);
    const key = byId('key').value ? ' -H "Authorization: Bearer $MAMBAD_API_KEY"' : '';
    byId('curl').textContent = `curl ${quoted(url.href)} -H 'Content-Type: application/json'${key} \\\n`
      + `  -d ${quoted(JSON.stringify(this.body()))}`;
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(byId('curl').textContent);
      byId('copy').textContent = 'Copied';
    } catch { // no clipboard without TLS: select the text instead
      getSelection().selectAllChildren(byId('curl'));
      byId('copy').textContent = 'Selected';
    }
    setTimeout(() => { byId('copy').textContent = 'Copy'; }, 1500);
  }

  clear() {
    this.stop();
    this.messages = [];
    const hint = Object.assign(document.createElement('p'), {
      className: 'empty', textContent: 'The answer appears here, token by token.',
    });
    byId('output').replaceChildren(hint);
    byId('error').hidden = true;
    byId('prompt-label').textContent = this.isChat ? 'Message' : 'Prompt';
    for (const id of ['ttft', 'speed', 'prompt-tokens', 'answer-tokens', 'finish']) byId(id).textContent = '–';
    this.showCurl();
  }

  stop() {
    this.aborter?.abort();
  }

  // A paragraph of the answer's panel; returns the text node that grows.
  paragraph(who, given) {
    const node = document.createElement('p');
    if (who) node.append(Object.assign(document.createElement('span'), { className: 'who', textContent: who }));
    if (given) node.append(Object.assign(document.createElement('span'), { className: 'given', textContent: given }));
    const text = document.createTextNode('');
    node.append(text);
    byId('output').append(node);
    return text;
  }

  begin(body) {
    byId('error').hidden = true;
    byId('output').querySelector('.empty')?.remove();
    if (!this.isChat) byId('output').replaceChildren();
    if (!this.isChat) return this.paragraph('', body.prompt);
    this.paragraph('you').data = body.messages.at(-1).content;
    return this.paragraph('model');
  }

  busy(isBusy) {
    byId('send').disabled = isBusy;
    byId('stop').disabled = !isBusy;
  }

  async send() {
    if (this.aborter) return;
    const body = { ...this.body(), stream: true, stream_options: { include_usage: true } };
    const text = this.begin(body);
    const figures = { start: performance.now(), first: 0, last: 0, usage: null, finish: '' };
    this.aborter = new AbortController();
    this.busy(true);
    try {
      for await (const chunk of stream(this.path(), body, this.aborter.signal)) this.take(chunk, text, figures);
    } catch (problem) {
      this.fail(problem, figures);
    }
    this.aborter = null;
    this.busy(false);
    this.showFigures(figures);
    if (this.isChat && text.data) {
      this.messages = [...body.messages, { role: 'assistant', content: text.data }];
      this.form.elements.prompt.value = '';
    }
    this.showCurl();
  }

  take(chunk, text, figures) {
    if (chunk.usage) figures.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const piece = choice.text ?? choice.delta?.content ?? '';
    figures.last = performance.now();
    if (!figures.first && piece) figures.first = figures.last;
    if (choice.finish_reason) figures.finish = choice.finish_reason;
    const output = byId('output');
    const isAtEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
    text.appendData(piece);
    if (isAtEnd) output.scrollTop = output.scrollHeight;
  }

  fail(problem, figures) {
    if (problem.name === 'AbortError') {
      figures.finish = 'stopped';
      return;
    }
    figures.finish = 'error';
    byId('error').textContent = problem instanceof ApiError ? problem.message : 'The server cannot be reached.';
    byId('error').hidden = false;
  }

  showFigures({ start, first, last, usage, finish }) {
    byId('ttft').textContent = first ? `${Math.round(first - start)} ms` : '–';
    const after = usage ? usage.completion_tokens - 1 : 0;
    byId('speed').textContent = after > 0 && last > first ? (after * 1000 / (last - first)).toFixed(0) : '–';
    byId('prompt-tokens').textContent = usage ? usage.prompt_tokens : '–';
    byId('answer-tokens').textContent = usage ? usage.completion_tokens : '–';
    byId('finish').textContent = finish || '–';
  }
}
