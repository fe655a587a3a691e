//! A recording as CTF traces: a folder for each layer, as in the recording. The packets are the recording's own, byte by
//! byte, and decompressed if that is compressed.

mod ctf2;

use super::{ExportError, Exported, Options};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use strata_recording::files::access::Readers;
use strata_recording::metadata::{TraceDescription, tsdl};
use strata_recording::reader::{Stream, Trace, TraceLayer};
use trace_merge::progress::DONE;
use trace_merge::report::ReportError;

/// Packets that are copied before their memory is given back.
const PACKETS_AT_ONCE: usize = 16;

/// What describes the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// CTF 1.8, in TSDL: what recordings are, too.
    V1_8,
    /// CTF 2, in JSON.
    V2,
}

/// Writes `trace`, as CTF of `version`, into the empty folder `folder`, as far as its packets overlap the window of `options`.
///
/// A packet that cannot be read is left out, and so is what a stream has behind its last whole packet.
///
/// # Errors
/// When the window ends before it begins or holds nothing, and when a file cannot be written. What is there is left then.
pub fn export(trace: &Trace, version: Version, options: &Options<'_>, folder: &Path) -> Result<Exported, ExportError> {
    let window = trace.window(options.from, options.to).ok_or(ReportError::EmptyWindow)?;
    let packets_of = |stream: &Stream| stream.packets_within(window.begin, window.last());
    let streams = || trace.layers().iter().flat_map(|layer| layer.streams.iter().map(move |stream| (layer, stream)));
    let all: usize = streams().map(|(_, stream)| packets_of(stream).len()).sum();
    if all == 0 {
        return Err(ExportError::Nothing);
    }
    let mut copy = Copy { version, written: Exported::default(), unreadable: 0, done: 0, all, options };
    for layer in trace.layers() {
        copy.layer(trace, layer, folder, packets_of).map_err(ExportError::Write)?;
    }
    let behind: u64 = streams().map(|(_, stream)| stream.truncated_bytes()).sum();
    let Copy { mut written, unreadable, .. } = copy;
    if unreadable > 0 || behind > 0 {
        let line = format!("left out: {unreadable} packets that cannot be read, {behind} bytes behind the last ones");
        written.incomplete = Some(line);
    }
    Ok(written)
}

/// A copy in the making.
struct Copy<'o> {
    version: Version,
    written: Exported,
    unreadable: u64,
    done: usize,
    all: usize,
    options: &'o Options<'o>,
}

impl Copy<'_> {
    fn layer(
        &mut self,
        trace: &Trace,
        layer: &TraceLayer,
        folder: &Path,
        packets_of: impl Fn(&Stream) -> Range<usize>,
    ) -> io::Result<()> {
        let description = &layer.description;
        let readers = Readers::of(folder)?;
        let folder = readers.create_folders(folder, Path::new(&description.path))?;
        let text = match (self.version, TraceDescription::of(description, trace.manifest())) {
            (Version::V1_8, described) => tsdl(&described, &description.events),
            (Version::V2, described) => ctf2::metadata(&described, &description.events),
        };
        readers.create_file(&folder.join("metadata"))?.write_all(text.as_bytes())?;
        self.written.bytes += text.len() as u64;
        for stream in &layer.streams {
            let packets = packets_of(stream);
            if !packets.is_empty() {
                let file = readers.create_file(&folder.join(&stream.description.file))?;
                self.stream(stream, packets, file)?;
            }
        }
        Ok(())
    }

    fn stream(&mut self, stream: &Stream, packets: Range<usize>, file: impl Write) -> io::Result<()> {
        let mut file = BufWriter::new(file);
        for begin in packets.clone().step_by(PACKETS_AT_ONCE) {
            let some = begin..packets.end.min(begin + PACKETS_AT_ONCE);
            for index in some.clone() {
                match stream.packet(index) {
                    Some((packet, _)) => {
                        file.write_all(packet)?;
                        self.written.bytes += packet.len() as u64;
                        self.written.records += stream.records_in(index..index + 1);
                    }
                    None => self.unreadable += 1,
                }
            }
            self.done += some.len();
            stream.release_packets(some);
            if let Some(progress) = self.options.progress {
                progress.store(self.done as u64 * DONE / self.all as u64, Ordering::Relaxed);
            }
        }
        self.written.drawn = self.written.records;
        file.flush()
    }
}
