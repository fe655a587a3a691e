//! The decoder of the host kernel's trace pages, and the copying of fields out of their records.

use std::sync::OnceLock;
use strata_host_kernel::{EventName, EventSchema, HEADER_BYTES, Page};

/// Format files with a field of every kind: numbers, arrays of characters, bytes and numbers, and the three ways in
/// which a record says where a text lies.
const FORMATS: [&str; 3] = [
    "\tfield:unsigned int vcpu_id;\toffset:8;\tsize:4;\tsigned:0;\n\
     \tfield:unsigned long rip;\toffset:16;\tsize:8;\tsigned:0;\n\
     \tfield:char comm[16];\toffset:24;\tsize:16;\tsigned:0;\n\
     \tfield:u8 bytes[6];\toffset:40;\tsize:6;\tsigned:0;\n\
     \tfield:unsigned long args[6];\toffset:48;\tsize:48;\tsigned:0;\n",
    "\tfield:__data_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;\n\
     \tfield:__data_loc u8[] data;\toffset:12;\tsize:4;\tsigned:0;\n\
     \tfield:short last;\toffset:16;\tsize:2;\tsigned:1;\n",
    "\tfield:__rel_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;\n\
     \tfield:__rel_loc u8[] data;\toffset:12;\tsize:4;\tsigned:0;\n\
     \tfield:char rest[];\toffset:16;\tsize:0;\tsigned:0;\n",
];

/// The fields that every record starts with.
const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
     \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
     \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
     \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n";

fn schemas() -> &'static [EventSchema] {
    static SCHEMAS: OnceLock<Vec<EventSchema>> = OnceLock::new();
    SCHEMAS.get_or_init(|| {
        let name = EventName::parse("group:event").expect("the name has a group");
        let text = |fields: &str| format!("name: event\nID: 77\nformat:\n{COMMON}\n{fields}\nprint fmt: \"\"\n");
        let parsed = FORMATS.map(|fields| EventSchema::parse(&name, &text(fields)));
        parsed.map(|schema| schema.expect("the format is one of a kernel")).into()
    })
}

/// Runs an input: a page.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let Ok(page) = Page::parse(data) else { return };
    assert!(page.data_bytes() <= data.len() - HEADER_BYTES);
    let _ = page.missed();
    let mut out = Vec::new();
    let (mut steps, mut bytes) = (0, 0);
    for event in page.events() {
        steps += 1;
        let Ok(event) = event else { break };
        bytes += event.data.len();
        for schema in schemas() {
            out.clear();
            match schema.encode(event.data, &mut out) {
                Ok(()) => assert!(schema.description.accepts(&out)),
                Err(_) => assert!(out.is_empty()),
            }
        }
    }
    assert!(steps <= page.data_bytes() / 4 + 1 && bytes <= page.data_bytes(), "records do not overlap");
}
