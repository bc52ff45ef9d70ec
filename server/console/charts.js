// A sparkline: the last minute of one number, with gaps where there was none, and its peak in words.

import { svgNode } from './text.js';

const POINTS = 60;
const HEIGHT = 40;

export class Sparkline {
  constructor(svg, caption, show) {
    this.values = [];
    this.caption = caption;
    this.show = show;
    this.area = svgNode('path', 'area');
    this.line = svgNode('path', 'trace');
    svg.setAttribute('viewBox', `0 0 ${POINTS - 1} ${HEIGHT}`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.append(this.area, this.line);
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > POINTS) this.values.shift();
    const numbers = this.values.filter(each => each !== null);
    const peak = Math.max(...numbers, 0);
    const runs = this.runs(peak || 1);
    this.line.setAttribute('d', runs.map(run => `M${run.join('L')}h0`).join(''));
    this.area.setAttribute('d', runs.map(run => this.closed(run)).join(''));
    const text = numbers.length ? `last minute, peak ${this.show(peak)}` : 'nothing in the last minute';
    if (this.caption.textContent !== text) this.caption.textContent = text;
  }

  // The points that lie side by side, as texts: one list for each stretch without a gap.
  runs(top) {
    const runs = [[]];
    const offset = POINTS - this.values.length;
    this.values.forEach((value, i) => {
      if (value === null) runs.push([]);
      else runs.at(-1).push(`${offset + i},${(HEIGHT - 2 - (HEIGHT - 4) * value / top).toFixed(1)}`);
    });
    return runs.filter(run => run.length);
  }

  closed(run) {
    const x = point => point.slice(0, point.indexOf(','));
    return `M${run.join('L')}L${x(run.at(-1))},${HEIGHT}L${x(run[0])},${HEIGHT}Z`;
  }
}
