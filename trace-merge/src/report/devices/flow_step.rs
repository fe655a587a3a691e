//! The steps of what reports follow through the layers: disk requests and packets, each from milestone to milestone.

use crate::report::duration;
use crate::report::rows::columns::figure::{Figure, Figures};
use crate::report::rows::columns::{Column, ReportRow, Unit, column, times};
use crate::report::rows::table::{Align, Table};
use crate::report::statistics::distribution::Distribution;
use serde::Serialize;
use strata_analysis::event::Tid;
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::TaskIndex;
use strata_recording::clock::Clock;

/// A moment that what is followed passes: the events of records tell when.
pub trait FlowMilestone: Copy + Ord + 'static {
    /// All of them, in order.
    const ALL: &'static [Self];
    /// The vCPU has left the guest to notify the host.
    const KICKED: Self;
    /// KVM has injected the interrupt.
    const INJECTED: Self;
    /// The guest's handler has begun.
    const HANDLED: Self;
    /// A task was woken.
    const WOKEN: Self;
    /// The task runs.
    const RUNNING: Self;

    /// Its place in [`FlowMilestone::ALL`].
    fn place(self) -> usize;

    /// What is known of it.
    fn row(self) -> MilestoneRow;

    /// What has happened, in a word or two.
    fn name(self) -> &'static str {
        self.row().name
    }

    /// Whose time it is that ends with this milestone, after the one before it.
    fn side(self) -> Side {
        self.row().side
    }
}

/// Whose time a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The guest's.
    Guest,
    /// The host's kernel's.
    Host,
    /// The VMM's.
    Vmm,
}

/// A row of the table of milestones.
#[derive(Clone, Copy, Debug)]
pub struct MilestoneRow {
    /// What has happened, in a word or two.
    pub name: &'static str,
    /// Whose time it is that ends with this milestone, after the one before it.
    pub side: Side,
    /// The same, in words.
    pub whose: &'static str,
    /// The event that stands for it, behind its layer.
    pub event: &'static str,
}

/// Makes the milestones of a kind of their table: each with its name, whose time it is that ends with it, and its
/// event. Their order is that in which they are passed.
macro_rules! milestones {
    (
        $(#[$about:meta])*
        $kind:ident {
            $($(#[$about_one:meta])* $milestone:ident: $name:literal, $side:ident: $whose:literal, $event:literal;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $kind {
            $($(#[$about_one])* #[doc = concat!("\n\nIts event: `", $event, "`.")] $milestone,)*
        }

        impl $kind {
            /// All of them, in order.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$milestone),*];
        }

        impl crate::report::devices::flow_step::FlowMilestone for $kind {
            const ALL: &'static [Self] = &Self::ALL;
            const KICKED: Self = Self::Kicked;
            const INJECTED: Self = Self::Injected;
            const HANDLED: Self = Self::Handled;
            const WOKEN: Self = Self::Woken;
            const RUNNING: Self = Self::Running;

            fn place(self) -> usize {
                self as usize
            }

            fn row(self) -> crate::report::devices::flow_step::MilestoneRow {
                use crate::report::devices::flow_step::{MilestoneRow, Side};
                let (name, side, whose, event) = match self {
                    $(Self::$milestone => ($name, Side::$side, $whose, $event),)*
                };
                MilestoneRow { name, side, whose, event }
            }
        }
    };
}
pub(super) use milestones;

/// A step of one of them, between two milestones `M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FlowStep<M> {
    /// Where it begins.
    pub from: M,
    /// Where it ends.
    pub to: M,
    /// When it ends, ticks.
    #[serde(rename = "end_ticks")]
    pub end: u64,
    /// Its time, ticks.
    pub ticks: u64,
    /// Its time, ns.
    pub ns: u64,
}

impl<M: FlowMilestone> FlowStep<M> {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> String {
        step_name(self.from, self.to)
    }

    /// Whose time it is: of all milestones in it, those whose events are missing included.
    #[must_use]
    pub fn whose(&self) -> String {
        whose(self.from, self.to)
    }
}

/// A step, over all that took it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTimes<M> {
    /// Where it begins.
    pub from: M,
    /// Where it ends.
    pub to: M,
    /// Its times.
    pub times: Distribution,
}

impl<M: FlowMilestone> StepTimes<M> {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> String {
        step_name(self.from, self.to)
    }

    /// Whose time it is: of all milestones in it, those whose events are missing included.
    #[must_use]
    pub fn whose(&self) -> String {
        whose(self.from, self.to)
    }
}

/// What there is of the times of a step.
const STEP: Figures = &[
    (Figure::Count, "count"),
    (Figure::P50, "p50"),
    (Figure::P99, "p99"),
    (Figure::Longest, "longest"),
    (Figure::Total, "all"),
    (Figure::Histogram, ""),
];

impl<M: FlowMilestone + Serialize> ReportRow for StepTimes<M> {
    const COLUMNS: &'static [Column<Self>] = &[
        column("from", "", Unit::Text, "The milestone where it begins", |row| key(row.from).into()),
        column("to", "", Unit::Text, "The milestone where it ends", |row| key(row.to).into()),
        column("", "step", Unit::Text, "Both", |row| row.name().into()),
        column("", "spent in", Unit::Text, "Whose time it is", |row| row.whose().into()),
        times(STEP, "How many took it", |row| (&row.times).into()),
    ];
}

/// What JSON calls a milestone.
fn key(milestone: impl Serialize) -> Option<String> {
    serde_json::to_value(milestone).ok()?.as_str().map(Into::into)
}

/// A row of the table of steps: of other times than a step's.
pub(super) fn other_row(name: &str, place: &str, times: &Distribution) -> [String; 7] {
    let [p50, p99, longest, all] = [times.p50_ns, times.p99_ns, times.max_ns, times.total_ns].map(duration);
    [name.into(), place.into(), times.count.to_string(), p50, p99, longest, all]
}

/// The table of the steps of one of them.
pub(super) fn table<M: FlowMilestone>(steps: &[FlowStep<M>]) -> Table {
    let mut table = Table::new(&[("step", Align::Left), ("time", Align::Right), ("", Align::Left)]);
    for step in steps {
        table.row([step.name(), duration(step.ns), step.whose()]);
    }
    table
}

fn step_name<M: FlowMilestone>(from: M, to: M) -> String {
    format!("{} → {}", from.name(), to.name())
}

fn whose<M: FlowMilestone>(from: M, to: M) -> String {
    let inside = M::ALL.iter().filter(|&&milestone| from < milestone && milestone <= to);
    inside.map(|milestone| milestone.row().whose).collect::<Vec<_>>().join(", ")
}

/// A task of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowTask {
    /// Thread id.
    pub tid: Tid,
    pub comm: String,
}

impl FlowTask {
    /// The task at `index` of `guest`.
    pub(super) fn of(index: TaskIndex, guest: &Guest) -> Self {
        let (tid, comm) = guest.task_name(index);
        Self { tid, comm }
    }
}

/// The steps between the milestones that were `passed`, each at its time, ticks.
pub(super) fn steps<M: Copy>(passed: &[(M, u64)], clock: &Clock) -> Vec<FlowStep<M>> {
    let step = |step: &[(M, u64)]| match *step {
        [(from, left), (to, end)] => {
            let ticks = end - left;
            Some(FlowStep { from, to, end, ticks, ns: clock.ticks_to_ns(ticks) })
        }
        _ => None,
    };
    passed.windows(2).filter_map(step).collect()
}
