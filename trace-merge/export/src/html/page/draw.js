// Draws the timeline. Rows go into a picture's memory pixel by pixel, each column of pixels shared out among categories by
// the time that they take in it: what that costs depends on the pixels, not on the slices.

const canvas = document.getElementById('canvas');
const context = canvas.getContext('2d', { alpha: false });
/** Slices that get a text in a row, at most. */
const MOST_TEXTS = 400;
const MOST_READ_FOR_TEXTS = 6000;
const CATEGORIES = about.categories.length;
/** Time of each category in the column at hand. */
const shares = new Float64Array(CATEGORIES);
/** From below to above in a column: what runs, what keeps from running, what waits. */
const STACKED = [1, 15, 2, 3, 4, 5, 6, 16, 8, 7, 14, 9, 10, 12, 11, 13, 0];
/** Categories that a column shows with a pixel, however short they are. */
const NEVER_HIDDEN = new Set([0, 6, 8]);

let picture = null;
let pixels = null;
let isDrawRequested = false;

/** How long drawing took, ms: the last times. */
const drawTimes = [];

function requestDraw() {
  if (isDrawRequested) return;
  isDrawRequested = true;
  requestAnimationFrame(() => {
    isDrawRequested = false;
    const begin = performance.now();
    draw();
    rememberView();
    drawTimes.push(performance.now() - begin);
    if (drawTimes.length > 120) drawTimes.shift();
  });
}

/** The canvas's size in pixels of the page, as it was when it was drawn last: asking for it costs more than drawing. */
const size = { width: canvas.clientWidth, height: canvas.clientHeight };

const scale = () => window.devicePixelRatio || 1;
const plotWidth = () => size.width - LABEL_WIDTH - SCROLLBAR_WIDTH;
/** Where a moment is, in pixels of the page from the canvas's left. */
const xOf = (time) => LABEL_WIDTH + ((time - view.begin) / view.length) * plotWidth();
const timeAt = (x) => view.begin + ((x - LABEL_WIDTH) / plotWidth()) * view.length;
const yOf = (item) => item.y - view.scroll + AXIS_HEIGHT;

function fitCanvas() {
  Object.assign(size, { width: canvas.clientWidth, height: canvas.clientHeight });
  const [width, height] = [size.width, size.height].map((length) => Math.max(1, Math.round(length * scale())));
  if (picture && canvas.width === width && canvas.height === height) return;
  canvas.width = width;
  canvas.height = height;
  picture = context.createImageData(width, height);
  pixels = new Uint32Array(picture.data.buffer);
}

/** What a row is drawn from at `step` ns a pixel: its slices, or one of its levels. */
function sourceOf(row, step) {
  const finest = row.levels[0];
  if (!finest) return null;
  const wantsSlices = step < finest.width || row.slices <= MOST_READ_FOR_TEXTS;
  const isKept = row.left_out_from === null || view.begin + view.length <= row.left_out_from;
  if (wantsSlices && isKept) {
    const slices = slicesOf(row);
    if (slices) return { slices };
  }
  let level = finest;
  for (const coarser of row.levels) if (coarser.width <= step) level = coarser;
  return { level };
}

/** Calls `column(x, shares, sum)` for the columns from `from` up to `to`, where anything is. */
function eachColumn(source, begin, step, from, to, column) {
  const { level, slices } = source;
  const begins = level ? level.firsts : slices.begins;
  const ends = level ? level.ends : slices.ends;
  let place = upperBound(ends, begin + from * step);
  for (let x = from; x < to && place < ends.length; x++) {
    const left = begin + x * step;
    const right = left + step;
    if (begins[place] >= right) {
      // Nothing up to the next one.
      const next = Math.floor((begins[place] - begin) / step);
      x = Math.max(x, Math.min(next, to) - 1);
      continue;
    }
    shares.fill(0);
    let sum = 0;
    for (; place < ends.length && begins[place] < right; place++) {
      const time = Math.min(right, ends[place]) - Math.max(left, begins[place]);
      if (level) {
        for (let part = level.parts[place]; part < level.parts[place + 1]; part++) {
          const share = (time * level.times[part]) / level.width;
          shares[level.categories[part]] += share;
          sum += share;
        }
      } else {
        shares[slices.categories[place]] += time;
        sum += time;
      }
      if (ends[place] > right) break;
    }
    column(x, shares, sum);
  }
}

function paintRow(row, top, height) {
  const ratio = scale();
  const width = Math.floor(plotWidth() * ratio);
  const step = view.length / width;
  const source = sourceOf(row, step);
  if (!source) return;
  const left = Math.round(LABEL_WIDTH * ratio);
  const first = Math.max(Math.round(AXIS_HEIGHT * ratio), Math.round(top * ratio));
  const bottom = Math.min(canvas.height, Math.round((top + height) * ratio));
  const full = Math.round((top + height) * ratio) - Math.round(top * ratio);
  const stride = canvas.width;
  const last = Math.round((top + height) * ratio);
  eachColumn(source, view.begin, step, 0, width, (x, shares, sum) => {
    let done = 0;
    let from = last;
    const whole = Math.min(full, Math.max(1, Math.round((sum / step) * full)));
    for (const category of STACKED) {
      if (shares[category] === 0) continue;
      done += shares[category];
      let to = last - Math.round((done / sum) * whole);
      if (to === from && NEVER_HIDDEN.has(category)) to = Math.max(last - whole, from - 1);
      paintColumn(left + x, Math.max(to, first), Math.min(from, bottom), category, stride);
      from = Math.min(from, to);
    }
  });
}

function paintColumn(x, top, bottom, category, stride) {
  const isHidden = hiddenCategories.has(category);
  if (category === NOT_RECORDED && !isHidden) {
    hatchColumn(x, top, bottom, stride);
    return;
  }
  const colour = isHidden ? theme.backPixel : theme.colours[category];
  for (let y = top, place = top * stride + x; y < bottom; y++, place += stride) pixels[place] = colour;
}

function hatchColumn(x, top, bottom, stride) {
  for (let y = top, place = top * stride + x; y < bottom; y++, place += stride) {
    pixels[place] = (x + y) % 8 < 3 ? theme.colours[NOT_RECORDED] : theme.hatchPixel;
  }
}

function draw() {
  fitCanvas();
  pixels.fill(theme.backPixel);
  const { height } = size;
  const inSight = layout.items.filter((item) => yOf(item) < height && yOf(item) + item.height > AXIS_HEIGHT);
  for (const item of inSight) {
    if (!item.row) continue;
    if (item.row.counter) {
      paintCounter(item.row, yOf(item), item.height);
      continue;
    }
    paintRow(item.row, yOf(item), item.height);
    if (item.row.kind === 'records') paintLeftOut(yOf(item), item.height);
    paintRecords(item.row, yOf(item), item.height);
  }
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.putImageData(picture, 0, 0);
  context.setTransform(scale(), 0, 0, scale(), 0, 0);
  context.save();
  context.beginPath();
  context.rect(LABEL_WIDTH, AXIS_HEIGHT, plotWidth(), height - AXIS_HEIGHT);
  context.clip();
  for (const item of inSight) {
    if (!item.row) continue;
    if (item.row.counter) {
      drawCounterScale(item);
      continue;
    }
    drawTexts(item);
    drawEventNames(item);
  }
  drawSelection();
  drawArrows();
  context.restore();
  drawLabels(inSight);
  drawAxis();
}

/** The slices of a row that are in sight: first and end; null where they are too many, or not there. */
function slicesInSight(row) {
  const slices = row.loaded;
  if (!slices) return null;
  const first = upperBound(slices.ends, view.begin);
  const end = lowerBound(slices.begins, view.begin + view.length);
  return end - first > MOST_READ_FOR_TEXTS ? null : [first, end];
}

function drawTexts({ row, y, height }) {
  const range = slicesInSight(row);
  if (!range || height < 14) return;
  const { begins, ends, names, categories } = row.loaded;
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.textBaseline = 'middle';
  let texts = 0;
  const shortest = (3 * view.length) / plotWidth();
  for (let slice = range[0]; slice < range[1] && texts < MOST_TEXTS; slice++) {
    if (ends[slice] - begins[slice] < shortest || hiddenCategories.has(categories[slice])) continue;
    const left = Math.max(xOf(begins[slice]), LABEL_WIDTH);
    const right = Math.min(xOf(ends[slice]), LABEL_WIDTH + plotWidth());
    if (right - left < 3) continue;
    // A border between slices of one colour.
    context.fillStyle = theme.back;
    context.fillRect(right - 0.5, y - view.scroll + AXIS_HEIGHT, 0.5, height);
    if (right - left < 30) continue;
    texts++;
    const text = shortened(about.names[names[slice]][0], right - left - 8);
    const middle = y - view.scroll + AXIS_HEIGHT + height / 2 + 0.5;
    if (categories[slice] === NOT_RECORDED && text) {
      context.fillStyle = theme.isDark ? '#2b3137' : '#eceff2';
      context.fillRect(left + 2, middle - 7, context.measureText(text).width + 4, 13);
    }
    context.fillStyle = categories[slice] === NOT_RECORDED ? theme.front : theme.text[categories[slice]];
    context.fillText(text, left + 4, middle);
  }
}

const textWidths = new Map();
/** How wide a text is in the font at hand. */
function widthOf(text) {
  const key = `${context.font}\n${text}`;
  if (!textWidths.has(key)) textWidths.set(key, context.measureText(text).width);
  return textWidths.get(key);
}

/** As much of a text as there is room for. */
function shortened(text, room) {
  if (widthOf(text) <= room) return text;
  const letters = Math.floor((text.length * room) / widthOf(text)) - 1;
  return letters < 3 ? '' : `${text.slice(0, letters)}…`;
}

/** Hatches a row of records from where they are left out of the page: there may be some. */
function paintLeftOut(top, height) {
  const { left_out_from: from } = about.records;
  if (from === null || view.begin + view.length <= from) return;
  const ratio = scale();
  const left = Math.round(Math.max(LABEL_WIDTH, xOf(from)) * ratio);
  const right = Math.round((LABEL_WIDTH + plotWidth()) * ratio);
  const first = Math.max(Math.round(AXIS_HEIGHT * ratio), Math.round(top * ratio));
  const last = Math.min(canvas.height, Math.round((top + height) * ratio));
  for (let x = left; x < right; x++) hatchColumn(x, first, last, canvas.width);
}

/** Marks the records of a row: a line each, or, where there are many, a dot where there are any. */
function paintRecords(row, top, height) {
  const times = records.timesByRow?.[row.number];
  if (!times?.length) return;
  const ratio = scale();
  const width = Math.floor(plotWidth() * ratio);
  const step = view.length / width;
  const first = lowerBound(times, view.begin);
  const end = upperBound(times, view.begin + view.length);
  const areMany = end - first > width / 3;
  const isOnlyRecords = row.kind === 'records';
  const last = Math.min(canvas.height, Math.round((top + height) * ratio));
  const marked = Math.round((isOnlyRecords ? height - 2 : areMany ? 1 : 5) * ratio);
  const from = Math.max(Math.round(AXIS_HEIGHT * ratio), Math.round((top + height) * ratio) - marked);
  const colour = isOnlyRecords ? theme.markPixel : areMany ? theme.dotPixel : theme.frontPixel;
  const left = Math.round(LABEL_WIDTH * ratio);
  for (let place = first; place < end;) {
    const x = Math.min(width - 1, Math.floor((times[place] - view.begin) / step));
    for (let y = from, at = from * canvas.width + left + x; y < last; y++, at += canvas.width) pixels[at] = colour;
    place = areMany ? lowerBound(times, view.begin + (x + 1) * step, place + 1, end) : place + 1;
  }
}

function drawLeftOutText(y, height) {
  const { left_out_from: from } = about.records;
  if (from === null || view.begin + view.length <= from) return;
  const text = 'left out of this page';
  const left = Math.max(LABEL_WIDTH, xOf(from));
  if (LABEL_WIDTH + plotWidth() - left < 140) return;
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.textBaseline = 'middle';
  const middle = y - view.scroll + AXIS_HEIGHT + height / 2;
  context.fillStyle = theme.back;
  context.fillRect(left + 4, middle - 6, context.measureText(text).width + 4, 12);
  context.fillStyle = theme.front;
  context.fillText(text, left + 6, middle);
}

/** The names of events in a row that has nothing but them. */
function drawEventNames({ row, y, height }) {
  const times = records.timesByRow?.[row.number];
  if (row.kind !== 'records') return;
  drawLeftOutText(y, height);
  if (!times?.length) return;
  const first = lowerBound(times, view.begin);
  const end = upperBound(times, view.begin + view.length);
  if (end - first > MOST_TEXTS) return;
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.textBaseline = 'middle';
  context.fillStyle = theme.front;
  for (let place = first; place < end; place++) {
    const x = xOf(times[place]);
    const next = place + 1 < end ? times[place + 1] : (about.records.left_out_from ?? view.begin + view.length);
    const room = Math.min(xOf(next), LABEL_WIDTH + plotWidth()) - x - 6;
    if (room <= 30) continue;
    const name = typeOf(records.byRow[row.number][place]).name;
    context.fillText(shortened(name, room), x + 4, y - view.scroll + AXIS_HEIGHT + height / 2);
  }
}

function drawSelection() {
  const time = selectedTime();
  if (!time || selection.bookmark) return;
  const [left, right] = time.map(xOf);
  if (selection.range) {
    context.fillStyle = theme.accent;
    context.globalAlpha = 0.16;
    context.fillRect(left, AXIS_HEIGHT, right - left, size.height);
    context.globalAlpha = 1;
    return;
  }
  const item = layout.byRow[selection.row.number];
  if (!item) return;
  context.strokeStyle = theme.front;
  context.lineWidth = 2;
  if (selection.record !== null) {
    const x = Math.round(left) + 0.5;
    context.strokeStyle = theme.accent;
    context.beginPath();
    context.moveTo(x, yOf(item));
    context.lineTo(x, yOf(item) + item.height);
    context.stroke();
    context.fillStyle = theme.accent;
    context.beginPath();
    context.moveTo(x - 5, yOf(item));
    context.lineTo(x + 5, yOf(item));
    context.lineTo(x, yOf(item) + 6);
    context.fill();
    return;
  }
  context.strokeRect(left - 1, yOf(item) - 1, Math.max(right - left, 2) + 2, item.height + 2);
}

const isInSight = (item) => yOf(item) < size.height && yOf(item) + item.height > AXIS_HEIGHT;

function drawLabels(items) {
  context.fillStyle = theme.panel;
  context.fillRect(0, AXIS_HEIGHT, LABEL_WIDTH - 1, size.height);
  context.textBaseline = 'middle';
  for (const item of items) {
    const y = yOf(item);
    if (item.heading && !item.row) {
      context.fillStyle = theme.panel;
      context.fillRect(0, Math.max(y, AXIS_HEIGHT), size.width, Math.min(HEADING_HEIGHT, y + HEADING_HEIGHT - AXIS_HEIGHT));
      context.fillStyle = theme.front;
      context.font = '600 12px system-ui, "DejaVu Sans", sans-serif';
      const closed = collapsed.has(item.key);
      context.fillText(`${closed ? '▸' : '▾'} ${item.heading}${closed ? ` (${item.rows})` : ''}`, 8, y + HEADING_HEIGHT / 2);
      continue;
    }
    const isSelected = selection.row === item.row;
    context.fillStyle = isSelected ? theme.accent : theme.front;
    context.font = `${isSelected ? '600 ' : ''}12px system-ui, "DejaVu Sans", sans-serif`;
    context.fillText(shortened(item.name, LABEL_WIDTH - 26), 18, y + item.height / 2);
  }
  context.fillStyle = theme.line;
  context.fillRect(LABEL_WIDTH - 1, 0, 1, size.height);
}

function drawAxis() {
  context.fillStyle = theme.back;
  context.fillRect(0, 0, size.width, AXIS_HEIGHT);
  context.fillStyle = theme.line;
  context.fillRect(0, AXIS_HEIGHT - 1, size.width, 1);
  const step = tickStep(view.length / Math.max(2, plotWidth() / 130));
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.textBaseline = 'middle';
  const offset = about.begin_ns;
  for (let tick = Math.ceil((view.begin + offset) / step) * step - offset; tick <= view.begin + view.length; tick += step) {
    const x = Math.round(xOf(tick));
    context.fillStyle = theme.line;
    context.fillRect(x, AXIS_HEIGHT - 7, 1, 6);
    context.fillStyle = theme.faint;
    context.fillText(formatTick(tick, step), x + 4, AXIS_HEIGHT / 2);
  }
  context.fillStyle = theme.faint;
  context.fillText(`${formatDuration(view.length)} in sight`, 8, AXIS_HEIGHT / 2);
  drawBookmarks();
}

/** The next larger of 1, 2 and 5 times a power of ten. */
function tickStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least);
}
