// Puts the page together: tabs, light and dark, the key, the server's health.

import { ApiError, health, storedKey, storeKey } from './api.js';
import { Live } from './live.js';
import { Playground } from './playground.js';

const THEME = 'mambad.theme';
const HEALTH_INTERVAL_MS = 2000;
const byId = id => document.getElementById(id);
const playground = new Playground();
const live = new Live();
let hasModels = false;

function showTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  byId('theme').textContent = isDark ? 'Light' : 'Dark';
  return isDark;
}

function setUpTheme() {
  const stored = sessionStorage.getItem(THEME);
  if (stored) document.documentElement.dataset.theme = stored;
  byId('theme').addEventListener('click', () => {
    document.documentElement.dataset.theme = showTheme() ? 'light' : 'dark';
    sessionStorage.setItem(THEME, document.documentElement.dataset.theme);
    showTheme();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
  showTheme();
}

function choose(name) {
  for (const each of ['play', 'live']) {
    const isChosen = each === name;
    byId(each).hidden = !isChosen;
    byId(`tab-${each}`).setAttribute('aria-selected', String(isChosen));
    byId(`tab-${each}`).tabIndex = isChosen ? 0 : -1;
  }
  live.isSeen = name === 'live';
  if (live.isSeen) live.refresh();
}

function setUpTabs() {
  for (const name of ['play', 'live']) {
    byId(`tab-${name}`).addEventListener('click', () => { location.hash = name; });
    byId(`tab-${name}`).addEventListener('keydown', event => {
      if (!['ArrowLeft', 'ArrowRight'].includes(event.key)) return;
      location.hash = name === 'play' ? 'live' : 'play';
      byId(name === 'play' ? 'tab-live' : 'tab-play').focus();
    });
  }
  const follow = () => choose(location.hash === '#live' ? 'live' : 'play');
  addEventListener('hashchange', follow);
  follow();
}

function setUpKey() {
  byId('key').value = storedKey();
  byId('key').addEventListener('change', () => {
    storeKey(byId('key').value.trim());
    hasModels = false;
    playground.showCurl();
    look();
    if (live.isSeen) live.refresh();
  });
}

function showStatus(text, kind) {
  const pill = byId('status');
  if (pill.textContent !== text) pill.textContent = text;
  pill.className = `pill ${kind}`;
}

async function look() {
  try {
    const { isReady, reason } = await health();
    showStatus(isReady ? 'ready' : reason.replaceAll('_', ' '), isReady ? 'good' : 'bad');
    if (!isReady || hasModels) return;
    await playground.loadModels();
    hasModels = true;
  } catch (problem) {
    if (problem instanceof ApiError && problem.status === 401) showStatus('a key is needed', 'bad');
    else showStatus('not reachable', 'bad');
  }
}

setUpTheme();
setUpTabs();
setUpKey();
look();
setInterval(() => { if (!document.hidden) look(); }, HEALTH_INTERVAL_MS);
