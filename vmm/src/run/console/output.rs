//! Standard output as the guest's screen, behind a bounded buffer: a reader that stalls stops neither the guest nor its end.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use strata_jail::policy::Thread;
use strata_observer::Observer;
use strata_rate_limit::{RateLimit, Resource, Throttle, ThrottleCounts};

/// Bytes that wait for a reader at most: more than a boot prints.
const CAPACITY: usize = 1 << 20;
/// How long a byte waits for a reader to make room before it is dropped. Those after it are dropped at once until there
/// is room again: a slow reader slows the guest down, one that has stalled costs it this time once.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long the end waits for a reader that takes nothing.
const STALL_LIMIT: Duration = Duration::from_secs(1);
/// How long the end waits for a reader that takes little.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Shortest wait for the limit, less than [`PATIENCE`]: a limit drops nothing.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);
/// How long the end of a line is waited for: a prompt has none.
const LINE_LIMIT: Duration = Duration::from_millis(100);
/// Bytes that are written at once, at most; and after which a line is not waited for.
const CHUNK: usize = 4096;

/// When a waiting byte is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum Pace {
    /// At once: somebody is looking.
    Bytes,
    /// With its line, or [`LINE_LIMIT`] after its first: waking the writer for each of a boot's thousands of bytes would
    /// slow the guest down.
    Lines,
}

/// A limit of what the guest shows, and who learns of the waits for it.
pub(in crate::run) struct ConsoleLimit {
    /// Bytes.
    pub limit: RateLimit,
    /// Counts the waits.
    pub counts: Arc<ThrottleCounts>,
    /// Is told of each wait when it begins.
    pub observer: Arc<dyn Observer>,
}

/// The guest's screen. Its writer is a thread of its own: making standard output non-blocking instead would make it so for
/// every process that shares it.
#[derive(Debug)]
pub(in crate::run) struct ConsoleOutput {
    shared: Arc<Shared>,
}

/// The end of it that the serial port writes to.
#[derive(Debug)]
struct Screen {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write, or the end has come.
    filled: Condvar,
    /// Something was written, or the writer has ended.
    drained: Condvar,
    pace: Pace,
    room: Room,
}

/// What may wait, and how long the guest waits for that.
#[derive(Clone, Copy, Debug)]
struct Room {
    capacity: usize,
    patience: Duration,
}

impl Room {
    /// A burst of `limit` waits, and the guest for as long as the limit takes for a byte, beside its patience with a
    /// reader.
    fn within(limit: Option<RateLimit>) -> Self {
        let burst = limit.and_then(|limit| usize::try_from(limit.burst).ok()).unwrap_or(CAPACITY);
        let byte = limit.map_or(0, |limit| 1_000_000_000_u64.div_ceil(limit.per_second.max(1)));
        Self { capacity: burst.clamp(CHUNK, CAPACITY), patience: PATIENCE + Duration::from_nanos(byte) }
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<u8>,
    /// The last byte that came found no room in time.
    is_stalled: bool,
    is_ending: bool,
    /// The writer has ended: all is written, or nobody reads any more.
    has_ended: bool,
    written: u64,
    dropped: u64,
}

impl ConsoleOutput {
    /// A screen that writes to `output`, within `limit`. A guest that is faster is slowed down, as by a slow reader, once a
    /// burst is waiting. The end waits for no limit.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub(in crate::run) fn start(
        output: impl Write + Send + 'static,
        pace: Pace,
        limit: Option<ConsoleLimit>,
    ) -> io::Result<Self> {
        let room = Room::within(limit.as_ref().map(|limit| limit.limit));
        Self::with_room(output, pace, room, limit)
    }

    fn with_room(
        output: impl Write + Send + 'static,
        pace: Pace,
        room: Room,
        limit: Option<ConsoleLimit>,
    ) -> io::Result<Self> {
        let (state, filled, drained) = Default::default();
        let shared = Arc::new(Shared { state, filled, drained, pace, room });
        let writer = Arc::clone(&shared);
        std::thread::Builder::new().name("strata-console".into()).spawn(move || {
            strata_jail::enter(Thread::Console);
            writer.write_to(output, limit);
        })?;
        Ok(Self { shared })
    }

    /// What the serial port writes to.
    pub(in crate::run) fn screen(&self) -> Box<dyn Write + Send> {
        Box::new(Screen { shared: Arc::clone(&self.shared) })
    }

    /// Writes what is waiting, as long as the reader takes it; returns the bytes that were dropped from the beginning on. A
    /// thread that is stuck in a write is left to the process's end.
    pub(in crate::run) fn finish(self) -> u64 {
        let mut state = self.shared.lock();
        state.is_ending = true;
        self.shared.filled.notify_one();
        let end = Instant::now() + END_LIMIT;
        while !state.has_ended && Instant::now() < end {
            let before = state.written;
            let (after, timeout) =
                self.shared.drained.wait_timeout(state, STALL_LIMIT).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if timeout.timed_out() && state.written == before {
                break;
            }
        }
        state.dropped + if state.has_ended { 0 } else { state.waiting.len() as u64 }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means a panic in another thread; every change of the state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `byte` behind those that wait, or drops and counts it.
    fn push(&self, byte: u8) {
        let mut state = self.lock();
        if state.has_ended {
            return;
        }
        let Room { capacity, patience } = self.room;
        if state.waiting.len() >= capacity && !state.is_stalled {
            let full = |state: &mut State| state.waiting.len() >= capacity && !state.has_ended;
            self.filled.notify_one();
            (state, _) = self.drained.wait_timeout_while(state, patience, full).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_stalled = state.waiting.len() >= capacity;
        if state.is_stalled {
            state.dropped += 1;
            return;
        }
        state.waiting.push_back(byte);
        // The first byte of a line has the writer begin to wait for the line's end.
        let is_first = state.waiting.len() == 1;
        if self.pace == Pace::Bytes || byte == b'\n' || is_first || state.waiting.len() >= CHUNK {
            self.filled.notify_one();
        }
    }

    /// Writes to `output` what comes, within `limit`, until the end or until nobody reads any more.
    fn write_to(&self, mut output: impl Write, limit: Option<ConsoleLimit>) {
        let mut limit = limit.map(|limit| {
            let bytes = [(Resource::Bytes, limit.limit)];
            (Throttle::new(bytes, SHORTEST_WAIT, limit.counts, Instant::now()), limit.observer)
        });
        let mut chunk = Vec::with_capacity(CHUNK);
        // The limit has left bytes behind that were due: they do not wait for their line again.
        let mut is_overdue = false;
        loop {
            let mut state = self.lock();
            let is_idle = |state: &State| !is_overdue && !state.is_ending && !self.is_due(state);
            let is_empty = |state: &mut State| is_idle(state) && state.waiting.is_empty();
            state = self.filled.wait_while(state, is_empty).unwrap_or_else(PoisonError::into_inner);
            (state, _) = self
                .filled
                .wait_timeout_while(state, LINE_LIMIT, |state| is_idle(state))
                .unwrap_or_else(PoisonError::into_inner);
            let mut most = CHUNK;
            if let Some(limit) = &mut limit {
                (state, most) = self.await_limit(state, limit);
            }
            chunk.clear();
            let count = state.waiting.len().min(most);
            is_overdue = most < CHUNK && count < state.waiting.len();
            chunk.extend(state.waiting.iter().take(count));
            drop(state);
            let written = match output.write(&chunk).and_then(|written| output.flush().map(|()| written)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => None,
                Ok(written) => Some(written),
            };
            if let Some((throttle, _)) = &mut limit {
                throttle.charge(1, written.unwrap_or(0) as u64, Instant::now());
            }
            let mut state = self.lock();
            // Only what is written is taken out: the rest is counted if the end finds it here.
            state.waiting.drain(..written.unwrap_or(0));
            state.written += written.unwrap_or(0) as u64;
            state.has_ended = written.is_none() || (state.is_ending && state.waiting.is_empty());
            self.drained.notify_all();
            if state.has_ended {
                return;
            }
        }
    }

    /// Waits until the limit lets bytes pass; says how many, a chunk at most. The end waits for no limit.
    fn await_limit<'t>(
        &'t self,
        mut state: MutexGuard<'t, State>,
        (throttle, observer): &mut (Throttle, Arc<dyn Observer>),
    ) -> (MutexGuard<'t, State>, usize) {
        while !state.is_ending {
            let now = Instant::now();
            let Err(wait) = throttle.admit(now) else {
                let available = usize::try_from(throttle.available(Resource::Bytes, now)).unwrap_or(CHUNK);
                return (state, available.min(CHUNK));
            };
            if wait.begins {
                observer.console_throttled(wait.time);
            }
            let goes_on = |state: &mut State| !state.is_ending;
            (state, _) =
                self.filled.wait_timeout_while(state, wait.time, goes_on).unwrap_or_else(PoisonError::into_inner);
        }
        (state, CHUNK)
    }

    /// Whether what is waiting is to be written now.
    fn is_due(&self, state: &State) -> bool {
        match self.pace {
            Pace::Bytes => !state.waiting.is_empty(),
            Pace::Lines => state.waiting.len() >= CHUNK || state.waiting.contains(&b'\n'),
        }
    }
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        bytes.iter().for_each(|&byte| self.shared.push(byte));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, pipe};
    use strata_observer::NoObserver;
    use strata_rate_limit::TokenBucket;

    fn room(capacity: usize) -> Room {
        Room { capacity, patience: PATIENCE }
    }

    /// Room for a guest that waits however slow this machine is.
    fn patient_room(capacity: usize) -> Room {
        Room { capacity, patience: Duration::from_secs(60) }
    }

    #[test]
    fn everything_comes_out_in_order() {
        let (mut reader, writer) = pipe().unwrap();
        let text: Vec<u8> = (0..100_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let read = std::thread::spawn(move || {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).map(|_| read).unwrap()
        });

        let console = ConsoleOutput::with_room(writer, Pace::Lines, room(1 << 20), None).unwrap();
        console.screen().write_all(&text).unwrap();

        assert_eq!(console.finish(), 0);
        assert_eq!(read.join().unwrap(), text);
    }

    #[test]
    fn bytes_of_no_whole_line_are_written_at_the_end() {
        let (mut reader, writer) = pipe().unwrap();

        let console = ConsoleOutput::start(writer, Pace::Lines, None).unwrap();
        console.screen().write_all(b"login: ").unwrap();

        assert_eq!(console.finish(), 0);
        let mut read = [0; 7];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"login: ");
    }

    #[test]
    fn prompt_comes_out_of_a_pipe_without_the_end_of_its_line() {
        let (mut reader, writer) = pipe().unwrap();

        let console = ConsoleOutput::start(writer, Pace::Lines, None).unwrap();
        console.screen().write_all(b"login: ").unwrap();
        let mut read = [0; 7];
        reader.read_exact(&mut read).unwrap();

        assert_eq!((&read, console.finish()), (b"login: ", 0));
    }

    #[test]
    fn terminal_gets_each_byte_without_a_line() {
        let (mut reader, writer) = pipe().unwrap();

        let console = ConsoleOutput::start(writer, Pace::Bytes, None).unwrap();
        console.screen().write_all(b"#").unwrap();
        let mut read = [0];
        reader.read_exact(&mut read).unwrap();

        assert_eq!((read, console.finish()), ([b'#'], 0));
    }

    #[test]
    fn pipe_that_nobody_reads_stops_neither_the_guest_nor_its_end() {
        // As much as a pipe holds, and then some.
        let sent = 300_000;
        let (reader, writer) = pipe().unwrap();

        let console = ConsoleOutput::with_room(writer, Pace::Lines, room(1000), None).unwrap();
        console.screen().write_all(&vec![b'x'; sent]).unwrap();
        let dropped = console.finish();
        let held = rustix::io::ioctl_fionread(&reader).unwrap();

        assert!(held > 0 && dropped > 0, "{held} {dropped}");
        assert_eq!(held + dropped, sent as u64);
    }

    #[test]
    fn closed_pipe_loses_what_is_written_and_nothing_else() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);

        let console = ConsoleOutput::start(writer, Pace::Bytes, None).unwrap();
        console.screen().write_all(&[b'x'; 100]).unwrap();

        assert_eq!(console.finish(), 0);
    }

    fn limited(per_second: u64, burst: u64) -> (Option<ConsoleLimit>, Arc<ThrottleCounts>) {
        let counts = Arc::new(ThrottleCounts::default());
        let limit = RateLimit { per_second, burst };
        (Some(ConsoleLimit { limit, counts: Arc::clone(&counts), observer: Arc::new(NoObserver) }), counts)
    }

    #[test]
    fn guest_that_writes_faster_than_its_limit_waits_and_loses_nothing() {
        let (mut reader, writer) = pipe().unwrap();
        let text: Vec<u8> = (0..20_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let (limit, counts) = limited(100_000, 5000);
        let begin = Instant::now();

        let console = ConsoleOutput::with_room(writer, Pace::Lines, patient_room(5000), limit).unwrap();
        console.screen().write_all(&text).unwrap();
        let took = begin.elapsed();

        // A burst went out at once, and another one waits.
        assert!(took >= Duration::from_millis(100), "{took:?}");
        assert_eq!(console.finish(), 0);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert!(read == text && counts.times() > 0);
    }

    #[test]
    fn guest_waits_longer_for_room_than_a_limit_takes_for_a_byte() {
        let now = Instant::now();
        let limits = [1, 3, 9, 1000].map(|per_second| RateLimit { per_second, burst: 1 });

        let is_patient = limits.map(|limit| {
            let mut bucket = TokenBucket::new(limit, now);
            bucket.take(1, now);
            Room::within(Some(limit)).patience >= bucket.wait(now) + PATIENCE
        });

        assert_eq!(is_patient, [true; 4]);
    }

    #[test]
    fn bytes_that_the_limit_left_do_not_wait_for_their_line_again() {
        let (mut reader, writer) = pipe().unwrap();
        // A byte takes less than a line is waited for.
        let (limit, counts) = limited(20, 1);

        let console = ConsoleOutput::start(writer, Pace::Lines, limit).unwrap();
        console.screen().write_all(b"login: ").unwrap();
        let mut read = [0; 7];
        reader.read_exact(&mut read).unwrap();

        assert_eq!((&read, console.finish()), (b"login: ", 0));
        assert!(counts.times() > 0);
    }

    #[test]
    fn end_does_not_wait_for_the_limit() {
        let (mut reader, writer) = pipe().unwrap();
        let (limit, counts) = limited(1, 4096);

        let console = ConsoleOutput::with_room(writer, Pace::Bytes, patient_room(4096), limit).unwrap();
        console.screen().write_all(&[b'x'; 8000]).unwrap();
        while counts.times() == 0 {
            std::thread::yield_now();
        }
        let dropped = console.finish();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();

        assert_eq!((dropped, read.len()), (0, 8000));
    }
}
