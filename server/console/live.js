// The live view: asks /state and /metrics about once a second while it can be seen.

import { ApiError, explain, get, storedKey, storeKey } from './api.js';
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
  constructor() {
    this.readings = new Readings();
    this.maps = new Map();
    this.isSeen = false;
    this.isAsking = false;
    this.isLocked = false; // refused: not asked for again before there is another key
    this.numEntries = 0;
    this.trends = {
      rate: new Sparkline(byId('rate-line'), byId('rate-peak'), count),
      first: new Sparkline(byId('first-line'), byId('first-peak'), duration),
      used: new Sparkline(byId('used-line'), byId('used-peak'), percent),
    };
    byId('admin').addEventListener('submit', event => {
      event.preventDefault();
      storeKey('admin', byId('admin-key').value.trim());
      this.tryAgain();
    });
    this.loop();
  }

  async loop() {
    for (;;) {
      if (this.isSeen && !document.hidden) await this.refresh();
      // A long list costs the engine time: at most one entry a millisecond is asked for.
      await new Promise(resolve => setTimeout(resolve, Math.max(INTERVAL_MS, this.numEntries)));
    }
  }

  // With another key.
  tryAgain() {
    this.isLocked = false;
    if (this.isSeen) this.refresh();
  }

  async refresh() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      await this.refreshFigures();
      if (!this.isLocked) await this.refreshMap();
      byId('live-error').hidden = true;
    } catch (problem) {
      set(byId('live-error'), explain(problem));
      byId('live-error').hidden = false;
    }
    this.isAsking = false;
  }

  async refreshFigures() {
    this.readings.take(await (await get('metrics?compat=none')).text(), performance.now());
    this.showFigures();
    this.showMemory();
  }

  async refreshMap() {
    try {
      this.showState(await (await get(`state?limit=${MOST_ENTRIES}`, true)).json());
      byId('admin').hidden = true;
    } catch (problem) {
      if (!(problem instanceof ApiError && [401, 403].includes(problem.status))) throw problem;
      this.askForKey(problem);
    }
  }

  askForKey(problem) {
    for (const map of this.maps.values()) map.node.remove();
    this.maps.clear();
    this.isLocked = true;
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
