// Makes nodes and words. Whatever comes from the server enters the page here, as text and never as markup.

const SVG = 'http://www.w3.org/2000/svg';

export const byId = id => document.getElementById(id);

export function make(name, className = '', text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function svgNode(name, className) {
  const node = document.createElementNS(SVG, name);
  node.setAttribute('class', className);
  return node;
}

// Touches the page only where something changed.
export function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const count = value => value === null ? '–' : Math.round(value).toLocaleString('en');

export function duration(seconds) {
  if (seconds === null) return '–';
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

export function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${value.toFixed(value < 10 && unit ? 1 : 0)} ${units[unit]}`;
}
