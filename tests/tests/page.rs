//! The page that `strata report --html` writes, in a browser: it opens from a file, draws, zooms, finds a record and
//! shows it as `strata events` does, and complains about nothing.
//!
//! Shows: A page has the reports' times and the listing's records, hatches gaps, fetches and runs nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::fetch::browser::Browser;
use lab::paths::Paths;
use lab::process;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_export::{Options, html};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use trace_merge::events::{self, EventsOptions};
use trace_merge::report::kernels::{exits, functions, syscalls};
use trace_merge::report::registry::REPORTS;
use trace_merge::report::scheduling::{tasks, vcpus};
use trace_merge::report::{self, ReportOptions, Window};

const LOADED: &str = "document.documentElement?.dataset.loaded === 'yes'";
/// The colours in the timeline's picture, as numbers of categories; everything else is left out.
const COLOURS_DRAWN: &str = "(() => { draw(); const found = new Set(); \
    for (const pixel of pixels) { const category = theme.colours.indexOf(pixel); if (category >= 0) found.add(category); } \
    return [...found].map((category) => about.categories[category]); })()";

/// A page of a recording, opened.
struct Opened {
    browser: Browser,
    folder: tempfile::TempDir,
}

/// A recording of `records` records that is made, complete.
fn made(folder: &Path, records: u64) -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let example = ["run", "--quiet", "-p", "strata-recording", "--example", "write_layers", "--"];
    let made = folder.join("made");
    cargo.current_dir(Paths::of_workspace().workspace()).args(example).arg(&made).arg(records.to_string());
    process::capture(&mut cargo).unwrap();
    made
}

impl Opened {
    /// The page of a recording that is made, once `change` has changed it.
    fn new(records: u64, change: impl FnOnce(&Path)) -> (Self, Trace) {
        let folder = tempfile::tempdir().unwrap();
        let made = made(folder.path(), records);
        change(&made);
        let trace = Trace::open(&made).unwrap();
        let path = folder.path().join("page.html");
        html::export(&trace, &Options::default(), None, None, fs::File::create(&path).unwrap()).unwrap();
        let mut browser = Browser::start(&Paths::of_workspace(), (1400, 900)).unwrap();
        browser.open(&path, LOADED).unwrap();
        (Self { browser, folder }, trace)
    }

    fn get(&mut self, script: &str) -> Value {
        self.browser.evaluate(script).unwrap()
    }

    fn number(&mut self, script: &str) -> f64 {
        self.get(script).as_f64().unwrap_or_else(|| panic!("{script} is not a number"))
    }

    fn text(&mut self, script: &str) -> String {
        self.get(script).as_str().unwrap_or_else(|| panic!("{script} is not text")).to_owned()
    }

    fn press(&mut self, keys: &[&str]) {
        keys.iter().for_each(|key| self.browser.press(key).unwrap());
    }

    fn colours(&mut self) -> BTreeSet<String> {
        serde_json::from_value(self.get(COLOURS_DRAWN)).unwrap()
    }

    fn details(&mut self) -> String {
        self.text("document.getElementById('details').innerText")
    }

    /// The time of the state called `name` in all rows of `kind`, ns, of slices and of each level.
    fn times(&mut self, kind: &str, name: &str) -> Vec<f64> {
        let script = format!(
            "(async () => {{ let sums = []; for (const row of about.rows.filter((row) => row.kind === '{kind}')) {{ \
             const slices = await loadSlices(row); let sum = 0; let category = -1; \
             slices.names.forEach((number, slice) => {{ if (about.names[number][0] === '{name}') {{ \
             sum += slices.ends[slice] - slices.begins[slice]; category = slices.categories[slice]; }} }}); \
             sums[0] = (sums[0] ?? 0) + sum; \
             for (const level of row.levels) {{ let time = 0; for (let run = 0; run < level.firsts.length; run++) \
             for (let part = level.parts[run]; part < level.parts[run + 1]; part++) if (level.categories[part] === category) \
             time += level.times[part] * (level.ends[run] - level.firsts[run]) / level.width; sums.push(time - sum); }} }} \
             return sums; }})()"
        );
        serde_json::from_value(self.get(&script)).unwrap()
    }
}

#[test]
fn page_draws_what_the_reports_say_and_complains_about_nothing() {
    let (mut opened, trace) = Opened::new(60_000, |_| ());

    let drawn = opened.colours();
    let expected = ["running in the guest", "stolen by the host", "exit, in KVM", "idle", "other host thread", "waits"];
    assert!(expected.iter().all(|colour| drawn.contains(*colour)), "{drawn:?}");

    let vms = vcpus::report(&trace, Window::ALL).unwrap().vms;
    let parts = || vms.iter().flat_map(|vm| &vm.vcpus).flat_map(|vcpu| &vcpu.parts);
    let guest: u64 = parts().filter(|part| part.state == "guest").map(|part| part.ns).sum();
    let times = opened.times("vcpu", "guest");
    let slices = opened.number("about.slices.all");
    // Each border of a slice was rounded down to a nanosecond.
    assert!((times[0] - guest as f64).abs() <= slices, "{times:?} {guest}");
    assert!(times.len() > 2 && times[1..].iter().all(|beside| *beside == 0.0), "{times:?}");

    let tabs = opened.get("[...document.querySelectorAll('#tabs button')].map((tab) => tab.dataset.name)");
    assert_eq!(tabs.as_array().unwrap().len(), 14, "{tabs}");
    let busiest = tasks::report(&trace, Window::ALL).unwrap().vms[0].tasks[0].comm.clone();
    opened.get("openTab('tasks')");
    let table = opened.text("document.getElementById('reports-panel').innerText");
    assert!(table.contains(&busiest) && table.contains("where the time went"), "{table}");
    for tab in tabs.as_array().unwrap() {
        opened.get(&format!("openTab({tab})"));
    }
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

/// A script: the heights of the columns in the small histogram that has the focus, the shortest times first.
const COLUMNS_DRAWN: &str = "(() => { const picture = document.activeElement.querySelector('canvas'); \
    const { data } = picture.getContext('2d').getImageData(0, 0, picture.width, picture.height); \
    const wanted = channels(theme.accent); const heights = []; \
    for (let x = 0; x < picture.width; x++) { let height = 0; for (let y = 0; y < picture.height; y++) \
    if (wanted.every((part, place) => data[(y * picture.width + x) * 4 + place] === part)) height++; \
    heights.push(height); } \
    return heights; })()";

#[test]
fn row_of_exits_leads_to_the_longest_of_them() {
    let (mut opened, trace) = Opened::new(20_000, |_| ());
    let reasons = exits::report(&trace, Window::ALL).unwrap().vms.remove(0).reasons;
    let reason = reasons.first().unwrap();
    let longest = reason.longest.unwrap();

    opened.get("openTab('exits')");
    let click = format!(
        "[...document.querySelectorAll('#reports-panel td')].find((cell) => cell.textContent === '{}').parentElement \
         .querySelector('button.place').click()",
        reason.reason
    );
    opened.get(&click);

    let selected = "[about.rows[selection.row.number].name, Math.round(selection.range[0])]";
    let begin = trace.clock().ticks_to_ns(longest.begin) - trace.clock().ticks_to_ns(trace.start().unwrap());
    assert_eq!(opened.get(selected), json!([format!("vCPU {}", longest.vcpu), begin]));
}

#[test]
fn distributions_are_drawn_as_counted_and_reported_column_by_column() {
    let (mut opened, trace) = Opened::new(20_000, |_| ());
    let reasons = exits::report(&trace, Window::ALL).unwrap().vms.remove(0).reasons;
    let (place, reason) = reasons.iter().enumerate().max_by_key(|(_, reason)| reason.time.count).unwrap();
    let histogram = &reason.time.histogram;
    let fullest = histogram.bins.iter().map(|bin| bin.1).max().unwrap();

    let reported =
        opened.get(&format!("reports.exits.blocks.find((block) => block.table).table.data[{place}].time.histogram"));
    assert_eq!(reported, serde_json::to_value(histogram).unwrap());
    assert_eq!(histogram.bins.iter().map(|bin| bin.1).sum::<u64>(), reason.time.count);
    let calls = syscalls::report(&trace, Window::ALL).unwrap().guests.remove(0).total.syscalls;
    let reported = opened.get(
        "reports.syscalls.blocks.find((block) => block.table).table.data.filter(Boolean).map((call) => call.histogram)",
    );
    assert_eq!(reported, serde_json::to_value(calls.iter().map(|call| &call.histogram).collect::<Vec<_>>()).unwrap());

    opened.get("openTab('exits')");
    // Of the row of that reason, in the table of reasons.
    let focus = format!(
        "[...document.querySelectorAll('#reports-panel td')].find((cell) => cell.textContent === '{}').parentElement \
         .querySelector('button.distribution').focus()",
        reason.reason
    );
    opened.get(&focus);
    let drawn: Vec<u64> = serde_json::from_value(opened.get(COLUMNS_DRAWN)).unwrap();
    let gaps = histogram.bins.iter().filter(|bin| bin.1 == 0).count();
    // As high as the picture at the fullest bin; nowhere outside of the bins.
    assert_eq!(drawn.iter().max(), Some(&16), "{drawn:?}");
    assert!(gaps == 0 || drawn.iter().skip_while(|&&high| high == 0).any(|&high| high == 0), "{drawn:?}");
    let shown = opened.text("document.getElementById('distribution').innerText");
    assert!(shown.contains(&format!("{fullest}")) && shown.contains("99 of 100"), "{shown}");

    for (place, bin) in histogram.bins.iter().enumerate().take(3) {
        opened.press(&["ArrowRight"]);
        let reported = opened.text("document.querySelector('#distribution .chosen').textContent").replace(' ', "");
        assert!(reported.contains(&format!(":{}of{}", bin.1, reason.time.count)), "{place}: {reported}");
    }
    opened.press(&["Escape"]);
    assert_eq!(opened.get("document.getElementById('distribution').hidden"), json!(true));
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn tabs_have_the_words_headings_and_figures_of_the_text() {
    let (mut opened, trace) = Opened::new(20_000, |_| ());
    // Completeness stands above the tabs, a histogram is drawn, and fewer rows are left out.
    let is_shown =
        |line: &&str| !line.starts_with("INCOMPLETE") && !line.contains('#') && !line.starts_with("others ×");

    for report in REPORTS.into_iter().filter(|report| report.is_in_all) {
        let mut text = Vec::new();
        // One that has nothing to be made of says that instead.
        let _ = report.run(&trace, &ReportOptions::default(), None, &mut text);
        opened.get(&format!("openTab('{}')", report.name));
        opened.get("document.querySelectorAll('#reports-panel button.more').forEach((more) => more.click())");
        let shown = opened.text("document.getElementById('reports-panel').innerText");

        let text = String::from_utf8(text).unwrap();
        let parts = text.lines().filter(is_shown).flat_map(|line| line.split("  ")).map(str::trim);
        let missing: Vec<_> = parts.filter(|part| !shown.contains(part) && !part.starts_with("… and ")).collect();
        assert_eq!(missing, Vec::<&str>::new(), "{}: {shown}", report.name);
        let beyond =
            "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.getElementById('reports-panel'))";
        assert_eq!(opened.get(beyond), json!(0), "{}", report.name);
    }
}

#[test]
fn durations_are_rounded_down_as_in_the_text() {
    let (mut opened, _) = Opened::new(2_000, |_| ());
    let times = [0, 999, 1_000, 16_926_999, 999_999_999, 1_000_000_000, 61_002_999_999];

    let shown = opened.get(&format!("{times:?}.map(formatDuration)"));

    assert_eq!(shown, json!(times.map(report::duration)));
}

#[test]
fn rows_of_tables_are_sorted_by_a_heading_and_sums_stay_below() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    opened.get("openTab('syscalls')");
    let table = "document.querySelector('#reports-panel table')";
    let heading = format!("[...{table}.querySelectorAll('th button')].find((known) => known.textContent === 'time')");
    let cell = format!("row.cells[{heading}.closest('th').cellIndex].textContent");
    let times = format!("[...{table}.querySelectorAll('tbody tr')].map((row) => {cell})");

    opened.get(&format!("{heading}.click()"));
    let falling: Vec<String> = serde_json::from_value(opened.get(&times)).unwrap();
    opened.get(&format!("{heading}.click()"));
    let rising: Vec<String> = serde_json::from_value(opened.get(&times)).unwrap();

    let (sum, others) = rising.split_last().unwrap();
    assert_eq!((sum.as_str(), falling.last()), ("", Some(&String::new())));
    assert!(others.iter().rev().eq(&falling[..falling.len() - 1]) && others.len() > 1, "{falling:?} {rising:?}");
}

#[test]
fn record_is_found_and_shown_as_in_the_listing() {
    let (mut opened, trace) = Opened::new(20_000, |_| ());
    let mut lines = Vec::new();
    let options =
        EventsOptions { events: vec!["sched:sched_process_exit".into()], json: true, ..EventsOptions::default() };
    events::list(&trace, &options, &mut lines).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    let listed: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

    opened.press(&["/"]);
    opened.browser.type_text("sched_process_exit").unwrap();
    opened.press(&["Enter"]);
    opened.browser.wait("selection.record !== null").unwrap();

    let count = opened.text("document.getElementById('search-count').textContent");
    assert_eq!(count, format!("1 of {}", listed.len()));
    let (details, first) = (opened.details(), &listed[0]);
    assert!(details.contains("sched:sched_process_exit"), "{details}");
    for (name, value) in first["fields"].as_object().unwrap() {
        let shown = format!("{name}\n{value}");
        assert!(details.contains(&shown), "{shown} in {details}");
    }
    let [begin, length, time] =
        ["view.begin", "view.length", "records.times[selection.record]"].map(|script| opened.number(script));
    assert!(begin <= time && time <= begin + length);
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn floating_point_is_read_as_it_was_written() {
    let (mut opened, _) = Opened::new(2_000, |_| ());
    let numbers = [1.5, -0.25, f64::MAX, f64::NEG_INFINITY, f64::NAN];
    // A field before them, and one behind.
    let bytes = [vec![7_u8], numbers.iter().flat_map(|number| number.to_le_bytes()).collect(), vec![9]].concat();

    let read = opened.get(&format!(
        "(() => {{ const reader = new Reader(new Uint8Array({})); \
         return [...'ufffffu'].map((form) => showField(readField(reader, form), false)); }})()",
        json!(bytes)
    ));

    assert_eq!(read, json!(["7", "1.5", "-0.25", "1.7976931348623157e+308", "-Infinity", "NaN", "9"]));
}

#[test]
fn keys_and_clicks_zoom_pan_and_select() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    let whole = opened.number("view.length");

    opened.press(&["w", "w", "w"]);
    opened.browser.wait(&format!("view.length < {whole}")).unwrap();
    let begin = opened.number("view.begin");
    opened.press(&["d"]);
    opened.browser.wait(&format!("view.begin > {begin}")).unwrap();

    opened.press(&["ArrowDown"]);
    opened.browser.wait("selection.slice !== null").unwrap();
    let slice = opened.number("selection.slice");
    opened.press(&["ArrowRight"]);
    opened.browser.wait(&format!("selection.slice === {}", slice + 1.0)).unwrap();
    let announced = opened.text("document.getElementById('announcement').textContent");
    assert!(announced.starts_with("CPU 0: "), "{announced}");

    opened.press(&["0"]);
    opened.browser.wait(&format!("view.length === {whole}")).unwrap();
    opened.press(&["f"]);
    opened.browser.wait(&format!("view.length < {whole}")).unwrap();
    opened.press(&["n"]);
    opened.browser.wait("selection.record !== null").unwrap();

    // Where a vCPU's row is.
    let place = "(() => { const item = layout.byRow[about.rows.find((row) => row.kind === 'vcpu').number]; \
                 const box = canvas.getBoundingClientRect(); \
                 return [box.x + LABEL_WIDTH + plotWidth() / 2, box.y + yOf(item) + 6]; })()";
    let place = opened.get(place);
    opened.browser.click(place[0].as_f64().unwrap(), place[1].as_f64().unwrap()).unwrap();
    opened.browser.wait("selection.row?.kind === 'vcpu' && selection.slice !== null").unwrap();
    assert!(opened.details().contains("lasts"));

    let heading = opened.text("layout.items.find((item) => item.row?.kind === 'task').heading");
    opened.press(&["t"]);
    opened.browser.wait("busyInSight !== null").unwrap();
    let busiest = "layout.items.filter((item) => item.row?.kind === 'task').map((item) => busyInSight.get(item.row))";
    let busy: Vec<f64> = serde_json::from_value(opened.get(busiest)).unwrap();
    assert!(busy.is_sorted_by(|left, right| left >= right) && busy[0] > 0.0, "{busy:?}");
    assert_ne!(opened.text("layout.items.find((item) => item.row?.kind === 'task').heading"), heading);

    opened.press(&["?"]);
    opened.browser.wait("document.getElementById('help').open").unwrap();
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn counters_say_what_the_reports_count_by_mouse_and_by_key() {
    let (mut opened, trace) = Opened::new(20_000, |_| ());
    let vms = exits::report(&trace, Window::ALL).unwrap().vms;
    let count: u64 = vms.iter().map(|vm| vm.count).sum();

    let counted = "about.rows.filter((row) => row.counter && / exits$/.test(row.name)).reduce((sum, row) => \
                   sum + countUpTo(row, about.length_ns), 0)";
    assert_eq!(opened.number(counted), count as f64);
    // The mean of all of it is the number in all of it.
    let rate = "(() => { const row = about.rows.find((row) => row.name === 'host-kernel: records'); \
                return counterValue(row, 0, about.length_ns) * about.length_ns / 1e9 - row.counter.sums.at(-1); })()";
    assert!(opened.number(rate).abs() < 0.01);

    let place = "(() => { const row = about.rows.find((row) => row.counter); reveal(row); \
                 const item = layout.byRow[row.number]; const box = canvas.getBoundingClientRect(); \
                 return [box.x + LABEL_WIDTH + plotWidth() / 2, box.y + yOf(item) + 10]; })()";
    let place = opened.get(place);
    let (x, y) = (place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    opened.browser.hover(x, y).unwrap();
    let reported = opened.text("document.getElementById('tooltip').textContent");
    assert!(reported.contains(" a second · over "), "{reported}");
    opened.browser.click(x, y).unwrap();
    opened.browser.wait("selection.row?.counter !== undefined && selection.slice !== null").unwrap();
    let (slice, length) = (opened.number("selection.slice"), opened.number("view.length"));
    opened.press(&["ArrowRight"]);
    opened.browser.wait(&format!("selection.slice > {slice}")).unwrap();
    assert_eq!(opened.number("view.length"), length);
    assert!(opened.text("document.getElementById('announcement').textContent").contains(" a second, at "));
    // The column of the highest bin is as high as the row.
    let highest = "(() => { showTime(0, about.length_ns); draw(); const row = about.rows.find((row) => row.counter); \
                   const item = layout.byRow[row.number]; let most = 0; \
                   for (let x = LABEL_WIDTH; x < LABEL_WIDTH + plotWidth(); x++) { let high = 0; \
                   for (let y = yOf(item); y < yOf(item) + item.height; y++) \
                   if ([theme.markPixel, theme.peakPixel].includes(pixels[y * canvas.width + x])) high++; \
                   most = Math.max(most, high); } return most === item.height; })()";
    assert_eq!(opened.get(highest), json!(true));
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn flame_graph_holds_all_samples_zooms_and_finds() {
    let (mut opened, trace) = Opened::new(20_000, |_| ());
    let kernel = functions::report(&trace, Window::ALL, None).unwrap().kernels.remove(0);
    let samples = kernel.samples - kernel.idle;
    let function = kernel.functions.iter().max_by_key(|function| function.total).unwrap();

    opened.get("openTab(FLAME_TAB)");
    let reported = "document.querySelector('.told').textContent";
    let counted = opened.text(reported);
    assert!(counted.contains(&format!("{samples} samples (100.0 %)")), "{counted}");
    // Each process is as wide as its samples.
    opened.get("document.querySelector('canvas.flame').focus()");
    opened.press(&["ArrowDown", "Enter"]);
    let busiest = &kernel.processes[0];
    let process = opened.text(reported);
    assert!(process.starts_with(&format!("{}/{}", busiest.comm, busiest.pid)), "{process}");
    assert!(process.contains(&format!(" {} samples (", busiest.samples)), "{process}");
    let place = "(() => { const canvas = document.querySelector('canvas.flame'); \
                 const box = canvas.getBoundingClientRect(); return [box.x + 3, box.y + 2.5 * FLAME_ROW]; })()";
    let place = opened.get(place);
    opened.browser.click(place[0].as_f64().unwrap(), place[1].as_f64().unwrap()).unwrap();
    let called = opened.text(reported);
    assert!(kernel.functions.iter().any(|function| called.starts_with(&*function.function)), "{called}");
    opened.press(&["Escape"]);
    assert!(opened.text(reported).starts_with("vm0"));

    opened.get("document.querySelector('#reports-panel input').focus()");
    opened.browser.type_text(&function.function).unwrap();
    let found = opened.text(reported);
    let found: u64 = found.split_once("found: ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    // Other functions' names may begin with this one's.
    assert!(found >= function.total && found <= samples, "{found} {function:?}");
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn page_follows_the_users_choice_of_light_and_dark() {
    let (mut opened, _) = Opened::new(2_000, |_| ());
    let back = |opened: &mut Opened| opened.text("getComputedStyle(document.body).backgroundColor");

    let light = back(&mut opened);
    opened.browser.prefer_dark(true).unwrap();
    opened.browser.wait("theme.isDark").unwrap();
    let dark = back(&mut opened);
    opened.get("document.getElementById('theme-button').click()");

    assert_ne!(light, dark);
    assert_eq!(back(&mut opened), light);
}

#[test]
fn reports_lead_to_the_timeline_and_back_and_the_address_keeps_what_is_in_sight() {
    let (mut opened, trace) = Opened::new(20_000, |_| ());
    let task = tasks::report(&trace, Window::ALL).unwrap().vms[0].tasks[0].clone();
    let name = format!("{}/{}", task.comm, task.tid);

    // From a row of a report to the row of its task.
    opened.get("openTab('tasks')");
    opened.get("document.querySelector('#reports-panel button.place').click()");
    opened.browser.wait("!document.getElementById('timeline').hidden && selection.slice !== null").unwrap();
    assert_eq!(opened.text("selection.row.name"), name);
    // Back: the same row of the report has the focus.
    opened.get("[...document.querySelectorAll('#details button')].find((known) => known.textContent === 'report tasks').click()");
    let focused = opened.text("document.activeElement.closest('tr').textContent");
    assert!(focused.contains(&task.comm), "{focused}");
    // A row with a time leads to that time.
    opened.get("openTab('wakeups')");
    let worst =
        "[...document.querySelectorAll('#reports-panel button.place')].find((known) => /time/.test(known.title))";
    opened.get(&format!("{worst}.click()"));
    opened.browser.wait("selection.range !== null").unwrap();
    let place = "reports.wakeups.blocks.find((block) => block.place).place";
    let shown = format!("selection.range[0] === ticksToNs({place}.ticks - about.begin_ticks)");
    assert_eq!(opened.get(&shown), json!(true));

    // A time in the search field.
    let moment = opened.text("formatMoment(about.length_ns / 2)");
    opened.press(&["/"]);
    opened.browser.type_text(&moment).unwrap();
    opened.press(&["Enter"]);
    opened.browser.wait("document.getElementById('search-count').textContent === 'shown'").unwrap();
    assert_eq!(opened.get("Math.abs(view.begin + view.length / 2 - about.length_ns / 2) < 2"), json!(true));

    // The address says it, and shows it again.
    opened.browser.wait("location.hash.includes('from=')").unwrap();
    let (address, begin) = (opened.text("location.hash"), opened.number("view.begin"));
    opened.get("showTime(0, about.length_ns)");
    opened.browser.wait("!location.hash.includes('from=')").unwrap();
    opened.get(&format!("location.hash = {}", json!(address)));
    opened.browser.wait(&format!("Math.abs(view.begin - {begin}) < 2")).unwrap();
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn rows_are_pinned_and_hidden_and_the_address_keeps_it() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    opened.get("selectSliceAt(about.rows.find((row) => row.kind === 'task'), 0)");
    let (name, group) = (opened.text("selection.row.name"), "layout.byRow[selection.row.number].heading");

    opened.press(&["i"]);

    assert_eq!(opened.text(group), "pinned");
    assert_eq!(opened.get("[layout.items[0].heading, layout.items[1].row.name]"), json!(["pinned", name]));
    assert!(opened.details().contains("Unpin this row"), "{}", opened.details());
    // Another row is hidden: nothing is selected then.
    opened.get("selectSliceAt(about.rows.find((row) => row.kind === 'host-cpu'), 0)");
    opened.press(&["h"]);
    let is_shown = "layout.items.some(({ row }) => row === about.rows.find((row) => row.kind === 'host-cpu'))";
    assert_eq!(opened.get(&format!("[{is_shown}, selection.row]")), json!([false, null]));
    // The address keeps both, until it is another one's.
    opened.browser.wait("location.hash.includes('pin=') && location.hash.includes('hide=')").unwrap();
    let address = opened.text("location.hash");
    let state = |is_pinned: bool, is_shown_too: bool| {
        format!("(layout.items[0].heading === 'pinned') === {is_pinned} && {is_shown} === {is_shown_too}")
    };
    opened.get("location.hash = ''");
    opened.browser.wait(&state(false, true)).unwrap();
    opened.get(&format!("location.hash = {}", json!(address)));
    opened.browser.wait(&state(true, false)).unwrap();
    // What leads to a hidden row, and O, show it.
    opened.get("canvas.focus()");
    opened.press(&["o"]);
    assert_eq!(opened.get(is_shown), json!(true));
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn bookmarks_have_notes_lead_to_their_moment_and_are_kept_in_the_address() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    let note = "late, <b>why</b>? 100 %";
    opened.get("select(null)");
    opened.get("showTime(about.length_ns / 4, about.length_ns / 4)");
    let middle = opened.get("Math.round(view.begin + view.length / 2)");

    opened.press(&["m"]);
    opened.browser.type_text(note).unwrap();
    opened.press(&["Enter"]);

    assert_eq!(opened.get("bookmarks"), json!([{ "time": middle, "text": note }]));
    // Its flag leads to it.
    opened.get("select(null)");
    opened.get("showTime(about.length_ns / 4, about.length_ns / 2)");
    let [x, y]: [f64; 2] =
        serde_json::from_value(opened.get(
            "(({ left, top }) => [left + flagOf(bookmarks[0]).left + 3, top + 8])(canvas.getBoundingClientRect())",
        ))
        .unwrap();
    opened.browser.click(x, y).unwrap();
    opened.browser.wait("selection.bookmark === bookmarks[0]").unwrap();
    assert!(opened.details().starts_with("Bookmark at "), "{}", opened.details());
    // The address keeps it; what lies outside of the page, or is no moment, is passed over.
    opened.browser.wait("location.hash.includes('mark=')").unwrap();
    opened.get("location.hash = `${location.hash},1e9%20x,y,-1`; setBookmarks([])");
    opened.browser.wait("bookmarks.length > 0").unwrap();
    assert_eq!(opened.text("bookmarks.map(({ text }) => text).join('|')"), note);
    opened.get("selectBookmark(bookmarks[0])");
    opened.get(
        "[...document.querySelectorAll('#details button')].find((known) => known.textContent === 'Remove').click()",
    );
    assert_eq!(opened.get("bookmarks"), json!([]));
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn row_of_a_task_has_the_records_that_the_listing_names_it_in() {
    let (mut opened, trace) = Opened::new(20_000, |_| ());
    let report = tasks::report(&trace, Window::ALL).unwrap();
    let vm = &report.vms[0];
    let task = &vm.tasks[0];
    let name = format!("{}/{}", task.comm, task.tid);
    let mut lines = Vec::new();
    let options = EventsOptions {
        layers: vec![LayerKind::GuestKernel],
        vms: vec![vm.vm.clone()],
        tasks: vec![name.parse().unwrap()],
        count: true,
        ..EventsOptions::default()
    };
    events::list(&trace, &options, &mut lines).unwrap();

    let row = format!("about.rows.find((row) => row.kind === 'task' && row.name === '{name}').number");
    let count = opened.number(&format!("records.timesByRow[{row}].length"));

    assert_eq!(format!("{count}\n"), String::from_utf8(lines).unwrap());
    assert!(count > 100.0, "{count}");
    // They are selected in it, and shown as any other.
    opened.get(&format!("select(about.rows[{row}], {{ record: records.byRow[{row}][0] }})"));
    opened.press(&["n"]);
    assert_eq!(opened.get(&format!("selection.record === records.byRow[{row}][1]")), json!(true));
    assert!(opened.details().contains(&name), "{}", opened.details());
}

#[test]
fn row_of_an_address_is_in_sight_above_its_details() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    opened.get("select(null)");
    let room = "frame.clientHeight - AXIS_HEIGHT";
    let lowest = format!("layout.items.filter(({{ row, y, height }}) => row && y + height <= {room}).at(-1).row");

    opened.get(&format!("location.hash = `row=${{encodeURIComponent(keyOf({lowest}))}}`"));

    opened.browser.wait("selection.slice !== null").unwrap();
    let place = "(({ y, height }) => [y - view.scroll, y + height - view.scroll])(layout.byRow[selection.row.number])";
    let [top, bottom]: [f64; 2] = serde_json::from_value(opened.get(place)).unwrap();
    let room = opened.number(room);
    assert!(0.0 <= top && bottom <= room, "{top} to {bottom} of {room}");
}

#[test]
fn findings_lead_to_their_report_and_task() {
    let (mut opened, trace) = Opened::new(20_000, |_| ());
    let task = tasks::report(&trace, Window::ALL).unwrap().vms[0].tasks[0].clone();
    let (name, vm) = (format!("{}/{}", task.comm, task.tid), trace.manifest().vms[0].name.clone());
    // Another VM whose name begins like this one's, and a task with quotes and spaces in its name.
    let of_task = |vm: &str, comm: &str| json!({ "next_task": { "vm": vm, "comm": comm, "tid": task.tid } });
    let quoted = "it's \"a\" b";
    let findings = json!([
        of_task(&format!("{vm}0"), &task.comm),
        of_task(&vm, quoted),
        { "next_report": "exits" },
        {},
        of_task(&vm, &task.comm),
    ]);

    opened.get(&format!(
        "{{ const row = {{ ...about.rows.find((row) => row.kind === 'task'), name: {} + '/{}' }}; about.rows.push(row); }}",
        json!(quoted),
        task.tid
    ));
    opened.get(&format!("{findings}.forEach((finding) => linkFinding(note('', 'Finding', 'text'), finding))"));

    let buttons = "[...document.querySelectorAll('.note')].slice(-5).map((note) => note.querySelector('button')?.textContent ?? null)";
    assert_eq!(opened.get(buttons), json!([null, "→", "exits", null, "→"]));
    opened.get("[...document.querySelectorAll('.note button.place')].at(-1).click()");
    opened.browser.wait("selection.slice !== null").unwrap();
    assert_eq!(opened.text("selection.row.name"), name);
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn rows_on_thieves_locks_interrupts_processes_and_requests_lead_to_the_timeline() {
    let (mut opened, _) = Opened::new(20_000, |_| ());

    for (tab, is_it) in [
        ("tasks", "/most of it from/.test(row.closest('table').innerText)"),
        ("locks", "true"),
        ("irqs", "true"),
        ("syscalls", "row.matches('h2')"),
        ("flows", "row.matches('h2')"),
    ] {
        opened.get(&format!("openTab('{tab}')"));
        let rows =
            "[...document.querySelectorAll('#reports-panel button.place')].map((known) => known.closest('tr, h2'))";
        assert_ne!(opened.number(&format!("{rows}.filter((row) => {is_it}).length")), 0.0, "{tab}");
    }
}

#[test]
fn rows_on_requests_and_packets_lead_to_the_task_that_sent_them_or_that_they_woke() {
    let (mut opened, trace) = Opened::new(20_000, |_| ());
    let task = tasks::report(&trace, Window::ALL).unwrap().vms[0].tasks[0].clone();
    let vm = trace.manifest().vms[0].name.clone();

    let named = json!({ "comm": task.comm, "tid": task.tid });
    let rows = json!([
        { "vm": vm, "issuer": named, "woken": null },
        { "vm": vm, "issuer": null, "woken": named },
        { "vm": vm, "task": named },
        { "vm": vm, "task": null },
    ]);

    let name = format!("{}/{}", task.comm, task.tid);
    let found = opened.get(&format!("{rows}.map((row) => timelineRow(row, '')?.name ?? null)"));
    assert_eq!(found, json!([name, name, name, null]));
}

#[test]
fn rows_and_colours_are_hidden_and_shown_again() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    let rows = "layout.items.filter((item) => item.row).length";
    let (all, hidden) = (opened.number(rows), "running in the guest");
    assert!(opened.colours().contains(hidden));

    opened.get(&format!(
        "[...document.querySelectorAll('#legend button')].find((known) => known.textContent === '{hidden}').click()"
    ));
    assert!(!opened.colours().contains(hidden));

    opened.press(&["r"]);
    opened.browser.type_text("vcpu").unwrap();
    let shown = opened.number(rows);
    assert!(0.0 < shown && shown < all, "{shown} of {all}");
    let names = opened.get("layout.items.filter((item) => item.row).map((item) => `${item.row.name} ${item.heading}`)");
    assert!(names.as_array().unwrap().iter().all(|name| name.as_str().unwrap().contains("vCPU")), "{names}");
    // What is looked for is shown. A closed group does not cost the filter, which does not hide the row; a filter that
    // hides it goes.
    opened.get("layout.items.forEach((item) => collapsed.add(item.key)); makeLayout()");
    opened.get("reveal(about.rows.find((row) => row.kind === 'vcpu'))");
    assert_eq!(
        (opened.text("rowFilter").as_str(), opened.number("layout.byRow.filter(Boolean).length") > 0.0),
        ("vcpu", true)
    );
    opened.get("reveal(about.rows.find((row) => row.kind === 'host-cpu'))");
    assert_eq!(opened.text("rowFilter"), "");
    opened.get("collapsed.clear(); collapseLargeGroups(); makeLayout()");
    assert_eq!(opened.number(rows), all);
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn what_is_not_recorded_is_not_hatched_when_it_is_hidden() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    let hatched = "(() => { draw(); return pixels.filter((pixel) => pixel === theme.hatchPixel).length; })()";
    assert!(opened.number(hatched) > 0.0);

    opened.get("hiddenCategories.add(NOT_RECORDED)");

    assert_eq!(opened.number(hatched), 0.0);
}

#[test]
fn small_window_has_room_for_rows() {
    let (mut opened, _) = Opened::new(20_000, |_| ());

    opened.browser.resize((800, 600)).unwrap();
    opened.browser.wait("size.width <= 800").unwrap();

    let heights = opened.get("[size.height, document.body.scrollWidth]");
    assert!(heights[0].as_f64().unwrap() >= 280.0, "{heights}");
    assert!(heights[1].as_f64().unwrap() <= 800.0, "{heights}");
}

#[test]
fn what_is_not_recorded_is_hatched_and_named() {
    let damage = |made: &Path| {
        for layer in Trace::open(made).unwrap().layers() {
            if matches!(layer.description.kind, LayerKind::HostKernel | LayerKind::GuestKernel) {
                for stream in layer.streams.iter().filter(|stream| stream.packets() > 4) {
                    let path = made.join(&layer.description.path).join(&stream.description.file);
                    let place = (stream.packets() / 2) as u64 * layer.description.packet_size;
                    OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[0; 64], place).unwrap();
                }
            }
        }
    };

    let (mut opened, _) = Opened::new(60_000, damage);

    assert!(opened.colours().contains("not recorded"));
    let notes = opened.text("document.getElementById('notes').innerText");
    assert!(notes.contains("Incomplete") && notes.contains(" gap"), "{notes}");
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn nothing_that_a_recording_names_is_run_or_drawn_as_html() {
    let evil = "</script><script>window.boom = 1</script><img src=x onerror='window.boom = 1'>";
    let rename = |made: &Path| {
        let path = made.join("session.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        manifest["host"]["hostname"] = json!(evil);
        manifest["outcome"] = json!(evil);
        manifest["missing"] = json!([{ "layer": "vmm", "reason": evil, "fix": evil }]);
        for layer in manifest["layers"].as_array_mut().unwrap() {
            if let Some(process) = layer.get_mut("process").filter(|process| process.is_object()) {
                process["comm"] = json!(evil);
            }
        }
        fs::write(&path, manifest.to_string()).unwrap();
    };

    let (mut opened, _) = Opened::new(2_000, rename);
    for tab in ["summary", "tasks", "syscalls"] {
        opened.get(&format!("openTab('{tab}')"));
    }

    assert_eq!(opened.get("window.boom === undefined && document.querySelector('img') === null"), json!(true));
    assert!(opened.text("document.getElementById('notes').innerText").contains(evil));
    assert!(opened.folder.path().join("page.html").exists());
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn rows_of_packets_and_those_below_them_have_a_place() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    // Requests of disks are drawn as packets are: the recording that is made has no packets.
    opened.get(
        "about.rows.filter((row) => row.kind === 'disk').forEach((row) => { row.kind = 'net'; }); \
         filterRows('packets'); filterRows('')",
    );

    let below = "layout.items.slice(layout.items.findIndex((item) => item.row?.kind === 'net'))";
    let places = format!("[layout.height, ...{below}.flatMap(({{ y, height }}) => [y, height])]");
    assert!(opened.number(&format!("{below}.length")) > 2.0);
    assert_eq!(opened.get(&format!("{places}.every(Number.isFinite)")), json!(true));
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn row_of_which_nothing_is_kept_is_selected_alone_and_left_again() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    opened.get("canvas.focus()");
    let tasks = "layout.items.filter((item) => item.row?.kind === 'task').map((item) => item.row)";
    let alone = "[selection.row.name, selection.slice, selection.record]";
    let name = opened.text(&format!("{tasks}[1].name"));

    // Its states are left out from the middle on.
    opened.get(&format!("{tasks}[1].left_out_from = Math.round(about.length_ns / 2)"));
    opened.get("showTime(about.length_ns * 0.75, about.length_ns / 100)");
    let begin = opened.number("view.begin");
    opened.get(&format!("selectSliceAt({tasks}[1], view.begin)"));
    assert_eq!(opened.get(alone), json!([name, null, null]));
    assert!(opened.details().contains(" s on are left out of this page"), "{}", opened.details());
    assert_eq!(opened.number("(draw(), view.begin)"), begin);
    assert!(opened.text("addressOfView()").contains("row="));

    // None of its states and no record of it is kept.
    opened.get(&format!(
        "{{ const row = {tasks}[1]; row.left_out_from = null; records.timesByRow[row.number] = []; \
         row.loaded = {{ begins: [], ends: [], names: [], categories: [] }}; }}"
    ));
    opened.get(&format!("selectSliceAt({tasks}[0], 0)"));
    opened.press(&["ArrowDown"]);
    opened.browser.wait(&format!("selection.row === {tasks}[1]")).unwrap();
    assert_eq!(opened.get(alone), json!([name, null, null]));
    assert!(opened.details().contains("nothing of it is in this page"), "{}", opened.details());
    opened.press(&["ArrowDown"]);
    opened.browser.wait(&format!("selection.row === {tasks}[2]")).unwrap();
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn rows_of_one_name_are_told_apart_by_the_address_and_by_their_group() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    let twins = "about.rows.filter((row) => row.kind === 'disk')";
    opened.get(&format!(
        "{{ about.rows.push({{ ...{twins}[0], loaded: {{ begins: [], ends: [], names: [], categories: [] }} }}); \
         numberRows(); makeLayout(); }}"
    ));
    let keys = opened.get(&format!("{twins}.map((row) => keyOf(row).replace(row.group, ''))"));
    assert_eq!(keys, json!(["/disk/disk requests", "/disk/disk requests/2"]));

    opened.get(&format!("location.hash = `hide=${{encodeURIComponent(keyOf({twins}[1]))}}`"));
    opened.browser.wait("hiddenRows.size > 0").unwrap();
    assert_eq!(opened.get(&format!("{twins}.map((row) => hiddenRows.has(row))")), json!([false, true]));

    // Those of several machines have their group before their name.
    opened.get("['host-cpu', 'vcpu'].forEach((kind) => togglePin(about.rows.find((row) => row.kind === kind)))");
    let named = "layout.items.filter(({ row, key }) => row && key === PINNED_HEADING) \
                 .map(({ row, name }) => name === `${row.group}: ${row.name}`)";
    assert_eq!(opened.get(named), json!([true, true]));
    opened.get("select(null, { range: [0, about.length_ns] })");
    let shown = opened.details();
    assert!(shown.contains(&opened.text("`${[...pinnedRows][1].group}: ${[...pinnedRows][1].name}`")), "{shown}");
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn search_begins_at_what_is_in_sight_and_shows_what_was_asked_last() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    let ask = |text: &str, direction: i32| {
        format!("(document.getElementById('search-text').value = '{text}', runSearch({direction}))")
    };
    let middle = "showTime(about.length_ns / 2, about.length_ns / 10)";
    opened.get(middle);
    let begin = opened.number("view.begin");

    opened.get(&ask("sched_switch", 1));
    let after = opened.number("records.times[selection.record]");
    opened.get(&format!("search.text = ''; {middle}"));
    opened.get(&ask("sched_switch", -1));
    let before = opened.number("records.times[selection.record]");
    assert!(before < begin && begin <= after, "{before} {begin} {after}");

    // Two searches at once, and Enter again before either is done.
    let all = ["sched_wakeup", "sched_process_exit", "sched_process_exit"].map(|text| ask(text, 1)).join(", ");
    opened.get(&format!("Promise.all([{all}]).then(() => undefined)"));
    let shown = opened.get("[search.text, typeOf(selection.record).name]");
    assert_eq!(shown, json!(["sched_process_exit", "sched:sched_process_exit"]));
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

/// A script: what the mouse does at a place of the canvas, of which `x` is a share of the rows' width.
fn of_pointer(what: &str, x: f64, more: &str) -> String {
    format!(
        "(({{ left, top }}) => canvas.dispatchEvent(new PointerEvent('{what}', {{ pointerId: 1, \
         clientX: left + LABEL_WIDTH + {x} * plotWidth(), clientY: top + 100, {more} }})))(canvas.getBoundingClientRect())"
    )
}

#[test]
fn range_is_dragged_with_the_left_button_as_far_as_the_recording_goes() {
    let (mut opened, _) = Opened::new(2_000, |_| ());
    opened.get("canvas.setPointerCapture = () => undefined; select(null)");
    let left = "button: 0, buttons: 1";

    opened.get(&of_pointer("pointerdown", 0.5, left));
    opened.get(&of_pointer("pointermove", 1.2, left));
    assert_eq!(opened.get("selection.range[1] - about.length_ns"), json!(0));
    // What costs more than a picture comes at the end.
    assert_eq!(opened.details(), "");
    opened.get(&of_pointer("pointerup", 1.2, "button: 0, buttons: 0"));
    assert!(opened.details().contains("share of the time"), "{}", opened.details());

    opened.get("select(null)");
    opened.get(&of_pointer("pointerdown", 0.5, "button: 2, buttons: 2"));
    opened.get(&of_pointer("pointermove", 0.7, "button: -1, buttons: 2"));
    assert_eq!(opened.get("selection.range"), json!(null));
    // A drag whose end the page did not hear of, and one that the system ended.
    for (end, buttons) in [("pointermove", "buttons: 0"), ("pointercancel", "buttons: 0")] {
        opened.get(&of_pointer("pointerdown", 0.2, left));
        opened.get(&of_pointer("pointermove", 0.4, left));
        opened.get(&of_pointer(end, 0.6, buttons));
        opened.get(&of_pointer("pointermove", 0.8, "buttons: 0"));
        let is_kept = "Math.abs(selection.range[1] / about.length_ns - 0.4) < 0.01";
        assert_eq!(opened.get(&format!("[pointer.from, {is_kept}]")), json!([null, true]), "{end}");
    }
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn address_keeps_hidden_colours_leads_from_a_report_and_has_whole_nanoseconds() {
    let (mut opened, _) = Opened::new(2_000, |_| ());
    opened.get("[...document.querySelectorAll('#legend button')].slice(0, 2).forEach((button) => button.click())");
    opened.browser.wait("location.hash.includes('colour=')").unwrap();
    let address = opened.text("location.hash");
    let hidden = "[...document.querySelectorAll('#legend button')].map((known) => known.getAttribute('aria-pressed'))";
    let legend = opened.get(hidden);

    opened.get("location.hash = ''");
    opened.browser.wait("hiddenCategories.size === 0").unwrap();
    assert_ne!(opened.get(hidden), legend);
    opened.get("openTab('exits')");
    opened.get(&format!("location.hash = {}", json!(address)));

    opened.browser.wait("!document.getElementById('timeline').hidden && hiddenCategories.size === 2").unwrap();
    assert_eq!(opened.get(hidden), legend);
    let moments = "['0.000000007', '8.947512341', '1.1'].map(momentFrom).every(Number.isInteger)";
    assert_eq!(opened.get(moments), json!(true));
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn texts_can_be_read_on_every_colour() {
    let (mut opened, _) = Opened::new(2_000, |_| ());
    // The least contrast of a text on its colour, as the Web Content Accessibility Guidelines reckon it.
    let least = "(() => { \
        const light = (css) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, place) => { \
            const part = parseInt(css.slice(1 + 2 * place, 3 + 2 * place), 16) / 255; \
            return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4); }, 0); \
        const contrast = (one, other) => (Math.max(light(one), light(other)) + 0.05) \
            / (Math.min(light(one), light(other)) + 0.05); \
        const frames = [...FLAME_COLOURS, FLAME_FOUND].map((pair) => pair[theme.isDark ? 1 : 0]); \
        return Math.min(...theme.css.map((css, category) => contrast(css, theme.text[category])), \
            ...frames.map((css) => contrast(css, textOn(css)))); })()";

    for dark in [false, true] {
        opened.get(&format!("applyTheme({dark})"));
        let least = opened.number(least);
        assert!(least >= 4.0, "dark: {dark}, {least}");
    }
}

#[test]
fn histogram_is_drawn_once_for_a_column_and_again_for_a_theme() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    opened.get("openTab('exits')");
    opened.get("document.querySelector('#reports-panel button.distribution').focus()");
    // At two places right of the last column.
    let hover = |x: u32| {
        format!(
            "(() => {{ const button = document.activeElement; const {{ left, top }} = button.getBoundingClientRect(); \
             button.dispatchEvent(new PointerEvent('pointermove', {{ clientX: left + {x}, clientY: top + 4 }})); }})()"
        )
    };
    let canvases = "window.drawn = document.querySelector('#distribution canvas')";
    opened.get(&format!("{canvases}; undefined"));
    opened.get(&hover(400));
    assert_eq!(opened.get("document.querySelector('#distribution canvas') !== window.drawn"), json!(true));
    let reported = opened.text("document.querySelector('#distribution .chosen').textContent");
    assert!(reported.contains(" of "), "{reported}");
    opened.get(&format!("{canvases}; undefined"));
    opened.get(&hover(401));
    assert_eq!(opened.get("document.querySelector('#distribution canvas') === window.drawn"), json!(true));

    opened.get("applyTheme(true)");
    // In the colour of that theme.
    let drawn: Vec<u64> = serde_json::from_value(opened.get(COLUMNS_DRAWN)).unwrap();
    assert_eq!(drawn.iter().max(), Some(&16), "{drawn:?}");
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}

#[test]
fn closed_group_of_tasks_stays_closed_in_another_order() {
    let (mut opened, _) = Opened::new(2_000, |_| ());
    let tasks = "layout.items.filter((item) => item.row?.kind === 'task').length";
    opened.get("toggleGroup(layout.items.find((item) => item.row?.kind === 'task').key)");
    assert_eq!(opened.number(tasks), 0.0);

    opened.get("toggleOrderOfTasks()");

    assert_eq!(opened.get(&format!("[busyInSight !== null, {tasks}]")), json!([true, 0]));
}

#[test]
fn arrows_of_a_slice_are_found_once_and_those_without_a_button_are_counted() {
    let (mut opened, _) = Opened::new(20_000, |_| ());
    opened.get("selectSliceAt(about.rows[arrows.toRows[0]], arrows.tos[0])");
    let touching = "(() => { const [begin, end] = selectedTime(); const { number } = selection.row; \
        const touches = (row, time) => row === number && begin <= time && time <= end; \
        return [...arrows.froms.keys()].filter((arrow) => touches(arrows.fromRows[arrow], arrows.froms[arrow]) \
            || touches(arrows.toRows[arrow], arrows.tos[arrow])); })()";
    let found: Vec<u64> = serde_json::from_value(opened.get("arrowsOfSelection()")).unwrap();
    assert!(found.contains(&0), "{found:?}");
    assert_eq!(opened.get(touching), json!(found));
    assert_eq!(opened.get("arrowsOfSelection() === arrowsOfSelection()"), json!(true));

    let buttons = "arrowButtons(new Array(15).fill(0)).map((shown) => shown.textContent)";
    assert_eq!(opened.get(&format!("[{buttons}.length, {buttons}.at(-1)]")), json!([13, "and 3 more"]));
    opened.get("select(null)");
    assert_eq!(opened.get("arrowsOfSelection()"), json!([]));
}

#[test]
fn page_that_has_loaded_shows_what_its_address_says_and_leaves_the_focus() {
    let (mut opened, _) = Opened::new(2_000, |_| ());
    let (until, length) = (opened.text("formatMoment(about.length_ns / 4)"), opened.number("about.length_ns"));
    let page = opened.folder.path().join("page.html");
    let address = format!("file://{}#from=0&until={until}&tab=exits", page.display());
    let has_tabs = "typeof openTab === 'function' && document.querySelector('#tabs button') !== null";

    opened.browser.visit("about:blank", "document.readyState === 'complete'").unwrap();
    opened.browser.visit(&address, has_tabs).unwrap();
    opened.get("document.getElementById('search-text').focus()");
    opened.browser.wait(LOADED).unwrap();

    assert_eq!(opened.get("[document.activeElement.id, tabInSight]"), json!(["search-text", "exits"]));
    assert!((opened.number("view.length") - length / 4.0).abs() < 1.0);
    assert_eq!(opened.browser.complaints(), Vec::<String>::new());
}
