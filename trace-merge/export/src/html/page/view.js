// What is in sight: which time, which rows, and what is selected.

const LABEL_WIDTH = 190;
const AXIS_HEIGHT = 24;
const SCROLLBAR_WIDTH = 15;
const HEADING_HEIGHT = 22;
const ROW_GAP = 2;
/** The shortest time in sight, and what is shown around a moment, ns. */
const SHORTEST = 20;
const AROUND_A_MOMENT = 20000;

const view = { begin: 0, length: about.length_ns, scroll: 0 };

/** What is selected: a slice of a row, a record, a row alone, a range of time, or a bookmark. Arrows: the slice's. */
const selection = { row: null, slice: null, record: null, range: null, bookmark: null, arrows: null };

/** Headings and rows from above to below, each with its place. */
const layout = { items: [], byRow: [], height: 0 };
/** Keys of the groups that are closed. */
const collapsed = new Set();
/** Only rows whose name, or whose heading, has this in it are shown. */
let rowFilter = '';

/** By task: the time that it was busy in what was in sight when that was asked for; null for the order of the whole. */
let busyInSight = null;
/** Categories in which a row is not busy. */
const RESTING = new Set(['not recorded', 'idle', 'sleeps', 'waits'].map((name) => about.categories.indexOf(name)));

/** Orders tasks by the time that they are busy in what is in sight, or, when they are, by the whole again. */
function toggleOrderOfTasks() {
  const busy = (row) => timesBetween(row, view.begin, view.begin + view.length).reduce((sum, time, category) => (RESTING.has(category) ? sum : sum + time), 0);
  busyInSight = busyInSight ? null : new Map(about.rows.filter((row) => row.kind === 'task').map((row) => [row, busy(row)]));
  makeLayout();
  requestDraw();
}

/** By kind of row, in the order of the groups: how high a row is, and what stands behind the owner in their heading. */
const ROW_KINDS = {
  'host-cpu': { height: 22, heading: () => '' },
  vcpu: { height: 22, heading: () => ': vCPUs, as the host sees them' },
  'guest-cpu': { height: 22, heading: () => ': guest CPUs, all layers' },
  counter: { height: 30, heading: () => ': counters' },
  why: { height: 18, heading: () => ': why tasks took so long, and whom they waited for' },
  disk: { height: 18, heading: () => ': disk requests' },
  net: { height: 18, heading: () => ': packets' },
  records: { height: 16, heading: () => ': applications and other threads' },
  task: { height: 18, heading: () => `: guest tasks, the busiest ${busyInSight ? 'in sight ' : ''}first` },
};

/** The groups of rows that are not hidden: rows in their order, a heading, and a key that stays when that changes. */
function groupsOfRows() {
  const groups = [];
  if (pinnedRows.size) groups.push({ key: PINNED_HEADING, heading: PINNED_HEADING, rows: [...pinnedRows] });
  const owners = [...new Set(about.rows.map((row) => row.group))];
  for (const owner of owners) {
    for (const [kind, { heading }] of Object.entries(ROW_KINDS)) {
      const isIts = (row) => row.kind === kind && row.group === owner;
      const rows = about.rows.filter((row) => isIts(row) && !pinnedRows.has(row) && !hiddenRows.has(row));
      const busy = (row) => busyInSight?.get(row) ?? row.busy;
      if (kind === 'task') rows.sort((left, right) => busy(right) - busy(left));
      if (rows.length) groups.push({ key: `${owner}/${kind}`, heading: `${owner}${heading()}`, rows });
    }
  }
  return groups;
}

/** What rows are called that stand together: with their group where there are several. */
function namesOf(rows) {
  const areOfSeveral = new Set(rows.map((row) => row.group)).size > 1;
  return (row) => (areOfSeveral ? `${row.group}: ${row.name}` : row.name);
}

/** Groups of so many rows of records are closed at first, and those of counters: tasks come behind them. */
const MANY_ROWS_OF_RECORDS = 10;

function collapseLargeGroups() {
  for (const { key, rows } of groupsOfRows()) {
    if (rows[0].kind === 'counter' || (rows[0].kind === 'records' && rows.length > MANY_ROWS_OF_RECORDS)) collapsed.add(key);
  }
}

/** Shows the rows whose name, or whose heading, has `text` in it; all for an empty one. */
function filterRows(text) {
  rowFilter = text.trim().toLowerCase();
  const field = document.getElementById('row-filter');
  if (field.value.trim().toLowerCase() !== rowFilter) field.value = rowFilter;
  makeLayout();
  requestDraw();
}

function startRowFilter() {
  const field = document.getElementById('row-filter');
  field.addEventListener('input', () => filterRows(field.value));
  field.addEventListener('keydown', (event) => { if (event.key === 'Escape' || event.key === 'Enter') canvas.focus(); });
}

function makeLayout() {
  layout.items = [];
  layout.byRow = [];
  let y = 0;
  for (const { key, heading, rows: all } of groupsOfRows()) {
    const rows = all.filter((row) => `${row.name}\n${heading}`.toLowerCase().includes(rowFilter));
    if (!rows.length) continue;
    layout.items.push({ key, heading, rows: rows.length, y, height: HEADING_HEIGHT });
    y += HEADING_HEIGHT;
    if (collapsed.has(key)) continue;
    const nameOf = namesOf(rows);
    for (const row of rows) {
      const item = { row, key, heading, name: nameOf(row), y, height: ROW_KINDS[row.kind].height };
      layout.items.push(item);
      layout.byRow[row.number] = item;
      y += item.height + ROW_GAP;
    }
  }
  layout.height = y;
  document.getElementById('scroll-height').style.height = `${y + AXIS_HEIGHT + 40}px`;
}

/** Shows the time from `begin` on for `length`, as far as there is any. */
function showTime(begin, length) {
  view.length = Math.max(SHORTEST, Math.min(length, about.length_ns));
  view.begin = Math.max(0, Math.min(begin, about.length_ns - view.length));
  requestDraw();
}

/** Zooms by `factor` (below 1: in) around the moment `centre`. */
function zoom(factor, centre = view.begin + view.length / 2) {
  const length = Math.max(SHORTEST, Math.min(view.length * factor, about.length_ns));
  showTime(centre - ((centre - view.begin) * length) / view.length, length);
}

function pan(share) {
  showTime(view.begin + share * view.length, view.length);
}

function scrollRowsTo(y) {
  const scroller = document.getElementById('scroller');
  scroller.scrollTop = y;
  view.scroll = scroller.scrollTop;
  requestDraw();
}

/** Opens the group of a row, and scrolls so that the row is in sight; it is not hidden any more, and a filter that hides it goes. */
function reveal(row) {
  if (hiddenRows.delete(row)) makeLayout();
  for (const { key, rows } of groupsOfRows()) {
    if (rows.includes(row) && collapsed.delete(key)) makeLayout();
  }
  if (!layout.byRow[row.number]) filterRows('');
  const item = layout.byRow[row.number];
  const height = document.getElementById('frame').clientHeight - AXIS_HEIGHT;
  if (item.y < view.scroll) scrollRowsTo(item.y - HEADING_HEIGHT);
  else if (item.y + item.height > view.scroll + height) scrollRowsTo(item.y + item.height - height + 20);
}

/** Makes sure that the moments from `begin` to `end` are in sight, without zooming where they are. */
function revealTime(begin, end) {
  const length = end - begin;
  if (length > view.length || length < view.length / 400) {
    const shown = length ? Math.max(length * 8, SHORTEST * 10) : Math.min(view.length, AROUND_A_MOMENT);
    showTime((begin + end) / 2 - shown / 2, shown);
  } else if (begin < view.begin || end > view.begin + view.length) {
    showTime((begin + end) / 2 - view.length / 2, view.length);
  }
}

/** The moments of what is selected; null for nothing. */
function selectedTime() {
  if (selection.range) return selection.range;
  if (selection.bookmark) return [selection.bookmark.time, selection.bookmark.time];
  if (selection.record !== null) return [records.times[selection.record], records.times[selection.record]];
  if (selection.slice !== null) {
    const { begins, ends } = selection.row.loaded;
    return [begins[selection.slice], ends[selection.slice]];
  }
  return null;
}

/** Selects, and leaves the details as they are: what a drag does for as long as it lasts. */
function mark(row, { slice = null, record = null, range = null, bookmark = null } = {}) {
  Object.assign(selection, { row, slice, record, range, bookmark, arrows: null });
  requestDraw();
}

function select(row, what) {
  mark(row, what);
  showDetails();
  // Only now: details take room from the rows.
  if (row) reveal(row);
}

/** Shows what is selected with some time around it. */
function focusSelection() {
  const time = selectedTime();
  if (!time) return;
  const length = time[1] > time[0] ? Math.max((time[1] - time[0]) * 1.5, SHORTEST) : AROUND_A_MOMENT;
  showTime((time[0] + time[1]) / 2 - length / 2, length);
}
