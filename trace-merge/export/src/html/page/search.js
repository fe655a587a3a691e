// Search: rows and names of slices first, then events.

/** What is looked for, its matches (null until they are found), and which of them is shown. */
let search = { text: '', matches: null, cut: [], at: -1 };
/** Matches among states, and among records, at most. */
const MOST_MATCHES = 100000;

/**
 * Looks for `text`: rows by name, then slices by the name of their state and records by their event's name, ordered by
 * time. Also of what there are more than are counted.
 */
async function findMatches(text) {
  const wanted = text.toLowerCase();
  const shown = layout.items.filter((item) => item.row).map((item) => item.row);
  const rows = [...shown, ...about.rows.filter((row) => !shown.includes(row))];
  const whole = rows.filter((row) => row.name.toLowerCase().includes(wanted)).map((row) => ({ row }));
  const found = { states: await matchingSlices(rows, wanted), records: matchingRecords(wanted) };
  const timed = [...found.states, ...found.records].sort((left, right) => left.time - right.time);
  const cut = Object.keys(found).filter((kind) => found[kind].length >= MOST_MATCHES);
  return { matches: [...whole, ...timed], cut };
}

async function matchingSlices(rows, wanted) {
  const matches = [];
  const names = new Set();
  about.names.forEach(([name], number) => { if (name.toLowerCase().includes(wanted)) names.add(number); });
  if (!names.size) return matches;
  for (const row of rows) {
    if (!row.slices) continue;
    if (matches.length >= MOST_MATCHES) break;
    const slices = await loadSlices(row);
    for (let slice = 0; slice < slices.names.length && matches.length < MOST_MATCHES; slice++) {
      if (names.has(slices.names[slice])) matches.push({ row, slice, time: slices.begins[slice] });
    }
  }
  return matches;
}

function matchingRecords(wanted) {
  const matches = [];
  const kinds = new Set();
  about.records.kinds.forEach(([type], number) => {
    if (about.records.types[type].name.toLowerCase().includes(wanted)) kinds.add(number);
  });
  if (!kinds.size) return matches;
  for (let number = 0; number < records.count && matches.length < MOST_MATCHES; number++) {
    if (!kinds.has(records.kinds[number])) continue;
    matches.push({ row: about.rows[rowOfRecord(number)], record: number, time: records.times[number] });
  }
  return matches;
}

/** Looks for `text`; false if something else is looked for by the time that it is found. */
async function lookFor(text) {
  const asked = search = { text, matches: null, cut: [], at: -1 };
  document.getElementById('search-count').textContent = '…';
  await (records.loading ??= loadRecords());
  const found = await findMatches(text);
  Object.assign(asked, found);
  return search === asked;
}

/** The match to begin with: a row, for it has no time, or else the first one from what is in sight on. */
function firstMatch(matches) {
  return Math.max(0, matches.findIndex(({ time }) => time === undefined || time >= view.begin));
}

/** A moment, as `strata events` shows it: seconds, with a point or a unit, for a number alone may be a task's. */
const MOMENT = /^(\d+\.\d+) ?s?$|^(\d+) ?s$/;

/** Goes to the moment `seconds` after the first record, without changing how much is in sight. */
function goToMoment(seconds) {
  const moment = momentFrom(seconds);
  const isThere = moment >= 0 && moment <= about.length_ns;
  document.getElementById('search-count').textContent = isThere ? 'shown' : 'outside';
  if (!isThere) {
    announce(`the page goes from ${formatMoment(0)} to ${formatMoment(about.length_ns)} seconds`);
    return;
  }
  openTab('timeline');
  const length = view.length < about.length_ns ? view.length : about.length_ns / 100;
  showTime(moment - length / 2, length);
  select(null, { range: [moment, moment + length / 1000] });
}

async function runSearch(direction) {
  const text = document.getElementById('search-text').value.trim();
  if (!text) return;
  const moment = text.match(MOMENT);
  if (moment) {
    search = { text: '', matches: null, cut: [], at: -1 };
    goToMoment(moment[1] ?? moment[2]);
    return;
  }
  if (text !== search.text && !(await lookFor(text))) return;
  const { matches } = search;
  if (!matches) return;
  const count = document.getElementById('search-count');
  if (!matches.length) {
    count.textContent = 'nothing';
    announce(`nothing is called ${text}`);
    return;
  }
  // Forward to the first one, backward to the one before it.
  const from = search.at >= 0 ? search.at : firstMatch(matches) - (direction > 0 ? 1 : 0);
  search.at = (from + direction + matches.length) % matches.length;
  const bounds = search.cut.map((kind) => `, the first ${formatCount(MOST_MATCHES)} ${kind}`).join('');
  count.textContent = `${search.at + 1} of ${formatCount(matches.length)}${bounds}`;
  await showMatch(matches[search.at]);
}

async function showMatch(match) {
  openTab('timeline');
  if (match.record !== undefined) {
    revealTime(match.time, match.time);
    select(match.row, { record: match.record });
  } else if (match.slice !== undefined) {
    const { begins, ends } = match.row.loaded;
    revealTime(begins[match.slice], ends[match.slice]);
    select(match.row, { slice: match.slice });
  } else {
    await selectSliceAt(match.row, view.begin, 1);
  }
}

function startSearch() {
  document.getElementById('search').addEventListener('submit', (event) => {
    event.preventDefault();
    runSearch(1);
  });
  document.getElementById('search-previous').addEventListener('click', () => runSearch(-1));
  document.getElementById('search-text').addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && event.shiftKey) {
      event.preventDefault();
      runSearch(-1);
    } else if (event.key === 'Escape') canvas.focus();
  });
}
