//! The ring of a guest's own kernel, in memory that the guest writes as it likes, also while it is read.

use std::cell::{Cell, RefCell};
use vmm::agentless::sample::{LINUX_6_12, LINUX_6_14};
use vmm::agentless::{RingItem, RingLayout, RingSource, Rings, copy_running, decode};

/// Memory of the rings, bytes: what an input lacks is zeros.
pub const MEMORY: usize = 16 * 4096;
const CPUS: u32 = 3;
/// Bytes of a change: before which read it is made, where in words of four bytes, and the word.
const CHANGE: usize = 8;

/// The layouts that an input's first byte chooses from.
pub const LAYOUTS: [RingLayout; 2] = [LINUX_6_12, LINUX_6_14];

/// A running guest's memory.
struct Running<'a> {
    memory: RefCell<Vec<u8>>,
    changes: &'a [[u8; CHANGE]],
    reads: Cell<u16>,
}

impl Running<'_> {
    /// Makes the changes that come before this read.
    fn read(&self) {
        let read = self.reads.replace(self.reads.get().wrapping_add(1));
        for &[when_low, when_high, at_low, at_high, word @ ..] in self.changes {
            if u16::from_le_bytes([when_low, when_high]) == read {
                let at = 4 * usize::from(u16::from_le_bytes([at_low, at_high])) % MEMORY;
                self.memory.borrow_mut()[at..at + 4].copy_from_slice(&word);
            }
        }
    }
}

impl RingSource for Running<'_> {
    fn load(&self, at: usize) -> Option<u64> {
        assert!(at.is_multiple_of(8), "words are read as a whole");
        self.read();
        self.memory.borrow().get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn copy(&self, at: usize, bytes: &mut [u8]) -> Option<()> {
        let (begin, end) = bytes.split_at_mut(bytes.len() / 2);
        let middle = at + begin.len();
        self.read();
        begin.copy_from_slice(self.memory.borrow().get(at..middle)?);
        self.read();
        end.copy_from_slice(self.memory.borrow().get(middle..middle + end.len())?);
        Some(())
    }
}

/// Runs an input: a byte whose lowest bit chooses the layout and whose others count changes, the changes, then the
/// memory. It is read as that of a stopped guest, and as that of a running one that makes the changes meanwhile.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let count = usize::from(choice >> 1).min(data.len() / CHANGE);
    let (changes, given) = data.split_at(CHANGE * count);
    let changes = changes.as_chunks().0;
    let mut memory = given.to_vec();
    memory.resize(MEMORY, 0);
    let layout = LAYOUTS[usize::from(choice % 2)];
    let running = Running { memory: RefCell::new(memory.clone()), changes, reads: Cell::new(0) };
    let running = check(&copy_running(&running, MEMORY, &layout, CPUS));
    let stopped = check(&Rings::of_stopped(memory, &layout, CPUS));
    assert!(!changes.is_empty() || running == stopped, "a guest that does not write is read as a stopped one");
}

/// Decodes `rings`; returns the records' CPUs, times and bytes.
fn check(rings: &Rings) -> Vec<(u32, u64, Vec<u8>)> {
    let (mut last, mut bytes, mut items) = ([0; CPUS as usize], 0, 0);
    let mut records = Vec::new();
    decode(rings, |item| {
        items += 1;
        if let RingItem::Record { cpu, time, data, .. } = item {
            let last = usize::try_from(cpu).ok().and_then(|cpu| last.get_mut(cpu)).expect("one of the CPUs");
            assert!(time >= *last, "times of a CPU do not go back");
            *last = time;
            bytes += data.len();
            records.push((cpu, time, data.to_vec()));
        }
    });
    assert!(bytes <= MEMORY && items <= MEMORY / 4, "no page is read twice");
    records
}
