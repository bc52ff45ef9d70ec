// The map of slots: one cell a slot, coloured and lettered by its state; hover, click or arrow keys tell the rest.

export const STATES = ['free', 'reserved', 'active', 'checkpoint', 'quarantined', 'leaked'];
const MOST_CELLS = 4096;
const DENSE_FROM = 512;

function make(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return `${Math.round(seconds / 60)} min`;
}

// One engine's map. Cells are kept from one report to the next, and only touched where something changed.
export class SlotMap {
  constructor(engine) {
    this.engine = engine;
    this.cells = [];
    this.entries = new Map();
    this.chosen = 0;
    this.node = make('section', 'panel');
    this.title = make('h2');
    this.legend = make('ul', 'legend');
    this.counts = new Map();
    for (const state of STATES) {
      const item = make('li');
      const count = make('b');
      item.append(make('span', `cell ${state}`, state[0].toUpperCase()), `${state} `, count);
      this.counts.set(state, count);
      this.legend.append(item);
    }
    this.map = make('div', 'map');
    this.map.tabIndex = 0;
    this.map.setAttribute('role', 'application');
    this.map.setAttribute('aria-label', `Slots of engine ${engine}; arrow keys move from slot to slot`);
    this.detail = make('p', 'detail');
    this.detail.setAttribute('aria-live', 'polite');
    this.node.append(this.title, this.legend, this.map, this.detail);
    this.map.addEventListener('pointerover', event => this.choose(this.cells.indexOf(event.target)));
    this.map.addEventListener('keydown', event => this.move(event));
    this.map.addEventListener('focus', () => this.choose(this.chosen));
  }

  show(report) {
    const total = STATES.reduce((sum, state) => sum + (report.slots[state] || 0), 0);
    this.entries = new Map((report.entries || []).map(entry => [entry.slot, entry]));
    this.title.textContent = `Engine ${this.engine}: ${total} slots` + (report.stale ? ', an old report' : '');
    for (const state of STATES) this.set(this.counts.get(state), String(report.slots[state] || 0));
    this.resize(Math.min(total, MOST_CELLS));
    this.cells.forEach((cell, i) => {
      const state = this.entries.get(i + 1)?.state || 'free';
      const name = `cell ${state}${i === this.chosen ? ' chosen' : ''}`;
      if (cell.className !== name) {
        cell.className = name;
        cell.textContent = state[0].toUpperCase();
      }
    });
    this.describe(total);
  }

  set(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  resize(count) {
    while (this.cells.length > count) this.cells.pop().remove();
    while (this.cells.length < count) {
      const cell = make('span', 'cell free', 'F');
      this.cells.push(cell);
      this.map.append(cell);
    }
    this.map.classList.toggle('dense', count >= DENSE_FROM);
  }

  choose(index) {
    if (index < 0 || index >= this.cells.length) return;
    this.cells[this.chosen]?.classList.remove('chosen');
    this.chosen = index;
    this.cells[index].classList.add('chosen');
    this.cells[index].scrollIntoView({ block: 'nearest' });
    this.describe(this.cells.length);
  }

  move(event) {
    const columns = getComputedStyle(this.map).gridTemplateColumns.split(' ').length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.choose(this.chosen + steps[event.key]);
  }

  describe(total) {
    const entry = this.entries.get(this.chosen + 1);
    let text = this.cells.length ? `slot ${this.chosen + 1}: free` : 'no slots yet';
    if (entry) {
      const owner = entry.request ? `, request ${entry.request}` : ', nobody’s';
      text = `slot ${entry.slot}: ${entry.state} for ${duration(entry.age_s)}, ${entry.num_tokens} tokens${owner}`
        + `, generation ${entry.generation}`;
    }
    if (total > this.cells.length) text += ` (the first ${this.cells.length} of ${total} slots are shown)`;
    this.set(this.detail, text);
  }
}
