// Talks to the server that this page came from: keys, JSON, streams of events. Paths are relative to the page.

const TIMEOUT_MS = 10_000;
const NAMES = { api: 'mambad.key', admin: 'mambad.admin-key' };
const kept = {}; // for browsers that allow no storage
let generation = 0; // of keys: what was refused with older ones says nothing of these

// `kind`: api or admin. A key lives in this tab's session and goes nowhere but to this server.
export function storedKey(kind) {
  try {
    return sessionStorage.getItem(NAMES[kind]) || '';
  } catch {
    return kept[kind] || '';
  }
}

// Whether a key can stand in a header; any other would end as "cannot be reached".
export const isPossible = key => /^[ -~]*$/.test(key);

export const IMPOSSIBLE = 'A key has letters, digits and signs of ASCII only.';

export const keyGeneration = () => generation;

export function storeKey(kind, key) {
  generation++;
  kept[kind] = key;
  try {
    if (key) sessionStorage.setItem(NAMES[kind], key);
    else sessionStorage.removeItem(NAMES[kind]);
  } catch { /* kept in memory only */ }
}

// What the server says went wrong, with its status.
export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// What to tell a reader about anything that was thrown here.
export function explain(problem) {
  if (problem instanceof ApiError) return problem.message;
  if (problem.name === 'TimeoutError') return 'The server does not answer.';
  if (problem instanceof TypeError) return 'The server cannot be reached.';
  return `The answer cannot be read: ${problem.message}`;
}

function headers(extra, asAdmin = false) {
  const [first, second] = asAdmin ? ['admin', 'api'] : ['api', 'admin'];
  const key = storedKey(first) || storedKey(second);
  return key ? { ...extra, authorization: `Bearer ${key}` } : extra;
}

async function failure(response) {
  let error = {};
  try {
    error = (await response.json()).error || {};
  } catch { /* a proxy's page, say */ }
  return new ApiError(response.status, error.message || `The server answered ${response.status}.`, error.code);
}

export async function get(path, asAdmin = false) {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const response = await fetch(path, { headers: headers({}, asAdmin), cache: 'no-store', signal });
  if (!response.ok) throw await failure(response);
  return response;
}

// Health is told by the status as well as by the body.
export async function health() {
  const response = await fetch('ready', { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) });
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
    if (done) throw new ApiError(200, 'The connection ended before the answer did.');
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue;
      const data = event.slice('data: '.length);
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(200, chunk.error.message, chunk.error.code);
      yield chunk;
    }
  }
}
