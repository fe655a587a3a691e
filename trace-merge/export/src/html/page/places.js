// From a row of a report to the timeline, and back.

const rowCalled = (kind, group, name) => about.rows.find((row) => row.kind === kind && row.group === group && row.name === name);

/** The CPU that an interrupt took the most time of. */
const busiest = (cpus) => cpus.reduce((best, each) => (best && best.total_ns >= each.total_ns ? best : each), undefined)?.cpu;

/** The row of the timeline that a row of a report is about; undefined for none. `machine` is its VM, if it names none. */
function timelineRow(row, machine) {
  const vm = row.vm ?? machine;
  if (vm === null) return undefined;
  // A request or a packet is where the task is that sent it, else where the one is that it woke; a lock where the one is
  // that waited longest.
  const task = [row.issuer, row.task, row.woken, row.waiters?.[0]].find(isObject) ?? row;
  if (task.comm !== undefined && (task.tid ?? task.pid) !== undefined) return rowCalled('task', visible(vm), visible(`${task.comm}/${task.tid ?? task.pid}`));
  const vcpu = row.vcpu ?? row.cpu ?? row.longest?.vcpu ?? busiest(row.cpus ?? []);
  if (vcpu !== undefined) return rowCalled('vcpu', visible(vm), `vCPU ${vcpu}`);
  return undefined;
}

/** When what a row of a report tells of began and ended, ns of the page; null where the row does not say it. */
function momentsOf(row) {
  if (row.longest) return momentsOf({ begin_ticks: row.longest.begin_ticks, total_ns: row.max_ns ?? row.time.max_ns });
  const begin = row.begin_ticks ?? (row.latency_ns === undefined ? undefined : row.ticks) ?? row.first_ticks;
  if (typeof begin !== 'number') return null;
  const from = ticksToNs(begin - about.begin_ticks);
  const end = row.end_ticks ?? row.last_ticks;
  return [from, end === undefined ? from + (row.total_ns ?? row.latency_ns ?? 0) : ticksToNs(end - about.begin_ticks)];
}

/** Where on the timeline a row of a report lies: `{ row, time }`; null for nowhere. */
function placeOf(row, machine) {
  const place = { row: timelineRow(row, machine), time: momentsOf(row) };
  return place.row || place.time ? place : null;
}

/** Shows a place on the timeline. */
async function showPlace({ row, time }) {
  openTab('timeline');
  if (time) revealTime(...time);
  if (row && !time) await selectSliceAt(row, view.begin);
  else select(row ?? null, { range: time[1] > time[0] ? time : [time[0], time[0] + 1] });
  canvas.focus();
}

function placeButton(place) {
  const words = place.time ? 'Show this time on the timeline' : 'Show this row on the timeline';
  const button = element('button', { type: 'button', className: 'place', title: words, 'aria-label': words }, '→');
  button.addEventListener('click', () => showPlace(place));
  return button;
}

/** The report that has a row for each row of the timeline of that kind. */
const REPORT_OF = { task: 'tasks', vcpu: 'vcpus', disk: 'flows', net: 'net_flows' };

/** A button that shows what a report says of `row`; null where none does. */
function reportButton(row) {
  const name = REPORT_OF[row.kind];
  if (!reports[name] || 'nothing' in reports[name]) return null;
  const button = element('button', { type: 'button' }, `report ${name.replaceAll('_', ' ')}`);
  button.addEventListener('click', () => {
    openTab(name);
    const panel = document.getElementById('reports-panel');
    panel.querySelectorAll('button.more').forEach((more) => more.click());
    const line = panel.querySelector(`tr[data-row="${row.number}"]`);
    line?.scrollIntoView({ block: 'center' });
    (line?.querySelector('button') ?? panel).focus();
  });
  return button;
}

/** Gives the note on a finding a button for the task, and one for the report, that its next step is about. */
function linkFinding(shown, { next_task: task, next_report: name }) {
  const row = task && timelineRow(task, null);
  if (row) shown.append(placeButton({ row, time: null }));
  const tab = name && document.querySelector(`#tabs button[data-name="${name}"]`);
  if (!tab) return;
  const button = element('button', { type: 'button' }, tab.textContent);
  button.addEventListener('click', () => openTab(name));
  shown.append(button);
}
