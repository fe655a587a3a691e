// Colours: one for each category, in light and dark; what is not recorded is hatched.

/** By number of the category, in light and in dark. */
const COLOURS = [
  ['#b9bec4', '#565e66'], // not recorded: hatched
  ['#2e9e4f', '#3fae62'], // running in the guest
  ['#0f8b8d', '#23a6a8'], // system call
  ['#7b4fc9', '#a17df0'], // interrupt
  ['#ef9a1a', '#f0a73a'], // KVM
  ['#b4571b', '#c9702f'], // VMM
  ['#d2222d', '#f0525c'], // stolen
  ['#2f6fde', '#5b93f5'], // ready
  ['#c2379a', '#e05fbb'], // ready, stolen
  ['#8a6d00', '#bfa02a'], // I/O
  ['#5a2a83', '#8d5cc0'], // lock
  ['#dfe5ea', '#2a3138'], // sleeps
  ['#c4d3e0', '#37444f'], // waits
  ['#eef1f4', '#22282e'], // idle
  ['#7f8c99', '#6f7d8a'], // other host thread
  ['#8fcfa2', '#2f7d47'], // running or stolen
  ['#e8b7bb', '#7d4a50'], // not allowed to run
];
const NOT_RECORDED = 0;
const STORED_THEME = 'strata-theme';

/** Categories that the reader has hidden, by a click in the legend. */
const hiddenCategories = new Set();

const theme = { isDark: false, colours: [], text: [] };

function applyTheme(isDark) {
  theme.isDark = isDark;
  document.documentElement.classList.toggle('dark', isDark);
  const css = COLOURS.map((pair) => pair[isDark ? 1 : 0]);
  theme.css = css;
  theme.colours = Uint32Array.from(css, packed);
  theme.text = css.map(textOn);
  const style = getComputedStyle(document.documentElement);
  for (const name of ['back', 'front', 'faint', 'line', 'panel', 'accent']) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  theme.backPixel = packed(theme.back);
  theme.frontPixel = packed(theme.front);
  theme.markPixel = packed(theme.accent);
  theme.peakPixel = packed(isDark ? '#3b5070' : '#b5cdf5');
  theme.dotPixel = packed(isDark ? '#0c0f12' : '#30373d');
  theme.hatchPixel = packed(isDark ? '#2b3137' : '#eceff2');
  document.getElementById('theme-button').setAttribute('aria-pressed', String(isDark));
  drawLegend();
  requestDraw();
  redrawGlyphs();
}

const channels = (css) => [1, 3, 5].map((place) => parseInt(css.slice(place, place + 2), 16));

/** A colour as the picture's memory has it: alpha, blue, green, red. */
function packed(css) {
  const [red, green, blue] = channels(css);
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** How light a colour is to the eye, from 0 to 1: WCAG's relative luminance. */
function luminance(css) {
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const [red, green, blue] = channels(css).map((part) => linear(part / 255));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** The colour of a text on `css`: at this border both have a contrast of 4.2, and more beside it. */
const textOn = (css) => (luminance(css) > 0.2 ? '#14181c' : '#ffffff');

function drawLegend() {
  const legend = document.getElementById('legend');
  legend.replaceChildren();
  about.categories.forEach((name, category) => {
    if (!usedCategories.has(category)) return;
    const sample = element('canvas', { width: 14, height: 11, 'aria-hidden': 'true' });
    const context = sample.getContext('2d');
    context.fillStyle = theme.css[category];
    context.fillRect(0, 0, 14, 11);
    if (category === NOT_RECORDED) {
      context.fillStyle = theme.isDark ? '#2b3137' : '#eceff2';
      for (let x = 0; x < 14; x++) for (let y = 0; y < 11; y++) if ((x + y) % 6 < 3) context.fillRect(x, y, 1, 1);
    }
    const button = element('button', { type: 'button', title: 'Show, hide', 'aria-pressed': String(!hiddenCategories.has(category)) }, sample, name);
    button.addEventListener('click', () => {
      if (!hiddenCategories.delete(category)) hiddenCategories.add(category);
      button.setAttribute('aria-pressed', String(!hiddenCategories.has(category)));
      requestDraw();
    });
    legend.append(button);
  });
}

/** Hides these categories, and no others. */
function hideCategories(hidden) {
  hiddenCategories.clear();
  hidden.forEach((category) => hiddenCategories.add(category));
  drawLegend();
  requestDraw();
}

const usedCategories = new Set(about.names.map((name) => name[1]));

function startTheme() {
  const asked = matchMedia('(prefers-color-scheme: dark)');
  let stored = null;
  // A page from a file may have no storage.
  try { stored = localStorage.getItem(STORED_THEME); } catch { /* the system's choice then */ }
  applyTheme(stored ? stored === 'dark' : asked.matches);
  asked.addEventListener('change', () => applyTheme(asked.matches));
  document.getElementById('theme-button').addEventListener('click', () => {
    applyTheme(!theme.isDark);
    try { localStorage.setItem(STORED_THEME, theme.isDark ? 'dark' : 'light'); } catch { /* until the page is left */ }
  });
}
