// How times are distributed: a small histogram in its cell; the same large beside it while it has the focus or the mouse.

/** Size of the small one and of the large one, in pixels of the page. */
const SMALL = { width: 150, height: 18 };
const LARGE = { width: 560, height: 190, axis: 20, top: 14 };

/** The bins of a value that has any. */
const binsOf = (value) => (isObject(value) && isObject(value.histogram) && value.histogram.bins?.length ? value.histogram.bins : null);

/** Begin, end and count of the bin `place`. */
function binAt({ from_ns: from, bins }, place) {
  return { from: place ? bins[place - 1][0] : from, below: bins[place][0], count: bins[place][1] };
}

/** The axis that the distributions `values` share: least and most, ns. */
function axisOf(values) {
  const known = values.filter(binsOf);
  if (!known.length) return { least: 1, most: 10 };
  const least = Math.max(1, Math.min(...known.map(({ histogram }) => histogram.from_ns)));
  return { least, most: Math.max(least * 10, ...known.map(({ histogram }) => histogram.bins.at(-1)[0])) };
}

/** Where a time lies on an axis on which each power of ten is as long as the one before, from 0 to 1. */
const placeOn = ({ least, most }, ns) => Math.min(1, Math.log10(Math.max(ns, least) / least) / Math.log10(most / least));

function powersOfTen({ least, most }) {
  const powers = [];
  for (let power = Math.ceil(Math.log10(least)); 10 ** power <= most; power++) powers.push(10 ** power);
  return powers;
}

/** Marks of a distribution: quantiles where they are known, and the longest. */
function marksOf(times) {
  const marks = [];
  if (times.p50_ns !== undefined) marks.push(['half', times.p50_ns], ['99 of 100', times.p99_ns]);
  marks.push(['longest', times.max_ns]);
  return marks;
}

function summaryOf(times) {
  const marks = marksOf(times).map(([name, ns]) => (name === 'longest' ? `longest ${formatDuration(ns)}` : `${name} up to ${formatDuration(ns)}`));
  const { histogram } = times;
  const fullest = histogram.bins.reduce((best, bin, place) => (bin[1] > histogram.bins[best][1] ? place : best), 0);
  return `${formatCount(sumOfBins(histogram))} times: ${marks.join(', ')}; most often ${binText(histogram, fullest)}`;
}

const sumOfBins = ({ bins }) => bins.reduce((sum, [, count]) => sum + count, 0);

function binText(histogram, place) {
  const { from, below, count } = binAt(histogram, place);
  return `${shortDuration(from)} to ${shortDuration(below)}: ${formatCount(count)}`;
}

/** Draws the columns into an area; `chosen` is the bin that stands out, if any. */
function paintBins(drawing, { histogram, max_ns: longest }, axis, area, chosen = -1) {
  const { left, top, width, height } = area;
  const xAt = (ns) => left + placeOn(axis, ns) * width;
  drawing.fillStyle = theme.line;
  for (const power of powersOfTen(axis)) drawing.fillRect(Math.round(xAt(power)), top, 1, height);
  const most = Math.max(...histogram.bins.map((bin) => bin[1]));
  histogram.bins.forEach((_, place) => {
    const { from, below, count } = binAt(histogram, place);
    if (!count) return;
    const [begin, end] = [xAt(from), xAt(below)];
    const size = Math.max(1, (count / most) * height);
    drawing.fillStyle = place === chosen ? theme.front : theme.accent;
    drawing.fillRect(begin, top + height - size, Math.max(1, end - begin - (end - begin > 4 ? 1 : 0)), size);
  });
  drawing.fillStyle = theme.css[6];
  drawing.fillRect(Math.min(xAt(longest), left + width - 2), top, 2, height);
}

/** A small histogram on `axis`, which the focus and the mouse make large. */
function distributionGlyph(times, axis) {
  const { width, height } = SMALL;
  const area = { left: 2, top: 1, width: width - 4, height: height - 2 };
  const picture = glyph(width, height, '', (drawing) => paintBins(drawing, times, axis, area));
  picture.removeAttribute('role');
  picture.setAttribute('aria-hidden', 'true');
  const button = element('button', { type: 'button', className: 'distribution', 'aria-label': summaryOf(times), 'aria-describedby': 'distribution' }, picture);
  const binBelow = (x) => {
    const ns = axis.least * (axis.most / axis.least) ** ((x - area.left) / area.width);
    const place = times.histogram.bins.findIndex(([below]) => ns < below);
    return place < 0 ? times.histogram.bins.length - 1 : place;
  };
  let chosen = -1;
  const show = (bin) => {
    if (largeOf === button && chosen === bin) return;
    chosen = bin;
    showDistribution(button, times, axis, chosen);
  };
  button.addEventListener('focus', () => show(chosen));
  button.addEventListener('blur', hideDistribution);
  button.addEventListener('pointermove', (event) => show(binBelow(event.offsetX)));
  button.addEventListener('pointerleave', () => { if (document.activeElement !== button) hideDistribution(); });
  button.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      event.preventDefault();
      show(Math.max(0, Math.min(times.histogram.bins.length - 1, chosen < 0 && step < 0 ? times.histogram.bins.length - 1 : chosen + step)));
    } else if (event.key === 'Escape') hideDistribution();
  });
  return button;
}

/** The button whose distribution is shown large; null for none. */
let largeOf = null;

function hideDistribution() {
  largeOf = null;
  document.getElementById('distribution').hidden = true;
}

/** Shows a distribution large, beside `button`, with what the bin `chosen` holds. */
function showDistribution(button, times, axis, chosen) {
  const box = document.getElementById('distribution');
  const picture = glyph(LARGE.width, LARGE.height, '', (drawing) => paintLarge(drawing, times, axis, chosen));
  picture.setAttribute('aria-hidden', 'true');
  const holds = chosen < 0 ? 'Left and right arrow keys, or the mouse, tell what each column holds.' : `${binText(times.histogram, chosen)} of ${formatCount(sumOfBins(times.histogram))}`;
  box.replaceChildren(element('p', {}, summaryOf(times)), picture, element('p', { className: 'chosen', 'aria-live': 'polite' }, holds));
  box.hidden = false;
  largeOf = button;
  const cell = button.getBoundingClientRect();
  const [width, height] = [box.offsetWidth, box.offsetHeight];
  const below = cell.bottom + 6;
  box.style.left = `${Math.max(4, Math.min(cell.left, window.innerWidth - width - 8))}px`;
  box.style.top = `${below + height < window.innerHeight ? below : Math.max(4, cell.top - height - 6)}px`;
}

function paintLarge(drawing, times, axis, chosen) {
  const area = { left: 6, top: LARGE.top, width: LARGE.width - 12, height: LARGE.height - LARGE.axis - LARGE.top };
  paintBins(drawing, times, axis, area, chosen);
  const bottom = area.top + area.height;
  drawing.fillStyle = theme.line;
  drawing.fillRect(area.left, bottom, area.width, 1);
  drawing.font = '10px system-ui, "DejaVu Sans", sans-serif';
  drawing.textAlign = 'center';
  drawing.fillStyle = theme.faint;
  for (const power of powersOfTen(axis)) {
    const x = Math.max(area.left + 14, Math.min(area.left + placeOn(axis, power) * area.width, LARGE.width - 20));
    drawing.fillText(shortDuration(power), x, bottom + 14);
  }
  drawing.textAlign = 'left';
  for (const [name, ns] of marksOf(times).slice(0, -1)) {
    const x = area.left + placeOn(axis, ns) * area.width;
    drawing.fillStyle = theme.front;
    drawing.fillRect(x, area.top - 4, 1, area.height + 4);
    drawing.fillText(name, Math.min(x + 3, LARGE.width - 50), area.top - 4);
  }
}
