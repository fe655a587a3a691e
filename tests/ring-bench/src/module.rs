//! The guest kernel module's own object code, called as the kernel calls it: the probe of `sys_exit` and the Rust half,
//! from the files that the module is linked of, in a program that stands in for the kernel (`module/probe.c`).
#![allow(unsafe_code)] // A clock entry is written through its raw address.

use crate::measured_program::{INCLUDES, MeasuredProgram, run};
use crate::ring_cases::{SUB_BUFFER_SIZE, SUB_BUFFERS};
use crate::sampling::{Case, ticks};
use anyhow::{Context, ensure};
use clock_sync::entry::Writer;
use clock_sync::relation::Relation;
use shared_ring::host::memory::HostMemory;
use shared_ring::host::{EnabledEvents, Region};
use shared_ring::layout::{Geometry, MAX_EVENTS, Mode, RING_WRITE_COUNT};
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use tempfile::{NamedTempFile, TempDir};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/module/probe.c");
/// The unit that has the probe, and the Rust half.
const OBJECTS: [&str; 2] = ["tp_trace_events_syscalls.o", "rust.o"];

/// The program, and the region that it records into.
pub struct Module {
    program: MeasuredProgram,
    region: NamedTempFile,
    layout: RegionLayout,
}

impl Module {
    /// Links the object files of the folder `objects`, in which the module was built, and starts the program.
    ///
    /// # Errors
    /// When gcc or objcopy is missing, an object uses what the program does not stand in for, or the region is refused.
    pub fn start(objects: &Path) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("ring-bench-")?;
        let program = folder.path().join("probe");
        let mut link = Command::new("gcc");
        // As the kernel, the objects are made for fixed addresses.
        link.args(["-O2", "-no-pie", INCLUDES, SOURCE]).arg("-I").arg(objects);
        for name in OBJECTS {
            let object = folder.path().join(name);
            // A name that the linker makes symbols for where it begins and ends.
            run(Command::new("objcopy")
                .args(["--rename-section", ".return_sites=strata_returns"])
                .arg(objects.join(name))
                .arg(&object))?;
            link.arg(object);
        }
        run(link.arg("-o").arg(&program))?;
        let (region, layout) = region()?;
        let program = MeasuredProgram::start(Command::new(program).arg(region.path()))?;
        Ok(Self { program, region, layout })
    }

    /// The cases: a record, and what nobody wants.
    pub fn cases(self) -> Vec<Case> {
        let module = Rc::new(RefCell::new(self));
        let case = |key, label: &str, is_wanted| {
            let module = Rc::clone(&module);
            let sample = move || module.borrow_mut().sample(is_wanted);
            Case { key, label: label.to_owned(), sample: Box::new(sample) }
        };
        vec![
            case("module/sys-exit", "the module's object code, sys_exit (16 B), flight recorder, trace clock", true),
            case("module/masked", "the module's object code, sys_exit that nobody wants", false),
        ]
    }

    fn sample(&mut self, is_wanted: bool) -> anyhow::Result<f64> {
        let before = self.written()?;
        let took = self.program.sample(is_wanted.into())?;
        let has_recorded = self.written()? > before;
        ensure!(has_recorded == is_wanted, "the probe does not record what is wanted, and only that");
        Ok(took)
    }

    /// Bytes that the ring was given so far.
    fn written(&self) -> anyhow::Result<u64> {
        let mut count = [0; 8];
        let at = self.layout.kernel_ring(0, 0) + RING_WRITE_COUNT;
        self.region.as_file().read_exact_at(&mut count, at as u64).context("the region cannot be read")?;
        Ok(u64::from_le_bytes(count))
    }
}

/// A file with a region of one vCPU, in memory, whose session wants everything.
fn region() -> anyhow::Result<(NamedTempFile, RegionLayout)> {
    let rings = Rings { geometry: Geometry::new(SUB_BUFFER_SIZE, SUB_BUFFERS)?, mode: Mode::FlightRecorder };
    let layout = RegionLayout::new(RegionConfig {
        vcpus: 1,
        sessions: [Some(rings), None, None, None],
        process_rings: rings,
        process_slots: 0,
        registry_size: 64 << 10,
        process_registry_size: 4096,
    })?;
    let memory = HostMemory::private(layout.size);
    let mut host = Region::create(memory.clone(), layout, [0; 16], 1_000_000_000)?;
    host.open_session(0, "main", rings, |_, _| ())?;
    host.enable(0, &EnabledEvents { class_mask: u64::MAX, events: [u64::MAX; MAX_EVENTS / 64] })?;
    let relation = Relation { hw_base: ticks(), trace_base: 1 << 40, ..Relation::IDENTITY };
    // SAFETY: the entry lies inside the memory, and has no other writer.
    unsafe { Writer::new(memory.base().wrapping_add(layout.clock_entry(0))).publish(&relation) };
    let mut bytes = vec![0; layout.size];
    memory.read(0, &mut bytes);
    let file = NamedTempFile::new_in("/dev/shm").context("/dev/shm is needed for the trace region")?;
    fs::write(file.path(), bytes)?;
    Ok((file, layout))
}
