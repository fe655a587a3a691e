// Bookmarks: moments with a note, drawn on the axis. The address keeps them.

/** `{ time, text }`, in the order of their times. */
let bookmarks = [];
const MOST_ROOM = 180;
const FLAG_EDGE = 4;

function setBookmarks(all) {
  bookmarks = all.sort((left, right) => left.time - right.time);
  requestDraw();
}

/** Selects the bookmark at the begin of what is selected, or in the middle of what is in sight: a new one if there is none. */
function bookmarkMoment() {
  const time = Math.round(selectedTime()?.[0] ?? view.begin + view.length / 2);
  if (!bookmarks.some((known) => known.time === time)) setBookmarks([...bookmarks, { time, text: '' }]);
  selectBookmark(bookmarks.find((known) => known.time === time));
  document.querySelector('#details input').focus();
}

function selectBookmark(bookmark) {
  revealTime(bookmark.time, bookmark.time);
  select(null, { bookmark });
}

function showBookmark(panel) {
  const { bookmark } = selection;
  const text = element('input', { type: 'text', value: bookmark.text, placeholder: 'Note', 'aria-label': 'Note', size: 50, autocomplete: 'off' });
  text.addEventListener('input', () => {
    bookmark.text = text.value;
    requestDraw();
  });
  text.addEventListener('keydown', (event) => { if (event.key === 'Escape' || event.key === 'Enter') canvas.focus(); });
  const remove = element('button', { type: 'button' }, 'Remove');
  remove.addEventListener('click', () => {
    setBookmarks(bookmarks.filter((known) => known !== bookmark));
    select(null);
    canvas.focus();
  });
  const others = bookmarks.filter((known) => known !== bookmark).map((known) => {
    const button = element('button', { type: 'button' }, `${formatMoment(known.time)} s  ${visible(known.text)}`);
    button.addEventListener('click', () => selectBookmark(known));
    return element('div', {}, button);
  });
  panel.append(
    element('h2', {}, `Bookmark at ${formatMoment(bookmark.time)} s`),
    element('div', { className: 'columns' }, element('div', {}, text, ' ', remove), element('div', {}, ...others)),
  );
  announce(`bookmark at ${formatMoment(bookmark.time)} seconds ${bookmark.text}`);
}

/** What a bookmark's flag shows, and where: left edge and width, pixels. */
function flagOf(bookmark) {
  const text = shortened(visible(bookmark.text), MOST_ROOM) || '⚑';
  return { text, left: xOf(bookmark.time), width: widthOf(text) + 2 * FLAG_EDGE };
}

function drawBookmarks() {
  context.save();
  context.beginPath();
  context.rect(LABEL_WIDTH, 0, plotWidth(), size.height);
  context.clip();
  for (const bookmark of bookmarks) {
    const { text, left, width } = flagOf(bookmark);
    context.fillStyle = theme.accent;
    context.fillRect(Math.round(left), 2, 1, size.height);
    context.fillRect(left, 2, width, AXIS_HEIGHT - 6);
    context.fillStyle = theme.back;
    context.fillText(text, left + FLAG_EDGE, AXIS_HEIGHT / 2 - 1);
  }
  context.restore();
}

/** The bookmark whose flag is at `x`. */
const bookmarkAt = (x) => bookmarks.findLast((bookmark) => {
  const { left, width } = flagOf(bookmark);
  return left <= x && x <= left + width;
});
