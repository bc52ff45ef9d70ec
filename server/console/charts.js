// A sparkline: the last minute of one number, with gaps where there was none, and its peak in words.

import { svgNode } from './text.js';

const SPAN_MS = 60_000;
const GAP_MS = 3000; // points further apart are not joined
const HEIGHT = 40;

export class Sparkline {
  constructor(svg, caption, show) {
    this.points = [];
    this.caption = caption;
    this.show = show;
    this.area = svgNode('path', 'area');
    this.line = svgNode('path', 'trace');
    svg.setAttribute('viewBox', `0 0 ${SPAN_MS / 1000} ${HEIGHT}`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.append(this.area, this.line);
  }

  add(value, at = performance.now()) {
    if (value !== null) this.points.push({ at, value });
    while (this.points[0]?.at < at - SPAN_MS) this.points.shift();
    const peak = this.points.reduce((most, each) => Math.max(most, each.value), 0);
    const runs = this.runs(at, peak || 1);
    this.line.setAttribute('d', runs.map(run => `M${run.join('L')}h0`).join(''));
    this.area.setAttribute('d', runs.map(run => this.closed(run)).join(''));
    const text = this.points.length ? `last minute, peak ${this.show(peak)}` : 'nothing in the last minute';
    if (this.caption.textContent !== text) this.caption.textContent = text;
  }

  // The points that follow one another, as texts: one list for each stretch without a gap.
  runs(now, top) {
    const runs = [];
    let last = -Infinity;
    for (const { at, value } of this.points) {
      if (at - last > GAP_MS) runs.push([]);
      const x = ((SPAN_MS - now + at) / 1000).toFixed(2);
      runs.at(-1).push(`${x},${(HEIGHT - 2 - (HEIGHT - 4) * value / top).toFixed(1)}`);
      last = at;
    }
    return runs;
  }

  closed(run) {
    const x = point => point.slice(0, point.indexOf(','));
    return `M${run.join('L')}L${x(run.at(-1))},${HEIGHT}L${x(run[0])},${HEIGHT}Z`;
  }
}
