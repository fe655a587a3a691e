//! A packet on its way, and what is kept of those that are not under way any more.

use super::{Direction, Milestone, PacketFlow, PacketFlows, SLOWEST};
use crate::report::devices::flow_step::{FlowTask, steps};
use crate::report::devices::followed::{Ended, Followed};
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::TaskIndex;
use strata_recording::clock::Clock;

/// A packet under way.
#[derive(Clone, Debug, Default)]
pub struct Packet {
    pub(super) times: [Option<u64>; Milestone::ALL.len()],
    pub(super) net: u32,
    pub(super) id: u64,
    pub(super) bytes: u64,
    /// Address of its structure in the guest.
    pub(super) skb: u64,
    /// The guest's device.
    pub(super) device: Option<Vec<u8>>,
    pub(super) task: Option<TaskIndex>,
}

impl Packet {
    pub(super) fn new(net: u32, id: u64, bytes: u64) -> Self {
        Self { net, id, bytes, ..Self::default() }
    }
}

impl Followed for Packet {
    type Milestone = Milestone;
    type Flow = (Direction, PacketFlow);

    const SLOWEST: usize = SLOWEST;

    fn times(&self) -> &[Option<u64>] {
        &self.times
    }

    fn times_mut(&mut self) -> &mut [Option<u64>] {
        &mut self.times
    }

    fn woken(&mut self) -> &mut Option<TaskIndex> {
        &mut self.task
    }

    fn flow(&self, ticks: u64, guest: &Guest, clock: &Clock) -> (Direction, PacketFlow) {
        let passed = self.passed();
        let flow = PacketFlow {
            net: self.net,
            id: self.id,
            device: self.device.as_ref().map(|name| String::from_utf8_lossy(name).into_owned()),
            bytes: self.bytes,
            task: self.task.map(|task| FlowTask::of(task, guest)),
            begin: passed.first().map_or(0, |&(_, time)| time),
            ticks,
            total_ns: clock.ticks_to_ns(ticks),
            steps: steps(&passed, clock),
        };
        (passed.first().map_or(Direction::Sent, |&(first, _)| first.direction()), flow)
    }
}

/// What is known of the packets of a direction that are not under way any more.
#[derive(Debug, Default)]
pub(super) struct Gone {
    pub(super) ended: Ended<Packet>,
    pub(super) dropped: u64,
    pub(super) unmatched: u64,
    pub(super) unfinished: u64,
}

impl Gone {
    pub(super) fn flows(self, direction: Direction, guest: &Guest, clock: &Clock) -> PacketFlows {
        let of_direction = Milestone::ALL.into_iter().filter(|milestone| milestone.direction() == direction);
        PacketFlows {
            total: self.ended.total(clock),
            steps: self.ended.steps(clock),
            slowest: self.ended.slowest(guest, clock).map(|(_, flow)| flow).collect(),
            never_met: of_direction.filter(|&milestone| !self.ended.met(milestone)).collect(),
            dropped: self.dropped,
            unmatched: self.unmatched,
            unfinished: self.unfinished,
        }
    }
}
