// The records: decoded in pieces after the first picture, so that the page answers meanwhile.

const records = {
  count: 0,
  /** Fulfilled when they are decoded; null before that begins. */
  loading: null,
  times: null,
  kinds: null,
  whos: null,
  /** Where the fields of each record begin in `bytes`. */
  places: null,
  bytes: null,
  /** By row: numbers of its records, in time order. Those of a guest's task are in its row, too. */
  byRow: [],
};
/** Records that are decoded without a pause. */
const RECORDS_AT_ONCE = 100000;

const pause = () => new Promise((resolve) => setTimeout(resolve));

async function loadRecords() {
  const [times, kinds, whos, fields] =
    await Promise.all(['record-times', 'record-kinds', 'record-whos', 'record-fields'].map(unpack));
  const count = about.records.kept;
  records.times = new Float64Array(count);
  records.kinds = new Uint16Array(count);
  records.whos = new Uint32Array(count);
  records.places = new Uint32Array(count);
  records.bytes = fields;
  const readers = [times, kinds, whos, fields].map((bytes) => new Reader(bytes));
  const perRow = new Uint32Array(about.rows.length);
  const rowOfWho = new Int32Array(about.records.whos.length).fill(-1);
  for (const [who, row] of about.records.rows_of_whos) rowOfWho[who] = row;
  let time = 0;
  for (let number = 0; number < count; number++) {
    time += readers[0].next();
    records.times[number] = time;
    records.kinds[number] = readers[1].next();
    records.whos[number] = readers[2].next();
    const length = readers[3].next();
    records.places[number] = readers[3].place;
    readers[3].place += length;
    perRow[rowOfRecord(number)]++;
    if (rowOfWho[records.whos[number]] >= 0) perRow[rowOfWho[records.whos[number]]]++;
    if (number % RECORDS_AT_ONCE === RECORDS_AT_ONCE - 1) await pause();
  }
  records.byRow = Array.from(perRow, (size) => new Uint32Array(size));
  const filled = new Uint32Array(about.rows.length);
  for (let number = 0; number < count; number++) {
    for (const row of [rowOfRecord(number), rowOfWho[records.whos[number]]]) if (row >= 0) records.byRow[row][filled[row]++] = number;
  }
  records.timesByRow = records.byRow.map((numbers) => Float64Array.from(numbers, (number) => records.times[number]));
  records.count = count;
  for (const id of ['record-times', 'record-kinds', 'record-whos', 'record-fields']) document.getElementById(id).remove();
  requestDraw();
}

const typeOf = (number) => about.records.types[about.records.kinds[records.kinds[number]][0]];
/** The row that shows all that its stream recorded. */
const rowOfRecord = (number) => about.records.kinds[records.kinds[number]][1];

function readField(reader, form) {
  switch (form) {
    case 'u': return reader.nextBig();
    case 'i': return reader.nextSigned();
    case 'f': return reader.nextFloat();
    case 't': return reader.nextText();
    default: {
      const values = [];
      for (let left = reader.next(); left > 0; left--) values.push(readField(reader, form.toLowerCase()));
      return values;
    }
  }
}

function showField(value, hex) {
  if (Array.isArray(value)) return `[${value.map((item) => showField(item, hex)).join(', ')}]`;
  if (typeof value === 'string') return `"${visible(value)}"`;
  return hex ? `0x${value.toString(16)}` : String(value);
}

/** `text` with what acts instead of being shown in hexadecimal. */
function visible(text) {
  return text.replace(/[\p{Cc}\p{Bidi_Control}\u2028\u2029]/gu, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
}

/** Names and values of a record's fields, as shown. */
function fieldsOf(number) {
  const type = typeOf(number);
  const reader = new Reader(records.bytes, records.places[number]);
  return type.fields.map((field, place) => {
    const value = readField(reader, field.form);
    const meaning = place === type.meant ? type.meanings?.[String(value)] : undefined;
    return [field.name, showField(value, field.hex) + (meaning ? ` (${meaning})` : '')];
  });
}

/** The record of a row that is nearest to a moment, and how far it is, ns; null when the row has none. */
function nearestRecord(row, time) {
  const times = records.timesByRow?.[row];
  if (!times?.length) return null;
  const after = lowerBound(times, time);
  const place = after === 0 || (after < times.length && times[after] - time < time - times[after - 1]) ? after : after - 1;
  return { number: records.byRow[row][place], place, distance: Math.abs(times[place] - time) };
}
