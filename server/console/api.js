// Talks to the server that this page came from: keys, JSON, streams of events. Paths are relative to the page.

const KEY = 'mambad.key';

export function storedKey() {
  return sessionStorage.getItem(KEY) || '';
}

export function storeKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

// What the server says went wrong, with its status.
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(extra) {
  const key = storedKey();
  return key ? { ...extra, authorization: `Bearer ${key}` } : extra;
}

async function failure(response) {
  let text = `The server answered ${response.status}.`;
  try {
    text = (await response.json()).error.message || text;
  } catch { /* a proxy's page, say */ }
  return new ApiError(response.status, text);
}

export async function get(path) {
  const response = await fetch(path, { headers: headers({}), cache: 'no-store' });
  if (!response.ok) throw await failure(response);
  return response;
}

// Health is told by the status as well as by the body.
export async function health() {
  const response = await fetch('ready', { cache: 'no-store' });
  const body = await response.json().catch(() => ({}));
  return { isReady: response.ok, reason: body.reason || body.status || String(response.status) };
}

// Yields the data of each event until [DONE]; an event with an error is thrown.
export async function* stream(path, body, signal) {
  const response = await fetch(path, {
    method: 'POST', signal, body: JSON.stringify(body), headers: headers({ 'content-type': 'application/json' }),
  });
  if (!response.ok) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue;
      const data = event.slice('data: '.length);
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(200, chunk.error.message);
      yield chunk;
    }
  }
}
