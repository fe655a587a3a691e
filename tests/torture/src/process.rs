//! Processes of a guest that have a slot: an honest one that uses the application library, and a hostile one. Both see what
//! a guest's process sees: the host's area, read-only, and their own slot.
#![allow(unsafe_code)] // A tracer over mappings.

use crate::attack::{Attack, Attacker, Target};
use crate::mapping::{self, Access};
use crate::setup::{VCPUS, VmSetup};
use crate::tally::{APPLICATION_THREADS, Tally, application_producer};
use guest_agent::{EventType, Tracer};
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::PAGE_SIZE;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

static STEP: EventType<(u32, u64)> = EventType::new("torture:step", &["who", "number"]);

/// What a process sees.
struct View {
    setup: VmSetup,
    tally: Tally,
    host_area: HostMemory,
    slot: HostMemory,
}

impl View {
    fn open(setup: &Path, region: &Path, slot: u32) -> anyhow::Result<Self> {
        let setup = VmSetup::load(setup)?;
        let tally = Tally::open(&setup.tally())?;
        let layout = setup.layout()?;
        let host_area = mapping::map(region, 0..layout.guest_writable, Access::Read)?;
        let at = layout.process_slot(slot);
        let slot = mapping::map(region, at..at + layout.process_stride, Access::Write)?;
        Ok(Self { setup, tally, host_area, slot })
    }

    fn tracer(&self) -> anyhow::Result<Tracer> {
        let mappings = Arc::new((self.host_area.clone(), self.slot.clone()));
        let (host_area, slot) = (&self.host_area, &self.slot);
        // SAFETY: both are whole mappings, which the owner keeps; this process, and the host, alone write the slot.
        Ok(unsafe { Tracer::over((host_area.base(), host_area.size()), (slot.base(), slot.size()), mappings) }?)
    }
}

/// Runs honest process `number` of the VM that the file `setup` describes, in `slot` of the region in the file `region`.
///
/// # Errors
/// When the slot cannot be used.
pub fn run_honest(setup: &Path, region: &Path, slot: u32, number: u32) -> anyhow::Result<()> {
    let view = View::open(setup, region, slot)?;
    let tracer = view.tracer()?;
    let mut chance = fastrand::Rng::with_seed(view.setup.seed ^ u64::from(number) << 16);
    let end = Instant::now() + Duration::from_millis(chance.u64(100..2500));
    std::thread::scope(|scope| {
        for thread in 0..APPLICATION_THREADS {
            let (mut chance, view, tracer) = (chance.fork(), &view, &tracer);
            scope.spawn(move || {
                let producer = application_producer(number, thread);
                while Instant::now() < end && !view.tally.is_stopping() {
                    for _ in 0..chance.u64(..=view.setup.burst / 2) {
                        let number = view.tally.attempt(producer);
                        // What is lost is counted in the rings.
                        let _ = STEP.record_with(tracer, (producer, number));
                    }
                    std::thread::sleep(Duration::from_micros(chance.u64(..3000)));
                }
            });
        }
    });
    tracer.flush();
    Ok(())
}

/// Runs a hostile process in `slot`, whose chance begins at `seed`, until it is killed, kills itself or the guest ends.
///
/// # Errors
/// When the slot cannot be used.
pub fn run_hostile(setup: &Path, region: &Path, slot: u32, seed: u64) -> anyhow::Result<()> {
    let view = View::open(setup, region, slot)?;
    let layout = view.setup.layout()?;
    let rings = (0..VCPUS)
        .map(|vcpu| (layout.process_rings + vcpu as usize * layout.process_ring_stride, layout.config.process_rings));
    let target = Target {
        memory: view.slot.clone(),
        writable: std::iter::once(0..view.slot.size()).collect(),
        rings: rings.collect(),
        registries: vec![(PAGE_SIZE, layout.process_registry_size)],
        table: None,
        agent: None,
    };
    let attacks: Vec<Attack> = view.setup.attacks.iter().copied().filter(|&attack| attack != Attack::Churn).collect();
    attack(&view.tally, target, &attacks, seed, Some(view.tracer()?));
    Ok(())
}

/// Runs the hostile kernel of the VM that the file `setup` describes, whose region is the file `region`, until its tally
/// says to stop. It writes all that a guest's kernel can, in several threads.
///
/// # Errors
/// When the region cannot be used.
pub fn run_hostile_kernel(setup: &Path, region: &Path, seed: u64) -> anyhow::Result<()> {
    let setup = VmSetup::load(setup)?;
    let tally = Tally::open(&setup.tally())?;
    let layout = setup.layout()?;
    let begin = layout.guest_writable;
    let memory = mapping::map(region, begin..layout.size, Access::Write)?;
    let target = || {
        let kernel = (0..VCPUS).map(|vcpu| (layout.kernel_ring(0, vcpu) - begin, layout.config.sessions[0]));
        let kernel = kernel.filter_map(|(at, rings)| Some((at, rings?)));
        let slots = (0..layout.config.process_slots).flat_map(|slot| (0..VCPUS).map(move |vcpu| (slot, vcpu)));
        let process = slots.map(|(slot, vcpu)| (layout.process_ring(slot, vcpu) - begin, layout.config.process_rings));
        let registries = (0..layout.config.process_slots)
            .map(|slot| (layout.process_slot(slot) - begin + PAGE_SIZE, layout.process_registry_size));
        Target {
            memory: memory.clone(),
            // Rings of sessions that nobody has are closed to a guest.
            writable: vec![0..layout.session_rings[1] - begin, layout.process_pool - begin..memory.size()],
            rings: kernel.chain(process).collect(),
            registries: std::iter::once((layout.registry - begin, layout.registry_size)).chain(registries).collect(),
            table: Some((layout.process_table - begin, layout.config.process_slots as usize)),
            agent: Some(layout.agent - begin),
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (target, tally, attacks) = (target(), &tally, &setup.attacks);
            scope.spawn(move || attack(tally, target, attacks, seed ^ thread << 40, None));
        }
    });
    Ok(())
}

/// Strikes `target` by turns until the guest ends.
fn attack(tally: &Tally, target: Target, attacks: &[Attack], seed: u64, tracer: Option<Tracer>) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut attacker = Attacker::new(target, seed ^ 5, tracer);
    while !tally.is_stopping() {
        let Some(&attack) = chance.choice(attacks) else { return };
        for _ in 0..chance.u32(1..20) {
            tally.strike(attack);
            attacker.strike(attack);
        }
        // Others are to come on too, on a machine with few processors.
        std::thread::sleep(Duration::from_micros(chance.u64(..2000)));
    }
}
