//! The symbols of the guest's kernel: read out of its image, on a thread of their own, once it is known where the kernel
//! lies.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use strata_recording::files::kallsyms;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Missing;

/// How often somebody who waits has a look at other things.
const PAUSE: Duration = Duration::from_millis(5);

/// Reads the symbols of the kernel whose function `schedule` is at the address that it gets, as `/proc/kallsyms` has them.
pub type ReadSymbols = Box<dyn FnOnce(u64) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> + Send>;

/// Compressed, or why there are none.
type Outcome = Result<Vec<u8>, String>;

/// The symbols of a guest's kernel.
#[derive(Debug)]
pub struct GuestSymbols {
    /// Where `schedule` is, once that is known.
    schedule_at: OnceLock<u64>,
    /// Whether the guest reported another address later.
    has_other_kernel: AtomicBool,
    reported: Sender<u64>,
    outcome: Mutex<Receiver<Outcome>>,
    read: OnceLock<Outcome>,
}

/// What reads them, before its thread is started.
pub struct SymbolsReader {
    schedule_at: Receiver<u64>,
    outcome: Sender<Outcome>,
    read: ReadSymbols,
}

impl GuestSymbols {
    /// Those that `read` reads.
    #[must_use]
    pub fn new(read: ReadSymbols) -> (Arc<Self>, SymbolsReader) {
        let ((reported, schedule_at), (outcome, received)) = (channel(), channel());
        let symbols = Self {
            schedule_at: OnceLock::new(),
            has_other_kernel: AtomicBool::new(false),
            reported,
            outcome: Mutex::new(received),
            read: OnceLock::new(),
        };
        (Arc::new(symbols), SymbolsReader { schedule_at, outcome, read })
    }

    /// The kernel's function `schedule` is at this address; of several the first counts. Does not wait.
    pub fn report(&self, schedule_at: u64) {
        match self.schedule_at.set(schedule_at) {
            // Without a thread nobody listens.
            Ok(()) => drop(self.reported.send(schedule_at)),
            Err(_) if self.schedule_at.get() != Some(&schedule_at) => {
                self.has_other_kernel.store(true, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }

    /// The symbols, compressed as a recording has them; `None` while it is not known where the kernel lies, and where they
    /// cannot be read. If they are being read, that is waited for, and `meanwhile` called again and again.
    pub fn wait(&self, meanwhile: &mut dyn FnMut()) -> Option<&[u8]> {
        self.outcome(meanwhile)?.as_deref().ok()
    }

    /// What is to be said of them in a recording: why there are none, or that there are those of an earlier kernel.
    #[must_use]
    pub fn missing(&self) -> Option<Missing> {
        let fix = "give --kallsyms VM=FILE to the commands that read the trace".into();
        let layer = LayerKind::GuestKernel;
        match self.outcome(&mut || {})? {
            Err(why) => Some(Missing { layer, reason: format!("its kernel's symbols could not be saved: {why}"), fix }),
            Ok(_) if self.has_other_kernel.load(Ordering::Relaxed) => {
                let reason = "another kernel followed the guest's first one, which is the one whose symbols were saved";
                Some(Missing { layer, reason: reason.into(), fix })
            }
            Ok(_) => None,
        }
    }

    fn outcome(&self, meanwhile: &mut dyn FnMut()) -> Option<&Outcome> {
        self.schedule_at.get()?;
        Some(self.read.get_or_init(|| {
            let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                match outcome.recv_timeout(PAUSE) {
                    Ok(outcome) => return outcome,
                    Err(RecvTimeoutError::Timeout) => meanwhile(),
                    Err(RecvTimeoutError::Disconnected) => return Err("nothing reads them".into()),
                }
            }
        }))
    }
}

impl SymbolsReader {
    /// Starts the thread, which calls `begin` first. Where no thread can be made, there are no symbols.
    pub fn start(self, begin: impl FnOnce() + Send + 'static) {
        let run = move || {
            begin();
            // The guest may end before it has said anything.
            let Ok(schedule_at) = self.schedule_at.recv() else { return };
            let text = (self.read)(schedule_at).map_err(|error| chain(&*error));
            let compressed =
                text.and_then(|text| kallsyms::compressed(&text, &mut || {}).map_err(|error| chain(&error)));
            // The recording may have failed meanwhile.
            let _ = self.outcome.send(compressed);
        };
        let _ = std::thread::Builder::new().name("strata-symbols".into()).spawn(run);
    }
}

/// The error and its sources on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0xffff_ffff_81a0_0000;

    #[test]
    fn symbols_are_read_for_the_first_address_that_is_reported() {
        let (symbols, reader) = GuestSymbols::new(Box::new(|at| Ok(format!("{at:016x} T schedule\n").into_bytes())));
        reader.start(|| ());

        let before = symbols.wait(&mut || {}).is_some();
        symbols.report(AT);
        symbols.report(AT);
        let read = symbols.wait(&mut || {}).unwrap();

        let expected = kallsyms::compressed(format!("{AT:016x} T schedule\n").as_bytes(), &mut || {}).unwrap();
        assert_eq!((before, read, symbols.missing()), (false, &*expected, None));
    }

    #[test]
    fn who_waits_has_other_work_done_meanwhile() {
        let (begun, begins) = channel();
        let (symbols, reader) =
            GuestSymbols::new(Box::new(move |_| begins.recv().map_err(Into::into).map(|()| Vec::new())));
        reader.start(|| ());
        symbols.report(AT);

        let read = symbols.wait(&mut || begun.send(()).unwrap_or_default());

        assert!(read.is_some());
    }

    #[test]
    fn kernel_that_follows_elsewhere_is_reported() {
        let (symbols, reader) = GuestSymbols::new(Box::new(|_| Ok(Vec::new())));
        reader.start(|| ());

        symbols.report(AT);
        let alone = symbols.missing();
        symbols.report(AT + 0x20_0000);

        assert_eq!(alone, None);
        assert!(symbols.missing().unwrap().reason.contains("another kernel"));
    }

    #[test]
    fn symbols_that_cannot_be_read_are_reported_with_the_reason() {
        let (symbols, reader) = GuestSymbols::new(Box::new(|_| Err("no tables".into())));
        reader.start(|| ());

        symbols.report(AT);

        assert_eq!(symbols.wait(&mut || {}), None);
        assert!(symbols.missing().unwrap().reason.ends_with("could not be saved: no tables"));
    }
}
