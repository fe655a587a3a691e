// The reports: each list of objects as a table that can be sorted, times as times, distributions and shares as pictures.

let reports = {};
let leftOutRows = [];
/** What the reports say of themselves: names, what they show, and the columns of their rows. */
let descriptions = [];

async function loadReports() {
  ({ reports, left_out: leftOutRows, descriptions } = await unpackValue('reports'));
}

/** The lists of rows at `path` and below it that a report has columns for, in its order: each path without indices. */
function describedRows(path) {
  const [, name, ...keys] = path.split('/');
  const at = keys.filter((key) => !/^\d+$/.test(key)).join('/');
  const rows = descriptions.find((report) => report.name === name)?.rows ?? [];
  return rows.map((each) => ({ ...each, path: each.path.replaceAll('[]', '').replaceAll('.', '/') })).filter((each) => each.path.startsWith(at)).map((each) => ({ ...each, below: each.path.slice(at.length) }));
}

/** The columns of the rows at `path`, as their report says them; undefined where it does not. */
const describedColumns = (path) => describedRows(path).find((rows) => rows.below === '')?.columns;

/** Rows of a table that are shown at first. */
const FIRST_ROWS = 100;
/** Parts of a task's time, by the name in the report: the category of their colour. */
const TIME_PARTS = { running: 1, interrupted: 3, runnable: 7, runnable_stolen: 8, stolen: 6, exits: 4, vmm: 5, io: 9, lock: 10, sleep: 11, waiting: 12, unknown: 0 };

/** What says which row it is stands first, in this order; what is rarely asked for last. */
const FIRST_COLUMNS = ['vm', 'layer', 'comm', 'name', 'task', 'thread', 'reason', 'state', 'detail', 'kind', 'call', 'event', 'vcpu', 'cpu', 'tid', 'pid', 'from', 'to', 'count'];
const LAST_COLUMNS = ['born', 'ended', 'own', 'parts', 'wall_ns'];
/** Moments: ticks of the trace's clock. */
const MOMENTS = new Set(['begin_ticks', 'end_ticks', 'first_ticks', 'last_ticks']);
/** Numbers that name something. */
const NAMING_NUMBERS = new Set(['tid', 'pid', 'cpu', 'vcpu', 'number', 'vector', 'irq', 'sector', 'disk']);
/** Text that is longer is broken into lines. */
const LONG_TEXT = 60;

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const isTable = (value) => Array.isArray(value) && value.length > 0 && value.every(isObject);
const isDistribution = (value) => isObject(value) && 'max_ns' in value && isObject(value.histogram);
const isTimes = (value) => isObject(value) && 'running' in value && 'runnable_stolen' in value;
const readable = (key) => key.replace(/_(ns|ticks)$/, '').replaceAll('_', ' ');

/** Pictures that are drawn again when the theme changes. */
const glyphs = [];

function glyph(width, height, label, paint) {
  const picture = element('canvas', { role: 'img', 'aria-label': label, title: label });
  const ratio = scale();
  picture.width = width * ratio;
  picture.height = height * ratio;
  picture.style.width = `${width}px`;
  picture.style.height = `${height}px`;
  const redraw = () => {
    const drawing = picture.getContext('2d');
    drawing.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawing.clearRect(0, 0, width, height);
    paint(drawing);
  };
  redraw();
  glyphs.push({ picture, redraw });
  return picture;
}

function redrawGlyphs() {
  for (let place = glyphs.length - 1; place >= 0; place--) {
    if (glyphs[place].picture.isConnected) glyphs[place].redraw();
    else glyphs.splice(place, 1);
  }
}

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

const isHistogram = (value) => isTable(value) && value.every((row) => 'below_ns' in row && 'count' in row);

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

/** The columns of a list of objects: scalars, and what becomes a picture; lists inside go below a row. */
function columnsOf(rows, path) {
  const described = describedColumns(path);
  const place = (key) => {
    if (FIRST_COLUMNS.includes(key)) return FIRST_COLUMNS.indexOf(key) - FIRST_COLUMNS.length;
    return LAST_COLUMNS.indexOf(key) + 1;
  };
  const known = new Set(rows.flatMap((row) => Object.keys(row)));
  const keys = described ? described.map((column) => column.key).filter((key) => known.has(key)) : [...known].sort((left, right) => place(left) - place(right));
  const of = (key) => described?.find((column) => column.key === key);
  const titleOf = (key) => of(key)?.heading || readable(key);
  const columns = [];
  const value = (row, key) => row[key];
  for (const key of keys) {
    const values = rows.map((row) => row[key]).filter((each) => each !== undefined && each !== null);
    if (!values.length || values.every((value) => isObject(value) && 'bins' in value)) continue;
    // The same in nanoseconds stands beside it.
    if (key.endsWith('_ticks') && keys.includes(key.replace(/_ticks$/, '_ns'))) continue;
    if (values.every(isTimes)) {
      columns.push({ title: 'where the time went', sortBy: (row) => sumOf(row[key], ['running', 'interrupted', 'runnable', 'runnable_stolen', 'stolen', 'exits', 'vmm']), cell: (row) => timesGlyph(row[key]) });
      for (const part of Object.keys(TIME_PARTS)) {
        columns.push({ title: readable(part), isNumber: true, sortBy: (row) => row[key][part], cell: (row) => (row[key][part] ? formatDuration(row[key][part]) : '') });
      }
    } else if (values.every(isDistribution)) {
      const axis = axisOf(values);
      columns.push({ title: titleOf(key), meaning: of(key)?.meaning, sortBy: (row) => row[key]?.p99_ns ?? -1, cell: (row) => (binsOf(row[key]) ? distributionGlyph(row[key], axis) : '') });
      const parts = described?.filter((column) => column.key.startsWith(`${key}.`)) ?? ['count', 'p50_ns', 'p99_ns', 'max_ns'].map((part) => ({ key: `${key}.${part}`, heading: `${readable(key)} ${readable(part)}` }));
      for (const { key: partKey, heading, meaning } of parts) {
        const part = partKey.slice(key.length + 1);
        columns.push({ title: heading, meaning, isNumber: true, sortBy: (row) => row[key]?.[part] ?? -1, cell: (row) => showValue(part, row[key]?.[part]) });
      }
    } else if (values.some(isTable)) {
      columns.push({ title: titleOf(key), meaning: of(key)?.meaning, isNumber: true, sortBy: (row) => row[key]?.length ?? 0, nested: key, cell: (row) => (row[key]?.length ? String(row[key].length) : '') });
    } else {
      const isNumber = values.every((each) => typeof each === 'number');
      const isPart = of(key)?.is_part;
      columns.push({ title: titleOf(key), meaning: of(key)?.meaning, isNumber, sortBy: (row) => value(row, key), cell: (row) => (isPart && !value(row, key) ? '-' : showValue(key, value(row, key))) });
    }
  }
  if (rows.some(isDistribution)) {
    const axis = axisOf(rows);
    // Behind what says which row it is.
    const first = columns.findIndex((column) => column.isNumber);
    columns.splice(first < 0 ? columns.length : first, 0, { title: 'distribution', sortBy: (row) => row.p99_ns ?? row.max_ns ?? -1, cell: (row) => (binsOf(row) ? distributionGlyph(row, axis) : '') });
  }
  return columns;
}

const sumOf = (object, keys) => keys.reduce((sum, key) => sum + (object[key] ?? 0), 0);
const ticksToNs = (ticks) => (ticks * 1e9) / about.frequency_hz;

function timesGlyph(times) {
  const byCategory = new Array(CATEGORIES).fill(0);
  let whole = 0;
  for (const [part, category] of Object.entries(TIME_PARTS)) {
    byCategory[category] += times[part];
    whole += times[part];
  }
  return shareGlyph(byCategory, whole || 1, 160);
}

function showValue(key, value) {
  if (value === undefined || value === null) return '';
  if (typeof value === 'number') {
    if (key.endsWith('_ns')) return formatDuration(value);
    if (MOMENTS.has(key)) return `${formatMoment(ticksToNs(value - about.begin_ticks))} s`;
    if (key.endsWith('_ticks')) return formatDuration(ticksToNs(value));
    if (NAMING_NUMBERS.has(key)) return String(value);
    return Number.isInteger(value) ? formatCount(value) : value.toFixed(3);
  }
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (typeof value === 'string') return visible(value);
  if (Array.isArray(value)) return value.map((item) => (isObject(item) ? JSON.stringify(item) : String(item))).join(', ');
  return Object.entries(value).filter(([, part]) => !isObject(part) && !Array.isArray(part)).map(([name, part]) => `${readable(name)} ${showValue(name, part)}`).join(', ');
}

/** A table of `rows`; a click on a heading sorts by it. */
function tableOf(rows, path) {
  const columns = columnsOf(rows, path);
  const table = element('table');
  const body = element('tbody');
  const places = new Map(rows.map((row) => [row, placeOf(row, path)]));
  const hasPlaces = [...places.values()].some((place) => place);
  const width = columns.length + (hasPlaces ? 1 : 0);
  let shown = FIRST_ROWS;
  let order = rows;
  const fill = () => {
    body.replaceChildren();
    for (const row of order.slice(0, shown)) {
      const cells = columns.map((column) => {
        const isNested = column.nested && row[column.nested]?.length;
        const content = isNested ? nestedButton(row, column, width, path) : column.cell(row);
        const isLong = typeof content === 'string' && content.length > LONG_TEXT;
        return element('td', { className: column.isNumber ? 'number' : isLong ? 'text' : '' }, content);
      });
      const place = places.get(row);
      const line = element('tr', {}, ...(hasPlaces ? [element('td', {}, place ? placeButton(place) : '')] : []), ...cells);
      if (place?.row) line.dataset.row = place.row.number;
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
      order = [...rows].sort((left, right) => sign * compare(column.sortBy(left), column.sortBy(right)));
      fill();
    });
    return heading;
  });
  table.append(element('thead', {}, element('tr', {}, ...(hasPlaces ? [element('th', { scope: 'col', 'aria-label': 'on the timeline' })] : []), ...headings)), body);
  fill();
  const cut = leftOutRows.find((each) => each.path === path);
  return element('div', {}, table, cut ? element('p', { className: 'faint' }, `${cut.rows} more rows are left out of this page; --json shows them.`) : null);
}

function compare(left, right) {
  if (typeof left === 'number' && typeof right === 'number') return left - right;
  return String(left ?? '').localeCompare(String(right ?? ''));
}

/** A number of rows inside of a row: a click shows them below it. */
function nestedButton(row, column, width, path) {
  const button = element('button', { type: 'button', 'aria-expanded': 'false' }, `${row[column.nested].length} ▸`);
  button.addEventListener('click', () => {
    const line = button.closest('tr');
    if (button.getAttribute('aria-expanded') === 'true') {
      line.nextElementSibling?.remove();
      button.setAttribute('aria-expanded', 'false');
      return;
    }
    button.setAttribute('aria-expanded', 'true');
    line.after(element('tr', {}, element('td', { colSpan: width }, tableOf(row[column.nested], `${path}/${column.nested}`))));
  });
  return button;
}

const hasTables = (row) => Object.values(row).some((part) => isTable(part) || isObject(part));

/** A value of a report: objects as headings with what is in them, lists of objects as tables. */
function renderValue(value, path, title, level = 2) {
  const parts = [];
  const isOfMachines = path.endsWith('/vms') || path.endsWith('/guests');
  // What has rows with columns in it is a section for each, too.
  const isList = isOfMachines || (isTable(value) && !describedColumns(path) && describedRows(path).length > 0);
  if (title && !isOfMachines) parts.push(element(`h${Math.min(level, 4)}`, {}, title));
  if (isHistogram(value)) {
    parts.push(histogramGlyph(value));
    return parts;
  }
  if (isTable(value)) {
    // A list of machines is a section for each, where there are lists in it.
    const name = (row) => row.vm ?? row.layer ?? row.name ?? 'host';
    if (isList && value.some(hasTables)) value.forEach((row, index) => parts.push(...renderValue(row, `${path}/${index}`, name(row), level)));
    else parts.push(tableOf(value, path));
    return parts;
  }
  if (isDistribution(value)) {
    parts.push(tableOf([value], path));
    return parts;
  }
  const scalars = Object.entries(value).filter(([key, part]) => key !== 'frequency_hz' && part !== title && !isObject(part) && !isTable(part) && !(Array.isArray(part) && !part.length));
  if (scalars.length) parts.push(definitions(scalars.map(([key, part]) => [readable(key), showValue(key, part)])));
  // Rows that the report has columns for come first, in its order.
  const order = describedRows(path).map((rows) => rows.below.replace(/^\//, '').split('/')[0]);
  const placeOf = ([key]) => (order.includes(key) ? order.indexOf(key) : order.length);
  for (const [key, part] of Object.entries(value).sort((left, right) => placeOf(left) - placeOf(right))) {
    if (isObject(part) || isTable(part)) parts.push(...renderValue(part, `${path}/${key}`, readable(key), level + 1));
  }
  return parts;
}

/** Shows the report called `name`. */
function renderReport(name) {
  const panel = document.getElementById('reports-panel');
  const report = reports[name];
  const parts = 'nothing' in report ? [element('p', {}, `no report: ${report.nothing}`)] : renderValue(report, `/${name}`, name);
  panel.setAttribute('aria-label', `Report: ${name}`);
  hideDistribution();
  panel.replaceChildren(...parts);
  panel.scrollTop = 0;
}
