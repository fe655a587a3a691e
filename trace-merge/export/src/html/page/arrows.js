// Arrows from row to row: read, and drawn while they can be told apart.

/** Arrows that are drawn at once, at most, and as many of the selected slice. */
const MOST_DRAWN_ARROWS = 120;

const arrows = { kinds: [], froms: [], fromRows: [], tos: [], toRows: [] };

async function loadArrows() {
  const reader = new Reader(await unpack('arrows'));
  let time = 0;
  while (!reader.isAtEnd) {
    arrows.kinds.push(reader.next());
    time += Number(reader.nextSigned());
    arrows.froms.push(time);
    arrows.fromRows.push(reader.next());
    arrows.tos.push(time + reader.next());
    arrows.toRows.push(reader.next());
  }
}

function drawArrows() {
  const end = view.begin + view.length;
  const found = [];
  for (let arrow = 0; arrow < arrows.froms.length; arrow++) {
    if (arrows.tos[arrow] < view.begin || arrows.froms[arrow] > end) continue;
    const [from, to] = [layout.byRow[arrows.fromRows[arrow]], layout.byRow[arrows.toRows[arrow]]];
    if (from && to && (isInSight(from) || isInSight(to))) found.push(arrow);
    if (found.length > MOST_DRAWN_ARROWS) break;
  }
  const ofSelection = new Set();
  for (const arrow of arrowsOfSelection()) {
    if (ofSelection.size >= MOST_DRAWN_ARROWS) break;
    if (layout.byRow[arrows.fromRows[arrow]] && layout.byRow[arrows.toRows[arrow]]) ofSelection.add(arrow);
  }
  if (found.length <= MOST_DRAWN_ARROWS) {
    found.filter((arrow) => !ofSelection.has(arrow)).forEach((arrow) => drawArrow(arrow, false));
  }
  ofSelection.forEach((arrow) => drawArrow(arrow, true));
}

/** The arrows that begin or end in the selected slice: looked for once, for there may be very many. */
function arrowsOfSelection() {
  if (selection.slice === null) return [];
  selection.arrows ??= arrowsIn(selection.row.number, ...selectedTime());
  return selection.arrows;
}

/** The arrows that begin or end in a row between two moments. */
function arrowsIn(number, begin, end) {
  const found = [];
  const { fromRows, froms, toRows, tos } = arrows;
  const touches = (row, time) => row === number && time >= begin && time <= end;
  for (let arrow = 0; arrow < froms.length; arrow++) {
    if (touches(fromRows[arrow], froms[arrow]) || touches(toRows[arrow], tos[arrow])) found.push(arrow);
  }
  return found;
}

function drawArrow(arrow, isStrong) {
  const [from, to] = [layout.byRow[arrows.fromRows[arrow]], layout.byRow[arrows.toRows[arrow]]];
  const [left, right] = [xOf(arrows.froms[arrow]), xOf(arrows.tos[arrow])];
  const [top, bottom] = [yOf(from) + from.height / 2, yOf(to) + to.height / 2];
  const bend = Math.max(12, Math.min(60, Math.abs(right - left) / 2));
  context.globalAlpha = isStrong ? 1 : 0.55;
  context.lineWidth = isStrong ? 2 : 1;
  context.strokeStyle = context.fillStyle = arrows.kinds[arrow] === 0 ? theme.accent : theme.isDark ? '#ffb74d' : '#a84300';
  context.beginPath();
  context.moveTo(left, top);
  context.bezierCurveTo(left + bend, top, right - bend, bottom, right, bottom);
  context.stroke();
  context.beginPath();
  context.moveTo(right, bottom);
  context.lineTo(right - 6, bottom - 3);
  context.lineTo(right - 6, bottom + 3);
  context.fill();
  context.globalAlpha = 1;
}
