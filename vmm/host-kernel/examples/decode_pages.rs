//! Decodes so many records of a host's kernel, from pages like those of its ring buffer, for counting the instructions:
//! `cargo xtask bench instructions`.
//!
//! `cargo run --release -p strata-host-kernel --example decode_pages -- RECORDS`

use std::error::Error;
use std::hint::black_box;
use strata_host_kernel::{EventName, EventSchema, HEADER_BYTES, Page};

/// As tracefs describes `sched_switch`.
const FORMAT: &str = "name: sched_switch
ID: 316
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;
\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;
\tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;
\tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;
\tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;

print fmt: \"prev_comm=%s\", REC->prev_comm
";
/// Bytes of a switch, by that.
const SWITCH: usize = 64;
/// Bytes of a page.
const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let wanted: usize = std::env::args().nth(1).ok_or("usage: decode_pages RECORDS")?.parse()?;
    let schema = EventSchema::parse(&EventName { group: "sched".into(), name: "sched_switch".into() }, FORMAT)?;
    let (page, mut buffer, mut decoded) = (page()?, Vec::new(), 0);
    while decoded < wanted {
        for event in Page::parse(black_box(&page))?.events() {
            black_box(schema.encoded(event?.data, &mut buffer)?);
            decoded += 1;
        }
    }
    println!("{decoded}");
    Ok(())
}

/// A page that is full of switches, a tick apart.
fn page() -> Result<Vec<u8>, Box<dyn Error>> {
    // The event's words, and what its time adds to that of the one before.
    let header = u32::try_from(SWITCH / 4)? | 1 << 5;
    let mut switch = [0; SWITCH];
    [8, 40].into_iter().for_each(|name| switch[name..name + 6].copy_from_slice(b"worker"));
    let record = [&header.to_le_bytes()[..], &switch].concat();
    let data = record.repeat((PAGE - HEADER_BYTES) / record.len());
    let mut page = [1000_u64.to_le_bytes(), u64::try_from(data.len())?.to_le_bytes()].concat();
    page.extend(data);
    page.resize(PAGE, 0);
    Ok(page)
}
