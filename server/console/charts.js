// A sparkline: the last minute of one number.

const POINTS = 60;
const NAMESPACE = 'http://www.w3.org/2000/svg';

export class Sparkline {
  constructor(svg) {
    this.values = [];
    this.line = document.createElementNS(NAMESPACE, 'polyline');
    svg.setAttribute('viewBox', `0 0 ${POINTS - 1} 20`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.append(this.line);
  }

  add(value) {
    this.values.push(value ?? 0);
    if (this.values.length > POINTS) this.values.shift();
    const top = Math.max(...this.values, 1e-9);
    const offset = POINTS - this.values.length;
    const points = this.values.map((each, i) => `${offset + i},${(19 - 18 * each / top).toFixed(2)}`);
    this.line.setAttribute('points', points.join(' '));
  }
}
