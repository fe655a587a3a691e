//! What must be true, kept beside the run: who reserved which bytes, what was committed, lost and delivered.

use core::ops::Range;
use shared_ring::layout::{
    Geometry, Mode, PACKET_HEADER_SIZE, RECORD_HEADER_SIZE, RING_HEADER_SIZE, RING_LOST_TOO_LARGE, padded,
};

/// A record that some context tries to write.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// Payload bytes.
    pub payload: usize,
    /// The last time that the context read.
    pub time: u64,
    /// First and last byte reserved, free-running.
    pub reserved: Option<(u64, u64)>,
    /// Where in the ring the payload was written.
    pub written: Option<usize>,
    /// The header word lies in the ring.
    pub whole: bool,
    /// The commit count includes it.
    pub committed: bool,
    /// Its context gave it up: nobody must see it.
    pub discarded: bool,
    /// The loss counter that counts it.
    pub lost: Option<usize>,
    /// `write_count` when it was counted as lost.
    pub lost_at: u64,
    /// `write_count` as its context saw it last.
    pub seen: u64,
    /// The record was read by the consumer.
    pub delivered: bool,
    /// The context that recorded it went on.
    pub returned: bool,
    /// Its context died.
    pub died: bool,
    /// Its context died between reserve and commit, and its bytes are nobody's any more.
    pub given_up: bool,
    /// They were repaired.
    pub repaired: bool,
}

/// A record as the consumer saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Time, ticks.
    pub time: u64,
    /// Payload bytes.
    pub payload: Vec<u8>,
}

/// The payload of attempt `number`: its number, then bytes that are its own.
pub fn payload(number: usize, size: usize) -> Vec<u8> {
    let mut bytes = (number as u64 + 1).to_le_bytes().to_vec();
    bytes.resize(size, 0x80 | number as u8);
    bytes
}

/// All attempts of a run, and the words of the data area that belong to them.
#[derive(Debug)]
pub struct Oracle {
    geometry: Geometry,
    mode: Mode,
    /// In the order in which they began.
    pub attempts: Vec<Attempt>,
    /// Attempts in reservation order, without those that were discarded and committed: they are as if they had never been.
    pub order: Vec<usize>,
    /// Per word of the data area: the attempt that owns it.
    owners: Vec<Option<usize>>,
    /// Attempts before this position of `order` were delivered.
    delivered: usize,
    /// What was found wrong first.
    pub violation: Option<String>,
}

impl Oracle {
    pub fn new(geometry: Geometry, mode: Mode, data_words: usize) -> Self {
        Self {
            geometry,
            mode,
            attempts: Vec::new(),
            order: Vec::new(),
            owners: vec![None; data_words],
            delivered: 0,
            violation: None,
        }
    }

    pub fn violate(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(what());
        }
    }

    pub fn begin(&mut self, payload: usize) -> usize {
        self.attempts.push(Attempt { payload, ..Attempt::default() });
        self.attempts.len() - 1
    }

    /// `write_count` was moved from `old` to `new` by `attempt`: by less than the record takes if it only closed the
    /// sub-buffer, before it is lost or looks again.
    pub fn reserved(&mut self, attempt: usize, old: u64, new: u64) {
        if new - old < (RECORD_HEADER_SIZE + padded(self.attempts[attempt].payload)) as u64 {
            return;
        }
        if self.attempts[attempt].reserved.is_some() {
            self.violate(|| format!("attempt {attempt} reserved twice"));
        }
        let last_lap = self.geometry.sequence(new - 1).checked_sub(u64::from(self.geometry.sub_buffers()));
        let unfinished = self
            .order
            .iter()
            .copied()
            .find(|&earlier| !self.attempts[earlier].committed && Some(self.sequence(earlier)) <= last_lap);
        if let Some(earlier) = unfinished {
            self.violate(|| format!("attempt {attempt} reuses the sub-buffer of attempt {earlier}, not committed"));
        }
        self.attempts[attempt].reserved = Some((old, new));
        self.order.push(attempt);
    }

    /// `counter` counts `attempt` as lost, while `write_count` is `write`. Where the attempt looked last no sub-buffer was
    /// open, unless the record is too large for any.
    pub fn lost(&mut self, attempt: usize, counter: usize, write: u64) {
        let is_open = self.geometry.within(write) != 0;
        let was_open = is_open && self.attempts[attempt].seen == write && !self.attempts[attempt].died;
        if was_open && counter != RING_LOST_TOO_LARGE {
            self.violate(|| format!("attempt {attempt} is lost while the sub-buffer before it is open"));
        }
        self.attempts[attempt].lost = Some(counter);
        self.attempts[attempt].lost_at = write;
    }

    /// The packet that the producer numbered `sequence` counts `lost` records as lost for want of room: all that were lost
    /// before its sub-buffer's last byte was reserved, and no others. One that was read before it was closed (`is_open`) may
    /// not count all of them yet.
    pub fn counts(&mut self, sequence: u64, lost: u64, is_open: bool) {
        let before = self.attempts.iter().filter(|attempt| {
            let for_want_of_room = attempt.lost.is_some_and(|counter| counter != RING_LOST_TOO_LARGE);
            for_want_of_room && !attempt.died && self.geometry.sequence(attempt.lost_at) <= sequence
        });
        let before = before.count() as u64;
        let (at_least, at_most) = self.counts_of_dead(sequence);
        if lost > before + at_most || lost < before + at_least && !is_open {
            self.violate(|| format!("packet {sequence} counts {lost} lost records, {before} were lost before its end"));
        }
    }

    /// How many records of contexts that died the packet `sequence` counts: its own, and maybe those of earlier ones.
    fn counts_of_dead(&self, sequence: u64) -> (u64, u64) {
        let lost = self.attempts.iter().filter(|attempt| attempt.died && attempt.lost.is_some());
        let own = |end: u64| self.geometry.sequence(end - 1);
        lost.fold((0, 0), |(least, most), attempt| match attempt.reserved {
            Some((_, end)) if own(end) == sequence => (least + 1, most + 1),
            Some((_, end)) if own(end) > sequence => (least, most),
            Some(_) | None => (least, most + 1),
        })
    }

    /// The context of attempt `number` died. If it had reserved and not committed its record, that is never seen, and its
    /// bytes are nobody's any more; but what is whole in discard mode is kept.
    pub fn give_up(&mut self, number: usize) {
        let attempt = &self.attempts[number];
        let is_kept = self.mode == Mode::Discard && attempt.whole;
        if attempt.given_up || attempt.committed || attempt.reserved.is_none() || is_kept {
            return;
        }
        self.attempts[number].given_up = true;
        let position = self.order.iter().position(|&earlier| earlier == number).expect("it is reserved");
        self.order.remove(position);
        self.delivered -= usize::from(position < self.delivered);
    }

    /// What the context of attempt `number` had left was repaired, and counted as lost if `is_lost`: when it is, and no more,
    /// but that a context which dies while it leaves a sub-buffer may be taken for one that has reserved.
    pub fn repaired(&mut self, number: usize, is_lost: bool) {
        let attempt = &mut self.attempts[number];
        if std::mem::replace(&mut attempt.repaired, true) {
            if is_lost {
                self.violate(|| format!("a repair counts attempt {number} again"));
            }
            return;
        }
        let is_kept = attempt.reserved.is_some() && !attempt.given_up;
        if is_kept {
            attempt.committed = true;
        }
        let (given_up, counted) = (attempt.given_up, attempt.lost.is_some());
        if given_up != is_lost && (given_up || is_kept) || is_lost != counted {
            let attempt = attempt.clone();
            self.violate(|| format!("a repair counts {is_lost} for attempt {number}: {attempt:?}"));
        }
    }

    /// The commit count includes `attempt` now.
    pub fn committed(&mut self, attempt: usize) {
        if self.attempts[attempt].given_up {
            return;
        }
        self.attempts[attempt].committed = true;
        let position = self.order.iter().position(|&number| number == attempt);
        if let (true, Some(position)) = (self.attempts[attempt].discarded, position) {
            self.order.remove(position);
            self.delivered -= usize::from(position < self.delivered);
        }
    }

    /// A context stores into `words` of the data area, counted from its beginning: to write its record, or a packet
    /// header. Words in packet headers have no owner.
    pub fn touches(&mut self, attempt: Option<usize>, words: Range<usize>) {
        let per_sub_buffer = self.geometry.sub_buffer_size() as usize / 8;
        for word in words {
            let in_header = word % per_sub_buffer < PACKET_HEADER_SIZE / 8;
            match self.owners.get(word).copied() {
                None => self.violate(|| format!("{attempt:?} writes behind the ring (word {word})")),
                Some(Some(owner))
                    if Some(owner) != attempt
                        && !self.attempts[owner].given_up
                        && (self.mode == Mode::Discard || in_header || !self.attempts[owner].committed) =>
                {
                    self.violate(|| format!("{attempt:?} overwrites attempt {owner} at word {word}"));
                }
                Some(_) if !in_header => self.owners[word] = attempt,
                Some(_) => {}
            }
        }
    }

    /// The consumer clears `words` of the data area, before it gives them back.
    pub fn touches_as_consumer(&mut self, words: Range<usize>) {
        for word in words {
            if let Some(owner) = self.owners[word]
                && !self.attempts[owner].committed
                && !self.attempts[owner].given_up
            {
                self.violate(|| format!("the consumer cleared word {word} of attempt {owner}, not committed"));
            }
        }
    }

    /// The consumer gives the bytes from `old` to `new` back, both free-running.
    pub fn given_back(&mut self, old: u64, new: u64) {
        for position in (old..new).step_by(8) {
            let word = (self.geometry.data_offset(position) - RING_HEADER_SIZE) / 8;
            self.owners[word] = None;
        }
    }

    /// The consumer got these records out of one sub-buffer, each of them committed. In discard mode they are the next
    /// ones in reservation order; a flight recorder's consumer may have missed some. Of a `whole` sub-buffer there are
    /// all records.
    pub fn delivered(&mut self, records: &[Delivered], whole: bool) {
        if let (Mode::FlightRecorder, Some(first)) = (self.mode, records.first())
            && let Some(skipped) = self.order[self.delivered..].iter().position(|&number| self.is(number, first))
        {
            self.delivered += skipped;
        }
        for record in records {
            let Some(&number) = self.order.get(self.delivered) else {
                return self.violate(|| format!("delivered but never reserved: {record:x?}"));
            };
            if let Err(what) = self.matches(number, record) {
                return self.violate(|| what);
            }
            if !self.attempts[number].committed {
                return self.violate(|| format!("attempt {number} was delivered before it was committed"));
            }
            self.attempts[number].delivered = true;
            self.delivered += 1;
        }
        if whole {
            let first = self.delivered - records.len();
            self.is_whole(first, records.len());
        }
    }

    /// The `count` attempts from position `first` of `order` on are all that there are in their sub-buffer.
    fn is_whole(&mut self, first: usize, count: usize) {
        let Some(sequence) = (count > 0).then(|| self.sequence(self.order[first])) else {
            // A packet of one record may be that of a context that died.
            if self.attempts.iter().any(|attempt| attempt.given_up) {
                return;
            }
            return self.violate(|| "nothing in a whole sub-buffer could be delivered".to_owned());
        };
        let all = self.order.iter().filter(|&&number| self.sequence(number) == sequence).count();
        if all != count {
            self.violate(|| format!("{count} of the {all} records of sub-buffer {sequence} were delivered"));
        }
    }

    /// Number of the sub-buffer that the attempt's bytes are in.
    fn sequence(&self, number: usize) -> u64 {
        let (_, end) = self.attempts[number].reserved.expect("only reserved attempts are in the order");
        self.geometry.sequence(end - 1)
    }

    /// What a flight recorder must hold now: of each of its last sub-buffers the records before the first whose context
    /// has not returned. If everything is `stopped`, also all that is committed in the sub-buffer that is being written,
    /// as long as nothing in it is not.
    pub fn retained(&self, write_count: u64, stopped: bool) -> Vec<usize> {
        let is_whole = |sequence| {
            let mut all = self.order.iter().filter(|&&number| self.sequence(number) == sequence);
            all.all(|&number| self.attempts[number].committed)
        };
        let mut held_up = None;
        let mut retained = Vec::new();
        for &number in &self.order {
            let sequence = self.sequence(number);
            if !self.is_retained(sequence, write_count) || held_up == Some(sequence) || self.is_behind_dead(number) {
                continue;
            }
            let is_open = sequence == self.geometry.sequence(write_count);
            if self.attempts[number].returned || stopped && is_open && is_whole(sequence) {
                retained.push(number);
            } else {
                held_up = Some(sequence);
            }
        }
        retained
    }

    /// Whether a record that was given up, and not repaired yet, lies before attempt `number` in its sub-buffer.
    fn is_behind_dead(&self, number: usize) -> bool {
        self.attempts.iter().filter(|dead| dead.given_up && !dead.repaired).any(|dead| {
            let sequence = dead.reserved.map(|(_, end)| self.geometry.sequence(end - 1));
            sequence == Some(self.sequence(number)) && dead.reserved < self.attempts[number].reserved
        })
    }

    /// All records of a flight recorder's last sub-buffers.
    pub fn last_sub_buffers(&self, write_count: u64) -> Vec<usize> {
        let last = |number: &usize| self.is_retained(self.sequence(*number), write_count);
        self.order.iter().copied().filter(last).collect()
    }

    fn is_retained(&self, sequence: u64, write_count: u64) -> bool {
        let next = write_count.div_ceil(self.geometry.sub_buffer_size());
        sequence + u64::from(self.geometry.sub_buffers()) >= next
    }

    /// A consumer of its own read these sub-buffers of a flight recorder: committed records in reservation order, without
    /// a gap inside a sub-buffer. At least those of `expected` that the writer has not overwritten up to `write_count`.
    pub fn snapshot(&mut self, packets: &[Vec<Delivered>], expected: &[usize], write_count: u64) {
        let mut next = 0;
        let mut seen = Vec::new();
        for packet in packets {
            let Some(first) = packet.first() else { continue };
            let Some(at) = (next..self.order.len()).find(|&at| self.is(self.order[at], first)) else {
                return self.violate(|| format!("a snapshot holds out of order, or never reserved: {first:x?}"));
            };
            let sequence = self.sequence(self.order[at]);
            if at > 0 && self.sequence(self.order[at - 1]) == sequence {
                return self.violate(|| format!("a snapshot lacks the beginning of sub-buffer {sequence}"));
            }
            next = at;
            for record in packet {
                let Some(&number) = self.order.get(next).filter(|&&number| self.sequence(number) == sequence) else {
                    return self.violate(|| format!("a snapshot's sub-buffer {sequence} goes on with {record:x?}"));
                };
                if let Err(what) = self.matches(number, record) {
                    return self.violate(|| format!("in a snapshot: {what}"));
                }
                if !self.attempts[number].committed {
                    return self.violate(|| format!("a snapshot holds attempt {number}, not committed"));
                }
                seen.push(number);
                next += 1;
            }
        }
        let missing = expected
            .iter()
            .find(|number| self.is_retained(self.sequence(**number), write_count) && !seen.contains(number));
        if let Some(number) = missing.copied() {
            self.violate(|| format!("a snapshot lacks attempt {number}; it holds {seen:?}"));
        }
    }

    /// A copy of the ring, as it would lie there had everything stopped now, was read as `records`: in each sub-buffer
    /// the whole records before the first hole, no others.
    pub fn crashed(&mut self, records: &[Delivered]) {
        let mut expected = Vec::new();
        let mut hole_in = None;
        for &number in &self.order[self.delivered..] {
            let Some((_, end)) = self.attempts[number].reserved else { continue };
            let sequence = self.geometry.sequence(end - 1);
            if hole_in == Some(sequence) {
                continue;
            }
            if self.attempts[number].whole {
                expected.extend((!self.attempts[number].discarded).then_some(number));
            } else {
                hole_in = Some(sequence);
            }
        }
        let wrong = expected.iter().zip(records).find_map(|(&number, record)| self.matches(number, record).err());
        if let Some(what) = wrong {
            self.violate(|| format!("after a crash: {what}"));
        } else if expected.len() != records.len() {
            self.violate(|| format!("after a crash {} records are read, not attempts {expected:?}", records.len()));
        }
    }

    /// Whether `record` says that it is attempt `number`.
    fn is(&self, number: usize, record: &Delivered) -> bool {
        record.payload.get(..8) == Some(&(number as u64 + 1).to_le_bytes())
    }

    fn matches(&self, number: usize, record: &Delivered) -> Result<(), String> {
        let attempt = &self.attempts[number];
        if record.payload != payload(number, attempt.payload) {
            return Err(format!("attempt {number} is next, delivered was {:x?}", record.payload));
        }
        if record.time != attempt.time {
            return Err(format!("attempt {number} read time {}, delivered was {}", attempt.time, record.time));
        }
        Ok(())
    }

    /// Everything has ended: every attempt was committed or counted as lost, everything committed was delivered, and
    /// times did not decrease in reservation order.
    pub fn ended(&mut self) {
        for number in 0..self.attempts.len() {
            let attempt = self.attempts[number].clone();
            let is_one = attempt.committed != attempt.lost.is_some() || attempt.died && attempt.reserved.is_none();
            if !is_one {
                self.violate(|| format!("attempt {number} is neither committed nor lost, or both: {attempt:?}"));
            }
            if self.mode == Mode::Discard && (attempt.committed && !attempt.discarded) != attempt.delivered {
                self.violate(|| format!("attempt {number} was committed and never delivered: {attempt:?}"));
            }
        }
        let in_order = self.order.is_sorted_by_key(|&number| self.attempts[number].time);
        if !in_order {
            self.violate(|| "times decrease in reservation order".to_owned());
        }
    }

    /// What the commit count of sub-buffer `index` must be when nothing is reserved and not committed.
    pub fn commit_count(&self, index: usize, write_count: u64) -> u64 {
        let size = self.geometry.sub_buffer_size();
        (0..=self.geometry.sequence(write_count))
            .filter(|&sequence| self.geometry.index(sequence * size) == index)
            .map(|sequence| write_count.saturating_sub(sequence * size).min(size))
            .sum()
    }
}
