//! The serial console: a 16550 on COM1, its output to a writer, its input from a file on the event loop.

use event_manager::{EventOps, Events, MutEventSubscriber};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use strata_observer::Observer;
use vm_superio::serial::SerialEvents;
use vm_superio::{Serial, Trigger};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// First port of COM1.
pub const PORT: u16 = 0x3f8;
/// Ports that a 16550 occupies.
pub const PORTS: u8 = 8;

/// Where console output goes. Bytes arrive one at a time, on vCPU threads. It may take its time: vCPUs that write wait
/// meanwhile, and nothing else.
pub type ConsoleOutput = Box<dyn Write + Send>;

/// Raises the serial interrupt.
#[derive(Debug)]
pub struct InterruptLine(EventFd);

impl Trigger for InterruptLine {
    type E = io::Error;

    fn trigger(&self) -> Result<(), io::Error> {
        self.0.write(1)
    }
}

/// Tells the observer about output and the event loop about room for input.
struct ConsoleEvents {
    observer: Arc<dyn Observer>,
    input_drained: EventFd,
}

impl SerialEvents for ConsoleEvents {
    fn buffer_read(&self) {}

    fn out_byte(&self) {
        self.observer.console_output(1);
    }

    fn tx_lost_byte(&self) {}

    fn in_buffer_empty(&self) {
        // Fails only when the counter is full, and then the event loop is due to wake anyway.
        let _ = self.input_drained.write(1);
    }
}

/// What a write to a register of the port put out.
#[derive(Default)]
struct PutOut(Option<u8>);

impl Write for PutOut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = bytes.last().copied();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A serial port that vCPU threads and the event loop share.
pub struct SerialPort {
    port: Mutex<Serial<InterruptLine, ConsoleEvents, PutOut>>,
    /// Apart from `port`, so that neither input nor the event loop waits for an output that takes its time.
    output: Mutex<ConsoleOutput>,
    has_hung_up: AtomicBool,
    input_drained: EventFd,
    observer: Arc<dyn Observer>,
}

impl SerialPort {
    /// A port that raises `interrupt` and writes what the guest sends to `output`.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new(interrupt: EventFd, output: ConsoleOutput, observer: Arc<dyn Observer>) -> io::Result<Self> {
        let input_drained = EventFd::new(EFD_NONBLOCK)?;
        let events = ConsoleEvents { observer: Arc::clone(&observer), input_drained: input_drained.try_clone()? };
        let port = Mutex::new(Serial::with_events(InterruptLine(interrupt), events, PutOut::default()));
        let (output, has_hung_up) = (Mutex::new(output), AtomicBool::new(false));
        Ok(Self { port, output, has_hung_up, input_drained, observer })
    }

    fn lock(&self) -> MutexGuard<'_, Serial<InterruptLine, ConsoleEvents, PutOut>> {
        // A poisoned lock means a panic in another thread; the port's state is still sound.
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads register `offset`.
    pub fn read(&self, offset: u8) -> u8 {
        self.lock().read(offset)
    }

    /// Writes register `offset`.
    pub fn write(&self, offset: u8, value: u8) {
        let byte = {
            let mut port = self.lock();
            // What can fail is the interrupt, when its counter is full, and then one is pending already.
            let _ = port.write(offset, value);
            port.writer_mut().0.take()
        };
        let Some(byte) = byte else { return };
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at only behind the lock: those who waited for it are not to wait for the output as well. Relaxed, as it
        // orders nothing else.
        if !self.has_hung_up.load(Ordering::Relaxed) {
            // A full or closed console must not stop the guest: the byte is lost, as on a wire nobody listens to.
            let _ = output.write_all(&[byte]);
        }
    }

    /// The machine ends: what vCPUs still write, in the middle of a string for instance, goes nowhere, so that none of them
    /// waits for the output.
    pub fn hang_up(&self) {
        self.has_hung_up.store(true, Ordering::Relaxed);
    }

    /// Bytes of input that the port can take now.
    pub fn room(&self) -> usize {
        self.lock().fifo_capacity()
    }

    /// Puts input into the port.
    pub fn enqueue(&self, input: &[u8]) {
        // Nothing is lost: callers bring no more than `room`. A port in loopback mode takes none, as specified.
        if let Ok(taken) = self.lock().enqueue_raw_bytes(input) {
            self.observer.console_input(u32::try_from(taken).unwrap_or(u32::MAX));
        }
    }
}

/// Feeds a file (a terminal, a pipe) into the serial port, as fast as the guest reads.
pub struct ConsoleInput {
    port: Arc<SerialPort>,
    input: Option<File>,
    waiting_for_room: bool,
}

impl ConsoleInput {
    /// Reads `input` whenever it is readable. It may be blocking; no more is read than is there.
    #[must_use]
    pub fn new(port: Arc<SerialPort>, input: Option<File>) -> Self {
        Self { port, input, waiting_for_room: false }
    }

    fn close(&mut self, ops: &mut EventOps) {
        if let Some(input) = self.input.take() {
            let _ = ops.remove(Events::empty(&input));
        }
    }

    fn pump(&mut self, ops: &mut EventOps) {
        let room = self.port.room();
        let Some(input) = &mut self.input else { return };
        if room == 0 {
            // Level-triggered input would wake the loop over and over until the guest reads, and a hang-up is
            // reported whatever is requested: so not at all for now.
            self.waiting_for_room = true;
            let _ = ops.remove(Events::empty(input));
            return;
        }
        let mut buffer = [0u8; 64];
        let length = room.min(buffer.len());
        match input.read(&mut buffer[..length]) {
            Ok(0) => self.close(ops),
            Ok(read) => self.port.enqueue(&buffer[..read]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.close(ops),
        }
    }
}

impl MutEventSubscriber for ConsoleInput {
    fn process(&mut self, events: Events, ops: &mut EventOps) {
        use std::os::fd::AsRawFd;
        if events.fd() != self.port.input_drained.as_raw_fd() {
            // Readable, or hung up: reading tells the two apart.
            self.pump(ops);
            return;
        }
        let _ = self.port.input_drained.read();
        if self.waiting_for_room {
            self.waiting_for_room = false;
            if let Some(input) = &self.input {
                let _ = ops.add(Events::new(input, EventSet::IN));
            }
        }
    }

    fn init(&mut self, ops: &mut EventOps) {
        if let Some(input) = &self.input {
            // Regular files and /dev/null cannot be polled: such a console has no input.
            if ops.add(Events::new(input, EventSet::IN)).is_err() {
                self.input = None;
                return;
            }
            let _ = ops.add(Events::new(&self.port.input_drained, EventSet::IN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest::Console;
    use event_manager::{EventManager, SubscriberOps};
    use std::os::fd::OwnedFd;
    use strata_observer::NoObserver;

    const DATA: u8 = 0;
    const LINE_STATUS: u8 = 5;

    fn port(output: ConsoleOutput) -> Arc<SerialPort> {
        let interrupt = EventFd::new(EFD_NONBLOCK).unwrap();
        Arc::new(SerialPort::new(interrupt, output, Arc::new(NoObserver)).unwrap())
    }

    fn piped(port: &Arc<SerialPort>) -> (EventManager<ConsoleInput>, io::PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        let mut manager = EventManager::new().unwrap();
        let file = File::from(OwnedFd::from(reader));
        manager.add_subscriber(ConsoleInput::new(Arc::clone(port), Some(file)));
        (manager, writer)
    }

    #[test]
    fn what_the_guest_writes_comes_out() {
        let console = Console::default();
        let port = port(Box::new(console.clone()));
        port.write(DATA, b'o');
        port.write(DATA, b'k');
        assert_eq!(console.written(), b"ok");
    }

    #[test]
    fn port_that_is_hung_up_puts_nothing_out() {
        let console = Console::default();
        let port = port(Box::new(console.clone()));
        port.write(DATA, b'o');
        port.hang_up();
        port.write(DATA, b'k');
        assert_eq!(console.written(), b"o");
    }

    #[test]
    fn input_does_not_wait_for_an_output_that_takes_its_time() {
        let (reader, writer) = io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        let port = port(Box::new(writer));
        std::thread::scope(|scope| {
            // Stuck in the output as soon as the pipe is full.
            scope.spawn(|| (0..5000).for_each(|_| port.write(DATA, b'x')));
            while rustix::io::ioctl_fionread(&reader).unwrap() < 4096 {
                std::thread::yield_now();
            }
            port.enqueue(b"hi");
            let received = (port.read(DATA), port.read(DATA));
            drop(reader);
            assert_eq!(received, (b'h', b'i'));
        });
    }

    #[test]
    fn piped_input_reaches_the_guest() {
        let port = port(Box::new(io::sink()));
        let (mut manager, mut writer) = piped(&port);
        writer.write_all(b"hi").unwrap();
        manager.run_with_timeout(1000).unwrap();
        assert_eq!((port.read(DATA), port.read(DATA)), (b'h', b'i'));
    }

    #[test]
    fn input_beyond_the_buffer_waits_until_the_guest_reads() {
        let port = port(Box::new(io::sink()));
        let (mut manager, mut writer) = piped(&port);
        let sent: Vec<u8> = (0..150).collect();
        writer.write_all(&sent).unwrap();
        let mut received = Vec::new();
        while received.len() < sent.len() {
            manager.run_with_timeout(100).unwrap();
            received.extend(std::iter::from_fn(|| (port.read(LINE_STATUS) & 1 == 1).then(|| port.read(DATA))));
        }
        assert_eq!(received, sent);
    }

    #[test]
    fn closed_input_without_room_for_the_rest_leaves_the_loop_idle() {
        let port = port(Box::new(io::sink()));
        let (mut manager, mut writer) = piped(&port);
        writer.write_all(&[7; 150]).unwrap();
        drop(writer);
        let wakes: Vec<_> = (0..8).map(|_| manager.run_with_timeout(10).unwrap()).collect();
        assert_eq!(wakes.last(), Some(&0), "{wakes:?}");
    }

    #[test]
    fn closed_input_is_forgotten() {
        let port = port(Box::new(io::sink()));
        let (mut manager, writer) = piped(&port);
        drop(writer);
        manager.run_with_timeout(1000).unwrap();
        assert_eq!(manager.run_with_timeout(10).unwrap(), 0);
    }
}
