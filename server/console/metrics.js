// Reads Prometheus' text: sums of a series over its labels, and rates between two readings.

export function sums(text) {
  const found = new Map();
  for (const line of text.split('\n')) {
    if (!line || line.startsWith('#')) continue;
    const name = line.slice(0, line.search(/[{ ]/));
    const value = Number(line.slice(line.lastIndexOf(' ') + 1));
    if (Number.isFinite(value)) found.set(name, (found.get(name) || 0) + value);
  }
  return found;
}

// Keeps the last reading; `per` answers how much a counter grew a second, or a unit of another counter.
export class Readings {
  constructor() {
    this.before = null;
    this.now = null;
  }

  take(text, atMs) {
    this.before = this.now;
    this.now = { at: atMs, sums: sums(text) };
  }

  value(name) {
    return this.now ? this.now.sums.get(name) ?? null : null;
  }

  growth(name) {
    if (!this.before) return null;
    const grown = (this.now.sums.get(name) || 0) - (this.before.sums.get(name) || 0);
    return grown < 0 ? null : grown; // the server has started anew
  }

  perSecond(name) {
    const grown = this.growth(name);
    return grown === null ? null : grown * 1000 / Math.max(1, this.now.at - this.before.at);
  }

  mean(name) {
    const count = this.growth(`${name}_count`);
    return count ? this.growth(`${name}_sum`) / count : null;
  }
}
