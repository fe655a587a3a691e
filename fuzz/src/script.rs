//! Scripts: changes of a memory, in turn with steps of whoever reads it.

use shared_ring::host::memory::HostMemory;

/// One line of a script.
///
/// | bytes | what |
/// |---|---|
/// | 0, `u16` word, `u16` length, bytes | [`Op::Write`] |
/// | 1, `u16` word, `u64` value | [`Op::Store`] |
/// | 2, `u16` word, `i16` delta | [`Op::Add`] |
/// | 3 + kind, `u64` argument | [`Op::Step`] |
///
/// Words count from the beginning of the memory and wrap around at its end. A line that the script is too short for is
/// filled up with zeros, so that every sequence of bytes is a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Writes bytes, up to the end of the memory.
    Write {
        /// First word that is written.
        word: u16,
        /// What is written; the last word is padded with zeros.
        bytes: &'a [u8],
    },
    /// Replaces a word.
    Store {
        /// The word.
        word: u16,
        /// Its new value.
        value: u64,
    },
    /// Adds to a word: counters that are off by a little are what finds mistakes.
    Add {
        /// The word.
        word: u16,
        /// What is added.
        delta: i16,
    },
    /// Lets the reader do something.
    Step {
        /// What; the reader's module says which there are.
        kind: u8,
        /// An argument of it, such as a time.
        argument: u64,
    },
}

/// Tag of the first kind of step.
const STEP: u8 = 3;

impl Op<'_> {
    /// Changes `memory`, if the line is a change.
    pub fn apply(&self, memory: &HostMemory) {
        let words = memory.size() / 8;
        let offset = |word: u16| usize::from(word) % words * 8;
        match *self {
            Self::Write { word, bytes } => {
                let room = memory.size() - offset(word);
                memory.write(offset(word), &bytes[..bytes.len().min(room)]);
            }
            Self::Store { word, value } => memory.store(offset(word), value),
            Self::Add { word, delta } => {
                let value = memory.load(offset(word)).wrapping_add_signed(delta.into());
                memory.store(offset(word), value);
            }
            Self::Step { .. } => {}
        }
    }

    /// Appends the line to a script.
    ///
    /// # Panics
    /// When more than 65535 bytes are to be written at once.
    pub fn encode(&self, script: &mut Vec<u8>) {
        match *self {
            Self::Write { word, bytes } => {
                script.push(0);
                script.extend(word.to_le_bytes());
                let length = u16::try_from(bytes.len()).expect("a write is at most 65535 bytes long");
                script.extend(length.to_le_bytes());
                script.extend(bytes);
            }
            Self::Store { word, value } => {
                script.push(1);
                script.extend(word.to_le_bytes());
                script.extend(value.to_le_bytes());
            }
            Self::Add { word, delta } => {
                script.push(2);
                script.extend(word.to_le_bytes());
                script.extend(delta.to_le_bytes());
            }
            Self::Step { kind, argument } => {
                script.push(STEP + kind);
                script.extend(argument.to_le_bytes());
            }
        }
    }
}

/// Bytes that are taken from the front; zeros when there are no more.
#[derive(Clone, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// The next `length` bytes, or as many as there are.
    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// The next bytes whose number is in the two bytes before them.
    pub fn block(&mut self) -> &'a [u8] {
        let length = self.u16();
        self.bytes(length.into())
    }
}

/// The lines of a script.
#[derive(Clone, Debug)]
pub struct Script<'a> {
    input: Input<'a>,
    /// Number of kinds of steps.
    kinds: u8,
}

impl<'a> Script<'a> {
    /// The script in `bytes`, for a reader with `kinds` kinds of steps.
    #[must_use]
    pub const fn new(bytes: &'a [u8], kinds: u8) -> Self {
        Self { input: Input(bytes), kinds }
    }
}

impl<'a> Iterator for Script<'a> {
    type Item = Op<'a>;

    fn next(&mut self) -> Option<Op<'a>> {
        if self.input.0.is_empty() {
            return None;
        }
        Some(match self.input.byte() % (STEP + self.kinds) {
            0 => Op::Write { word: self.input.u16(), bytes: self.input.block() },
            1 => Op::Store { word: self.input.u16(), value: self.input.u64() },
            2 => Op::Add { word: self.input.u16(), delta: i16::from_le_bytes(self.input.array()) },
            step => Op::Step { kind: step - STEP, argument: self.input.u64() },
        })
    }
}

/// Follows a memory and writes down how it changed, so that the same can be done to another one.
#[derive(Debug)]
pub struct Transcript {
    memory: HostMemory,
    before: Vec<u8>,
    script: Vec<u8>,
}

impl Transcript {
    /// A transcript that begins with `head` and now, with every byte of `memory` zero.
    #[must_use]
    pub fn new(memory: HostMemory, head: &[u8]) -> Self {
        let before = vec![0; memory.size()];
        Self { memory, before, script: head.to_vec() }
    }

    /// Writes down what changed, then that the reader does a step.
    ///
    /// # Panics
    /// When the memory has more words than a script can name.
    pub fn step(&mut self, kind: u8, argument: u64) {
        self.changes();
        Op::Step { kind, argument }.encode(&mut self.script);
    }

    /// Writes down what changed since the last time: runs of changed words.
    fn changes(&mut self) {
        let mut now = vec![0; self.memory.size()];
        self.memory.read(0, &mut now);
        let changed = |word: usize| now[word * 8..][..8] != self.before[word * 8..][..8];
        let words = now.len() / 8;
        let mut word = 0;
        while word < words {
            let end = (word..words).find(|&word| !changed(word)).unwrap_or(words).min(word + 1024);
            if end > word {
                let first = u16::try_from(word).expect("the memory has at most 65536 words");
                Op::Write { word: first, bytes: &now[word * 8..end * 8] }.encode(&mut self.script);
            }
            word = end.max(word + 1);
        }
        self.before = now;
    }

    /// Takes the memory as it is now for known: the reader itself changed it.
    pub fn forget_changes(&mut self) {
        self.memory.read(0, &mut self.before);
    }

    /// The script.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.changes();
        self.script
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let lines = [
            Op::Write { word: 7, bytes: b"hello" },
            Op::Store { word: 1, value: u64::MAX },
            Op::Add { word: 2, delta: -3 },
            Op::Step { kind: 1, argument: 9 },
        ];
        let mut script = Vec::new();
        lines.iter().for_each(|line| line.encode(&mut script));

        assert_eq!(Script::new(&script, 2).collect::<Vec<_>>(), lines);
    }

    #[test]
    fn transcript_does_to_another_memory_what_was_done_to_this_one() {
        let (memory, other) = (HostMemory::private(64), HostMemory::private(64));
        let mut transcript = Transcript::new(memory.clone(), &[]);

        memory.store(8, 1);
        transcript.step(0, 0);
        memory.store(0, 2);
        memory.store(8, 0);
        let script = transcript.finish();
        Script::new(&script, 1).for_each(|line| line.apply(&other));

        assert_eq!((other.load(0), other.load(8)), (2, 0));
        assert_eq!(Script::new(&script, 1).nth(1), Some(Op::Step { kind: 0, argument: 0 }));
    }
}
