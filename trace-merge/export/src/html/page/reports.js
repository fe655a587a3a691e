// The reports as the text has them: its lines, and its tables, which can be sorted; distributions and shares as pictures.

let reports = {};
/** What the reports say of themselves: names, what they show, and the columns of their rows. */
let descriptions = [];

async function loadReports() {
  ({ reports, descriptions } = await unpackValue('reports'));
}

/** Rows of a table that are shown at first. */
const FIRST_ROWS = 40;
/** Parts of a task's time, by the name in the report: the category of their colour. */
const TIME_PARTS = { running: 1, interrupted: 3, runnable: 7, runnable_stolen: 8, stolen: 6, exits: 4, vmm: 5, io: 9, lock: 10, sleep: 11, waiting: 12, unknown: 0 };
/** Text that is longer is broken into lines. */
const LONG_TEXT = 60;
/** What units are worth that cells have. */
const UNITS = { ns: 1, 'µs': 1e3, ms: 1e6, s: 1e9, '%': 1 };

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const isTable = (value) => Array.isArray(value) && value.length > 0 && value.every(isObject);
const readable = (key) => key.replace(/_(ns|ticks)$/, '').replaceAll('_', ' ');
const ticksToNs = (ticks) => (ticks * 1e9) / about.frequency_hz;

/** A picture that knows how it is drawn again. */
function glyph(width, height, label, paint) {
  const picture = element('canvas', { role: 'img', 'aria-label': label, title: label });
  const ratio = scale();
  picture.width = width * ratio;
  picture.height = height * ratio;
  picture.style.width = `${width}px`;
  picture.style.height = `${height}px`;
  picture.redraw = () => {
    const drawing = picture.getContext('2d');
    drawing.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawing.clearRect(0, 0, width, height);
    paint(drawing);
  };
  picture.redraw();
  return picture;
}

/** Draws the pictures on the page again: the theme has changed. */
const redrawGlyphs = () => document.querySelectorAll('canvas').forEach((picture) => picture.redraw?.());

/** Times of categories as a bar of `whole`. */
function shareGlyph(times, whole, width = 220) {
  const label = times.map((time, category) => [time, category]).filter(([time]) => time > 0)
    .map(([time, category]) => `${about.categories[category]} ${((100 * time) / whole).toFixed(1)} %`).join(', ');
  return glyph(width, 12, label, (drawing) => {
    let x = 0;
    for (const category of STACKED) {
      const part = (times[category] / whole) * width;
      if (!(part > 0)) continue;
      drawing.fillStyle = theme.css[category];
      drawing.fillRect(x, 0, part, 12);
      x += part;
    }
  });
}

/** How many times lie below each border and above the one before it, as columns. */
function histogramGlyph(rows, height = 120) {
  const columnWidth = 46;
  const most = Math.max(...rows.map((row) => row.count), 1);
  const label = rows.filter((row) => row.count).map((row) => `${row.count} below ${formatDuration(row.below_ns)}`).join(', ');
  return glyph(rows.length * columnWidth, height + 30, label, (drawing) => {
    drawing.font = '10px system-ui, "DejaVu Sans", sans-serif';
    drawing.textAlign = 'center';
    rows.forEach((row, column) => {
      const x = column * columnWidth;
      const size = Math.round((row.count / most) * height);
      drawing.fillStyle = theme.accent;
      drawing.fillRect(x + 2, height + 12 - size, columnWidth - 4, size);
      drawing.fillStyle = theme.front;
      if (row.count) drawing.fillText(String(row.count), x + columnWidth / 2, height + 9 - size);
      drawing.fillStyle = theme.faint;
      drawing.fillText(`< ${shortDuration(row.below_ns)}`, x + columnWidth / 2, height + 25);
    });
  });
}

/** A cell as rows are ordered by it: a number, or else text; null for nothing. */
function orderOf(cell) {
  if (cell === undefined || cell === '' || cell === '-') return null;
  const [, number, unit] = /^(-?[\d.]+)(?: (\S+))?$/.exec(cell) ?? [];
  if (number !== undefined && !Number.isNaN(Number(number)) && (unit === undefined || unit in UNITS)) return Number(number) * (UNITS[unit] ?? 1);
  return /^0x[0-9a-f]+$/.test(cell) ? Number(cell) : cell;
}

function compare(left, right) {
  if (typeof left === 'number' && typeof right === 'number') return left - right;
  return String(left ?? '').localeCompare(String(right ?? ''));
}

/** The shares of a task's times as a bar. */
function timesGlyph(times) {
  const byCategory = new Array(CATEGORIES).fill(0);
  let whole = 0;
  for (const [part, category] of Object.entries(TIME_PARTS)) {
    byCategory[category] += times[part];
    whole += times[part];
  }
  return shareGlyph(byCategory, whole || 1, 140);
}

/** The columns of a table, and a picture in front of those that come from one distribution, or from shares of a time. */
function columnsOf({ columns, data }) {
  const shown = columns.map(({ text, key, meaning, is_number: isNumber }, place) => ({
    title: text, key, meaning, isNumber, sortBy: ({ cells }) => orderOf(cells[place]), cell: ({ cells }) => cells[place] ?? '',
  }));
  const known = data.filter(isObject);
  const put = (isBefore, column) => {
    const place = shown.findIndex(isBefore);
    shown.splice(place < 0 ? shown.length : place, 0, column);
  };
  const firstOf = (key) => (column) => column.key?.startsWith(`${key}.`);
  if (known.some((row) => row.times)) {
    put(firstOf('times'), { title: 'where the time went', sortBy: ({ data }) => sumOf(data?.times ?? {}, ['running', 'interrupted', 'runnable', 'runnable_stolen', 'stolen', 'exits', 'vmm']), cell: ({ data }) => (data?.times ? timesGlyph(data.times) : '') });
  }
  const distribution = (title, of, isBefore) => {
    if (!known.some((row) => binsOf(of(row)))) return;
    const axis = axisOf(known.map(of));
    put(isBefore, { title, sortBy: ({ data }) => (data && (of(data)?.p99_ns ?? of(data)?.max_ns)) ?? null, cell: ({ data }) => (data && binsOf(of(data)) ? distributionGlyph(of(data), axis) : '') });
  };
  distribution('distribution', (row) => row, (column) => column.key === 'count');
  const keys = new Set(known.flatMap((row) => Object.keys(row).filter((key) => isObject(row[key]) && 'histogram' in row[key])));
  for (const key of keys) distribution(keys.size > 1 ? key : 'distribution', (row) => row[key], firstOf(key));
  return shown;
}

const sumOf = (object, keys) => keys.reduce((sum, key) => sum + (object[key] ?? 0), 0);

/** The key of the rows inside of a row, where there are several; undefined for none. */
const insideOf = (row) => Object.keys(row ?? {}).find((key) => isTable(row[key]) && row[key].length > 1);

/** What is inside of a row as a table of its own: the columns that the report called `name` has for it. */
function tableInside(rows, key, name) {
  const described = descriptions.find((report) => report.name === name)?.rows.find((each) => each.path.endsWith(`.${key}[]`))?.columns ?? [];
  const has = (part) => rows.some((row) => row[part] !== undefined && row[part] !== null);
  const columns = described.filter(({ key: part, unit }) => part && !part.includes('.') && unit !== 'histogram' && unit !== 'ticks' && has(part));
  const cell = (value, unit) => {
    if (value === undefined || value === null) return '-';
    return unit === 'ns' ? formatDuration(value) : visible(String(value));
  };
  return {
    columns: columns.map(({ key: part, heading, unit, meaning }) => ({ text: heading || readable(part) || 'time', key: part, meaning, is_number: ['ns', 'count', 'number'].includes(unit) })),
    rows: rows.map((row) => columns.map(({ key: part, unit }) => cell(row[part], unit))),
    data: rows.map((row) => ({ ...row })),
  };
}

/** A table of a report; a click on a heading sorts by it. Rows that are sums stay below the others. */
function tableOf(shownTable, machine, name) {
  const columns = columnsOf(shownTable);
  const table = element('table');
  const body = element('tbody');
  const rows = shownTable.rows.map((cells, number) => {
    const data = shownTable.data[number];
    return { cells, data, place: data && placeOf(data, machine), inside: insideOf(data) };
  });
  const hasPlaces = rows.some((row) => row.place);
  const hasInside = rows.some((row) => row.inside);
  const isSum = (row) => !row.data && rows[0].data;
  const width = columns.length + Number(hasPlaces) + Number(hasInside);
  let shown = FIRST_ROWS;
  let order = rows;
  const fill = () => {
    body.replaceChildren();
    for (const row of order.slice(0, shown)) {
      const cells = columns.map((column) => {
        const content = column.cell(row);
        const isLong = typeof content === 'string' && content.length > LONG_TEXT;
        return element('td', { className: column.isNumber ? 'number' : isLong ? 'text' : '' }, content);
      });
      const inside = hasInside ? element('td', {}, row.inside ? insideButton(row, width, machine, name) : '') : null;
      const line = element('tr', { className: isSum(row) ? 'sum' : '' }, hasPlaces ? element('td', {}, row.place ? placeButton(row.place) : '') : null, ...cells, inside);
      if (row.place?.row) line.dataset.row = row.place.row.number;
      body.append(line);
    }
    if (order.length > shown) {
      const more = element('button', { type: 'button', className: 'more' }, `show ${order.length - shown} more`);
      more.addEventListener('click', () => { shown = order.length; fill(); });
      body.append(element('tr', {}, element('td', { colSpan: width }, more)));
    }
  };
  const headings = columns.map((column) => {
    const button = element('button', { type: 'button', title: column.meaning ?? '' }, column.title);
    const heading = element('th', { scope: 'col', className: column.isNumber ? 'number' : '' }, button);
    button.addEventListener('click', () => {
      const ascending = heading.getAttribute('aria-sort') === 'descending' || (!column.isNumber && !heading.hasAttribute('aria-sort') && typeof column.sortBy(rows[0]) === 'string');
      headings.forEach((other) => other.removeAttribute('aria-sort'));
      heading.setAttribute('aria-sort', ascending ? 'ascending' : 'descending');
      const sign = ascending ? 1 : -1;
      // What has no value is last in both orders.
      const isLast = (row) => Number(Boolean(isSum(row))) * 2 + Number(column.sortBy(row) === null);
      order = [...rows].sort((left, right) => isLast(left) - isLast(right) || sign * compare(column.sortBy(left), column.sortBy(right)));
      fill();
    });
    return heading;
  });
  const unseen = (label) => element('th', { scope: 'col', 'aria-label': label });
  table.append(element('thead', {}, element('tr', {}, hasPlaces ? unseen('on the timeline') : null, ...headings, hasInside ? unseen('in detail') : null)), body);
  fill();
  return element('div', { className: 'table' }, table);
}

/** Shows the rows inside of a row below it. */
function insideButton(row, width, machine, name) {
  const { data, inside } = row;
  const label = `${data[inside].length} ${readable(inside)}`;
  const button = element('button', { type: 'button', className: 'inside', 'aria-expanded': 'false', 'aria-label': label, title: label }, '▸');
  button.addEventListener('click', () => {
    const line = button.closest('tr');
    const isOpen = button.getAttribute('aria-expanded') === 'true';
    if (isOpen) line.nextElementSibling?.remove();
    else line.after(element('tr', {}, element('td', { colSpan: width }, tableOf(tableInside(data[inside], inside, name), machine, name))));
    button.setAttribute('aria-expanded', String(!isOpen));
    button.textContent = isOpen ? '▸' : '▾';
  });
  return button;
}

/** The machine that a line is about; `known` if it names none. */
const machineIn = (line, known) => [...about.vms].find((vm) => line.startsWith(`${visible(vm)}: `)) ?? (line.startsWith('host: ') ? null : known);

/** The paragraphs of a report: each a list of blocks. */
function paragraphsOf(blocks) {
  const paragraphs = [[]];
  for (const block of blocks) {
    if (block.line === '') paragraphs.push([]);
    else paragraphs.at(-1).push(block);
  }
  return paragraphs.filter((paragraph) => paragraph.length);
}

/** A paragraph: its first line is the title of the tables in it, or of the place that it is about. */
function renderParagraph(blocks, name, machine) {
  const parts = [];
  let place = null;
  let of = machine;
  let text = null;
  const hasTitle = blocks.some((block) => !('line' in block)) && ('line' in blocks[0] || 'place' in blocks[0]);
  for (const block of blocks) {
    if ('place' in block) {
      place = placeOf(block.place, of);
      continue;
    }
    if ('line' in block) {
      of = machineIn(block.line, of);
      const isTitle = hasTitle && !parts.length;
      if (isTitle) parts.push(element('h2', {}, block.line, place ? placeButton(place) : null));
      else if (text) text.textContent += `\n${block.line}`;
      else parts.push(text = element('pre', {}, block.line));
      continue;
    }
    text = null;
    if ('table' in block) parts.push(tableOf(block.table, of, name));
    else if (block.histogram.length) parts.push(histogramGlyph(block.histogram));
  }
  return { parts, machine: of };
}

/** Puts `parts` where the last report was. */
function fillReports(label, parts) {
  const panel = document.getElementById('reports-panel');
  flameSizes.disconnect();
  hideDistribution();
  panel.setAttribute('aria-label', label);
  panel.replaceChildren(...parts);
  panel.scrollTop = 0;
}

/** Shows the report called `name`. */
function renderReport(name) {
  const report = reports[name];
  const parts = [];
  if ('nothing' in report) parts.push(element('p', {}, `no report: ${visible(report.nothing)}`));
  let machine = null;
  for (const paragraph of paragraphsOf(report.blocks ?? [])) {
    const rendered = renderParagraph(paragraph, name, machine);
    ({ machine } = rendered);
    parts.push(...rendered.parts);
  }
  fillReports(`Report: ${name}`, parts);
}
