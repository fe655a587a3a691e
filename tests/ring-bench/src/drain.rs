//! The consumer: bytes per second from the ring to a file, every record checked, beside `cp` of the same bytes.

use crate::ring_cases::{EVENT_ID, Ring, probe};
use crate::sampling::{median, ticks};
use anyhow::{Context, ensure};
use serde::Serialize;
use shared_ring::consumer::Consumer;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::layout::Mode;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// 64 MiB of records.
const SUB_BUFFER_SIZE: u64 = 1 << 20;
const SUB_BUFFERS: u32 = 64;

/// What the consumer and `cp` move.
#[derive(Clone, Debug, Serialize)]
pub struct Drain {
    /// Bytes moved each time.
    pub bytes: u64,
    /// Records in these bytes.
    pub records: u64,
    /// The consumer's bytes per second: copied out of the ring, validated record by record, written, and cleared for
    /// the producer.
    pub consumer: f64,
    /// Bytes per second of `cp` from memory (tmpfs) to the same file system.
    pub cp: f64,
    /// `consumer` over `cp`.
    pub ratio: f64,
    /// Bytes per second of the consumer without the file.
    pub without_file: f64,
}

/// Fills a ring and drains it into `folder`, `repetitions` times, in turn with `cp`.
///
/// # Errors
/// When there is no memory or a file cannot be written.
pub fn drain(folder: &Path, repetitions: usize) -> anyhow::Result<Drain> {
    let ring = Ring::new(SUB_BUFFER_SIZE, SUB_BUFFERS, Mode::Discard)?;
    let (ours, copy, source) = (folder.join("drained"), folder.join("copied"), Path::new("/dev/shm"));
    let source = tempfile::NamedTempFile::new_in(source).context("/dev/shm is needed for cp's source")?;
    let [mut consumer, mut cp, mut memory] = [const { Vec::new() }; 3];
    let (mut bytes, mut records) = (0, 0);
    for turn in 0..=repetitions {
        fill(&ring);
        let mut file = File::create(&ours)?;
        let begin = Instant::now();
        (bytes, records) = consume(&ring, |packet| file.write_all(packet))?;
        let took = begin.elapsed().as_secs_f64();
        drop(file);
        if turn == 0 {
            fs::copy(&ours, source.path())?;
            let _ = fs::remove_file(&copy);
        }
        fill(&ring);
        let begin = Instant::now();
        consume(&ring, |_| Ok(()))?;
        let took_memory = begin.elapsed().as_secs_f64();
        File::create(&copy)?;
        let begin = Instant::now();
        let status = Command::new("cp").arg(source.path()).arg(&copy).status().context("cannot start cp")?;
        let took_cp = begin.elapsed().as_secs_f64();
        ensure!(status.success(), "cp failed");
        if turn > 0 {
            consumer.push(took);
            cp.push(took_cp);
            memory.push(took_memory);
        }
    }
    fs::remove_file(ours)?;
    fs::remove_file(copy)?;
    let [consumer, cp, without_file] = [consumer, cp, memory].map(|mut took| rate(bytes, median(&mut took)));
    Ok(Drain { bytes, records, consumer, cp, ratio: consumer / cp, without_file })
}

#[allow(clippy::cast_precision_loss, reason = "64 MiB are far less than 2^53 bytes")]
fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds
}

fn fill(ring: &Ring) {
    ring.mapping.clear();
    let producer = ring.local();
    let mut value = 0;
    while probe::<_, 2>(&producer, ticks, value) {
        value += 1;
    }
}

/// Bytes and records that the consumer accepted.
fn consume(ring: &Ring, mut write: impl FnMut(&[u8]) -> std::io::Result<()>) -> anyhow::Result<(u64, u64)> {
    let field = |name: &str| FieldDescription { name: name.to_owned(), ty: FieldType::U64, hex: false };
    let event = EventDescription {
        id: EVENT_ID,
        class: 0,
        name: "bench:words".to_owned(),
        fields: vec![field("first"), field("second")],
    };
    let mut consumer = Consumer::new(ring.host_memory(), ring.geometry, Mode::Discard, 0);
    let mut buffer = Vec::new();
    let (mut bytes, mut records) = (0, 0);
    while let Some(delivered) = consumer.poll(&mut buffer).ready() {
        let known = |id| (id == event.id).then_some(&event);
        let packet = delivered.accept([1; 16], u64::MAX, known).context("a packet was refused")?;
        write(packet.content())?;
        bytes += packet.content().len() as u64;
        records += packet.record_count();
    }
    ensure!(consumer.rejected_bytes() == 0 && bytes > 0, "the consumer refused what the producer wrote");
    Ok((bytes, records))
}
