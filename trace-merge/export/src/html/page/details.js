// What is selected, in words.

/** Arrows, or records, of a slice that have a button. */
const MOST_BUTTONS = 12;

/** The disk requests and packets whose properties are kept. */
let flows = [];

async function loadFlows() {
  flows = await unpackValue('flows');
}

function showDetails() {
  const panel = document.getElementById('details');
  panel.replaceChildren();
  if (selection.range) showRange(panel);
  else if (selection.bookmark) showBookmark(panel);
  else if (selection.record !== null) showRecord(panel, selection.record);
  else if (selection.row?.counter && selection.slice !== null) showCounter(panel);
  else if (selection.slice !== null) showSlice(panel);
  else if (selection.row) showRow(panel);
  panel.scrollTop = 0;
}

function announce(text) {
  document.getElementById('announcement').textContent = text;
}

/** A row of which nothing is selected, since there is nothing, or nothing is kept. */
function showRow(panel) {
  const { row } = selection;
  const reason = row.left_out_from === null
    ? 'nothing of it is in this page'
    : `states from ${formatMoment(row.left_out_from)} s on are left out of this page`;
  panel.append(
    element('h2', {}, row.name),
    element('div', { className: 'columns' },
      definitions([['row', `${row.group}, ${row.name}`]]),
      reportButton(row),
      rowButtons(row),
      element('div', { className: 'faint' }, reason),
    ),
  );
  announce(`${row.name}: ${reason}`);
}

function showRecord(panel, number) {
  const type = typeOf(number);
  const row = about.rows[rowOfRecord(number)];
  const who = about.records.whos[records.whos[number]][0];
  panel.append(
    element('h2', {}, type.name),
    element('div', { className: 'columns' },
      definitions([
        ['time', `${formatMoment(records.times[number])} s`],
        ['layer', type.layer],
        ['where', `${row.group}, ${row.name}`],
        ['task', who],
      ]),
      definitions(fieldsOf(number)),
    ),
  );
  announce(`record ${type.name} at ${formatMoment(records.times[number])} seconds, ${row.name}, by ${who}`);
}

function showSlice(panel) {
  const { row, slice } = selection;
  const { begins, ends, names, categories } = row.loaded;
  const name = about.names[names[slice]][0];
  const [begin, end] = [begins[slice], ends[slice]];
  const parts = [definitions([
    ['row', `${row.group}, ${row.name}`],
    ['begins', `${formatMoment(begin)} s`],
    ['lasts', formatDuration(end - begin)],
    ['colour', about.categories[categories[slice]]],
  ])];
  const flow = flows.find((known) => known.row === row.number && known.begin <= begin && end <= known.end);
  if (flow) parts.push(flowDetails(flow));
  const report = reportButton(row);
  if (report) parts.push(report);
  parts.push(rowButtons(row));
  const jumps = arrowButtons(arrowsOfSelection());
  if (jumps.length) parts.push(element('div', {}, element('h3', {}, 'Arrows'), ...jumps));
  const inside = recordsBetween(row.number, begin, end);
  if (inside.length) parts.push(element('div', {}, element('h3', {}, 'Records in it'), ...inside));
  panel.append(element('h2', {}, name), element('div', { className: 'columns' }, ...parts));
  announce(`${row.name}: ${name}, for ${formatDuration(end - begin)}, from ${formatMoment(begin)} seconds`);
}

function flowDetails(flow) {
  let begin = flow.begin;
  const steps = flow.steps.map(([name, whose, end]) => {
    const pair = [name, `${formatDuration(end - begin)}  (${whose})`];
    begin = end;
    return pair;
  });
  return element('div', {}, definitions([
    ['what', flow.what],
    ['whole time', formatDuration(flow.end - flow.begin)],
    ...flow.facts,
    ...steps,
  ]));
}

const ARROW_NAMES = ['woken', 'request issued', 'request completed', 'packet sent', 'packet received'];

/** A button that goes to the other end of an arrow. */
function arrowButton(arrow) {
  const isFrom = arrows.fromRows[arrow] === selection.row.number;
  const row = about.rows[isFrom ? arrows.toRows[arrow] : arrows.fromRows[arrow]];
  const time = isFrom ? arrows.tos[arrow] : arrows.froms[arrow];
  const text = `${isFrom ? '→' : '←'} ${ARROW_NAMES[arrows.kinds[arrow]]}: ${row.name}, ${formatDuration(arrows.tos[arrow] - arrows.froms[arrow])}`;
  const button = element('button', { type: 'button' }, text);
  button.addEventListener('click', () => selectSliceAt(row, time, isFrom ? 1 : -1));
  return element('div', {}, button);
}

/** Buttons for the first of some arrows. */
function arrowButtons(all) {
  const buttons = all.slice(0, MOST_BUTTONS).map(arrowButton);
  const left = all.length - MOST_BUTTONS;
  if (left > 0) buttons.push(element('div', { className: 'faint' }, `and ${formatCount(left)} more`));
  return buttons;
}

/** Buttons for the first records of a row between two moments. */
function recordsBetween(row, begin, end) {
  const times = records.timesByRow?.[row];
  if (!times) return [];
  const first = lowerBound(times, begin);
  const last = upperBound(times, end);
  const buttons = [];
  for (let place = first; place < Math.min(last, first + MOST_BUTTONS); place++) {
    const number = records.byRow[row][place];
    const button = element('button', { type: 'button' }, `+${formatDuration(times[place] - begin)}  ${typeOf(number).name}`);
    button.addEventListener('click', () => select(about.rows[row], { record: number }));
    buttons.push(element('div', {}, button));
  }
  if (last - first > MOST_BUTTONS) buttons.push(element('div', { className: 'faint' }, `and ${last - first - MOST_BUTTONS} more: N and P step through them`));
  return buttons;
}

/** How the rows in sight share out a range of time. */
function showRange(panel) {
  const [begin, end] = selection.range;
  const table = element('table', {}, element('tr', {}, ...['row', 'share of the time', '', 'slices', 'average', 'longest'].map((name) => element('th', {}, name))));
  const rows = layout.items.filter((item) => item.row && isInSight(item)).slice(0, 60).map((item) => item.row);
  const nameOf = namesOf(rows);
  for (const row of rows) {
    if (row.counter) {
      table.append(element('tr', {}, element('td', {}, nameOf(row)), element('td', {}, counterText(row, counterValue(row, begin, end)))));
      continue;
    }
    const times = timesBetween(row, begin, end);
    const parts = [...times].map((time, category) => [time, category]).filter(([time]) => time > 0).sort((left, right) => right[0] - left[0]);
    if (!parts.length) continue;
    const text = parts.slice(0, 4).map(([time, category]) => `${about.categories[category]} ${((100 * time) / (end - begin)).toFixed(1)} %`).join(', ');
    table.append(element('tr', {}, element('td', {}, nameOf(row)), element('td', {}, shareGlyph([...times], end - begin)), element('td', { className: 'text' }, text), ...slicesBetween(row, begin, end).map((cell) => element('td', { className: 'number' }, cell))));
  }
  panel.append(element('h2', {}, `${formatDuration(end - begin)} from ${formatMoment(begin)} s on`), table);
  announce(`${formatDuration(end - begin)} selected`);
}

/** How many slices of a row begin between two moments, how long one is on average, and the longest; empty where they are too many to be loaded. */
function slicesBetween(row, begin, end) {
  if (!row.loaded || (row.left_out_from !== null && end > row.left_out_from)) return ['', '', ''];
  const { begins, ends } = row.loaded;
  const [first, last] = [lowerBound(begins, begin), lowerBound(begins, end)];
  if (first === last) return ['0', '', ''];
  let [sum, longest] = [0, 0];
  for (let slice = first; slice < last; slice++) {
    sum += ends[slice] - begins[slice];
    longest = Math.max(longest, ends[slice] - begins[slice]);
  }
  return [formatCount(last - first), formatDuration(sum / (last - first)), formatDuration(longest)];
}

/** The time of each category in a row between two moments. */
function timesBetween(row, begin, end) {
  const times = new Float64Array(CATEGORIES);
  const step = end - begin;
  const source = row.loaded && (row.left_out_from === null || end <= row.left_out_from) ? { slices: row.loaded } : { level: row.levels[0] };
  if (source.slices || source.level) {
    eachColumn(source, begin, step, 0, 1, (_, shares) => times.set(shares));
  }
  return times;
}
