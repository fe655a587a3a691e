//! The same pages decoded by us and by `trace-cmd report`: every event's CPU, time, thread, name and fields.
//!
//! Shows: Host kernel pages are decoded as by `trace-cmd`: every event and field of this kernel.

use super::*;
use crate::page::format as page_format;
use crate::reader;
use crate::trace_cmd::{
    Pages, TraceDat, Value, has_trace_cmd, packed_fields, value_of_field, value_of_text, values_in,
};
use shared_ring::event::FieldType;

/// Groups of the events that are compared.
const GROUPS: [&str; 5] = ["raw_syscalls", "sched", "irq", "irq_vectors", "timer"];
/// How often a timer interrupts what is traced.
const TICK: Duration = Duration::from_micros(100);
/// System calls in a capture; each is two events.
const CALLS: u32 = 50_000;
/// Captures at the most, until one has an event that interrupted the dating of another one.
const CAPTURES: u32 = 100;
/// An event, as both sides tell it: CPU, time, thread, name, and the values of its fields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reported {
    time: u64,
    pid: i32,
    name: String,
    values: Vec<Value>,
}

/// A recording of this thread, and the instance that it was made in.
struct Capture {
    instance: Instance,
    pages: Pages,
    schemas: Vec<EventSchema>,
}

impl Capture {
    fn make(tracefs: &Tracefs, groups: &[&str], buffer_kib: u32, work: impl FnOnce()) -> Self {
        let instance = Instance::create(tracefs, "x86-tsc", buffer_kib, &[thread_id()]).unwrap();
        let mut events = tracefs.available_events().unwrap();
        events.retain(|event| groups.contains(&event.group.as_str()));
        let schemas = events.iter().map(|event| instance.schema(event).unwrap()).collect();
        events.iter().for_each(|event| instance.enable(event).unwrap());
        instance.start().unwrap();
        work();
        instance.stop().unwrap();
        let cpus = instance.cpus().unwrap();
        let pages = cpus.into_iter().map(|cpu| (cpu, read_pages(&instance, cpu))).collect();
        Self { instance, pages, schemas }
    }

    fn file(&self, relative: &str) -> Vec<u8> {
        tracefs::read(&self.instance.path(relative)).unwrap().into_bytes()
    }

    /// What `trace-cmd report` makes of it: its lines, with the fields as they are.
    fn report(&self) -> String {
        let name = |schema: &EventSchema| schema.name.clone();
        let format = |name: EventName| {
            let content = self.file(&format!("events/{}/{}/format", name.group, name.name));
            (name, content)
        };
        let file = TraceDat {
            header_page: self.file("events/header_page"),
            header_event: self.file("events/header_event"),
            formats: self.schemas.iter().map(name).map(format).collect(),
            clocks: self.file("trace_clock"),
            pages: &self.pages,
        };
        file.report()
    }

    /// What we make of it: the events of each CPU, and how many were lost.
    fn decoded(&self) -> (BTreeMap<u32, Vec<Reported>>, u64) {
        let mut events: BTreeMap<u32, Vec<Reported>> = BTreeMap::new();
        let mut stats = ReaderStats::default();
        let mut packed = Vec::new();
        for (&cpu, pages) in &self.pages {
            let mut last_time = 0;
            for page in pages {
                reader::hand_on(page, cpu, &mut last_time, &mut stats, &mut |item: HostItem<'_>| {
                    let HostItem::Record(record) = item else { return };
                    let schema = self.schemas.iter().find(|schema| schema.id() == record.event_id).unwrap();
                    packed.clear();
                    schema.encode(record.payload, &mut packed).unwrap();
                    events.entry(cpu).or_default().push(Reported {
                        time: record.time,
                        pid: record.common_pid,
                        name: schema.name.name.clone(),
                        values: values(schema, &packed),
                    });
                });
            }
        }
        assert_eq!((stats.malformed_pages, stats.times_raised, stats.lost_unknown), (0, 0, 0));
        (events, stats.lost)
    }

    /// How many records of this `type_len` there are, or events that carry no time of their own for `None`.
    fn count(&self, type_len: Option<u32>) -> usize {
        let words = self.pages.values().flatten().flat_map(|page| record_words(page));
        words.filter(|word| type_len.map_or(word >> 5 == 0, |wanted| word & 0x1f == wanted)).count()
    }
}

/// The first words of the records of a page, padding at its end apart.
fn record_words(page: &[u8]) -> Vec<u32> {
    let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
    let end = 16 + usize::try_from(word(8) & 0x7ff_ffff).unwrap();
    let mut words = Vec::new();
    let mut at = 16;
    while at < end {
        let first = word(at);
        words.push(first);
        at += match first & 0x1f {
            29 if first >> 5 == 0 => end,
            0 | 29 => 4 + usize::try_from(word(at + 4)).unwrap().next_multiple_of(4),
            30 | 31 => 8,
            words => 4 + usize::try_from(words).unwrap() * 4,
        };
    }
    words
}

fn read_pages(instance: &Instance, cpu: u32) -> Vec<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = instance.path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
    let mut file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    let mut pages = Vec::new();
    let header = tracefs::read(&instance.path("events/header_page")).unwrap();
    let mut page = vec![0; page_format::page_bytes(&header).unwrap()];
    while let Ok(length @ 1..) = file.read(&mut page) {
        pages.push(page[..length].to_vec());
    }
    pages
}

/// The values of a packed record, `common_pid` left out, the elements of an array together.
fn values(schema: &EventSchema, packed: &[u8]) -> Vec<Value> {
    let mut values = Vec::new();
    for (name, ty, bytes) in packed_fields(schema, packed) {
        match element_of_array(name) {
            _ if name == "common_pid" => {}
            Some(0) => values.push(Value::Bytes(bytes.to_vec())),
            Some(_) => {
                let Some(Value::Bytes(array)) = values.last_mut() else { panic!("{name}") };
                array.extend(bytes);
            }
            None => values.push(value_of_field(ty, bytes)),
        }
    }
    values
}

/// Which element of an array the field of this name is.
fn element_of_array(name: &str) -> Option<u32> {
    name.rsplit_once('_')?.1.parse().ok()
}

/// The names of the fields as the kernel has them, `common_pid` left out.
fn kernel_names(schema: &EventSchema) -> Vec<&str> {
    let names = schema.description.fields.iter().map(|field| field.name.as_str());
    names
        .filter(|name| *name != "common_pid" && element_of_array(name).is_none_or(|element| element == 0))
        .map(|name| element_of_array(name).map_or(name, |_| name.rsplit_once('_').unwrap().0))
        .collect()
}

/// The events of each CPU in a report, and how many it says were dropped.
fn reported_by_trace_cmd(report: &str, schemas: &[EventSchema]) -> (BTreeMap<u32, Vec<Reported>>, u64) {
    let mut events: BTreeMap<u32, Vec<Reported>> = BTreeMap::new();
    let mut dropped = 0;
    for line in report.lines().filter(|line| line.contains('[')) {
        if let Some(count) = line.strip_suffix(" EVENTS DROPPED]") {
            dropped += count.rsplit_once('[').unwrap().1.parse::<u64>().unwrap();
            continue;
        }
        // "   <...>-123   [000] 456789: sched_switch:   prev_comm=…"
        let (task, rest) = line.split_once(" [").unwrap();
        let (cpu, rest) = rest.split_once(']').unwrap();
        let (time, rest) = rest.split_once(": ").unwrap();
        let (name, fields) = rest.split_once(':').unwrap();
        let schema = schemas.iter().find(|schema| schema.name.name == name.trim()).unwrap();
        let names = kernel_names(schema);
        let description = &schema.description;
        let size = |name: &&str| {
            let field = description.fields.iter().find(|field| field.name == **name);
            field.map_or(0, |field| match field.ty {
                FieldType::CharArray(_) | FieldType::String => 0,
                number => number.fixed_size().unwrap(),
            })
        };
        let sizes: Vec<usize> = names.iter().map(size).collect();
        events.entry(cpu.parse().unwrap()).or_default().push(Reported {
            time: time.trim().parse().unwrap(),
            pid: task.rsplit_once('-').unwrap().1.trim().parse().unwrap(),
            name: name.trim().to_owned(),
            values: values_in(&names, fields)
                .into_iter()
                .zip(sizes)
                .map(|(text, size)| value_of_text(text, size))
                .collect(),
        });
    }
    (events, dropped)
}

/// Makes system calls while a timer interrupts them.
fn interrupted_system_calls(calls: u32) {
    use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::empty()).unwrap();
    let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
    let setting = Itimerspec { it_interval: tick, it_value: tick };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &setting).unwrap();
    make_system_calls(calls);
}

/// The first event in which the two differ, with its CPU and index: the lists are too long to show.
fn first_unreported<'a>(
    ours: &'a BTreeMap<u32, Vec<Reported>>,
    theirs: &'a BTreeMap<u32, Vec<Reported>>,
) -> Option<(u32, usize, Option<&'a Reported>, Option<&'a Reported>)> {
    ours.keys().chain(theirs.keys()).find_map(|cpu| {
        let [ours, theirs] = [ours, theirs].map(|events| events.get(cpu).map_or(&[][..], Vec::as_slice));
        (0..ours.len().max(theirs.len()))
            .map(|index| (*cpu, index, ours.get(index), theirs.get(index)))
            .find(|(_, _, ours, theirs)| ours != theirs)
    })
}

#[test]
fn trace_cmd_reports_the_same_events_nested_ones_included() {
    let Some(tracefs) = live_tracefs("trace-cmd").filter(|_| has_trace_cmd("trace-cmd")) else {
        return;
    };

    // Whether an event interrupts the dating of another one is chance: about one capture in two has such an event.
    let interrupted = (0..CAPTURES).any(|_| {
        let capture = Capture::make(&tracefs, &GROUPS, 65536, || interrupted_system_calls(CALLS));
        let (ours, lost) = capture.decoded();
        let (theirs, dropped) = reported_by_trace_cmd(&capture.report(), &capture.schemas);

        let kinds = [("absolute time stamps", Some(31)), ("time extends", Some(30)), ("events without a delta", None)];
        let kinds = kinds.map(|(name, type_len)| format!("{} {name}", capture.count(type_len)));
        let names: BTreeSet<&str> = ours.values().flatten().map(|reported| reported.name.as_str()).collect();
        let count: usize = ours.values().map(Vec::len).sum();
        eprintln!("{count} events of {} kinds; {}", names.len(), kinds.join(", "));
        assert_eq!(first_unreported(&ours, &theirs), None);
        assert!(count >= 2 * CALLS as usize, "{count} events of {names:?}");
        assert_eq!((lost, dropped), (0, 0));
        capture.count(Some(31)) > 0
    });

    assert!(interrupted, "in {CAPTURES} captures no event interrupted the dating of another one");
}

#[test]
fn trace_cmd_reports_as_many_events_lost() {
    let Some(tracefs) = live_tracefs("trace-cmd losses").filter(|_| has_trace_cmd("trace-cmd losses")) else {
        return;
    };
    let capture = Capture::make(&tracefs, &["raw_syscalls"], 16, || make_system_calls(CALLS));

    let (ours, lost) = capture.decoded();
    let (theirs, dropped) = reported_by_trace_cmd(&capture.report(), &capture.schemas);

    assert_eq!(ours, theirs);
    assert!(lost > 0, "{lost}");
    assert_eq!(lost, dropped);
}
