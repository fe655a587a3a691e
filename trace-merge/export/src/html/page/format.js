// How values are shown, and how elements are made. Text from the recording only ever becomes text, never HTML.
'use strict';

/** Nanoseconds in the unit in which they have one to three digits before the point; rounded down, as the reports do. */
function formatDuration(ns) {
  const whole = Math.trunc(ns);
  const [unit, name] = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs']].find(([unit]) => Math.abs(whole) >= unit) ?? [1, 'ns'];
  if (unit === 1) return `${whole} ns`;
  const thousandths = String(Math.trunc((Math.abs(whole) % unit) / (unit / 1000))).padStart(3, '0');
  return `${Math.trunc(whole / unit)}.${thousandths} ${name}`;
}

/** The same in three digits. */
function shortDuration(ns) {
  const [unit, name] = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']].find(([unit]) => ns >= unit) ?? [1, 'ns'];
  return `${Number((ns / unit).toPrecision(2))} ${name}`;
}

/** A moment of the page, ns, as `strata events` shows it: seconds since the first record. */
function formatMoment(ns) {
  const total = BigInt(Math.round(ns)) + BigInt(about.begin_ns);
  return `${total / 1000000000n}.${String(total % 1000000000n).padStart(9, '0')}`;
}

function formatCount(number) {
  return Number(number).toLocaleString('en-US').replaceAll(',', ' ');
}

/** A label of the time axis: as many digits as steps of `step` ns need. */
function formatTick(ns, step) {
  const digits = Math.max(0, Math.min(9, 9 - Math.floor(Math.log10(step))));
  return `${((ns + about.begin_ns) / 1e9).toFixed(digits)} s`;
}

/** An element with properties, and children that are elements or text. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes('-') || key === 'role') made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child !== undefined && child !== null));
  return made;
}

/** A list of names with values, those without a value left out. */
function definitions(pairs) {
  const list = element('dl');
  for (const [name, value] of pairs) {
    if (value === undefined || value === null || value === '') continue;
    list.append(element('dt', {}, name), element('dd', {}, value));
  }
  return list;
}
