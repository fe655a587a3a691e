//! The records in the guest's ring, in the order of each CPU.
//!
//! Pure; pages are decoded as those of the host's kernel are ([`Page`]).

use super::ring::Rings;
use strata_host_kernel::{Missed, Page};

/// What the ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingItem<'a> {
    /// A record.
    Record {
        cpu: u32,
        /// Time of the ring's clock, ns; not before that of the CPU's record before it.
        time: u64,
        /// The kernel's number of the event.
        event_id: u16,
        /// The event, from `common_type` on.
        data: &'a [u8],
    },
    /// Records were lost here.
    Lost {
        cpu: u32,
        /// How many, if that is known.
        count: Option<u64>,
    },
    /// A page that cannot be decoded, or not to its end.
    Malformed {
        cpu: u32,
        /// Bytes of the page.
        bytes: u64,
    },
    /// The CPU's ring had gone round: older records were overwritten. It comes before the CPU's records.
    Wrapped { cpu: u32 },
}

/// Hands everything in `rings` to `sink`, one CPU after the other.
pub fn decode(rings: &Rings, mut sink: impl FnMut(RingItem<'_>)) {
    for ring in &rings.of_cpus {
        let cpu = ring.cpu;
        if ring.has_wrapped {
            sink(RingItem::Wrapped { cpu });
        }
        let mut last = 0;
        for place in &ring.pages {
            if ring.gap == Some(place.start) {
                sink(RingItem::Lost { cpu, count: None });
            }
            let Some(bytes) = rings.memory.get(place.clone()) else { continue };
            decode_page(cpu, bytes, &mut last, &mut sink);
        }
    }
}

fn decode_page(cpu: u32, bytes: &[u8], last: &mut u64, sink: &mut impl FnMut(RingItem<'_>)) {
    let malformed = RingItem::Malformed { cpu, bytes: u64::try_from(bytes.len()).unwrap_or(u64::MAX) };
    let Ok(page) = Page::parse(bytes) else { return sink(malformed) };
    match page.missed() {
        Missed::None => {}
        Missed::Count(count) => sink(RingItem::Lost { cpu, count: Some(count) }),
        Missed::Unknown => sink(RingItem::Lost { cpu, count: None }),
    }
    for event in page.events() {
        let common = event.ok().and_then(|event| Some((event, *event.data.first_chunk::<2>()?)));
        let Some((event, number)) = common else { return sink(malformed) };
        *last = event.time.max(*last);
        sink(RingItem::Record { cpu, time: *last, event_id: u16::from_le_bytes(number), data: event.data });
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::RingLayout;
    use super::super::ring::sample::{LINUX_6_12, LINUX_6_14, memory};
    use super::*;

    /// Puts a page with one record of `number` at `time` as page `page`.
    fn put(memory: &mut [u8], page: usize, time: u64, number: u16) {
        let page = &mut memory[4096 * (page + 1)..4096 * (page + 2)];
        page[..8].copy_from_slice(&time.to_le_bytes());
        page[8..16].copy_from_slice(&12_u64.to_le_bytes());
        page[16..20].copy_from_slice(&2_u32.to_le_bytes());
        page[20..22].copy_from_slice(&number.to_le_bytes());
    }

    fn decoded(memory: &[u8], layout: &RingLayout) -> Vec<String> {
        let mut found = Vec::new();
        let rings = Rings::of_stopped(memory.to_vec(), layout, 1);
        decode(&rings, |item| {
            found.push(match item {
                RingItem::Record { time, event_id, .. } => format!("{event_id} at {time}"),
                other => format!("{other:?}"),
            });
        });
        assert_eq!(rings.problem, None);
        found
    }

    #[test]
    fn records_come_in_the_order_of_the_ring_whatever_the_order_of_its_pages() {
        for layout in [LINUX_6_12, LINUX_6_14] {
            let mut memory = memory(&layout, &[2, 0, 3, 1, 4], 3, 1);
            put(&mut memory, 3, 100, 7);
            put(&mut memory, 1, 200, 8);

            assert_eq!(decoded(&memory, &layout), ["7 at 100", "8 at 200"]);
        }
    }

    #[test]
    fn times_never_go_back_and_overwriting_is_reported() {
        let mut memory = memory(&LINUX_6_12, &[0, 1, 2, 3], 2, 1);
        put(&mut memory, 2, 100, 7);
        put(&mut memory, 3, 50, 8);

        assert_eq!(decoded(&memory, &LINUX_6_12), ["Wrapped { cpu: 0 }", "7 at 100", "8 at 100"]);
    }

    #[test]
    fn loss_lies_between_the_readers_records_and_those_of_a_full_ring() {
        let mut memory = memory(&LINUX_6_12, &[0, 1, 2, 3], 2, 1);
        put(&mut memory, 0, 50, 6);
        put(&mut memory, 2, 100, 7);

        let expected = ["Wrapped { cpu: 0 }", "6 at 50", "Lost { cpu: 0, count: None }", "7 at 100"];
        assert_eq!(decoded(&memory, &LINUX_6_12), expected);
    }

    #[test]
    fn page_that_counts_more_than_it_has_is_malformed() {
        let mut memory = memory(&LINUX_6_12, &[0, 1, 2, 3], 1, 1);
        memory[4096 * 2 + 8..4096 * 2 + 16].copy_from_slice(&5000_u64.to_le_bytes());

        assert_eq!(decoded(&memory, &LINUX_6_12), ["Malformed { cpu: 0, bytes: 4096 }"]);
    }
}
