//! The rates that a run's devices are limited to, and how often they had to wait for it.

use super::console::output::ConsoleLimit;
use super::request::RunRequest;
use std::sync::Arc;
use strata_machine::Machine;
use strata_observer::Observer;
use strata_rate_limit::{RateLimit, Resource, ThrottleCounts};
use strata_recorder::control::protocol::LimitStatus;

/// What the console is limited to.
#[derive(Clone, Debug, Default)]
pub(super) struct ConsoleLimits {
    limit: Option<RateLimit>,
    counts: Arc<ThrottleCounts>,
}

impl ConsoleLimits {
    /// What `request` asks for.
    pub(super) fn new(request: &RunRequest) -> Self {
        Self { limit: request.console_bandwidth, counts: Arc::default() }
    }

    /// The limit as the console takes it, which tells `observer` of its waits.
    pub(super) fn of_console(&self, observer: &Arc<dyn Observer>) -> Option<ConsoleLimit> {
        let (counts, observer) = (Arc::clone(&self.counts), Arc::clone(observer));
        self.limit.map(|limit| ConsoleLimit { limit, counts, observer })
    }
}

/// A device that has limits.
#[derive(Debug)]
struct Limited {
    device: String,
    limits: Vec<(Resource, RateLimit)>,
    counts: Arc<ThrottleCounts>,
}

/// All devices of a run that have limits.
#[derive(Debug)]
pub(super) struct LimitedDevices(Vec<Limited>);

impl LimitedDevices {
    /// Those of `machine`, which `request` asked for, and the console.
    pub(super) fn new(request: &RunRequest, machine: &Machine, console: &ConsoleLimits) -> Self {
        let disks = request.disks.iter().zip(machine.throttled()).enumerate();
        let disks = disks.map(|(index, (disk, counts))| {
            let limits = [(Resource::Operations, disk.limits.operations), (Resource::Bytes, disk.limits.bytes)];
            (format!("disk {index}"), limits.to_vec(), counts)
        });
        let nets = request.nets.iter().zip(machine.nets_throttled()).enumerate();
        let nets = nets.map(|(index, (net, counts))| {
            let limits = [(Resource::Packets, net.limits.packets), (Resource::Bytes, net.limits.bytes)];
            (format!("net {index}"), limits.to_vec(), counts)
        });
        let console = ("console".to_owned(), vec![(Resource::Bytes, console.limit)], &console.counts);
        let all = disks.chain(nets).chain([console]).map(|(device, limits, counts)| Limited {
            device,
            limits: limits.into_iter().filter_map(|(resource, limit)| Some((resource, limit?))).collect(),
            counts: Arc::clone(counts),
        });
        Self(all.filter(|limited| !limited.limits.is_empty()).collect())
    }

    /// How they are now.
    pub(super) fn status(&self) -> Vec<LimitStatus> {
        let text = |&(resource, limit): &(Resource, RateLimit)| {
            format!("{}={}:{}", resource.name(), limit.per_second, limit.burst)
        };
        let status = |limited: &Limited| LimitStatus {
            device: limited.device.clone().into(),
            limits: limited.limits.iter().map(text).collect::<Vec<_>>().join(",").into(),
            waits: limited.counts.times(),
            waited_ms: u64::try_from(limited.counts.time().as_millis()).unwrap_or(u64::MAX),
        };
        self.0.iter().map(status).collect()
    }
}
