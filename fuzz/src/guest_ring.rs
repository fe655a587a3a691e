//! The ring of a guest's own kernel, in memory that the guest writes as it likes.

use vmm::agentless::sample::{LINUX_6_12, LINUX_6_14};
use vmm::agentless::{RingItem, RingLayout, decode};

/// Memory of the rings, bytes: what an input lacks is zeros.
pub const MEMORY: usize = 16 * 4096;
const CPUS: u32 = 3;

/// The layouts that an input's first byte chooses from.
pub const LAYOUTS: [RingLayout; 2] = [LINUX_6_12, LINUX_6_14];

/// Runs an input: a byte that chooses the layout, then the memory.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let Some((choice, given)) = data.split_first() else { return };
    let mut memory = given.to_vec();
    memory.resize(MEMORY, 0);
    let layout = LAYOUTS[usize::from(choice % 2)];
    let (mut last, mut bytes, mut items) = ([0; CPUS as usize], 0, 0);
    let _ = decode(&memory, &layout, CPUS, |item| {
        items += 1;
        if let RingItem::Record { cpu, time, data, .. } = item {
            let last = usize::try_from(cpu).ok().and_then(|cpu| last.get_mut(cpu)).expect("one of the CPUs");
            assert!(time >= *last, "times of a CPU do not go back");
            *last = time;
            bytes += data.len();
        }
    });
    assert!(bytes <= MEMORY && items <= MEMORY / 4, "no page is read twice");
}
