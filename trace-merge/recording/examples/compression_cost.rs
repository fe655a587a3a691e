//! What `--compress zstd` saves on the disk and costs in processor time, with the records of a real recording.
//!
//! `cargo run --release -p strata-recording --example compression_cost -- TRACE [TURNS]`
//!
//! Each turn writes all records of TRACE once more, as they are and compressed, then reads both. Medians of the turns.

use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::fs;
use std::path::Path;
use strata_recording::files::compression::Compression;
use strata_recording::manifest::Manifest;
use strata_recording::reader::Trace;
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;

const FORMS: [Option<Compression>; 2] = [None, Some(Compression::Zstd)];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (trace, turns) = match &arguments[..] {
        [trace] => (trace, 5),
        [trace, turns] => (trace, turns.parse()?),
        _ => return Err("give TRACE [TURNS]".into()),
    };
    let trace = Trace::open(Path::new(trace))?;
    let folder = TempDir::new_in(".")?;
    let (mut writing, mut reading) = ([vec![], vec![]], [vec![], vec![]]);
    let (mut records, mut bytes) = (0, [0; 2]);
    for _ in 0..turns {
        for (form, compression) in FORMS.into_iter().enumerate() {
            let dir = folder.path().join(format!("{form}"));
            fs::create_dir(&dir)?;
            let begin = processor_ns();
            write(&trace, &dir, compression)?;
            writing[form].push(processor_ns() - begin);
            bytes[form] = stored(&dir)?;
            let begin = processor_ns();
            records = read(&Trace::open(&dir)?);
            reading[form].push(processor_ns() - begin);
            fs::remove_dir_all(&dir)?;
        }
    }
    let each = |sum: u64| sum as f64 / records as f64;
    println!("{records} records, medians of {turns} turns; each record:");
    for (form, name) in ["as they are", "zstd"].into_iter().enumerate() {
        let [written, read] = [&mut writing[form], &mut reading[form]].map(|taken| each(median(taken)));
        println!(
            "{name:>12}: {:5.1} bytes on the disk, {written:5.1} ns to write, {read:5.1} ns to read",
            each(bytes[form])
        );
    }
    Ok(())
}

/// Writes the records of `trace` into the folder `dir`.
fn write(trace: &Trace, dir: &Path, compression: Option<Compression>) -> Result<(), Box<dyn Error>> {
    let mut manifest = Manifest { layers: Vec::new(), max_size: None, compression, ..trace.manifest().clone() };
    for layer in trace.layers() {
        let described = &layer.description;
        let (kind, vm, process) = (described.kind, described.vm.clone(), described.process.clone());
        let new = NewLayer { kind, vm, process, packet_size: described.packet_size };
        let mut writer = LayerWriter::create(dir, &manifest, new)?;
        writer.add_events(&described.events)?;
        for stream in &layer.streams {
            for record in layer.records(stream) {
                writer.record(
                    stream.description.cpu_id,
                    record.time,
                    record.schema.description().id,
                    record.payload,
                )?;
            }
        }
        writer.flush()?;
        manifest.layers.push(writer.layer());
    }
    Ok(manifest.save(dir)?)
}

/// How many records `trace` holds: reads each.
fn read(trace: &Trace) -> u64 {
    let streams = trace.layers().iter().flat_map(|layer| layer.streams.iter().map(move |stream| (layer, stream)));
    streams.map(|(layer, stream)| layer.records(stream).count() as u64).sum()
}

/// Bytes of the disk that the streams in `dir` take.
fn stored(dir: &Path) -> Result<u64, Box<dyn Error>> {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_stream = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"stream_"));
        sum += match path.is_dir() {
            true => stored(&path)?,
            false if is_stream => fs::metadata(&path)?.blocks() * 512,
            false => 0,
        };
    }
    Ok(sum)
}

/// Time that this process has used on all processors.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or_default()
}

fn median(taken: &mut [u64]) -> u64 {
    taken.sort_unstable();
    taken.get(taken.len() / 2).copied().unwrap_or_default()
}
