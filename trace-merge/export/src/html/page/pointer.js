// The mouse and fingers: click selects, dragging selects a range, with shift it pans; the wheel scrolls, with ctrl it zooms.

/** A record is hit when it is this near, in pixels. */
const NEAR = 4;
const pointer = { x: null, y: null, from: null, isPanning: false, hasMoved: false };

/** The moment below the mouse; undefined when it is elsewhere. */
function pointerTime() {
  return pointer.x !== null && pointer.x > LABEL_WIDTH ? timeAt(pointer.x) : undefined;
}

const itemAt = (y) => (y < AXIS_HEIGHT ? undefined : layout.items.find((item) => yOf(item) <= y && y < yOf(item) + item.height));

async function click(x, y) {
  const bookmark = y < AXIS_HEIGHT && bookmarkAt(x);
  if (bookmark) {
    selectBookmark(bookmark);
    return;
  }
  const item = itemAt(y);
  if (!item) return;
  if (!item.row) {
    toggleGroup(item.key);
    return;
  }
  if (x < LABEL_WIDTH) {
    await selectSliceAt(item.row, view.begin);
    return;
  }
  const { row } = item;
  const time = timeAt(x);
  const nearest = nearestRecord(row.number, time);
  const near = (NEAR * view.length) / plotWidth();
  // Records are marked at the lower edge of a row.
  const isAtMarks = row.kind === 'records' || y > yOf(item) + item.height - 7;
  if (nearest && nearest.distance <= near && isAtMarks) {
    select(row, { record: nearest.number });
    return;
  }
  const slice = sliceAt(row, await loadSlices(row), time);
  if (slice >= 0) select(row, { slice });
  else if (nearest && nearest.distance <= near) select(row, { record: nearest.number });
}

/** The slice of a row at a moment, or the one beside it that is nearer than a pixel or two; -1 for none. */
function sliceAt(row, { begins, ends }, time) {
  const slice = upperBound(ends, time);
  if (slice < begins.length && begins[slice] <= time + (2 * view.length) / plotWidth()) return slice;
  return -1;
}

function showTooltip(x, y) {
  const tooltip = document.getElementById('tooltip');
  const item = pointer.from ? null : itemAt(y);
  let text = null;
  if (item?.row && x > LABEL_WIDTH && item.row.loaded) {
    const slice = sliceAt(item.row, item.row.loaded, timeAt(x));
    if (item.row.counter) text = counterTextAt(item.row, timeAt(x));
    else if (slice >= 0) {
      const { begins, ends, names } = item.row.loaded;
      text = `${about.names[names[slice]][0]} · ${formatDuration(ends[slice] - begins[slice])}`;
    }
  } else if (item?.row && x <= LABEL_WIDTH) text = item.name;
  tooltip.style.display = text ? 'block' : 'none';
  if (!text) return;
  tooltip.textContent = text;
  tooltip.style.left = `${Math.min(x + 14, canvas.clientWidth - tooltip.offsetWidth - 20)}px`;
  tooltip.style.top = `${Math.min(y + 16, canvas.clientHeight - tooltip.offsetHeight - 4)}px`;
}

/** The range from one place to another, as far as the rows and the recording go. */
function rangeBetween(...places) {
  const timeOf = (x) => timeAt(Math.max(LABEL_WIDTH, Math.min(x, LABEL_WIDTH + plotWidth())));
  return places.map((x) => Math.min(timeOf(x), about.length_ns)).sort((left, right) => left - right);
}

/** Ends what a button began: only now the details of a range are shown, which cost more than a picture. */
function endDrag() {
  const { from } = pointer;
  pointer.from = null;
  if (from?.range) select(null, { range: from.range });
}

function startPointer() {
  const scroller = document.getElementById('scroller');
  scroller.addEventListener('scroll', () => {
    view.scroll = scroller.scrollTop;
    requestDraw();
  });
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button > 1) return;
    canvas.focus();
    canvas.setPointerCapture(event.pointerId);
    Object.assign(pointer, { from: { x: event.offsetX, y: event.offsetY, begin: view.begin, scroll: view.scroll }, hasMoved: false, isPanning: event.shiftKey || event.button === 1 || event.pointerType === 'touch' });
  });
  canvas.addEventListener('pointermove', (event) => {
    [pointer.x, pointer.y] = [event.offsetX, event.offsetY];
    // A button may be let go where the page does not hear of it.
    if (event.buttons === 0) endDrag();
    const { from } = pointer;
    if (from) {
      pointer.hasMoved ||= Math.abs(pointer.x - from.x) > 3 || Math.abs(pointer.y - from.y) > 3;
      if (pointer.hasMoved && pointer.isPanning) {
        showTime(from.begin - ((pointer.x - from.x) / plotWidth()) * view.length, view.length);
        scrollRowsTo(from.scroll - (pointer.y - from.y));
      } else if (pointer.hasMoved && from.x > LABEL_WIDTH) {
        from.range = rangeBetween(from.x, pointer.x);
        mark(null, { range: from.range });
      }
    }
    showTooltip(event.offsetX, event.offsetY);
  });
  canvas.addEventListener('pointerup', (event) => {
    if (pointer.from && !pointer.hasMoved) click(event.offsetX, event.offsetY);
    endDrag();
  });
  canvas.addEventListener('pointercancel', endDrag);
  canvas.addEventListener('pointerleave', () => {
    pointer.x = null;
    document.getElementById('tooltip').style.display = 'none';
  });
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    if (event.ctrlKey) zoom(1.0015 ** event.deltaY, pointerTime());
    else if (event.shiftKey) pan(event.deltaY / 1000);
    else {
      if (event.deltaX) pan(event.deltaX / 1000);
      if (event.deltaY) scrollRowsTo(view.scroll + event.deltaY);
    }
  }, { passive: false });
  new ResizeObserver(requestDraw).observe(canvas);
}
