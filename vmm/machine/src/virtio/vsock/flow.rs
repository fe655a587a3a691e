//! A connection as its packets make it: phases, credit, halves that end, and the data that waits for the host's socket.
//! No input and no output.

use super::packet::{Header, Operation, Ports, SENDS_NO_MORE, TAKES_NO_MORE};
use std::collections::VecDeque;

/// Bytes from the guest that wait for the host's socket, at most: what the guest learns that it may send.
pub const BUFFER: u32 = 64 << 10;

/// The guest has broken the rules of a connection, which ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest broke the rules of a connection")]
pub struct Broken;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The host asks the guest for it.
    Requested,
    /// It is there.
    Open,
}

/// One connection between a port of the guest and a port of the host.
#[derive(Debug)]
pub struct Flow {
    ports: Ports,
    phase: Phase,
    /// A [`Operation::Request`] or [`Operation::Response`] that is to be sent first.
    greeting: Option<Operation>,
    /// What the guest has sent and the host's socket has not taken yet.
    buffer: VecDeque<u8>,
    /// Bytes that have left the buffer, modulo 2^32, and what the guest knows of them.
    forwarded: u32,
    reported: u32,
    /// The guest is to learn of the room in the buffer.
    owes_credit: bool,
    /// Bytes sent to the guest, modulo 2^32, and what it last said of its buffer.
    sent: u32,
    guest_alloc: u32,
    guest_forwarded: u32,
    /// The guest was asked for credit and has said nothing new of its buffer since.
    has_requested: bool,
    /// Flags of [`Operation::Shutdown`]: the guest's, the host's, and those of the host's that the guest knows.
    guest_ended: u32,
    host_ended: u32,
    reported_ended: u32,
}

impl Flow {
    fn new(ports: Ports, phase: Phase, greeting: Operation) -> Self {
        Self {
            ports,
            phase,
            greeting: Some(greeting),
            buffer: VecDeque::new(),
            forwarded: 0,
            reported: 0,
            owes_credit: false,
            sent: 0,
            guest_alloc: 0,
            guest_forwarded: 0,
            has_requested: false,
            guest_ended: 0,
            host_ended: 0,
            reported_ended: 0,
        }
    }

    /// A connection that a program of the host asks for.
    #[must_use]
    pub fn requested_by_host(ports: Ports) -> Self {
        Self::new(ports, Phase::Requested, Operation::Request)
    }

    /// A connection that the guest has asked for by `request`, and gets.
    #[must_use]
    pub fn requested_by_guest(request: &Header) -> Self {
        let mut flow = Self::new(request.ports, Phase::Open, Operation::Response);
        flow.note_credit(request);
        flow
    }

    /// Its ports.
    #[must_use]
    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// Whether the guest has agreed to it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    fn note_credit(&mut self, header: &Header) {
        let (before, now) = ((self.guest_alloc, self.guest_forwarded), (header.buf_alloc, header.fwd_cnt));
        (self.guest_alloc, self.guest_forwarded) = now;
        // A guest whose buffer stays full answers with that: to ask again would go on until it is read.
        self.has_requested &= now == before;
    }

    /// Takes a packet of the guest's with its data: not a [`Operation::Reset`], which ends the connection.
    ///
    /// # Errors
    /// The packet has no place here, or carries more than there is room for.
    pub fn take(&mut self, header: &Header, data: &[u8]) -> Result<(), Broken> {
        self.note_credit(header);
        match (self.phase, header.operation) {
            (Phase::Requested, Operation::Response) => self.phase = Phase::Open,
            (Phase::Open, Operation::Data) => self.take_data(data)?,
            (Phase::Open, Operation::CreditUpdate) => {}
            (Phase::Open, Operation::CreditRequest) => self.owes_credit = true,
            (Phase::Open, Operation::Shutdown) => {
                self.guest_ended |= header.flags & (TAKES_NO_MORE | SENDS_NO_MORE);
                if self.guest_takes_no_more() {
                    // What the host still has for the guest finds nobody.
                    self.host_ended |= SENDS_NO_MORE;
                    self.reported_ended |= SENDS_NO_MORE;
                }
            }
            _ => return Err(Broken),
        }
        Ok(())
    }

    fn take_data(&mut self, data: &[u8]) -> Result<(), Broken> {
        let room = (BUFFER as usize).saturating_sub(self.buffer.len());
        if self.guest_ended & SENDS_NO_MORE != 0 || data.len() > room {
            return Err(Broken);
        }
        if self.host_ended & TAKES_NO_MORE == 0 {
            self.buffer.extend(data);
        } else {
            self.forward(data.len());
        }
        Ok(())
    }

    #[allow(clippy::cast_possible_truncation, reason = "it is at most the size of the buffer")]
    fn forward(&mut self, bytes: usize) {
        self.forwarded = self.forwarded.wrapping_add(bytes as u32);
        self.owes_credit |= self.forwarded.wrapping_sub(self.reported) >= BUFFER / 2;
    }

    /// What waits for the host's socket, as far as it lies in one piece.
    #[must_use]
    pub fn buffered(&self) -> &[u8] {
        self.buffer.as_slices().0
    }

    /// The host's socket has taken the first `bytes` of [`buffered`](Self::buffered).
    pub fn written(&mut self, bytes: usize) {
        let bytes = bytes.min(self.buffer.len());
        self.buffer.drain(..bytes);
        self.forward(bytes);
    }

    /// The host's program takes no more data: what it has not taken is lost.
    pub fn host_takes_no_more(&mut self) {
        self.host_ended |= TAKES_NO_MORE;
        self.written(self.buffer.len());
    }

    /// The host's program has no more data.
    pub fn host_sends_no_more(&mut self) {
        self.host_ended |= SENDS_NO_MORE;
    }

    /// Whether the guest has no more data and the host's socket has it all.
    #[must_use]
    pub fn guest_has_sent_all(&self) -> bool {
        self.guest_ended & SENDS_NO_MORE != 0 && self.buffer.is_empty()
    }

    /// Whether the guest takes no more data.
    #[must_use]
    pub fn guest_takes_no_more(&self) -> bool {
        self.guest_ended & TAKES_NO_MORE != 0
    }

    /// Whether the guest is through with it in both directions, and the host's socket has everything: it is to be
    /// answered by a [`Operation::Reset`], and over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.guest_has_sent_all() && self.guest_takes_no_more()
    }

    /// Whether the guest knows that the host is through with it in both directions: it is over.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.host_ended == TAKES_NO_MORE | SENDS_NO_MORE && self.reported_ended == self.host_ended
    }

    /// Whether what the host's program says is still to be read.
    #[must_use]
    pub fn reads(&self) -> bool {
        self.is_open() && self.host_ended & SENDS_NO_MORE == 0
    }

    /// Bytes that the guest has room for.
    #[must_use]
    pub fn credit(&self) -> u32 {
        self.guest_alloc.saturating_sub(self.sent.wrapping_sub(self.guest_forwarded))
    }

    /// What is to be sent to the guest next but data, which [`data`](Self::data) does. `has_data`: the host's program
    /// may have some.
    #[must_use]
    pub fn pending(&self, has_data: bool) -> Option<Operation> {
        if self.greeting.is_some() || !self.is_open() {
            return self.greeting;
        }
        if self.owes_credit {
            return Some(Operation::CreditUpdate);
        }
        if self.host_ended != self.reported_ended {
            return Some(Operation::Shutdown);
        }
        let is_stuck = has_data && self.reads() && self.credit() == 0 && !self.has_requested;
        is_stuck.then_some(Operation::CreditRequest)
    }

    /// The packet that [`pending`](Self::pending) names, which is sent now.
    pub fn send(&mut self, operation: Operation) -> Header {
        let mut flags = 0;
        match operation {
            Operation::Request | Operation::Response => self.greeting = None,
            Operation::Shutdown => {
                self.reported_ended = self.host_ended;
                flags = self.host_ended;
            }
            Operation::CreditRequest => self.has_requested = true,
            Operation::CreditUpdate | Operation::Data | Operation::Reset => {}
        }
        self.header(operation, 0, flags)
    }

    /// The packet with `bytes` of the host's data, which is sent now.
    pub fn data(&mut self, bytes: u32) -> Header {
        self.sent = self.sent.wrapping_add(bytes);
        self.header(Operation::Data, bytes, 0)
    }

    /// Each packet tells of the room in the buffer.
    fn header(&mut self, operation: Operation, length: u32, flags: u32) -> Header {
        self.reported = self.forwarded;
        self.owes_credit = false;
        Header { ports: self.ports, operation, length, flags, buf_alloc: BUFFER, fwd_cnt: self.forwarded }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: Ports = Ports { guest: 1024, host: 77 };

    fn header(operation: Operation) -> Header {
        Header { buf_alloc: 1000, ..Header::plain(PORTS, operation) }
    }

    /// A connection that the guest has asked for and got.
    fn open() -> Flow {
        let mut flow = Flow::requested_by_guest(&header(Operation::Request));
        assert_eq!(flow.pending(false), Some(Operation::Response));
        flow.send(Operation::Response);
        flow
    }

    fn shutdown(flags: u32) -> Header {
        Header { flags, ..header(Operation::Shutdown) }
    }

    #[test]
    fn host_asks_once_and_waits_for_the_answer() {
        let mut flow = Flow::requested_by_host(PORTS);

        let requested = flow.pending(true).map(|operation| flow.send(operation));
        let waits = (flow.pending(true), flow.is_open(), flow.reads());
        flow.take(&header(Operation::Response), &[]).unwrap();

        assert_eq!(requested.map(|header| header.operation), Some(Operation::Request));
        assert_eq!(waits, (None, false, false));
        assert!(flow.is_open() && flow.reads() && flow.credit() == 1000);
    }

    #[test]
    fn packets_that_have_no_place_break_the_connection() {
        let requested = |operation| Flow::requested_by_host(PORTS).take(&header(operation), &[]);
        let opened = |operation| open().take(&header(operation), &[]);

        assert_eq!(requested(Operation::Data), Err(Broken));
        assert_eq!(requested(Operation::Request), Err(Broken));
        assert_eq!(requested(Operation::Shutdown), Err(Broken));
        assert_eq!(opened(Operation::Request), Err(Broken));
        assert_eq!(opened(Operation::Response), Err(Broken));
    }

    #[test]
    fn more_data_than_there_is_room_for_breaks_the_connection() {
        let mut flow = open();

        let full = flow.take(&header(Operation::Data), &vec![7; BUFFER as usize]);
        let over = flow.take(&header(Operation::Data), &[7]);

        assert_eq!((full, over), (Ok(()), Err(Broken)));
        assert_eq!(flow.buffered().len(), BUFFER as usize);
    }

    #[test]
    fn credit_is_sent_when_half_of_the_buffer_is_free_again_or_on_request() {
        let mut flow = open();
        flow.take(&header(Operation::Data), &vec![7; BUFFER as usize]).unwrap();

        flow.written(BUFFER as usize / 2 - 1);
        let early = flow.pending(false);
        flow.written(1);
        let half = flow.pending(false).map(|operation| flow.send(operation));
        let reported = flow.pending(false);
        flow.take(&header(Operation::CreditRequest), &[]).unwrap();

        assert_eq!((early, reported), (None, None));
        assert_eq!(half.map(|header| (header.buf_alloc, header.fwd_cnt)), Some((BUFFER, BUFFER / 2)));
        assert_eq!(flow.pending(false), Some(Operation::CreditUpdate));
    }

    #[test]
    fn guest_gets_no_more_than_it_has_room_for_and_one_request() {
        let mut flow = open();

        let first = flow.credit();
        flow.data(1000);
        let requested = flow.pending(true).map(|operation| flow.send(operation).operation);
        let again = flow.pending(true);
        flow.take(&Header { fwd_cnt: 400, ..header(Operation::CreditUpdate) }, &[]).unwrap();

        assert_eq!((first, requested, again), (1000, Some(Operation::CreditRequest), None));
        assert_eq!((flow.credit(), flow.pending(true)), (400, None));
    }

    #[test]
    fn guest_is_asked_for_credit_again_only_when_it_has_said_something_new() {
        let mut flow = open();
        flow.data(1000);
        flow.send(Operation::CreditRequest);

        flow.take(&header(Operation::CreditUpdate), &[]).unwrap();
        let still_full = flow.pending(true);
        flow.take(&Header { fwd_cnt: 1000, ..header(Operation::CreditUpdate) }, &[]).unwrap();
        flow.data(1000);

        assert_eq!((still_full, flow.pending(true)), (None, Some(Operation::CreditRequest)));
    }

    #[test]
    fn lies_about_credit_give_no_credit_beyond_the_guests_buffer() {
        let mut flow = open();
        flow.data(10);

        for fwd_cnt in [11, u32::MAX, 1 << 31] {
            flow.take(&Header { fwd_cnt, ..header(Operation::CreditUpdate) }, &[]).unwrap();
            assert!(flow.credit() <= 1000, "{fwd_cnt}");
        }
    }

    #[test]
    fn guest_that_is_through_is_over_when_the_host_has_everything() {
        let mut flow = open();
        flow.take(&header(Operation::Data), b"last").unwrap();

        flow.take(&shutdown(TAKES_NO_MORE | SENDS_NO_MORE), &[]).unwrap();
        let early = flow.is_over();
        let after = flow.take(&header(Operation::Data), b"more");
        flow.written(4);

        assert!(!early && flow.is_over());
        assert_eq!(after, Err(Broken));
    }

    #[test]
    fn half_that_ends_leaves_the_other() {
        let (mut by_guest, mut by_host) = (open(), open());

        by_guest.take(&shutdown(SENDS_NO_MORE), &[]).unwrap();
        by_host.host_sends_no_more();
        let reported = by_host.pending(true).map(|operation| by_host.send(operation));

        assert!(by_guest.guest_has_sent_all() && !by_guest.is_over() && by_guest.reads());
        assert_eq!(reported.map(|header| (header.operation, header.flags)), Some((Operation::Shutdown, SENDS_NO_MORE)));
        assert!(!by_host.reads() && !by_host.is_given_up());
        assert_eq!(by_host.take(&header(Operation::Data), b"still"), Ok(()));
    }

    #[test]
    fn host_that_is_gone_is_reported_and_drops_what_comes() {
        let mut flow = open();
        flow.take(&header(Operation::Data), b"lost").unwrap();

        flow.host_takes_no_more();
        flow.host_sends_no_more();
        flow.take(&header(Operation::Data), &vec![0; BUFFER as usize]).unwrap();
        let first = flow.pending(false).map(|operation| flow.send(operation).operation);
        let second = flow.pending(false).map(|operation| flow.send(operation).flags);

        assert_eq!((first, second), (Some(Operation::CreditUpdate), Some(TAKES_NO_MORE | SENDS_NO_MORE)));
        assert!(flow.is_given_up() && flow.buffered().is_empty());
    }
}
