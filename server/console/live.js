// The live view: asks /state and /metrics about once a second while it can be seen.

import { ApiError, explain, get, IMPOSSIBLE, isPossible, storedKey, storeKey } from './api.js';
import { Sparkline } from './charts.js';
import { Readings } from './metrics.js';
import { SlotMap } from './slots.js';
import { byId, bytes, count, duration, make, set } from './text.js';

const INTERVAL_MS = 1000;
const MOST_ENTRIES = 20_000;
const RATE_MS = 3000;
const MEAN_MS = 10_000; // long enough not to jump at a few requests a second
const percent = ratio => ratio === null ? '–' : `${Math.round(100 * ratio)} %`;

export class Live {
  // `onKey`: called when there is another key.
  constructor(onKey) {
    this.readings = new Readings();
    this.maps = new Map();
    this.isSeen = false;
    this.isAsking = false;
    // Refused: not asked for again before there is another key.
    this.refused = { figures: null, map: null };
    this.numEntries = 0;
    this.nextMapAt = 0;
    this.trends = {
      rate: new Sparkline(byId('rate-line'), byId('rate-peak'), count),
      first: new Sparkline(byId('first-line'), byId('first-peak'), duration),
      used: new Sparkline(byId('used-line'), byId('used-peak'), percent),
    };
    byId('admin').addEventListener('submit', event => {
      event.preventDefault();
      this.takeKey(byId('admin-key').value.trim(), onKey);
    });
    this.loop();
  }

  async loop() {
    for (;;) {
      if (this.isSeen && !document.hidden) await this.refresh();
      await new Promise(resolve => setTimeout(resolve, INTERVAL_MS));
    }
  }

  takeKey(key, onKey) {
    if (!isPossible(key)) {
      set(byId('admin-says'), IMPOSSIBLE);
      byId('admin-key').setAttribute('aria-invalid', 'true');
      return;
    }
    storeKey('admin', key);
    onKey();
  }

  // With another key.
  async tryAgain() {
    this.refused = { figures: null, map: null };
    this.nextMapAt = 0;
    while (this.isAsking) await new Promise(resolve => setTimeout(resolve, 50)); // with the key before
    this.refused = { figures: null, map: null };
    if (this.isSeen) await this.refresh();
  }

  async refresh() {
    if (this.isAsking) return;
    this.isAsking = true;
    const problems = [await this.attempt('figures', () => this.refreshFigures())];
    if (performance.now() >= this.nextMapAt) problems.push(await this.attempt('map', () => this.refreshMap()));
    const problem = problems.find(each => each);
    byId('live-error').hidden = !problem;
    if (problem) set(byId('live-error'), explain(problem));
    this.isAsking = false;
  }

  // Does one part, unless it has been refused; returns what went wrong. The map has a place of its own for that.
  async attempt(part, act) {
    if (this.refused[part]) return part === 'map' ? null : this.refused[part];
    try {
      await act();
      return null;
    } catch (problem) {
      if (!(problem instanceof ApiError && [401, 403].includes(problem.status))) return problem;
      this.refused[part] = problem;
      if (part !== 'map') return problem;
      this.askForKey(problem);
      return null;
    }
  }

  async refreshFigures() {
    this.readings.take(await (await get('metrics?compat=none')).text(), performance.now());
    this.showFigures();
    this.showMemory();
  }

  async refreshMap() {
    this.showState(await (await get(`state?limit=${MOST_ENTRIES}`, true)).json());
    // A long list costs the engine time: at most one entry a millisecond is asked for.
    this.nextMapAt = performance.now() + this.numEntries;
    const isOpened = !byId('admin').hidden && byId('admin').contains(document.activeElement);
    byId('admin').hidden = true;
    if (isOpened) byId('engines').querySelector('.map')?.focus();
  }

  askForKey(problem) {
    for (const map of this.maps.values()) map.node.remove();
    this.maps.clear();
    this.numEntries = 0;
    const isKeyOfUse = problem.status === 401;
    byId('admin').hidden = false;
    byId('admin-entry').hidden = !isKeyOfUse;
    const isRefused = isKeyOfUse && storedKey('admin') !== '';
    set(byId('admin-says'), isRefused ? 'That key is not the administrator’s.' : isKeyOfUse ? '' : problem.message);
    byId('admin-key').setAttribute('aria-invalid', String(isRefused));
  }

  showFigures() {
    const { readings, trends } = this;
    const capacity = readings.sum('mambad_state_slot_capacity');
    const used = capacity ? 1 - readings.sum('mambad_state_slots_available') / capacity : null;
    const rate = readings.perSecond('mambad_generation_tokens_total', RATE_MS);
    const first = readings.mean('mambad_time_to_first_token_seconds', MEAN_MS);
    const rows = readings.mean('mambad_batch_rows', RATE_MS);
    this.showRequests(name => readings.sum(`mambad_requests_${name}`));
    set(byId('rows'), rows === null ? '–' : rows.toFixed(1));
    set(byId('between'), duration(readings.mean('mambad_inter_token_latency_seconds', MEAN_MS)));
    set(byId('rate'), count(rate));
    set(byId('first'), duration(first));
    set(byId('used'), percent(used));
    trends.rate.add(rate);
    trends.first.add(first);
    trends.used.add(used);
  }

  showRequests(value) {
    for (const name of ['running', 'waiting', 'preempted']) set(byId(name), count(value(name)));
  }

  showMemory() {
    const { readings } = this;
    const { family, dtype, state_dtype, quantization, device, kernels } = readings.info('mambad_engine_info');
    const size = readings.largest('mambad_state_slot_size_bytes') || 0;
    const capacity = readings.sum('mambad_state_slot_capacity') || 0;
    const blocks = ['free', 'active', 'cached', 'quarantined', 'leaked']
      .map(state => [state, readings.inState('mambad_kv_blocks', state)])
      .filter(([state, value]) => value || state === 'free').map(([state, value]) => `${count(value)} ${state}`);
    const weights = quantization === 'none' ? dtype : `${dtype}, ${quantization}`;
    this.showRows([
      ['slots', `${count(capacity)} × ${bytes(size)} = ${bytes(capacity * size)}`],
      ['blocks', `${count(readings.sum('mambad_kv_block_capacity'))}: ${blocks.join(', ')}`],
      ['in use, the larger share', percent(readings.largest('mambad_cache_usage_ratio'))],
      ['leaked slots, ever', count(readings.sum('mambad_state_slots_leaked_total'))],
      ['family', family ?? '–'],
      ['weights, state', family ? `${weights}; ${state_dtype}` : '–'],
      ['device, kernels', family ? `${device}, ${kernels}` : '–'],
      ['threads', count(readings.sum('mambad_threads'))],
      ['front end, resident', bytes(readings.sum('process_resident_memory_bytes') || 0)],
    ]);
  }

  showRows(rows) {
    const list = byId('memory');
    while (list.children.length < rows.length) {
      const pair = make('div');
      pair.append(make('dt'), make('dd'));
      list.append(pair);
    }
    rows.forEach(([name, value], i) => {
      const [term, text] = list.children[i].children;
      set(term, name);
      set(text, value);
    });
  }

  showState(state) {
    // Of the same moment as the map, while /metrics may be a second older.
    this.showRequests(name => state.engines.reduce((sum, each) => sum + (each.requests[name] || 0), 0));
    this.numEntries = state.engines.reduce((sum, each) => sum + (each.entries || []).length, 0);
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
