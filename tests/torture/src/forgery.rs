//! Recordings that somebody has forged: out of one of a round, changed in its description, streams, frames or as one file.
//! A process of its own reads each, within bounds of time and memory.

use crate::stranger::{HOSTILE, damage};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use strata_recording::files::MANIFEST_FILE;
use strata_recording::one_file::pack;
use strata_recording::reader::Trace;
use strata_recording::text::terminal::acts;
use trace_merge::check::{self, CheckOptions};
use trace_merge::events::{self, EventsOptions};
use trace_merge::report::sink::Sink;
use trace_merge::report::{self, ReportOptions, registry};

/// What is copied of each stream, and of how many, so that reading takes seconds.
const STREAM_BYTES: u64 = 128 << 10;
const STREAMS: usize = 48;
/// Largest file of frames that decompress to more than they are, bytes.
const BOMB_BYTES: usize = 1 << 20;
/// How long a forged recording may be read.
pub const READ_LIMIT: Duration = Duration::from_secs(20);
/// Memory of its own that a reader may take, bytes.
const READ_MEMORY: u64 = 512 << 20;
/// Exit status of a reader that has shown something that acts on a terminal.
const ACTS: u8 = 3;

/// What came of a forged recording.
#[derive(Clone, Debug)]
pub struct Judged {
    /// How long it was read, ms.
    pub took_ms: u64,
    /// Why it was not read as it should be: the reader died, or took too long.
    pub fault: Option<String>,
    /// Whether nothing acted on a terminal.
    pub is_harmless: bool,
}

/// Forges the recording in `from` into `folder`, which does not exist, as `chance` has it; has it read.
///
/// # Errors
/// Files cannot be written, or no process be started.
pub fn judge(from: &Path, folder: &Path, chance: &mut fastrand::Rng) -> anyhow::Result<Judged> {
    let path = forge(from, folder, chance)?;
    let log = folder.with_extension("log");
    let begun = Instant::now();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["role", "reader"]).arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).env("TMPDIR", folder);
    let mut reader = command.stderr(File::create(&log)?).spawn()?;
    let status = loop {
        match reader.try_wait()? {
            Some(status) => break Some(status),
            None if begun.elapsed() > READ_LIMIT => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.is_none() {
        reader.kill()?;
        reader.wait()?;
    }
    let took_ms = u64::try_from(begun.elapsed().as_millis())?;
    let printed = || fs::read_to_string(&log).unwrap_or_default().trim().replace('\n', "; ");
    let code = status.and_then(|status| status.code());
    let fault = match (status, code) {
        (_, Some(0)) => None,
        (_, Some(code)) if code == i32::from(ACTS) => None,
        (None, _) => Some("it is read without end".into()),
        (Some(status), _) => Some(format!("its reader ended with {status}: {}", printed())),
    };
    Ok(Judged { took_ms, fault, is_harmless: code != Some(ACTS.into()) })
}

/// Makes the forged recording; returns what is to be read.
fn forge(from: &Path, folder: &Path, chance: &mut fastrand::Rng) -> anyhow::Result<PathBuf> {
    let mut streams = Vec::new();
    copy(from, folder, &mut streams)?;
    let manifest = folder.join(MANIFEST_FILE);
    for _ in 0..chance.usize(1..4) {
        match chance.u8(..8) {
            0..=2 => {
                let mut description: Value = serde_json::from_slice(&fs::read(&manifest)?).unwrap_or_default();
                (0..chance.usize(1..6)).for_each(|_| change(&mut description, chance));
                fs::write(&manifest, description.to_string())?;
            }
            3 => {
                let mut text = fs::read(&manifest)?;
                damage(&mut text, chance);
                fs::write(&manifest, text)?;
            }
            4 | 5 => {
                if let Some(stream) = chance.choice(&streams).filter(|stream| stream.exists()) {
                    change_stream(stream, chance)?;
                }
            }
            6 => {
                if let Some(stream) = chance.choice(&streams) {
                    let name = stream.to_string_lossy();
                    let compressed = if name.ends_with(".zst") { name.into_owned() } else { format!("{name}.zst") };
                    fs::write(compressed, bomb(stream, chance)?)?;
                    fs::remove_file(stream).or_else(|error| if stream.exists() { Err(error) } else { Ok(()) })?;
                }
            }
            _ => return pack(folder, chance),
        }
    }
    Ok(folder.to_path_buf())
}

/// Copies the beginnings of the files in `from` to the new folder `to`; `streams` are those copied so far.
fn copy(from: &Path, to: &Path, streams: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let path = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &path, streams)?;
        } else if entry.file_name().to_string_lossy().starts_with("stream_") {
            if streams.len() < STREAMS {
                let mut content = std::io::Read::take(File::open(entry.path())?, STREAM_BYTES);
                std::io::copy(&mut content, &mut File::create(&path)?)?;
                streams.push(path);
            }
        } else {
            fs::copy(entry.path(), path)?;
        }
    }
    Ok(())
}

/// Changes one value somewhere in `value`.
fn change(value: &mut Value, chance: &mut fastrand::Rng) {
    let goes_deeper = chance.u8(..8) > 0;
    match value {
        Value::Object(fields) if goes_deeper && !fields.is_empty() => {
            let place = chance.usize(..fields.len());
            fields.values_mut().nth(place).into_iter().for_each(|field| change(field, chance));
        }
        Value::Array(values) if chance.u8(..6) == 0 && !values.is_empty() => {
            // As many as a recording of a whole host has.
            let value = values[chance.usize(..values.len())].clone();
            let many = 20_000_usize.checked_div(value.to_string().len() / 100 + 1).unwrap_or(1);
            values.extend(vec![value; many]);
        }
        Value::Array(values) if goes_deeper && !values.is_empty() => {
            let place = chance.usize(..values.len());
            change(&mut values[place], chance);
        }
        value => *value = edge(chance),
    }
}

/// A value that careless readers go wrong on.
fn edge(chance: &mut fastrand::Rng) -> Value {
    match chance.u8(..10) {
        0 => 0.into(),
        1 => u64::MAX.into(),
        2 => (1_u64 << chance.u32(..64)).into(),
        3 => (-1).into(),
        4 => 1e308.into(),
        5 => HOSTILE.into(),
        6 => HOSTILE.repeat(2000).into(),
        7 => "../../../etc/passwd".into(),
        8 => (0..100).fold(Value::Null, |inner, _| Value::from(vec![inner])),
        _ => Value::Null,
    }
}

/// Changes the stream in the file `path`.
fn change_stream(path: &Path, chance: &mut fastrand::Rng) -> anyhow::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    match chance.u8(..4) {
        0 => file.set_len(chance.u64(..=length))?,
        // Zeros that take no space.
        1 => file.set_len(length + (1 << chance.u32(12..31)))?,
        _ => {
            for _ in 0..chance.usize(1..50) {
                let word = if chance.bool() { chance.u64(..) } else { 1 << chance.u32(..64) };
                // Headers more often than the rest.
                let most = if chance.bool() { 128 } else { length.max(1) };
                file.write_all_at(&word.to_le_bytes(), chance.u64(..most))?;
            }
        }
    }
    Ok(())
}

/// Frames that decompress to far more than they are, each as large as the first packet of the file `stream`.
fn bomb(stream: &Path, chance: &mut fastrand::Rng) -> anyhow::Result<Vec<u8>> {
    let packet = fs::read(stream).unwrap_or_default();
    let size = 4096 << chance.u32(..7);
    let mut packet = packet.get(..size.min(packet.len())).unwrap_or_default().to_vec();
    packet.resize(size, if chance.bool() { 0 } else { 0x55 });
    let frame = zstd::bulk::compress(&packet, 1)?;
    // Frames that hold as much as they take are a long recording, and not a bomb.
    let most = (BOMB_BYTES / frame.len()).max(1);
    Ok(frame.repeat(chance.usize(1..20_000).min(most)))
}

/// The recording in `folder` as one file, which is damaged or goes on without end.
fn pack(folder: &Path, chance: &mut fastrand::Rng) -> anyhow::Result<PathBuf> {
    let path = folder.join("forged.strata");
    let mut bytes = Vec::new();
    if let Ok(trace) = Trace::open(folder) {
        // What is forged may be no recording that is packed: a file that it names is not there, or nobody would unpack it.
        // The file is what was written until then.
        let _ = pack::pack(&trace, &mut bytes);
    }
    match chance.u8(..3) {
        0 => damage(&mut bytes, chance),
        1 => {
            let mut archive = zstd::decode_all(&*bytes).unwrap_or_default();
            damage(&mut archive, chance);
            bytes = zstd::bulk::compress(&archive, 1)?;
        }
        _ => {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1)?;
            encoder.write_all(&zstd::decode_all(&*bytes).unwrap_or_default())?;
            let zeros = vec![0; 1 << 20];
            (0..chance.usize(1..1500)).try_for_each(|_| encoder.write_all(&zeros))?;
            bytes = encoder.finish()?;
        }
    }
    fs::write(&path, bytes)?;
    Ok(path)
}

/// Reads the recording `path` with the tools, within [`READ_MEMORY`]; says whether nothing that was shown acts on a
/// terminal.
///
/// # Errors
/// The process cannot be limited.
pub fn read(path: &Path) -> anyhow::Result<std::process::ExitCode> {
    setrlimit(Resource::Data, Rlimit { current: Some(READ_MEMORY), maximum: Some(READ_MEMORY) })?;
    let mut shown = Shown { acts: false };
    // What cannot be read is refused: that is not a fault.
    if let Ok(trace) = Trace::open(path) {
        let _ = events::list(&trace, &EventsOptions::default(), &mut shown);
    }
    let _ = check::run(path, &CheckOptions::default(), &mut shown);
    let options = ReportOptions::default();
    let _ = report::run(path, &options, &mut shown, |trace, window| registry::all(trace, window, None));
    Ok(if shown.acts { ACTS.into() } else { std::process::ExitCode::SUCCESS })
}

/// Looks at what is shown.
struct Shown {
    acts: bool,
}

impl Sink for Shown {}

impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // A part may end within a character.
        let acting = String::from_utf8_lossy(bytes).chars().find(|&character| acts(character) && character != '\n');
        if let Some(acting) = acting {
            eprintln!("{acting:?} in {:?}", String::from_utf8_lossy(bytes));
            self.acts = true;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::test_trace::TestTrace;

    #[test]
    fn recording_that_nobody_would_unpack_is_forged_as_it_was_written() {
        let (from, _) = TestTrace::new().host(0, 5, "a:b", &[]).open();
        let to = tempfile::tempdir().unwrap();
        let (folder, mut streams) = (to.path().join("forged"), Vec::new());
        copy(from.path(), &folder, &mut streams).unwrap();
        // Zeros that take no space, and compress to nothing.
        File::options().write(true).open(&streams[0]).unwrap().set_len(1025 << 20).unwrap();

        let path = pack(&folder, &mut fastrand::Rng::with_seed(0)).unwrap();

        assert!(fs::metadata(path).unwrap().len() > 1024);
    }
}
