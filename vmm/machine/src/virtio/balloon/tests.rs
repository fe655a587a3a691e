use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Mutex;
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::MockSplitQueue;
use vm_memory::{Bytes, GuestAddress};

/// Pages of the guest's memory: 4 MiB.
const PAGES: u32 = 1024;
/// Where requests lie, behind the queue.
const DATA: u64 = 0x2_0000;
const DEVICE_WRITES: u16 = 2;
const REPORT: usize = 2;

/// Keeps what a balloon tells.
#[derive(Default)]
struct Seen(Mutex<Vec<(BalloonRequestKind, u64, u64)>>);

impl Observer for Seen {
    fn balloon_request(&self, kind: BalloonRequestKind, bytes: u64, refused: u64, _: std::time::Duration) {
        self.0.lock().unwrap().push((kind, bytes, refused));
    }
}

struct Bench {
    memory: GuestMemoryMmap,
    device: Balloon,
    counts: Arc<BalloonCounts>,
    seen: Arc<Seen>,
}

impl Bench {
    /// A balloon, and a guest whose usable pages from 1 MiB on are full of ones.
    fn new() -> Self {
        let bench = Self::with_memory(PAGES as usize * 4096);
        (0x9f..PAGES).for_each(|page| bench.fill(page));
        bench
    }

    fn with_memory(bytes: usize) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), bytes)]).unwrap();
        let (counts, seen) = (Arc::<BalloonCounts>::default(), Arc::<Seen>::default());
        let device = Balloon::new(&memory, Arc::clone(&counts), seen.clone());
        Self { memory, device, counts, seen }
    }

    fn fill(&self, page: u32) {
        self.memory.write_slice(&[1; 4096], GuestAddress(u64::from(page) * PAGE)).unwrap();
    }

    /// Whether `page` holds nothing but `byte`.
    fn holds(&self, page: u32, byte: u8) -> bool {
        let mut bytes = [0; 4096];
        self.memory.read_slice(&mut bytes, GuestAddress(u64::from(page) * PAGE)).unwrap();
        bytes.iter().all(|found| *found == byte)
    }

    /// Has queue `index` served, which holds a chain of the buffers (address, bytes, flags).
    fn serve(&mut self, index: usize, buffers: &[(u64, u32, u16)]) -> Served {
        let queue = MockSplitQueue::new(&self.memory, 128);
        let last = buffers.len() - 1;
        let chain: Vec<_> = (0..)
            .zip(buffers)
            .map(|(number, &(address, length, flags))| {
                let next = u16::from(usize::from(number) < last);
                RawDescriptor::from(Descriptor::new(address, length, flags | next, number + 1))
            })
            .collect();
        queue.build_desc_chain(&chain).unwrap();
        let mut queue: Queue = queue.create_queue().unwrap();
        self.device.serve(index, &mut queue, &self.memory, Instant::now()).unwrap()
    }

    /// Names `pages` in queue `index`.
    fn name(&mut self, index: usize, pages: &[u32]) -> Served {
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        self.memory.write_slice(&bytes, GuestAddress(DATA)).unwrap();
        self.serve(index, &[(DATA, u32::try_from(bytes.len()).unwrap(), 0)])
    }

    fn state(&self) -> BalloonState {
        self.counts.state(true)
    }

    fn seen(&self) -> Vec<(BalloonRequestKind, u64, u64)> {
        self.seen.0.lock().unwrap().clone()
    }
}

#[test]
fn pages_of_an_inflated_balloon_are_the_hosts_and_no_others() {
    let mut bench = Bench::new();

    let served = bench.name(INFLATE, &[302, 300, 301, 900]);

    assert_eq!(served, Served { interrupt: true, ..Served::default() });
    assert!([300, 301, 302, 900].into_iter().all(|page| bench.holds(page, 0)));
    assert!([299, 303, 899, 901].into_iter().all(|page| bench.holds(page, 1)));
    assert_eq!((bench.state().given, bench.state().refused), (4 * PAGE, 0));
    assert_eq!(bench.seen(), [(BalloonRequestKind::Inflate, 4 * PAGE, 0)]);
}

#[test]
fn pages_that_are_not_the_guests_to_give_are_counted_and_left_alone() {
    let mut bench = Bench::new();

    // The page that the legacy area begins in, two of it, the first behind RAM, and the last there can be.
    bench.name(INFLATE, &[0x9f, 0xe0, 0xff, PAGES, u32::MAX]);

    assert!([0x9f, 0xe0, 0xff].into_iter().all(|page| bench.holds(page, 1)));
    assert_eq!((bench.state().given, bench.state().refused), (0, 5));
}

#[test]
fn page_that_is_named_twice_is_given_once() {
    let mut bench = Bench::new();

    bench.name(INFLATE, &[300, 300]);
    bench.name(INFLATE, &[300]);

    assert_eq!((bench.state().given, bench.state().refused), (PAGE, 2));
}

#[test]
fn page_that_is_taken_again_is_the_guests_and_no_other_is() {
    let mut bench = Bench::new();
    bench.name(INFLATE, &[300, 301]);
    bench.fill(300);

    bench.name(DEFLATE, &[300, 300, 400, u32::MAX]);

    assert!(bench.holds(300, 1) && bench.holds(400, 1));
    assert_eq!((bench.state().given, bench.state().refused), (PAGE, 3));
    assert_eq!(bench.seen()[1], (BalloonRequestKind::Deflate, PAGE, 3));
}

#[test]
fn free_memory_that_is_reported_is_the_hosts_and_stays_out_of_the_balloon() {
    let mut bench = Bench::new();

    // The queue of reports, as Linux and as the standard count.
    bench.serve(REPORT, &[(300 * PAGE, 8192, DEVICE_WRITES), (400 * PAGE, 4096, DEVICE_WRITES)]);
    bench.serve(4, &[(500 * PAGE, 4096, DEVICE_WRITES)]);

    assert!([300, 301, 400, 500].into_iter().all(|page| bench.holds(page, 0)));
    assert!([299, 302, 399, 401, 499, 501].into_iter().all(|page| bench.holds(page, 1)));
    let BalloonState { given, reported, refused, .. } = bench.state();
    assert_eq!((given, reported, refused), (0, 4 * PAGE, 0));
    assert_eq!(bench.seen()[0], (BalloonRequestKind::Report, 3 * PAGE, 0));
}

#[test]
fn report_of_what_is_not_the_guests_is_counted_and_left_alone() {
    let mut bench = Bench::new();
    let all = u32::try_from(u64::from(PAGES) * PAGE).unwrap();

    bench.serve(
        REPORT,
        &[
            // Read-only, parts of pages, all of RAM with the legacy area, across the end, and an address that wraps.
            (300 * PAGE, 4096, 0),
            (300 * PAGE + 1, 4096, DEVICE_WRITES),
            (300 * PAGE, 100, DEVICE_WRITES),
            (0, all, DEVICE_WRITES),
            ((u64::from(PAGES) - 1) * PAGE, 8192, DEVICE_WRITES),
            (u64::MAX - 4095, 8192, DEVICE_WRITES),
        ],
    );

    assert!([0x9f, 0xff, 300, 301, PAGES - 1].into_iter().all(|page| bench.holds(page, 1)));
    assert_eq!((bench.state().reported, bench.state().refused), (0, 1 + 1 + 1 + 1024 + 2 + 2));
}

#[test]
fn report_that_names_memory_again_and_again_has_an_end() {
    let mut bench = Bench::with_memory(200 << 20);
    let half = (16 << 20, 128 << 20, DEVICE_WRITES);

    bench.serve(REPORT, &[half, half, half]);

    assert_eq!((bench.state().reported, bench.state().refused), (BYTES_PER_REPORT, (128 << 20) / PAGE));
}

#[test]
fn report_of_many_buffers_has_an_end() {
    let mut bench = Bench::new();
    let buffers: Vec<_> =
        (0..BUFFERS_PER_REPORT as u64 + 3).map(|page| ((300 + page) * PAGE, 4096, DEVICE_WRITES)).collect();

    bench.serve(REPORT, &buffers);

    assert_eq!(bench.state().reported, BUFFERS_PER_REPORT as u64 * PAGE);
}

#[test]
fn request_that_is_longer_than_is_looked_at_is_counted_in_full() {
    let mut bench = Bench::new();
    let (bytes, pages) = (8 * PAGES_PER_REQUEST, 2 * PAGES_PER_REQUEST);
    bench.memory.write_slice(&vec![0xff; bytes], GuestAddress(DATA)).unwrap();

    bench.serve(INFLATE, &[(DATA, u32::try_from(bytes).unwrap(), 0)]);

    assert_eq!((bench.state().given, bench.state().refused), (0, pages as u64));
}

#[test]
fn request_outside_of_memory_is_refused_and_answered() {
    let mut bench = Bench::new();

    let served = bench.serve(INFLATE, &[(u64::from(PAGES) * PAGE, 16, 0)]);

    assert!(served.interrupt);
    assert_eq!((bench.state().given, bench.state().refused), (0, 1));
}

#[test]
fn driver_that_is_gone_leaves_no_balloon_behind_and_the_next_one_finds_what_is_wanted() {
    let mut bench = Bench::new();
    bench.counts.wanted_pages.store(5, Ordering::Relaxed);
    bench.name(INFLATE, &[300]);
    bench.device.write_config(ACTUAL, &[1, 0, 0, 0]);

    bench.device.stop();

    let mut config = [0xff; 8];
    bench.device.read_config(0, &mut config);
    assert_eq!((bench.state().given, config), (0, [5, 0, 0, 0, 0, 0, 0, 0]));
    bench.name(INFLATE, &[300]);
    assert_eq!(bench.state().given, PAGE);
}

#[test]
fn driver_writes_what_it_has_given_and_nothing_else_of_the_configuration() {
    let mut bench = Bench::new();
    bench.counts.wanted_pages.store(0x0102, Ordering::Relaxed);

    bench.device.write_config(0, &[9, 9, 9, 9, 7, 6, 5, 4, 3]);
    bench.device.write_config(6, &[8, 8, 8, 8]);
    bench.device.write_config(u64::from(u32::MAX), &[1; 8]);

    let (mut config, mut beyond) = ([0; 8], [0xee; 4]);
    bench.device.read_config(0, &mut config);
    bench.device.read_config(8, &mut beyond);
    assert_eq!((config, beyond), ([2, 1, 0, 0, 7, 6, 8, 8], [0xee; 4]));
}

#[test]
fn available_index_that_runs_ahead_stops_the_device() {
    let mut bench = Bench::new();
    let queue = MockSplitQueue::new(&bench.memory, 16);
    queue.avail().idx().store(1000);
    let mut queue: Queue = queue.create_queue().unwrap();

    assert!(bench.device.serve(INFLATE, &mut queue, &bench.memory, Instant::now()).is_err());
}

#[test]
fn driver_that_is_ready_learns_what_is_wanted_by_an_interrupt() {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
    let counts = Arc::<BalloonCounts>::default();
    let device = Balloon::new(&memory, Arc::clone(&counts), Arc::<Seen>::default());
    let interrupt = vmm_sys_util::eventfd::EventFd::new(vmm_sys_util::eventfd::EFD_NONBLOCK).unwrap();
    let transport = MmioTransport::new(Box::new(device), memory, interrupt.try_clone().unwrap()).unwrap();
    let remote = BalloonRemote::new(Arc::new(transport), counts);

    remote.want(8 * PAGE);
    let (before, interrupts) = (remote.state(), interrupt.read().is_ok());
    super::super::mmio::tests::activate(&remote.device, 0x1000);
    remote.want(16 * PAGE + 1);

    assert!(!before.is_driven && !interrupts && before.wanted == 8 * PAGE);
    assert!(remote.state().is_driven && interrupt.read().is_ok());
    assert_eq!(remote.state().wanted, 16 * PAGE);
}

proptest! {
    /// Whatever pages a guest names, in whatever order, the balloon holds each once, and only those that are its own.
    #[test]
    fn balloon_holds_what_a_set_of_usable_pages_would(
        requests in proptest::collection::vec(
            (0usize..2, proptest::collection::vec(prop_oneof![200u32..300, 0x90u32..0x101, 1000u32..1040], 0..40)),
            0..12,
        )
    ) {
        let mut bench = Bench::new();
        let mut model = BTreeSet::new();
        let usable = |page: u32| page < 0x9f || (0x100..PAGES).contains(&page);
        let mut refused = 0;

        for (index, pages) in &requests {
            for page in pages {
                let is_taken = match *index {
                    INFLATE => usable(*page) && model.insert(*page),
                    _ => model.remove(page),
                };
                refused += u64::from(!is_taken);
            }
            bench.name(*index, pages);
        }

        prop_assert_eq!(bench.state().given, model.len() as u64 * PAGE);
        prop_assert_eq!(bench.state().refused, refused);
    }
}
