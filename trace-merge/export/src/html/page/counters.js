// Counters: rows whose value is drawn as an area, from bins of one width. Sums over the bins give the value of any period
// at once, so that what a picture costs does not depend on how many bins lie in a pixel.

const counterBins = about.counters;

/** The rows of counters stand behind the others in `about.rows`: columns of the page go by the place of the others. */
for (const { kind, group, name, what } of counterBins.counters) {
  about.rows.push({ kind: 'counter', group, name, counter: { kind, what, most: 0 }, slices: 0, busy: 0, left_out_from: null });
}

/** Unpacks the counters. Their bins take the place of a row's slices: the selection moves through them. */
async function loadCounters() {
  const reader = new Reader(await unpack('counters'));
  const width = 2 ** counterBins.shift;
  const all = Math.max(1, Math.ceil(about.length_ns / width));
  for (const row of about.rows.filter((each) => each.counter)) {
    const known = reader.next();
    const counts = new Float64Array(Math.max(all, known));
    const sums = new Float64Array(counts.length + 1);
    for (let bin = 0; bin < known; bin++) counts[bin] = reader.next();
    for (let bin = 0; bin < counts.length; bin++) sums[bin + 1] = sums[bin] + counts[bin];
    row.loaded = {
      begins: Float64Array.from(counts, (_, bin) => bin * width),
      // The last bin ends with the page.
      ends: Float64Array.from(counts, (_, bin) => Math.max(bin * width + 1, Math.min((bin + 1) * width, about.length_ns))),
    };
    Object.assign(row.counter, { width, counts, sums });
    row.counter.most = row.counter.kind === 'total' ? sums.at(-1) : counts.reduce((most, count, bin) => Math.max(most, rateOf(row, bin)), 0);
  }
}

const rateOf = ({ counter, loaded }, bin) => (counter.counts[bin] * 1e9) / Math.max(1, loaded.ends[bin] - loaded.begins[bin]);

/** How many there were up to a moment; within a bin they are taken to be spread evenly. */
function countUpTo({ counter, loaded }, time) {
  const bin = Math.max(0, Math.min(counter.counts.length - 1, Math.floor(time / counter.width)));
  const share = (time - loaded.begins[bin]) / (loaded.ends[bin] - loaded.begins[bin]);
  return counter.sums[bin] + counter.counts[bin] * Math.max(0, Math.min(1, share));
}

/** The value of a counter from `begin` to `end`: the mean rate, or how many there were by then. */
function counterValue(row, begin, end) {
  if (row.counter.kind === 'total') return countUpTo(row, end);
  return ((countUpTo(row, end) - countUpTo(row, begin)) * 1e9) / Math.max(1, end - begin);
}

/** The highest value of the bins that `begin` to `end` touches. */
function counterPeak(row, begin, end) {
  const { counter } = row;
  if (counter.kind === 'total') return countUpTo(row, end);
  let most = 0;
  const last = Math.min(counter.counts.length, Math.ceil(end / counter.width));
  for (let bin = Math.max(0, Math.floor(begin / counter.width)); bin < last; bin++) most = Math.max(most, rateOf(row, bin));
  return most;
}

function counterText({ counter }, value) {
  const shown = value >= 100 || Number.isInteger(value) ? formatCount(Math.round(value)) : value.toFixed(1);
  return counter.kind === 'total' ? `${shown} ${counter.what} so far` : `${shown} ${counter.what} a second`;
}

/** What a counter says below the mouse: over a pixel, or over the bin where that is longer. */
function counterTextAt(row, time) {
  const step = view.length / plotWidth();
  const { width } = row.counter;
  const begin = step > width ? time : Math.floor(time / width) * width;
  const end = Math.min(about.length_ns, begin + Math.max(step, width));
  const over = row.counter.kind === 'total' ? '' : ` · over ${formatDuration(end - begin)}`;
  return `${counterText(row, counterValue(row, begin, end))}${over}`;
}

/** Draws the mean of each column of pixels, and behind it the highest bin in it. */
function paintCounter(row, top, height) {
  if (!row.counter.most) return;
  const ratio = scale();
  const width = Math.floor(plotWidth() * ratio);
  const step = view.length / width;
  const left = Math.round(LABEL_WIDTH * ratio);
  const first = Math.max(Math.round(AXIS_HEIGHT * ratio), Math.round(top * ratio));
  const last = Math.round((top + height) * ratio);
  const bottom = Math.min(canvas.height, last);
  const full = last - Math.round(top * ratio);
  const highOf = (value) => (value > 0 ? Math.max(1, Math.round((value / row.counter.most) * full)) : 0);
  for (let x = 0; x < width; x++) {
    const begin = view.begin + x * step;
    const mean = highOf(counterValue(row, begin, begin + step));
    const peak = step > row.counter.width ? highOf(counterPeak(row, begin, begin + step)) : mean;
    for (let y = Math.max(first, last - peak), at = y * canvas.width + left + x; y < bottom; y++, at += canvas.width) {
      pixels[at] = y < last - mean ? theme.peakPixel : theme.markPixel;
    }
  }
}

/** The value that is as high as the row. */
function drawCounterScale({ row, y }) {
  if (!row.loaded) return;
  context.font = '10px system-ui, "DejaVu Sans", sans-serif';
  context.textBaseline = 'middle';
  const text = `up to ${counterText(row, row.counter.most)}`;
  const top = y - view.scroll + AXIS_HEIGHT;
  context.globalAlpha = 0.75;
  context.fillStyle = theme.back;
  context.fillRect(LABEL_WIDTH + 2, top + 1, context.measureText(text).width + 6, 12);
  context.globalAlpha = 1;
  context.fillStyle = theme.front;
  context.fillText(text, LABEL_WIDTH + 5, top + 7);
}

/** How many bins a step of the keyboard goes: so far that it is seen. */
const counterStep = (row) => Math.max(1, Math.round(view.length / 100 / row.counter.width));

/** What is selected of a counter, in words. */
function showCounter(panel) {
  const { row, slice } = selection;
  const [begin, end] = selectedTime();
  const value = counterText(row, counterValue(row, begin, end));
  panel.append(element('h2', {}, `${row.name}: ${value}`), element('div', { className: 'columns' }, definitions([
    ['row', `${row.group}, ${row.name}`],
    ['begins', `${formatMoment(begin)} s`],
    ['lasts', formatDuration(end - begin)],
    ['counted in it', formatCount(row.counter.counts[slice])],
    ['highest', counterText(row, row.counter.most)],
    ['in all', formatCount(row.counter.sums.at(-1))],
  ])));
  announce(`${row.name}: ${value}, at ${formatMoment(begin)} seconds`);
}
