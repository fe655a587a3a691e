// The page's address says what is in sight: who opens it sees the same.

/** How long what is in sight must rest before the address follows, ms: browsers refuse more than some changes a second. */
const ADDRESS_RESTS = 300;
let addressTimer = 0;
let tabInSight = 'timeline';

const keyOf = (row) => `${row.group}/${row.kind}/${row.name}`;

/** What is in sight, as the part of an address behind `#`. */
function addressOfView() {
  const parts = [];
  const add = (name, value) => parts.push(`${name}=${encodeURIComponent(value)}`);
  if (view.length < about.length_ns) {
    add('from', formatMoment(view.begin));
    add('until', formatMoment(view.begin + view.length));
  }
  if (selection.row) add('row', keyOf(selection.row));
  if (rowFilter) add('rows', rowFilter);
  if (tabInSight !== 'timeline') add('tab', tabInSight);
  return parts.join('&');
}

function rememberView() {
  if (document.documentElement.dataset.loaded !== 'yes') return;
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => history.replaceState(null, '', `#${addressOfView()}`), ADDRESS_RESTS);
}

/** A moment of the page, ns, from seconds since the first record; NaN for what is not a number. */
const momentFrom = (text) => (/^\d+(\.\d+)?$/.test(text ?? '') ? Number(text) * 1e9 - about.begin_ns : NaN);

/** Shows what the address says; what it does not say stays, but for a filter of rows: that goes. */
async function followAddress() {
  const told = new Map(location.hash.slice(1).split('&').map((part) => part.split('=')).map(([name, value]) => [name, decoded(value)]));
  filterRows(told.get('rows') ?? '');
  const [from, until] = [momentFrom(told.get('from')), momentFrom(told.get('until'))];
  const row = about.rows.find((known) => keyOf(known) === told.get('row'));
  if (row) await selectSliceAt(row, from >= 0 ? from : 0);
  if (until > from) showTime(from, until - from);
  const tab = [...document.querySelectorAll('#tabs button')].find((known) => known.dataset.name === told.get('tab'));
  if (tab) openTab(tab.dataset.name);
}

function decoded(value) {
  try {
    return decodeURIComponent(value ?? '');
  } catch {
    return '';
  }
}

async function startAddress() {
  if (location.hash.length > 1) await followAddress();
  window.addEventListener('hashchange', followAddress);
}
