// Search: rows and names of slices first, then events.

const search = { text: '', matches: [], at: -1 };
/** Matches that are counted one by one. */
const MOST_MATCHES = 100000;

/** Looks for `text`: rows by name, slices by the name of their state, records by their event's name. */
async function findMatches(text) {
  const wanted = text.toLowerCase();
  const matches = [];
  const rows = layout.items.filter((item) => item.row).map((item) => item.row);
  const all = [...rows, ...about.rows.filter((row) => !rows.includes(row))];
  for (const row of all) if (row.name.toLowerCase().includes(wanted)) matches.push({ row, time: 0, whole: true });
  const names = new Set();
  about.names.forEach(([name], number) => { if (name.toLowerCase().includes(wanted)) names.add(number); });
  if (names.size) {
    for (const row of all) {
      if (!row.slices) continue;
      const slices = await loadSlices(row);
      for (let slice = 0; slice < slices.names.length && matches.length < MOST_MATCHES; slice++) {
        if (names.has(slices.names[slice])) matches.push({ row, slice, time: slices.begins[slice] });
      }
    }
  }
  const kinds = new Set();
  about.records.kinds.forEach(([type], number) => {
    if (about.records.types[type].name.toLowerCase().includes(wanted)) kinds.add(number);
  });
  if (kinds.size) {
    for (let number = 0; number < records.count && matches.length < MOST_MATCHES; number++) {
      if (kinds.has(records.kinds[number])) matches.push({ row: about.rows[rowOfRecord(number)], record: number, time: records.times[number] });
    }
  }
  const wholeRows = matches.filter((match) => match.whole);
  const rest = matches.filter((match) => !match.whole).sort((left, right) => left.time - right.time);
  return [...wholeRows, ...rest];
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
    search.text = '';
    goToMoment(moment[1] ?? moment[2]);
    return;
  }
  if (text !== search.text) {
    document.getElementById('search-count').textContent = '…';
    search.text = text;
    await (records.loading ??= loadRecords());
    search.matches = await findMatches(text);
    // The first one from what is in sight on.
    search.at = -1;
    direction = 1;
  }
  const { matches } = search;
  const count = document.getElementById('search-count');
  if (!matches.length) {
    count.textContent = 'nothing';
    announce(`nothing is called ${text}`);
    return;
  }
  search.at = (search.at + direction + matches.length) % matches.length;
  count.textContent = `${search.at + 1} of ${formatCount(matches.length)}${matches.length >= MOST_MATCHES ? '+' : ''}`;
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
