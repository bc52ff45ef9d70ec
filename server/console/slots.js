// The map of slots: a cell for each, coloured and lettered by its state; pointing or the arrow keys tell the rest.
// Where there are more slots than cells, a cell stands for several and shows the gravest of their states.

import { duration, make, set } from './text.js';

export const STATES = ['free', 'reserved', 'active', 'checkpoint', 'quarantined', 'leaked'];
const UNLISTED = 'unlisted';
const GRAVITY = ['free', UNLISTED, 'checkpoint', 'reserved', 'active', 'quarantined', 'leaked'];
const MOST_CELLS = 4096;
const DENSE_FROM = 512;
const HINT = 'Point at a slot, or walk through them with the arrow keys.';

export class SlotMap {
  constructor(engine) {
    this.engine = engine;
    this.cells = [];
    this.entries = new Map();
    this.chosen = -1;
    this.per = 1;
    this.total = 0;
    this.node = make('section', 'panel engine');
    this.title = make('h2');
    this.note = make('span', 'note');
    this.bar = make('div', 'bar');
    this.bar.setAttribute('aria-hidden', 'true');
    this.legend = make('ul', 'legend');
    this.parts = new Map([...STATES, UNLISTED].map(state => [state, this.part(state)]));
    this.detail = make('p', 'detail', HINT);
    this.spoken = make('p', 'unseen');
    this.spoken.setAttribute('aria-live', 'polite');
    this.map = this.makeMap();
    const head = make('div', 'head');
    head.append(this.title, this.note);
    this.node.append(head, this.bar, this.legend, this.detail, this.map, this.spoken);
  }

  part(state) {
    const item = make('li');
    const number = make('b');
    const share = make('span', `share ${state}`);
    item.append(make('span', `cell ${state}`, state[0].toUpperCase()), `${state} `, number);
    this.legend.append(item);
    this.bar.append(share);
    return { item, number, share };
  }

  makeMap() {
    const map = make('div', 'map');
    map.tabIndex = 0;
    map.setAttribute('role', 'application');
    map.setAttribute('aria-label', `Slots of engine ${this.engine}; arrow keys move from slot to slot`);
    map.addEventListener('pointerover', event => this.choose(this.cells.indexOf(event.target)));
    map.addEventListener('keydown', event => this.move(event));
    map.addEventListener('focus', () => {
      this.choose(Math.max(0, this.chosen));
      this.speak();
    });
    return map;
  }

  show(report) {
    this.total = STATES.reduce((sum, state) => sum + (report.slots[state] || 0), 0);
    this.per = Math.max(1, Math.ceil(this.total / MOST_CELLS));
    const listed = report.entries || [];
    this.entries = new Map(listed.map(entry => [entry.slot, entry]));
    const numBusy = this.total - (report.slots.free || 0);
    // In the order of slots: past the last that was listed nothing is known, where some were left out.
    this.lastKnown = listed.length < numBusy ? listed.at(-1)?.slot ?? 0 : this.total;
    set(this.title, `Engine ${this.engine}`);
    set(this.note, `${this.total} slots` + (report.stale ? ', an old report: the engine is busy or stuck' : ''));
    this.showCounts(report.slots, numBusy - listed.length);
    this.resize(Math.ceil(this.total / this.per));
    this.cells.forEach((cell, i) => {
      const state = this.stateOf(i);
      const name = `cell ${state}${i === this.chosen ? ' chosen' : ''}`;
      if (cell.className === name) return;
      cell.className = name;
      set(cell, state[0].toUpperCase());
    });
    this.describe();
  }

  showCounts(slots, numUnlisted) {
    for (const [state, { item, number, share }] of this.parts) {
      const value = state === UNLISTED ? numUnlisted : slots[state] || 0;
      set(number, String(value));
      share.style.flexGrow = state === UNLISTED ? 0 : value;
      item.hidden = state === UNLISTED && value <= 0;
      item.classList.toggle('none', value === 0);
    }
  }

  resize(count) {
    while (this.cells.length > count) this.cells.pop().remove();
    while (this.cells.length < count) {
      const cell = make('span', 'cell free', 'F');
      this.cells.push(cell);
      this.map.append(cell);
    }
    if (this.chosen >= count) this.chosen = -1;
    this.map.classList.toggle('dense', count >= DENSE_FROM);
  }

  // The slots that a cell stands for: from, to.
  range(index) {
    return [index * this.per + 1, Math.min(this.total, (index + 1) * this.per)];
  }

  slotState(slot) {
    return this.entries.get(slot)?.state || (slot > this.lastKnown ? UNLISTED : 'free');
  }

  // The slot of a cell that matters most.
  gravest(index) {
    const [from, to] = this.range(index);
    let found = from;
    for (let slot = from + 1; slot <= to; slot++) {
      if (GRAVITY.indexOf(this.slotState(slot)) > GRAVITY.indexOf(this.slotState(found))) found = slot;
    }
    return found;
  }

  stateOf(index) {
    return this.slotState(this.gravest(index));
  }

  choose(index) {
    if (index < 0 || index >= this.cells.length) return;
    this.cells[this.chosen]?.classList.remove('chosen');
    this.chosen = index;
    this.cells[index].classList.add('chosen');
    this.describe();
  }

  move(event) {
    const columns = getComputedStyle(this.map).gridTemplateColumns.split(' ').length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const places = { Home: 0, End: this.cells.length - 1 };
    if (!(event.key in steps) && !(event.key in places)) return;
    event.preventDefault();
    this.choose(places[event.key] ?? this.chosen + steps[event.key]);
    this.cells[this.chosen]?.scrollIntoView({ block: 'nearest' });
    this.speak();
  }

  // To a screen reader only when somebody moves: the shown line changes every second.
  speak() {
    set(this.spoken, this.words());
  }

  describe() {
    set(this.detail, this.words());
  }

  words() {
    if (this.chosen < 0) return this.total ? HINT : 'No slots yet.';
    const [from, to] = this.range(this.chosen);
    const slot = this.gravest(this.chosen);
    const entry = this.entries.get(slot);
    const group = from < to ? ` (of slots ${from} to ${to})` : '';
    if (!entry) return `slot ${slot}${group}: ${this.slotState(slot)}`;
    const owner = entry.request ? `request ${entry.request}` : 'nobody’s';
    return `slot ${slot}${group}: ${entry.state} for ${duration(entry.age_s)}, ${entry.num_tokens} tokens, `
      + `${owner}, generation ${entry.generation}`;
  }
}
