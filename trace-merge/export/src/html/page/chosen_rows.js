// Rows that the user keeps above all others, and those that the user hides.

const pinnedRows = new Set();
const hiddenRows = new Set();
const PINNED_HEADING = 'pinned';

function togglePin(row) {
  hiddenRows.delete(row);
  if (!pinnedRows.delete(row)) pinnedRows.add(row);
  makeLayout();
  showDetails();
  reveal(row);
  announce(`${row.name} is ${pinnedRows.has(row) ? 'pinned above all rows' : 'back in its group'}`);
}

function hideRow(row) {
  pinnedRows.delete(row);
  hiddenRows.add(row);
  makeLayout();
  select(null);
  announce(`${row.name} is hidden; O shows it again`);
}

/** Pins and hides these rows, and no others. */
function chooseRows(pinned, hidden) {
  pinnedRows.clear();
  hiddenRows.clear();
  pinned.forEach((row) => pinnedRows.add(row));
  hidden.forEach((row) => hiddenRows.add(row));
  makeLayout();
}

/** Opens all groups, and shows hidden rows again. */
function showAllRows() {
  collapsed.clear();
  hiddenRows.clear();
  makeLayout();
  requestDraw();
}

/** Buttons that pin a row, and hide it. */
function rowButtons(row) {
  const pin = element('button', { type: 'button', title: 'I' }, pinnedRows.has(row) ? 'Unpin this row' : 'Pin this row');
  pin.addEventListener('click', () => togglePin(row));
  const hide = element('button', { type: 'button', title: 'H' }, 'Hide this row');
  hide.addEventListener('click', () => hideRow(row));
  return element('div', {}, pin, ' ', hide);
}
