//! The format files of Debian's kernels, old and new: each event is read as `trace-cmd` reads it, from a record that
//! holds another value in every byte.
//!
//! `corpus/collect.sh` makes the files: all of `events/` after every module with events was loaded, and probe events
//! with arguments of each type.
//!
//! Shows: Host kernel events of 5.10 to 7.3 are read as by `trace-cmd`: every field of every event that Debian's kernels
//! describe is recorded right, or listed as left out.

use super::format_file::FormatFile;
use super::*;
use crate::item::HostItem;
use crate::page::format as page_format;
use crate::reader;
use crate::stats::ReaderStats;
use crate::trace_cmd::{
    Pages, TraceDat, Value, has_trace_cmd, packed_fields, value_of_field, value_of_text, values_in,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The files, oldest kernel first; the events in each, and how many fields of these are left out.
const KERNELS: [(&str, usize, usize); 4] = [
    ("5.10.0-46-amd64", 3621, 10),
    ("6.1.0-50-amd64", 4018, 9),
    ("6.12.95+deb12-amd64", 4522, 16),
    ("7.3.4+deb13-amd64", 5969, 45),
];
/// Where the fields of all events end, bytes.
const COMMON_BYTES: usize = 8;
/// Bytes in front of a page's records.
const PAGE_HEADER: usize = 16;
/// The thread of every record.
const THREAD: i32 = 4711;

/// What a kernel describes.
struct Described {
    header_page: String,
    header_event: String,
    events: Vec<(EventName, String)>,
}

impl Described {
    fn read(kernel: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("corpus/{kernel}.formats.zst"));
        let text = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
        let text = String::from_utf8_lossy(&text).replace('\r', "");
        let parts = text.split("\n== ").skip(1).filter_map(|part| part.split_once('\n'));
        let mut files: BTreeMap<&str, &str> = parts.collect();
        let mut header = |name| files.remove(name).unwrap().to_owned();
        let (header_page, header_event) = (header("header_page"), header("header_event"));
        let events = files.into_iter().filter_map(|(path, format)| {
            // ftrace's own are not events that one can choose.
            let (group, name) = path.split_once('/').filter(|(group, _)| *group != "ftrace")?;
            Some((EventName { group: group.to_owned(), name: name.to_owned() }, format!("{format}\n")))
        });
        Self { header_page, header_event, events: events.collect() }
    }
}

/// Where a field lies and what fills it, as its line says.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    name: String,
    offset: usize,
    size: usize,
    content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Text,
    Bytes,
    Located { is_text: bool, is_relative: bool },
}

impl Place {
    /// The event's own fields in their order, read with no more than what this test needs of a line.
    fn all(format: &str) -> Vec<Self> {
        let own = format.lines().filter(|line| line.starts_with("\tfield:")).map(Self::of);
        own.filter(|place| !place.name.starts_with("common_")).collect()
    }

    fn of(line: &str) -> Self {
        let parts: Vec<&str> = line.split(';').collect();
        let number = |at: usize| parts[at].rsplit_once(':').unwrap().1.parse().unwrap();
        let declaration = parts[0].split_once(':').unwrap().1;
        let parsed = FormatFile::parse(&format!("format:\n{line}\n")).unwrap();
        let is_text = declaration.split_whitespace().any(|word| word.starts_with("char") || word == "string")
            && !declaration.contains('*')
            && !declaration.contains("unsigned char");
        let is_relative = declaration.contains("__rel_loc");
        let content = match is_relative || declaration.contains("__data_loc") {
            true => Content::Located { is_text, is_relative },
            false if is_text && declaration.contains('[') => Content::Text,
            false => Content::Bytes,
        };
        Self { name: parsed.common[0].name.clone(), offset: number(1), size: number(2), content }
    }
}

/// Bytes that are not text, each other than its neighbours.
fn bytes(seed: usize, count: usize) -> impl Iterator<Item = u8> {
    (0..count).map(move |at| 0x80 | u8::try_from((seed * 31 + at * 7 + 1) % 0x7f).unwrap())
}

/// Letters and a NUL, in `count` bytes.
fn text(seed: usize, count: usize) -> impl Iterator<Item = u8> {
    (0..count).map(move |at| if at + 1 == count { 0 } else { b'a' + u8::try_from((seed + at) % 26).unwrap() })
}

/// A record of the event `id` with these fields.
fn record(id: u16, places: &[Place]) -> Vec<u8> {
    let fixed = places.iter().map(|place| place.offset + place.size).max().unwrap_or(COMMON_BYTES);
    let mut record = vec![0; fixed.next_multiple_of(4)];
    record[..2].copy_from_slice(&id.to_le_bytes());
    record[4..8].copy_from_slice(&THREAD.to_le_bytes());
    for (seed, place) in places.iter().enumerate() {
        let value: Vec<u8> = match place.content {
            Content::Text => text(seed, place.size).collect(),
            Content::Bytes => bytes(seed, place.size).collect(),
            Content::Located { is_text, is_relative } => {
                let located: Vec<u8> = if is_text { text(seed, 16).collect() } else { bytes(seed, 16).collect() };
                let begin = record.len() - if is_relative { place.offset + 4 } else { 0 };
                record.extend(&located);
                let word = u32::try_from(located.len() << 16 | begin).unwrap();
                // Several texts have a word each.
                word.to_le_bytes().repeat(place.size / 4)
            }
        };
        record[place.offset..place.offset + place.size].copy_from_slice(&value);
    }
    record
}

/// Pages of `page_bytes` with these records, one nanosecond after the other, as the kernel's ring lays them out.
fn pages(page_bytes: usize, records: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut pages: Vec<Vec<u8>> = Vec::new();
    for (time, record) in (1_u64..).zip(records) {
        // the length in a word of its own, which counts itself
        let framed =
            [&(1_u32 << 5).to_le_bytes(), &u32::try_from(record.len() + 4).unwrap().to_le_bytes(), &record[..]];
        let framed = framed.concat();
        if pages.last().is_none_or(|page| page.len() + framed.len() > page_bytes) {
            pages.push([&(time - 1).to_le_bytes()[..], &[0; 8]].concat());
        }
        pages.last_mut().unwrap().extend(framed);
    }
    for page in &mut pages {
        let data = u64::try_from(page.len() - PAGE_HEADER).unwrap();
        page[8..16].copy_from_slice(&data.to_le_bytes());
        page.resize(page_bytes, 0);
    }
    pages
}

/// The values of each of the kernel's fields in what was packed of a record; `None` for those that are left out.
fn recorded(schema: &EventSchema, places: &[Place], packed: &[u8]) -> Vec<Option<Value>> {
    let fields = packed_fields(schema, packed).into_iter();
    let values: BTreeMap<&str, (FieldType, &[u8])> = fields.map(|(name, ty, bytes)| (name, (ty, bytes))).collect();
    let is_skipped = |name: &str| schema.skipped.iter().any(|skipped| skipped.name == name);
    let value = |place: &Place| match values.get(&*place.name) {
        _ if is_skipped(&place.name) => None,
        Some((FieldType::String, bytes)) if is_hexadecimal(place) => Some(Value::Bytes(of_hexadecimal(bytes))),
        Some(&(ty, bytes)) => Some(value_of_field(ty, bytes)),
        None => {
            let elements = (0..).map_while(|element| values.get(&*format!("{}_{element}", place.name)));
            Some(Value::Bytes(elements.flat_map(|(_, bytes)| bytes.to_vec()).collect()))
        }
    };
    places.iter().map(value).collect()
}

fn is_hexadecimal(place: &Place) -> bool {
    matches!(place.content, Content::Bytes | Content::Located { is_text: false, .. })
}

fn of_hexadecimal(digits: &[u8]) -> Vec<u8> {
    let pairs = until_nul(digits).chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// An event in a report: its name and its fields as they stand there.
fn reported(line: &str) -> Option<(&str, &str)> {
    // "   <...>-4711  [000] 1: sched_switch:   prev_comm=…"
    let (_, rest) = line.split_once("] ")?;
    let (_, rest) = rest.split_once(": ")?;
    let (name, fields) = rest.split_once(':')?;
    Some((name.trim(), fields))
}

#[test]
fn every_event_of_debians_kernels_is_read_as_by_trace_cmd() {
    if !has_trace_cmd("the format files of Debian's kernels") {
        return;
    }
    for (kernel, described_events, left_out) in KERNELS {
        let described = Described::read(kernel);
        let page_bytes = page_format::page_bytes(&described.header_page).unwrap();
        let schemas: Vec<EventSchema> =
            described.events.iter().map(|(name, format)| EventSchema::parse(name, format).unwrap()).collect();
        let places: Vec<Vec<Place>> = described.events.iter().map(|(_, format)| Place::all(format)).collect();
        let records: Vec<Vec<u8>> =
            schemas.iter().zip(&places).map(|(schema, places)| record(schema.id(), places)).collect();
        let pages = Pages::from([(0, pages(page_bytes, &records))]);

        let mut ours = Vec::new();
        let (mut stats, mut last_time, mut packed) = (ReaderStats::default(), 0, Vec::new());
        for page in &pages[&0] {
            reader::hand_on(page, 0, &mut last_time, &mut stats, &mut |item: HostItem<'_>| {
                let HostItem::Record(record) = item else { return };
                let (schema, places) = (&schemas[ours.len()], &places[ours.len()]);
                assert_eq!((record.event_id, record.common_pid), (schema.id(), THREAD));
                packed.clear();
                schema.encode(record.payload, &mut packed).unwrap();
                ours.push(recorded(schema, places, &packed));
            });
        }
        let report = TraceDat {
            header_page: described.header_page.into_bytes(),
            header_event: described.header_event.into_bytes(),
            formats: described
                .events
                .iter()
                .map(|(name, format)| (name.clone(), without_print_format(format)))
                .collect(),
            clocks: b"[x86-tsc]".to_vec(),
            pages: &pages,
        }
        .report();

        let lines: Vec<(&str, &str)> = report.lines().filter_map(reported).collect();
        assert_eq!((ours.len(), lines.len()), (schemas.len(), schemas.len()), "{kernel}");
        let mut skipped = BTreeSet::new();
        let events = schemas.iter().zip(&places).zip(&records).zip(&ours).zip(lines);
        for ((((schema, places), record), ours), (name, fields)) in events {
            assert_eq!(name, schema.name.name, "{kernel}");
            // trace-cmd cannot read some of what we leave out, and shows neither name nor value.
            let is_shown = |(place, ours): &(&Place, &Option<Value>)| {
                ours.is_some() || fields.contains(&format!(" {}=", place.name))
            };
            let shown: Vec<_> = places.iter().zip(ours).filter(is_shown).collect();
            let names: Vec<&str> = shown.iter().map(|(place, _)| &*place.name).collect();
            for ((place, ours), theirs) in shown.into_iter().zip(values_in(&names, fields)) {
                let theirs = theirs_of(place, theirs, record);
                assert_eq!(ours.as_ref().unwrap_or(&theirs), &theirs, "{kernel} {} {place:?}", schema.name);
            }
            let left_out = places.iter().zip(ours).filter(|(_, ours)| ours.is_none());
            skipped.extend(left_out.map(|(place, _)| format!("{}:{}", schema.name, place.name)));
        }
        assert_eq!((schemas.len(), skipped.len()), (described_events, left_out), "{kernel}: {skipped:#?}");
    }
}

/// A field's value as `trace-cmd` prints it of `record`.
fn theirs_of(place: &Place, text: &str, record: &[u8]) -> Value {
    // Of what is not an array it prints the word that says where the bytes lie.
    if let (Content::Located { is_text: false, .. }, Ok(word)) = (place.content, text.parse::<u32>()) {
        let [begin, length] = [word & 0xffff, word >> 16].map(|part| usize::try_from(part).unwrap());
        return Value::Bytes(record[begin..begin + length].to_vec());
    }
    let size = if place.content == Content::Bytes && place.size <= 8 { place.size } else { 0 };
    // Addresses have no `0x`. The highest bit of each byte is set, so that a decimal number has more digits.
    let is_address = text.len() == 2 * size && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_address { value_of_text(&format!("0x{text}"), size) } else { value_of_text(text, size) }
}

/// A format file whose `print fmt` prints nothing: `trace-cmd` prints a field as that does, masked and shifted.
fn without_print_format(format: &str) -> Vec<u8> {
    let fields = format.split_once("print fmt:").map_or(format, |(fields, _)| fields);
    format!("{fields}print fmt: \"\"\n").into_bytes()
}

#[test]
fn flags_of_allocations_have_the_names_of_each_kernel() {
    for (kernel, ..) in KERNELS {
        let described = Described::read(kernel);
        let (name, format) = described.events.iter().find(|(name, _)| name.name == "mm_page_alloc").unwrap();

        let flags = EventSchema::parse(name, format).unwrap().flags;

        let [(field, flags)] = &flags[..] else { panic!("{kernel}: {flags:?}") };
        let mask_of = |name: &str| flags.iter().find(|(_, known)| known == name).map(|(mask, _)| *mask);
        let masks = ["GFP_KERNEL", "__GFP_IO", "__GFP_ZERO"].map(mask_of);
        assert_eq!((&**field, masks), ("gfp_flags", [Some(0xcc0), Some(0x40), Some(0x100)]), "{kernel}: {flags:?}");
    }
}
