// The page's address says what is in sight: who opens it sees the same.

/** How long what is in sight must rest before the address follows, ms: browsers refuse more than some changes a second. */
const ADDRESS_RESTS = 300;
let addressTimer = 0;
let tabInSight = 'timeline';

/** Gives each row its number, and the key that an address has for it: several rows may have one name. */
function numberRows() {
  const taken = new Set();
  about.rows.forEach((row, number) => {
    const name = `${row.group}/${row.kind}/${row.name}`;
    let key = name;
    for (let count = 2; taken.has(key); count++) key = `${name}/${count}`;
    taken.add(key);
    Object.assign(row, { number, key, levels: [] });
  });
}

const keyOf = (row) => row.key;

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
  const addAll = (name, values) => { if (values.length) parts.push(`${name}=${values.map(encodeURIComponent)}`); };
  addAll('pin', [...pinnedRows].map(keyOf));
  addAll('hide', [...hiddenRows].map(keyOf));
  addAll('colour', [...hiddenCategories].map((category) => about.categories[category]));
  addAll('mark', bookmarks.map(({ time, text }) => `${formatMoment(time)} ${text}`));
  if (tabInSight !== 'timeline') add('tab', tabInSight);
  return parts.join('&');
}

function rememberView() {
  if (document.documentElement.dataset.loaded !== 'yes') return;
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => history.replaceState(null, '', `#${addressOfView()}`), ADDRESS_RESTS);
}

/** A moment of the page, ns, from seconds since the first record; NaN for what is not a number. */
const momentFrom = (text) => (/^\d+(\.\d+)?$/.test(text ?? '') ? Math.round(Number(text) * 1e9) - about.begin_ns : NaN);

/** Shows what the address says; what it does not say stays, but for the choice of rows and colours, and bookmarks. */
async function followAddress() {
  const told = new Map(location.hash.slice(1).split('&').map((part) => part.split('=')).map(([name, value]) => [name, (value ?? '').split(',').map(decoded)]));
  const first = (name) => told.get(name)?.[0];
  const rowsOf = (name) => about.rows.filter((row) => told.get(name)?.includes(keyOf(row)));
  chooseRows(rowsOf('pin'), rowsOf('hide'));
  hideCategories(about.categories.flatMap((name, category) => (told.get('colour')?.includes(name) ? [category] : [])));
  setBookmarks((told.get('mark') ?? []).flatMap(bookmarkFrom));
  filterRows(first('rows') ?? '');
  const [from, until] = [momentFrom(first('from')), momentFrom(first('until'))];
  const saysTime = until > from;
  if (saysTime) showTime(from, until - from);
  // A row is brought into sight where rows are.
  openTab('timeline');
  const row = about.rows.find((known) => keyOf(known) === first('row'));
  if (row) await selectSliceAt(row, from >= 0 ? from : 0, 1, !saysTime);
  const tab = [...document.querySelectorAll('#tabs button')].find((known) => known.dataset.name === first('tab'));
  // Its slices may have come late, when the reader was elsewhere.
  if (tab && tabInSight === 'timeline') openTab(tab.dataset.name);
}

/** The bookmark that an address tells as seconds and note, in a list; an empty one for what is none, or lies outside of the page. */
function bookmarkFrom(told) {
  const [seconds] = told.split(' ', 1);
  const time = momentFrom(seconds);
  return time >= 0 && time <= about.length_ns ? [{ time, text: told.slice(seconds.length + 1) }] : [];
}

function decoded(value) {
  try {
    return decodeURIComponent(value);
  } catch {
    return '';
  }
}

async function startAddress() {
  window.addEventListener('hashchange', followAddress);
  if (location.hash.length > 1) await followAddress();
}
