// The playground: a form becomes a request, and its stream goes to the answer's panel.

import { Answer } from './answer.js';
import { ApiError, explain, get, keyGeneration, storedKey, stream } from './api.js';
import { byId, set } from './text.js';

const NUMBERS = ['temperature', 'top_p', 'top_k', 'max_tokens', 'seed', 'presence_penalty', 'frequency_penalty',
  'repetition_penalty'];
const MOST_OF_AN_ARGUMENT = 32_000; // characters: Linux takes 128 KiB, and a character is up to three bytes
const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;
// A key that repeats itself, or that an input method takes.
const isHeld = event => event.repeat || event.isComposing;

export class Playground {
  // `onRefused`: called when the server wants another key.
  constructor(onRefused) {
    this.onRefused = onRefused;
    this.form = byId('form');
    this.answer = new Answer();
    this.messages = [];
    this.aborter = null;
    this.form.addEventListener('submit', event => {
      event.preventDefault();
      this.send();
    });
    this.form.addEventListener('input', () => this.showCurl());
    this.form.addEventListener('keydown', event => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && !isHeld(event)) this.send();
    });
    document.addEventListener('keydown', event => {
      if (event.key === 'Escape' && !isHeld(event)) this.stop();
    });
    for (const id of ['send', 'stop']) { // the focus goes from one to the other: a key held down shall not follow
      byId(id).addEventListener('keydown', event => { if (event.repeat) event.preventDefault(); });
    }
    byId('stop').addEventListener('click', () => this.stop());
    byId('clear').addEventListener('click', () => this.clear());
    byId('copy').addEventListener('click', () => this.copy());
    for (const radio of this.form.elements.kind) radio.addEventListener('change', () => this.clear());
    byId('sampling').open = matchMedia('(min-width: 58rem)').matches;
    this.clear();
  }

  get isChat() {
    return this.form.elements.kind.value === 'chat';
  }

  async loadModels() {
    const { data } = await (await get('v1/models')).json();
    const before = this.form.elements.model.value;
    byId('model').replaceChildren(...data.map(model => new Option(model.id, model.id)));
    if (data.some(model => model.id === before)) this.form.elements.model.value = before;
    this.showCurl();
  }

  // Fields that are empty are left out, so that the server's defaults hold; what is no number, the server refuses.
  body() {
    const { elements } = this.form;
    const body = { model: elements.model.value };
    if (this.isChat) body.messages = this.conversation();
    else body.prompt = elements.prompt.value;
    for (const name of NUMBERS) {
      const value = elements[name].value.trim();
      if (value) body[name] = this.number(value);
    }
    if (elements.stop.value) body.stop = elements.stop.value.replaceAll('\\n', '\n');
    this.addLogprobs(body, elements.logprobs.value.trim());
    return body;
  }

  conversation() {
    const system = this.form.elements.system.value;
    const first = system ? [{ role: 'system', content: system }] : [];
    return [...first, ...this.messages, { role: 'user', content: this.form.elements.prompt.value }];
  }

  number(text) {
    const value = Number(text);
    const isKept = Number.isSafeInteger(value) || (Number.isFinite(value) && !Number.isInteger(value));
    return /^[+-]?[0-9.]+(e[+-]?[0-9]+)?$/i.test(text) && isKept ? value : text; // else the server refuses it
  }

  addLogprobs(body, value) {
    if (!value) return;
    body.logprobs = this.isChat ? true : this.number(value);
    if (this.isChat) body.top_logprobs = this.number(value);
  }

  path() {
    return this.isChat ? 'v1/chat/completions' : 'v1/completions';
  }

  showCurl() {
    const url = new URL(this.path(), document.baseURI);
    const key = storedKey('api') || storedKey('admin') ? ' \\\n  -H "Authorization: Bearer $MAMBAD_API_KEY"' : '';
    const body = JSON.stringify(this.body());
    const data = body.length < MOST_OF_AN_ARGUMENT
      ? `-d ${quoted(body)}` : `--data-binary @- <<'END_OF_BODY'\n${body}\nEND_OF_BODY`;
    set(byId('curl'), `curl ${quoted(url.href)} \\\n  -H 'Content-Type: application/json'${key} \\\n  ${data}`);
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(byId('curl').textContent);
      set(byId('copy'), 'Copied');
    } catch { // no clipboard without TLS: select the text instead
      getSelection().selectAllChildren(byId('curl'));
      set(byId('copy'), 'Selected');
    }
    setTimeout(() => set(byId('copy'), 'Copy'), 1500);
  }

  clear() {
    this.stop();
    this.messages = [];
    this.answer.clear();
    byId('system-field').hidden = !this.isChat;
    set(byId('prompt-label'), this.isChat ? 'Message' : 'Prompt');
    this.showCurl();
  }

  stop() {
    this.aborter?.abort();
  }

  busy(isBusy) {
    const [on, off] = isBusy ? ['stop', 'send'] : ['send', 'stop'];
    byId(on).disabled = false;
    if (document.activeElement === byId(off)) byId(on).focus(); // else the keyboard would start at the top again
    byId(off).disabled = true;
    byId('output').setAttribute('aria-busy', String(isBusy));
  }

  async send() {
    const { prompt } = this.form.elements;
    const message = prompt.value;
    if (this.aborter || (this.isChat && !message)) return;
    const body = this.body();
    const asked = keyGeneration();
    const aborter = this.aborter = new AbortController();
    const options = { include_usage: true, continuous_usage_stats: true };
    const { answer, messages } = this;
    this.busy(true);
    answer.begin(message, this.isChat);
    if (this.isChat) prompt.value = ''; // the next one can be written meanwhile
    let finish = '', error = null;
    try {
      const chunks = stream(this.path(), { ...body, stream: true, stream_options: options }, aborter.signal);
      for await (const chunk of chunks) answer.take(chunk);
    } catch (problem) {
      finish = problem.name === 'AbortError' ? 'stopped' : 'error';
      error = finish === 'stopped' ? null : explain(problem);
      if (problem instanceof ApiError && problem.status === 401 && asked === keyGeneration()) this.onRefused();
    }
    this.aborter = null;
    this.busy(false);
    // Cleared meanwhile: what has come belongs to no conversation any more.
    if (messages === this.messages) this.finish(message, answer.end(finish, error), finish);
    this.showCurl();
  }

  // `finish`: empty, stopped or error. What is no part of the conversation can be sent again, and is told apart.
  finish(message, text, finish) {
    if (!this.isChat) return;
    if (finish === 'error' || (finish === 'stopped' && !text)) {
      this.answer.drop();
      this.form.elements.prompt.value ||= message;
    } else {
      this.messages.push({ role: 'user', content: message }, { role: 'assistant', content: text });
    }
  }
}
