// The live view: asks /state and /metrics once a second while it can be seen.

import { ApiError, get } from './api.js';
import { Sparkline } from './charts.js';
import { Readings } from './metrics.js';
import { SlotMap, duration } from './slots.js';

const INTERVAL_MS = 1000;
const byId = id => document.getElementById(id);
const count = value => value === null ? '–' : Math.round(value).toLocaleString('en');

function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${value.toFixed(value < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

export class Live {
  constructor() {
    this.readings = new Readings();
    this.maps = new Map();
    this.isSeen = false;
    this.lines = Object.fromEntries(
      ['rate', 'first', 'used'].map(name => [name, new Sparkline(byId(`${name}-line`))]));
    this.loop();
  }

  async loop() {
    for (;;) {
      if (this.isSeen && !document.hidden) await this.refresh();
      await new Promise(resolve => setTimeout(resolve, INTERVAL_MS));
    }
  }

  async refresh() {
    const error = byId('live-error');
    try {
      this.readings.take(await (await get('metrics?compat=none')).text(), performance.now());
      this.showFigures();
      error.hidden = true;
    } catch (problem) {
      this.tell(error, problem);
      return;
    }
    try {
      this.showState(await (await get('state')).json());
      byId('admin').hidden = true;
    } catch (problem) {
      const isLocked = problem instanceof ApiError && [401, 403].includes(problem.status);
      byId('admin').hidden = !isLocked;
      if (isLocked) this.forget();
      else this.tell(error, problem);
    }
  }

  tell(node, problem) {
    node.textContent = problem instanceof ApiError ? problem.message : 'The server cannot be reached.';
    node.hidden = false;
  }

  forget() {
    for (const map of this.maps.values()) map.node.remove();
    this.maps.clear();
  }

  showFigures() {
    const { readings } = this;
    const capacity = readings.value('mambad_state_slot_capacity') || 0;
    const used = capacity ? 1 - readings.value('mambad_state_slots_available') / capacity : 0;
    const rate = readings.perSecond('mambad_generation_tokens_total');
    const first = readings.mean('mambad_time_to_first_token_seconds');
    this.showRequests(name => readings.value(`mambad_requests_${name}`));
    byId('rate').textContent = count(rate);
    byId('first').textContent = first === null ? '–' : duration(first);
    byId('used').textContent = `${Math.round(100 * used)} %`;
    this.lines.rate.add(rate);
    this.lines.first.add(first);
    this.lines.used.add(used);
    this.showMemory(capacity);
  }

  showRequests(value) {
    for (const name of ['running', 'waiting', 'preempted']) byId(name).textContent = count(value(name));
  }

  showMemory(capacity) {
    const { readings } = this;
    const size = readings.value('mambad_state_slot_size_bytes') || 0;
    const rows = [
      ['slots', `${count(capacity)} × ${bytes(size)} = ${bytes(capacity * size)}`],
      ['blocks', count(readings.value('mambad_kv_block_capacity'))],
      ['computing threads', count(readings.value('mambad_threads'))],
      ['front end, resident', bytes(readings.value('process_resident_memory_bytes') || 0)],
      ['slots leaked, ever', count(readings.value('mambad_state_slots_leaked_total'))],
    ];
    byId('memory').tBodies[0].replaceChildren(...rows.map(texts => {
      const row = document.createElement('tr');
      row.append(...texts.map(text => Object.assign(document.createElement('td'), { textContent: text })));
      return row;
    }));
  }

  showState(state) {
    // Of the same moment as the map, while /metrics may be a second older.
    this.showRequests(name => state.engines.reduce((sum, each) => sum + (each.requests[name] || 0), 0));
    for (const report of state.engines) {
      if (!this.maps.has(report.engine)) {
        const map = new SlotMap(report.engine);
        this.maps.set(report.engine, map);
        byId('engines').append(map.node);
      }
      this.maps.get(report.engine).show(report);
    }
  }
}
