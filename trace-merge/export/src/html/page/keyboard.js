// The keyboard: W, A, S and D as in Perfetto for as long as they are held, arrows for the selection.

/** Keys that act while they are held: what they do in a second. */
const HELD = { w: ['zoom', -1], s: ['zoom', 1], a: ['pan', -1], d: ['pan', 1] };
const ZOOM_PER_SECOND = 6;
const PAN_PER_SECOND = 1.2;
const SECONDS_OF_TAP = 0.08;
const held = new Set();
let heldSince = 0;

const KEYS = [
  ['W / S', 'zoom in, out'],
  ['A / D', 'pan to the left, to the right'],
  ['F', 'show the selection'],
  ['← / →', 'select the slice before, after'],
  ['↑ / ↓', 'select in the row above, below'],
  ['P / N', 'select the record before, after in this row'],
  ['Home / End', 'go to the begin, to the end'],
  ['0', 'show everything'],
  ['Page up / down', 'scroll'],
  ['C / O', 'close the group of the selected row; open all groups, and show hidden rows'],
  ['I / H', 'pin the selected row above all others, or unpin it; hide it'],
  ['M', 'set a bookmark with a note: where the selection begins, or in the middle'],
  ['T', 'order tasks by the time that they are busy in sight, or in all of it'],
  ['/', 'search, or go to a time (8.95); Enter: next match, Shift Enter: previous one'],
  ['R', 'show only rows with some text in their name'],
  ['Esc', 'select nothing'],
  ['?', 'these keys'],
];

function stepHeld(now) {
  if (!held.size) return;
  const seconds = Math.min(0.1, Math.max(0.004, (now - heldSince) / 1000));
  heldSince = now;
  for (const key of held) actHeld(key, seconds);
  requestAnimationFrame(stepHeld);
}

/** Does what a key does that is held for some seconds. */
function actHeld(key, seconds) {
  const [what, direction] = HELD[key];
  if (what === 'zoom') zoom(ZOOM_PER_SECOND ** (direction * seconds), pointerTime());
  else pan(direction * PAN_PER_SECOND * seconds);
}

function isTyping(event) {
  return /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || document.getElementById('help').open;
}

/** Whether the states of a row at a moment are left out of this page. */
const isLeftOut = (row, time) => row.left_out_from !== null && time >= row.left_out_from;

/**
 * Selects the slice of a row at a moment, or the next one in a direction; without slices the record that is nearest, or
 * else the row alone. What is in sight stays as it is unless `isShown`.
 */
async function selectSliceAt(row, time, direction = 1, isShown = true) {
  const { begins, ends } = await loadSlices(row);
  if (isLeftOut(row, time)) {
    select(row);
    return;
  }
  if (!begins.length) {
    await (records.loading ??= loadRecords());
    select(row, { record: nearestRecord(row.number, time)?.number ?? null });
    return;
  }
  let slice = upperBound(ends, time);
  if (direction < 0 && slice < begins.length && begins[slice] > time) slice--;
  if (direction < 0 && begins[slice] === time) slice--;
  slice = Math.max(0, Math.min(slice, begins.length - 1));
  if (isShown) revealSlice(row, slice);
  select(row, { slice });
}

/** Makes sure that a slice is in sight; a counter's bins are short, and stay so. */
function revealSlice(row, slice) {
  const { begins, ends } = row.loaded;
  if (!row.counter) revealTime(begins[slice], ends[slice]);
  else if (begins[slice] < view.begin || ends[slice] > view.begin + view.length) showTime(begins[slice] - view.length / 2, view.length);
}

function moveInRow(step) {
  const { row, slice, record } = selection;
  if (!row || selection.range) {
    const first = layout.items.find((item) => item.row && isInSight(item));
    if (first) selectSliceAt(first.row, view.begin);
    return;
  }
  if (slice === null) {
    const time = records.times?.[record];
    if (record !== null && row.slices && !isLeftOut(row, time)) selectSliceAt(row, time, step);
    else moveToRecord(step);
    return;
  }
  const next = slice + step * (row.counter ? counterStep(row) : 1);
  if (next < 0 || next >= row.loaded.begins.length) return;
  revealSlice(row, next);
  select(row, { slice: next });
}

function moveToRow(step) {
  const items = layout.items.filter((item) => item.row);
  const time = selectedTime()?.[0] ?? view.begin;
  const at = items.findIndex((item) => item.row === selection.row);
  const next = items[at < 0 ? 0 : Math.max(0, Math.min(items.length - 1, at + step))];
  if (next) selectSliceAt(next.row, Math.max(time, view.begin));
}

function moveToRecord(step) {
  const { row } = selection;
  const times = row && records.timesByRow?.[row.number];
  if (!times?.length) return;
  let place;
  if (selection.record !== null) {
    place = records.byRow[row.number].indexOf(selection.record) + step;
  } else {
    const time = selectedTime()?.[0] ?? view.begin;
    place = step > 0 ? lowerBound(times, time) : upperBound(times, time) - 1;
  }
  if (place < 0 || place >= times.length) return;
  revealTime(times[place], times[place]);
  select(row, { record: records.byRow[row.number][place] });
}

function toggleGroup(key) {
  if (!collapsed.delete(key)) collapsed.add(key);
  makeLayout();
  requestDraw();
}

const PRESSED = {
  ArrowLeft: () => moveInRow(-1),
  ArrowRight: () => moveInRow(1),
  ArrowUp: () => moveToRow(-1),
  ArrowDown: () => moveToRow(1),
  Home: () => showTime(0, view.length),
  End: () => showTime(about.length_ns, view.length),
  PageUp: () => scrollRowsTo(view.scroll - canvas.clientHeight / 2),
  PageDown: () => scrollRowsTo(view.scroll + canvas.clientHeight / 2),
  Escape: () => select(null),
  0: () => showTime(0, about.length_ns),
  f: focusSelection,
  n: () => moveToRecord(1),
  p: () => moveToRecord(-1),
  c: () => { if (layout.byRow[selection.row?.number]) toggleGroup(layout.byRow[selection.row.number].key); },
  t: toggleOrderOfTasks,
  o: showAllRows,
  i: () => { if (selection.row) togglePin(selection.row); },
  h: () => { if (selection.row) hideRow(selection.row); },
  m: bookmarkMoment,
};

function startKeyboard() {
  const help = document.getElementById('help');
  const keys = document.getElementById('help-keys');
  for (const [key, what] of KEYS) keys.append(element('dt', {}, ...key.split(' / ').flatMap((part, place) => [place ? ' / ' : '', element('kbd', {}, part)])), element('dd', {}, what));
  document.getElementById('help-button').addEventListener('click', () => help.showModal());
  window.addEventListener('keydown', (event) => {
    if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
    document.getElementById('tooltip').style.display = 'none';
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key === '/') {
      event.preventDefault();
      document.getElementById('search-text').select();
    } else if (key === '?') help.showModal();
    else if (key === 'r') {
      event.preventDefault();
      document.getElementById('row-filter').select();
    }
    else if (document.getElementById('timeline').hidden) return;
    else if (HELD[key]) {
      event.preventDefault();
      if (!held.size) {
        heldSince = performance.now();
        requestAnimationFrame(stepHeld);
      }
      // However short it is pressed.
      if (!held.has(key)) actHeld(key, SECONDS_OF_TAP);
      held.add(key);
    } else if (PRESSED[key] && (document.activeElement === canvas || document.activeElement === document.body)) {
      event.preventDefault();
      PRESSED[key]();
    }
  });
  window.addEventListener('keyup', (event) => held.delete(event.key.toLowerCase()));
  window.addEventListener('blur', () => held.clear());
}
