//! The reader of the host kernel's format files, and the copying of fields out of records as they say.

use shared_ring::event::{MAX_FIELDS, MAX_NAME};
use std::collections::HashSet;
use strata_host_kernel::{EventName, EventSchema, Page};

/// What stands between the format file and the page in an input: a byte that no format file has.
const BEHIND_FORMAT: u8 = 0;

/// An input: a format file, and a page.
#[must_use]
pub fn input(format: &str, page: &[u8]) -> Vec<u8> {
    [format.as_bytes(), &[BEHIND_FORMAT], page].concat()
}

/// Runs an input.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == BEHIND_FORMAT).unwrap_or(data.len());
    let (format, page) = (String::from_utf8_lossy(&data[..end]), data.get(end + 1..).unwrap_or_default());
    let name = EventName::parse("group:event").expect("the name has a group");
    let schema = match EventSchema::parse(&name, &format) {
        Ok(schema) => schema,
        Err(error) => return assert!(error.to_string().contains("group:event"), "an error names the event"),
    };
    check(&schema);
    // A record may be any bytes: those of a page as they are, and as the page's records.
    let mut out = Vec::new();
    encode(&schema, page, &mut out);
    for event in Page::parse(page).iter().flat_map(Page::events) {
        let Ok(event) = event else { break };
        encode(&schema, event.data, &mut out);
    }
}

/// What parses can be recorded: few fields, each with a name that C and CTF take, none twice.
fn check(schema: &EventSchema) {
    let fields = &schema.description.fields;
    let names: HashSet<&str> = fields.iter().map(|field| field.name.as_str()).collect();
    let is_plain = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    assert!((1..=MAX_FIELDS).contains(&fields.len()) && names.len() == fields.len());
    assert!(names.iter().all(|name| is_plain(name) && (1..=MAX_NAME).contains(&name.len())));
    assert_eq!(fields[0].name, "common_pid");
}

/// Fields are taken from inside of the record, or none is.
fn encode(schema: &EventSchema, record: &[u8], out: &mut Vec<u8>) {
    out.clear();
    match schema.encode(record, out) {
        Ok(()) => {
            assert!(schema.description.accepts(out) && out.len() <= usize::from(u16::MAX));
            let places = schema.description.fields.iter().filter_map(|field| schema.place(&field.name));
            places.for_each(|place| assert!(place.end <= record.len(), "{place:?} of {} bytes", record.len()));
        }
        Err(_) => assert!(out.is_empty()),
    }
}
