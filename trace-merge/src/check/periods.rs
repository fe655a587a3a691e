//! When the vCPUs of a VM were in the guest, followed record by record, and which records lie outside. A record that lies
//! outside waits for as long as the next period may begin within its tolerance: memory does not grow with the recording.

use std::collections::VecDeque;
use strata_analysis::timeline::by_number::ByNumber;
use strata_analysis::vcpu::{Period, SwitchSource};
use strata_recording::clock::Tolerances;
use strata_recording::manifest::Vm;
use strata_recording::schema::Schema;

/// Most vCPUs of a VM that are followed from the beginning; others are from their first record on.
const MAX_VCPUS: u32 = 1024;
/// Most records that wait for the next period of a vCPU. Beyond, the oldest are not judged.
const MAX_WAITING: usize = 1 << 16;
/// Most records that are too far outside and wait until the nearest period is known.
const MAX_UNSETTLED: usize = 256;

/// What is to lie inside a period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'t> {
    /// When, ticks.
    pub(super) time: u64,
    /// How far outside it may lie, ticks.
    pub(super) tolerance: u64,
    /// Its source in the merge.
    pub(super) source: usize,
    /// Its event type.
    pub(super) schema: &'t Schema,
    /// The vCPU that it belongs to; `None` for any.
    pub(super) vcpu: Option<u32>,
}

/// Where a candidate lies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Position {
    /// Inside a period.
    Inside,
    /// Outside: the nearest period that is known (of this vCPU) and the distance from it, ticks.
    Outside(Option<(u32, Period, u64)>),
    /// It is not known.
    Unknown,
}

/// Where a vCPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Unknown,
    Outside,
    Inside { begin: u64 },
}

/// The least times between records and the ends of their periods, ticks, and how far outside records lie.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Margins {
    /// Records that were judged.
    pub(super) records: u64,
    /// Least time from an entry to a record.
    pub(super) after_entry: Option<u64>,
    /// Least time from a record to an exit.
    pub(super) before_exit: Option<u64>,
    /// Records outside the periods, within the tolerance or not.
    pub(super) outside: u64,
    /// Most time that a record lies before the period that is nearest to it.
    pub(super) early: u64,
    /// Most time that a record lies after the period that is nearest to it.
    pub(super) late: u64,
}

fn least(old: Option<u64>, new: u64) -> Option<u64> {
    Some(old.map_or(new, |old| old.min(new)))
}

impl Margins {
    pub(super) fn plus(&self, other: &Self) -> Self {
        let min = |one: Option<u64>, two: Option<u64>| two.map_or(one, |two| least(one, two));
        Self {
            records: self.records + other.records,
            after_entry: min(self.after_entry, other.after_entry),
            before_exit: min(self.before_exit, other.before_exit),
            outside: self.outside + other.outside,
            early: self.early.max(other.early),
            late: self.late.max(other.late),
        }
    }
}

/// The periods of one vCPU, or of all vCPUs as one: a period is then one in which any of them is in the guest.
#[derive(Debug)]
struct VcpuPeriods<'t> {
    place: Place,
    /// The last period that has ended, and whose it is.
    last: Option<(u32, Period)>,
    /// Time of the last record inside the open period, ticks.
    last_inside: Option<u64>,
    /// Candidates outside, which the next period may be nearer to.
    waiting: VecDeque<Candidate<'t>>,
    /// Candidates that are too far outside, while it is not known which period is the nearest.
    unsettled: Vec<Candidate<'t>>,
    margins: Margins,
}

impl<'t> VcpuPeriods<'t> {
    const fn new(place: Place) -> Self {
        let margins = Margins { records: 0, after_entry: None, before_exit: None, outside: 0, early: 0, late: 0 };
        Self { place, last: None, last_inside: None, waiting: VecDeque::new(), unsettled: Vec::new(), margins }
    }

    /// Whether `candidate` lies inside a period; otherwise it is put out, once it is decided where it lies.
    #[inline]
    fn put_out_or_inside(&mut self, candidate: Candidate<'t>, out: &mut Vec<(Candidate<'t>, Position)>) -> bool {
        self.expire(candidate.time, out);
        match self.judge(candidate) {
            Some(Position::Inside) => true,
            position => {
                out.extend(position.map(|position| (candidate, position)));
                false
            }
        }
    }

    /// Where `candidate` lies; `None` when that is not decided yet.
    #[inline]
    fn judge(&mut self, candidate: Candidate<'t>) -> Option<Position> {
        let time = candidate.time;
        match (self.place, self.last) {
            (Place::Unknown, _) => Some(Position::Unknown),
            (Place::Inside { begin }, _) => {
                self.margins.records += 1;
                self.margins.after_entry = least(self.margins.after_entry, time.saturating_sub(begin));
                self.last_inside = Some(time);
                Some(Position::Inside)
            }
            (Place::Outside, Some((_, last))) if time <= last.end => {
                self.margins.records += 1;
                self.margins.after_entry = least(self.margins.after_entry, time.saturating_sub(last.begin));
                self.margins.before_exit = Some(0);
                Some(Position::Inside)
            }
            (Place::Outside, _) => {
                self.waiting.push_back(candidate);
                None
            }
        }
    }

    fn enter(&mut self, vcpu: u32, time: u64, out: &mut Vec<(Candidate<'t>, Position)>) {
        let next = (vcpu, Period { begin: time, end: u64::MAX });
        let unsettled = std::mem::take(&mut self.unsettled);
        for candidate in unsettled.into_iter().chain(std::mem::take(&mut self.waiting)) {
            self.decide(candidate, Some(next), out);
        }
        (self.place, self.last_inside) = (Place::Inside { begin: time }, None);
    }

    fn exit(&mut self, vcpu: u32, time: u64) {
        let begin = match self.place {
            Place::Inside { begin } => begin,
            // What was seen first is that it leaves: it was inside until then.
            Place::Unknown => 0,
            Place::Outside => return,
        };
        if let Some(last) = self.last_inside.take() {
            self.margins.before_exit = least(self.margins.before_exit, time.saturating_sub(last));
        }
        (self.place, self.last) = (Place::Outside, Some((vcpu, Period { begin, end: time })));
    }

    fn forget(&mut self, out: &mut Vec<(Candidate<'t>, Position)>) {
        self.settle(out);
        out.extend(std::mem::take(&mut self.waiting).into_iter().map(|candidate| (candidate, Position::Unknown)));
        (self.place, self.last, self.last_inside) = (Place::Unknown, None, None);
    }

    /// Decides on those that are too far outside: no other period is nearer.
    fn settle(&mut self, out: &mut Vec<(Candidate<'t>, Position)>) {
        for candidate in std::mem::take(&mut self.unsettled) {
            self.decide(candidate, None, out);
        }
    }

    /// Decides on those whose tolerance ends before `now`, ticks.
    #[inline]
    fn expire(&mut self, now: u64, out: &mut Vec<(Candidate<'t>, Position)>) {
        if !self.waiting.is_empty() {
            self.expire_waiting(now, out);
        }
    }

    #[inline(never)]
    fn expire_waiting(&mut self, now: u64, out: &mut Vec<(Candidate<'t>, Position)>) {
        while self.waiting.front().is_some_and(|first| first.time.saturating_add(first.tolerance) < now) {
            let Some(candidate) = self.waiting.pop_front() else { break };
            let is_near = self.last.is_some_and(|(_, last)| candidate.time - last.end <= candidate.tolerance);
            if is_near || self.unsettled.len() >= MAX_UNSETTLED {
                self.decide(candidate, None, out);
            } else {
                self.unsettled.push(candidate);
            }
        }
        if self.waiting.len() > MAX_WAITING {
            out.extend(self.waiting.pop_front().map(|candidate| (candidate, Position::Unknown)));
        }
    }

    /// Decides on a candidate between the last period and `next`, if that has begun.
    fn decide(
        &mut self,
        candidate: Candidate<'t>,
        next: Option<(u32, Period)>,
        out: &mut Vec<(Candidate<'t>, Position)>,
    ) {
        let time = candidate.time;
        let late = self.last.map(|(vcpu, last)| (vcpu, last, time.saturating_sub(last.end)));
        let early = next.map(|(vcpu, next)| (vcpu, next, next.begin.saturating_sub(time)));
        let margins = &mut self.margins;
        (margins.records, margins.outside) = (margins.records + 1, margins.outside + 1);
        let nearest = match (late, early) {
            (Some(late), Some(early)) if early.2 < late.2 => Some(early),
            (None, early) => early,
            (late, _) => late,
        };
        match nearest {
            Some((.., distance)) if nearest == early => margins.early = margins.early.max(distance),
            Some((.., distance)) => margins.late = margins.late.max(distance),
            None => {}
        }
        out.push((candidate, Position::Outside(nearest)));
    }
}

/// The periods of a VM's vCPUs, as one layer shows them.
#[derive(Debug)]
pub(super) struct Periods<'t> {
    pub(super) source: SwitchSource,
    vcpus: ByNumber<VcpuPeriods<'t>>,
    /// Of any vCPU.
    any: VcpuPeriods<'t>,
    /// Streams of the layer that are in a gap.
    open_gaps: u32,
    had_gap: bool,
    /// Number of periods.
    pub(super) count: usize,
    /// Records that were judged by these periods.
    pub(super) judged: u64,
    /// Since when the periods are known, ticks.
    pub(super) from: Option<u64>,
}

impl<'t> Periods<'t> {
    /// Of `vm`, before the first record of a layer that tells of its vCPUs in the events of `source`.
    pub(super) fn new(source: SwitchSource, vm: &Vm) -> Self {
        let vcpus = (0..vm.vcpus.min(MAX_VCPUS)).map(|vcpu| (vcpu, VcpuPeriods::new(Place::Outside)));
        Self {
            source,
            vcpus: vcpus.collect(),
            any: VcpuPeriods::new(Place::Outside),
            open_gaps: 0,
            had_gap: false,
            count: 0,
            judged: 0,
            from: Some(0),
        }
    }

    #[inline]
    fn vcpu(&mut self, vcpu: u32) -> &mut VcpuPeriods<'t> {
        let place = if self.had_gap { Place::Unknown } else { Place::Outside };
        self.vcpus.get_or_insert_with(vcpu, || VcpuPeriods::new(place))
    }

    /// A gap of one of the layer's streams begins: nothing is known of any vCPU, whose thread may be on any CPU.
    pub(super) fn begin_gap(&mut self, time: u64, out: &mut Vec<(Candidate<'t>, Position)>) {
        if time == 0 {
            self.from = None;
        }
        (self.open_gaps, self.had_gap) = (self.open_gaps + 1, true);
        self.vcpus.values_mut().chain([&mut self.any]).for_each(|vcpu| vcpu.forget(out));
    }

    /// The gap of a stream ends.
    pub(super) fn end_gap(&mut self, time: u64) {
        self.open_gaps = self.open_gaps.saturating_sub(1);
        if self.open_gaps == 0 {
            self.from.get_or_insert(time);
        }
    }

    /// `vcpu` enters or leaves the guest.
    pub(super) fn switch(&mut self, time: u64, vcpu: u32, enters: bool, out: &mut Vec<(Candidate<'t>, Position)>) {
        if self.open_gaps > 0 {
            return;
        }
        let of_vcpu = self.vcpu(vcpu);
        of_vcpu.expire(time, out);
        let before = of_vcpu.place;
        match (before, enters) {
            // KVM enters the guest again after exits that it handles on the way out.
            (Place::Inside { .. }, true) | (Place::Outside, false) => return,
            (_, true) => of_vcpu.enter(vcpu, time, out),
            (_, false) => of_vcpu.exit(vcpu, time),
        }
        self.count += usize::from(enters || before == Place::Unknown);
        let is_inside = |vcpu: &VcpuPeriods<'t>| matches!(vcpu.place, Place::Inside { .. });
        let any_inside = self.vcpus.values().any(is_inside);
        let any_unknown = self.vcpus.values().any(|vcpu| vcpu.place == Place::Unknown);
        self.any.expire(time, out);
        match (any_inside, is_inside(&self.any)) {
            (true, false) => self.any.enter(vcpu, time, out),
            (false, true) if any_unknown => self.any.forget(out),
            (false, _) if !any_unknown => self.any.exit(vcpu, time),
            _ => {}
        }
    }

    /// The periods of `vcpu`, or of any vCPU.
    #[inline]
    fn of(&mut self, vcpu: Option<u32>) -> &mut VcpuPeriods<'t> {
        match vcpu {
            Some(vcpu) => self.vcpu(vcpu),
            None => &mut self.any,
        }
    }

    /// Whether `candidate` lies inside a period. When it lies elsewhere, it is put out; when that is not decided yet, later.
    #[inline]
    pub(super) fn judge(&mut self, candidate: Candidate<'t>, out: &mut Vec<(Candidate<'t>, Position)>) -> bool {
        self.of(candidate.vcpu).put_out_or_inside(candidate, out)
    }

    /// The same of a record; `None` when it is not known where its vCPU (or any vCPU) is.
    #[inline]
    pub(super) fn judge_known(
        &mut self,
        candidate: Candidate<'t>,
        out: &mut Vec<(Candidate<'t>, Position)>,
    ) -> Option<bool> {
        let of_vcpu = self.of(candidate.vcpu);
        if of_vcpu.place == Place::Unknown {
            return None;
        }
        let is_inside = of_vcpu.put_out_or_inside(candidate, out);
        self.judged += 1;
        Some(is_inside)
    }

    /// The recording ends.
    pub(super) fn finish(&mut self, out: &mut Vec<(Candidate<'t>, Position)>) {
        for vcpu in self.vcpus.values_mut().chain([&mut self.any]) {
            vcpu.settle(out);
            for candidate in std::mem::take(&mut vcpu.waiting) {
                vcpu.decide(candidate, None, out);
            }
        }
    }

    /// Margins of each vCPU that has records.
    pub(super) fn margins(&self) -> impl Iterator<Item = (u32, Margins)> {
        self.vcpus.iter().map(|(vcpu, periods)| (vcpu, periods.margins))
    }

    /// Margins of what belongs to any vCPU.
    pub(super) const fn any_margins(&self) -> Margins {
        self.any.margins
    }
}

/// The largest tolerance of all of `tolerances` at `time`, ticks.
pub(super) fn widest(tolerances: &ByNumber<Tolerances>, time: u64, otherwise: u64) -> u64 {
    tolerances.values().map(|tolerances| tolerances.at(time)).max().unwrap_or(otherwise)
}
