// Puts the page together: tabs, light and dark, the key, the server's health.

import { ApiError, health, IMPOSSIBLE, isPossible, keyGeneration, storedKey, storeKey } from './api.js';
import { Live } from './live.js';
import { Playground } from './playground.js';
import { byId, set } from './text.js';

const VIEWS = ['play', 'live'];
const HEALTH_INTERVAL_MS = 2000;
const LOCKED = 'a key is needed';
const NOTE = byId('key-note').textContent;
const playground = new Playground(lock);
const live = new Live(tryAgain);
let hasModels = false;
let isLocked = false; // refused: not asked for again before there is another key

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
}

function showTheme() {
  byId('theme').setAttribute('aria-label', isDark() ? 'Switch to light' : 'Switch to dark');
}

function setUpTheme() {
  byId('theme').addEventListener('click', () => {
    const theme = isDark() ? 'light' : 'dark';
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem('mambad.theme', theme);
    } catch { /* holds until the page is left */ }
    showTheme();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
  showTheme();
}

function choose(name) {
  for (const each of VIEWS) {
    byId(each).hidden = each !== name;
    byId(`tab-${each}`).setAttribute('aria-selected', String(each === name));
    byId(`tab-${each}`).tabIndex = each === name ? 0 : -1;
  }
  live.isSeen = name === 'live';
  if (live.isSeen) live.refresh();
}

function setUpTabs() {
  VIEWS.forEach((name, i) => {
    const other = VIEWS[1 - i];
    byId(`tab-${name}`).addEventListener('click', () => { location.hash = name; });
    byId(`tab-${name}`).addEventListener('keydown', event => {
      if (!['ArrowLeft', 'ArrowRight'].includes(event.key)) return;
      location.hash = other;
      byId(`tab-${other}`).focus();
    });
  });
  const follow = () => choose(location.hash === '#live' ? 'live' : 'play');
  addEventListener('hashchange', follow);
  follow();
}

function setUpKey() {
  byId('key').value = storedKey('api');
  byId('key-form').addEventListener('submit', event => {
    event.preventDefault();
    takeKey();
  });
  byId('key').addEventListener('change', takeKey);
}

function takeKey() {
  const key = byId('key').value.trim();
  if (!isPossible(key)) {
    askForKey(true, IMPOSSIBLE);
    return;
  }
  storeKey('api', key);
  tryAgain();
}

// With other keys.
function tryAgain() {
  hasModels = isLocked = false;
  playground.showCurl();
  look();
  live.tryAgain();
}

function showStatus(text, kind) {
  set(byId('status'), text);
  byId('status').className = `pill ${kind}`;
}

function askForKey(isAsked, note = NOTE) {
  byId('key-form').classList.toggle('asked', isAsked);
  set(byId('key-note'), note);
  byId('key-note').hidden = !isAsked;
  byId('key').setAttribute('aria-invalid', String(isAsked && byId('key').value !== ''));
}

// The server wants another key than it gets.
function lock() {
  hasModels = false;
  isLocked = true;
  askForKey(true);
  showStatus(LOCKED, 'bad');
}

async function greet(asked) {
  if (!hasModels) await playground.loadModels();
  if (asked !== keyGeneration()) return;
  hasModels = true;
  if (isPossible(byId('key').value.trim())) askForKey(false); // else the note says what is wrong with it
  showStatus('ready', 'good');
}

async function look() {
  const asked = keyGeneration();
  try {
    const { isReady, reason } = await health();
    if (!isReady) hasModels = false; // it may serve others afterwards
    if (!isReady) showStatus(reason.replaceAll('_', ' '), 'bad');
    else if (isLocked) showStatus(LOCKED, 'bad');
    else await greet(asked);
  } catch (problem) {
    if (asked !== keyGeneration()) return; // said of a key that has been replaced
    if (problem instanceof ApiError && problem.status === 401) {
      lock();
      return;
    }
    hasModels = isLocked = false;
    askForKey(false);
    showStatus(problem instanceof ApiError ? problem.message : 'not reachable', 'bad');
  }
}

setUpTheme();
setUpTabs();
setUpKey();
look();
setInterval(() => { if (!document.hidden) look(); }, HEALTH_INTERVAL_MS);
