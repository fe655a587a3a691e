// Puts the page together: notes above, tabs, and the first picture before what only later views need.

numberRows();

function note(kind, title, text, more) {
  const shown = element('div', { className: `note ${kind}` }, element('b', {}, title), element('span', {}, text, more ? element('span', { className: 'faint' }, ` ${more}`) : null));
  document.getElementById('notes').append(shown);
  return shown;
}

/** Each note on a finding, with the finding: links follow when the reports are there. */
const notesOfFindings = [];

/** What is missing, what is left out of the page, and what stands out. */
function showNotes() {
  if (about.incomplete) note('warning', 'Incomplete', visible(about.incomplete.replace(/^INCOMPLETE: /, '')));
  for (const missing of about.missing) note('warning', `No ${missing.layer}`, visible(missing.reason), visible(missing.fix));
  const leftOut = [];
  if (about.slices.left_out_from !== null) leftOut.push(`from ${formatMoment(about.slices.left_out_from)} s on, rows are drawn from bins of time and not from each state`);
  if (about.records.left_out) leftOut.push(`${formatCount(about.records.left_out)} of ${formatCount(about.all_records)} records, from ${formatMoment(about.records.left_out_from)} s on`);
  if (about.arrows.left_out) leftOut.push(`arrows from ${formatMoment(about.arrows.left_out_from)} s on`);
  if (about.counters.left_out) leftOut.push(`${formatCount(about.counters.left_out)} counters`);
  if (about.tasks_left_out) leftOut.push(`the rows of ${formatCount(about.tasks_left_out)} tasks`);
  if (about.flows_left_out) leftOut.push(`${formatCount(about.flows_left_out)} disk requests and packets`);
  if (leftOut.length) note('warning', 'Left out of this page', `${leftOut.join('; ')}.`, 'strata report --html with --from and --until makes a page of a part.');
  for (const finding of about.findings) {
    const shown = note('', `Finding: ${finding.kind.replaceAll('_', ' ')}`, visible(finding.text), `${visible(finding.evidence)}. Next: ${visible(finding.next)}`);
    notesOfFindings.push([shown, finding]);
  }
}

function openTab(name) {
  const isTimeline = name === 'timeline';
  tabInSight = name;
  document.getElementById('timeline').hidden = !isTimeline;
  document.getElementById('reports-panel').hidden = isTimeline;
  for (const tab of document.querySelectorAll('#tabs button')) {
    const isIt = tab.dataset.name === name;
    tab.setAttribute('aria-selected', String(isIt));
    tab.tabIndex = isIt ? 0 : -1;
  }
  if (isTimeline) requestDraw();
  else if (name === FLAME_TAB) renderFlames();
  else renderReport(name);
  rememberView();
}

function makeTabs() {
  const tabs = document.getElementById('tabs');
  for (const { name, words, about: shows } of [{ name: 'timeline' }, ...descriptions, { name: FLAME_TAB }]) {
    const tab = element('button', { type: 'button', role: 'tab', title: shows ?? '', 'aria-controls': name === 'timeline' ? 'timeline' : 'reports-panel' }, words ?? name);
    tab.dataset.name = name;
    tab.addEventListener('click', () => openTab(name));
    tabs.append(tab);
  }
  tabs.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const all = [...tabs.children];
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    next.click();
  });
}

function showTitle() {
  const title = `${about.vms.join(', ')}${about.host ? ` on ${about.host}` : ''}`;
  document.title = `${visible(title)} · Strata`;
  document.getElementById('title').textContent = visible(title);
  document.getElementById('subtitle').textContent =
    `${(about.started.utc ?? '').replace(/\.\d+/, '')} · ${formatDuration(about.length_ns)} · ${formatCount(about.all_records)} records · times agree within ${formatDuration(about.clock.error_bound_ns)} · Strata ${about.strata}`;
}

async function start() {
  showTitle();
  showNotes();
  collapseLargeGroups();
  makeLayout();
  startTheme();
  startPointer();
  startKeyboard();
  startSearch();
  startRowFilter();
  await Promise.all([loadLevels(), loadCounters()]);
  requestDraw();
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  performance.mark('strata-first-picture');
  await Promise.all([loadReports(), loadStacks()]);
  makeTabs();
  openTab('timeline');
  notesOfFindings.forEach(([shown, finding]) => linkFinding(shown, finding));
  // Before the records, which take longest: the reader may be elsewhere by then.
  const followed = startAddress();
  await Promise.all([loadArrows(), loadFlows(), (records.loading ??= loadRecords()), followed]);
  showWhatIsLoaded();
  document.documentElement.dataset.loaded = 'yes';
  if (document.activeElement === document.body) canvas.focus();
}

/** Adds what has been read since to the picture, and to the details of the slice that is selected. */
function showWhatIsLoaded() {
  selection.arrows = null;
  if (selection.slice !== null) showDetails();
  requestDraw();
}

start();
