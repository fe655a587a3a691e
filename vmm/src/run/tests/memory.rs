//! Guests in reserved huge pages, in their closed jail. They need `/dev/kvm`, of any kind, and root, who reserves the
//! pages.
//!
//! Shows: Guest memory uses reserved huge pages; a refusal says how many to reserve (this KVM).

use super::vm_process::{NOBODY, SLEEP, Vm};
use std::fs;

/// What the kernel says of huge pages.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
/// The memory of a test's guest, 64 MiB, in pages of 2 MiB.
const PAGES: u64 = 32;

fn pool(name: &str) -> u64 {
    fs::read_to_string(format!("{POOL}/{name}")).unwrap().trim().parse().unwrap()
}

fn reserve(pages: u64) {
    fs::write(format!("{POOL}/nr_hugepages"), pages.to_string()).unwrap();
}

/// So many huge pages that [`PAGES`] can be had, and as many as before when it is dropped.
struct Reserved {
    before: u64,
}

impl Reserved {
    fn for_one_guest() -> Self {
        let before = pool("nr_hugepages");
        let taken = before + pool("resv_hugepages") - pool("free_hugepages");
        reserve(taken + PAGES);
        Self { before }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        reserve(self.before);
    }
}

#[test]
fn guest_runs_in_huge_pages_that_are_reserved_and_is_refused_with_the_way_out_without() {
    let arguments = ["--user", "65534:65534", "--events", "vmm:*:*", "--memory-backing", "huge"];
    let pages = Reserved::for_one_guest();

    let mut vm = Vm::start(SLEEP, NOBODY, &arguments);
    vm.status();
    let smaps = fs::read_to_string(format!("/proc/{}/smaps_rollup", vm.process.id())).unwrap();
    let mut second = Vm::start(SLEEP, NOBODY, &arguments);
    second.end();
    let ended = vm.stop();
    drop(pages);

    let used = smaps.lines().find_map(|line| line.strip_prefix("Private_Hugetlb:")).unwrap().trim();
    assert!(used.ends_with(" kB") && used != "0 kB", "{used}");
    assert!(ended.success() && vm.printed().contains("OUTCOME stopped"), "{}", vm.printed());
    let printed = second.printed();
    assert!(printed.contains("REFUSED 67108864 bytes of guest memory are 32 huge pages, and "), "{printed}");
    assert!(printed.contains("`sysctl vm.nr_hugepages="), "{printed}");
    assert!(!second.path("traces/trace").exists());
}
