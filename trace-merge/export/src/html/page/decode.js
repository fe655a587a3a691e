// The contents of the page: JSON, and columns of variable-length integers that become typed arrays.

const about = JSON.parse(document.getElementById('about').textContent);

/** The bytes of a column, unpacked. */
async function unpack(id) {
  const letters = document.getElementById(id).textContent;
  let bytes;
  if (Uint8Array.fromBase64) bytes = Uint8Array.fromBase64(letters);
  else {
    const text = atob(letters);
    bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** A value that was packed as JSON. */
async function unpackValue(id) {
  return JSON.parse(new TextDecoder().decode(await unpack(id)));
}

/** Reads integers one after another. */
class Reader {
  constructor(bytes, place = 0) {
    this.bytes = bytes;
    this.place = place;
  }

  get isAtEnd() {
    return this.place >= this.bytes.length;
  }

  /** An integer: exact up to 2^53. */
  next() {
    let byte = this.bytes[this.place++];
    if (byte < 0x80) return byte;
    let number = byte & 0x7f;
    let unit = 0x80;
    do {
      byte = this.bytes[this.place++];
      number += (byte & 0x7f) * unit;
      unit *= 0x80;
    } while (byte >= 0x80);
    return number;
  }

  /** An integer of any size. */
  nextBig() {
    let number = 0n;
    let shift = 0n;
    let byte;
    do {
      byte = this.bytes[this.place++];
      number |= BigInt(byte & 0x7f) << shift;
      shift += 7n;
    } while (byte >= 0x80);
    return number;
  }

  nextSigned() {
    const number = this.nextBig();
    return number & 1n ? -(number >> 1n) - 1n : number >> 1n;
  }

  nextFloat() {
    const bytes = new DataView(this.bytes.buffer, this.bytes.byteOffset + this.place, 8);
    this.place += 8;
    return bytes.getFloat64(0, true);
  }

  nextText() {
    const length = this.next();
    const text = new TextDecoder().decode(this.bytes.subarray(this.place, this.place + length));
    this.place += length;
    return text;
  }
}

/** First index whose value in `sorted` is at least `value`. */
function lowerBound(sorted, value, from = 0, to = sorted.length) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (sorted[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** First index whose value in `sorted` is above `value`. */
function upperBound(sorted, value, from = 0, to = sorted.length) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (sorted[middle] <= value) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** A level of a row: runs of bins, each with the time of its categories. */
function readLevel(reader) {
  const width = 2 ** reader.next();
  const count = reader.next();
  const level = {
    width,
    firsts: new Float64Array(count),
    ends: new Float64Array(count),
    parts: new Uint32Array(count + 1),
    categories: null,
    times: null,
  };
  const categories = [];
  const times = [];
  let next = 0;
  for (let run = 0; run < count; run++) {
    const first = next + reader.next();
    next = first + reader.next();
    level.firsts[run] = first * width;
    level.ends[run] = next * width;
    for (let left = reader.next(); left > 0; left--) {
      categories.push(reader.next());
      times.push(reader.next());
    }
    level.parts[run + 1] = categories.length;
  }
  level.categories = Uint8Array.from(categories);
  level.times = Float64Array.from(times);
  return level;
}

/** Gives each row its levels. */
async function loadLevels() {
  const reader = new Reader(await unpack('levels'));
  for (const row of about.rows) {
    row.levels = [];
    if (row.counter) continue;
    for (let left = reader.next(); left > 0; left--) row.levels.push(readLevel(reader));
  }
}

/** What unpacks slices now: one row after another, so that pictures are drawn between them. */
let lastLoading = Promise.resolve();

/** The slices of a row: begins, ends, names and categories; null until they are unpacked, which this begins. */
function slicesOf(row) {
  if (row.loaded) return row.loaded;
  row.loading ??= lastLoading = lastLoading.then(pause).then(() => unpack(`slices-${row.number}`)).then((bytes) => {
    row.loaded = readSlices(bytes);
    document.getElementById(`slices-${row.number}`).remove();
    requestDraw();
    return row.loaded;
  });
  return null;
}

/** The same, waited for. */
async function loadSlices(row) {
  return slicesOf(row) ?? row.loading;
}

function readSlices(bytes) {
  const reader = new Reader(bytes);
  const count = reader.next();
  const [gaps, lengths, numbers] = [0, 1, 2].map(() => {
    const size = reader.next();
    const column = new Reader(bytes, reader.place);
    reader.place += size;
    return column;
  });
  const begins = new Float64Array(count);
  const ends = new Float64Array(count);
  const names = new Uint32Array(count);
  const categories = new Uint8Array(count);
  let end = 0;
  for (let slice = 0; slice < count; slice++) {
    begins[slice] = end + gaps.next();
    end = begins[slice] + lengths.next();
    ends[slice] = end;
    names[slice] = numbers.next();
    categories[slice] = about.names[names[slice]][1];
  }
  return { begins, ends, names, categories };
}
