//! Boots a kernel: `boot KERNEL INITRD CPUS MEMORY_MIB CMDLINE [DISK[,ro]]...`; `boot probe` probes.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vmm::machine::*;

#[derive(Default)]
struct Counts([AtomicU64; 6]);
impl Observer for Counts {
    fn vcpu_exit(&self, v: u32, r: u32) {
        self.0[0].fetch_add(1, Ordering::Relaxed);
        if r != 2 && r != 6 && std::env::var("PORTS").is_ok() {
            eprintln!("[boot] vcpu{v} exit {r}\r");
        }
    }
    fn port_access(&self, v: u32, p: u16, s: u8, w: bool, x: u32) {
        self.0[1].fetch_add(1, Ordering::Relaxed);
        if !(0x3f8..0x400).contains(&p) && std::env::var("PORTS").is_ok() {
            eprintln!("[boot] vcpu{v} port {p:#x} size {s} write {w} value {x:#x}\r");
        }
    }
    fn mmio_access(&self, _: u32, _: u64, _: u8, _: bool, _: u64) {
        self.0[2].fetch_add(1, Ordering::Relaxed);
    }
    fn block_request(&self, _: u32, _: BlockRequestKind, _: u64, _: u32, done: bool) {
        if done {
            self.0[3].fetch_add(1, Ordering::Relaxed);
        }
    }
    fn control(&self, e: ControlEvent) {
        eprintln!("[boot] control {e:?}\r");
    }
}

#[allow(clippy::unwrap_used)]
fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    if a[0] == "probe" {
        println!("{:#?}", vmm::probe::probe());
        return;
    }
    let shared = Arc::new(memmap2::MmapRaw::from(
        memmap2::MmapMut::map_anon(64 << 20).unwrap(),
    ));
    let slot = |offset, size, read_only| SharedSlot {
        mapping: shared.clone(),
        offset,
        size,
        read_only,
    };
    let config = MachineConfig {
        kernel: (&a[0]).into(),
        initrd: (a[1] != "-").then(|| (&a[1]).into()),
        initrd_overlay: vec![],
        cpus: a[2].parse().unwrap(),
        memory: a[3].parse::<u64>().unwrap() << 20,
        cmdline: a[4].clone(),
        disks: a[5..]
            .iter()
            .map(|d| match d.strip_suffix(",ro") {
                Some(p) => DiskConfig {
                    path: p.into(),
                    read_only: true,
                },
                None => DiskConfig {
                    path: d.into(),
                    read_only: false,
                },
            })
            .collect(),
        shared_slots: vec![
            slot(0, 1 << 20, false),
            slot(1 << 20, 4096, true),
            slot((1 << 20) + 4096, 32 << 20, false),
        ],
        discovery: Some(DiscoveryLeaf { abi_version: 1 }),
        tsc_offset: None,
    };
    let machine = match Machine::new(config) {
        Ok(m) => m,
        Err(e) => {
            eprint!("error: {e}");
            let mut s = std::error::Error::source(&e);
            while let Some(c) = s {
                eprint!(": {c}");
                s = c.source();
            }
            eprintln!();
            std::process::exit(1)
        }
    };
    eprintln!(
        "[boot] tsc offsets {:?} khz {:?} clock {:?} region {:x?}",
        machine.tsc_offsets(),
        machine.tsc_khz(),
        machine.clock_reading(),
        machine.trace_region()
    );
    let counts = Arc::new(Counts::default());
    let stop = machine.stop_handle();
    if let Ok(s) = std::env::var("STOP_AFTER") {
        let s: u64 = s.parse().unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_secs(s));
            stop.stop();
        });
    }
    let input = std::env::var("CONSOLE_INPUT")
        .ok()
        .map(|p| std::fs::File::open(p).unwrap());
    let start = std::time::Instant::now();
    let outcome = machine
        .run(RunOptions {
            observer: counts.clone(),
            console_output: Box::new(std::io::stdout()),
            console_input: input,
        })
        .unwrap();
    eprintln!(
        "[boot] outcome: {outcome} ({outcome:?}) after {:?}; exits/ports/mmio/block {:?}",
        start.elapsed(),
        counts
            .0
            .iter()
            .map(|c| c.load(Ordering::Relaxed))
            .collect::<Vec<_>>()
    );
}
