// Reads Prometheus' text, keeps the last seconds of it, and answers with values, rates and means.

const KEPT_MS = 10_000;

// One reading: the sum and the largest of each name's series, and the labels of those that only inform.
function parse(text) {
  const sums = new Map(), most = new Map(), series = new Map(), labels = new Map();
  for (const line of text.split('\n')) {
    if (!line || line.startsWith('#')) continue;
    const end = line.search(/[{ ]/);
    const name = line.slice(0, end);
    const value = Number(line.slice(line.lastIndexOf(' ') + 1));
    if (!Number.isFinite(value)) continue;
    sums.set(name, (sums.get(name) || 0) + value);
    most.set(name, Math.max(most.get(name) ?? value, value));
    if (name === 'mambad_kv_blocks') addState(series, name, line, value);
    if (name.endsWith('_info')) labels.set(name, labelsOf(line));
  }
  return { sums, most, series, labels };
}

function labelsOf(line) {
  const pairs = line.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g);
  return Object.fromEntries(Array.from(pairs, ([, name, value]) => [name, value]));
}

function addState(series, name, line, value) {
  const key = `${name} ${labelsOf(line).state}`;
  series.set(key, (series.get(key) || 0) + value);
}

export class Readings {
  constructor() {
    this.kept = [];
  }

  take(text, atMs) {
    this.kept.push({ at: atMs, ...parse(text) });
    while (this.kept.length > 2 && this.kept[0].at < atMs - KEPT_MS) this.kept.shift();
  }

  get now() {
    return this.kept.at(-1);
  }

  // Over all engines.
  sum(name) {
    return this.now?.sums.get(name) ?? null;
  }

  // Of the engine where it is largest.
  largest(name) {
    return this.now?.most.get(name) ?? null;
  }

  inState(name, state) {
    return this.now?.series.get(`${name} ${state}`) ?? 0;
  }

  info(name) {
    return this.now?.labels.get(name) ?? {};
  }

  // How much a counter grew within the window, and in how long; null where no reading is from within it.
  growth(name, windowMs) {
    const before = this.kept.slice(0, -1).find(each => each.at >= this.now.at - windowMs - 200);
    if (!before) return null;
    const grown = (this.now.sums.get(name) || 0) - (before.sums.get(name) || 0);
    return grown < 0 ? null : { grown, ms: this.now.at - before.at }; // less: the server has started anew
  }

  perSecond(name, windowMs) {
    const found = this.growth(name, windowMs);
    return found && found.grown * 1000 / Math.max(1, found.ms);
  }

  // Of a histogram's observations within the window; null where there were none.
  mean(name, windowMs) {
    const count = this.growth(`${name}_count`, windowMs);
    return count?.grown ? this.growth(`${name}_sum`, windowMs).grown / count.grown : null;
  }
}
