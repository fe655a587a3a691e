//! Bringing the agent into a guest that nobody has prepared: a small initramfs appended to the user's, with the kernel
//! module and a first program that loads it and then becomes the guest's own init.
//!
//! The program takes the place of the initrd's `/init`, which it puts back. The kernel command line stays as it is, so
//! that a kernel which the guest boots with the same one, and an initrd of its own, finds nothing missing.

use crate::agent::initrd::{GuestInit, INIT_PATH, InitrdError, KEPT_INIT_PATH, PROGRAM_PATH};
use cpio::newc;
use std::io::{self, BufRead, Seek};
use std::path::{Path, PathBuf};
use strata_kmod::module_file::{ModuleEvents, ModuleFileError};
use strata_machine::overlay_offset;
use thiserror::Error;

pub mod initrd;

/// The first program, compiled by the build script.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/strata-init"));
/// Where it looks for the module.
const MODULE_PATH: &str = "strata/strata.ko";
/// What the kernel runs as the first program in an initramfs unless told otherwise, and what tells it.
const DEFAULT_INIT: &str = "/init";
const RDINIT: &str = "rdinit=";

const EXECUTABLE: u32 = 0o100_755;
const REGULAR: u32 = 0o100_644;
const FOLDER: u32 = 0o040_755;
const SYMBOLIC_LINK: u32 = 0o120_777;

/// Why a module cannot be the guest's agent.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The file is not the agent's kernel module.
    #[error("'{}' is not strata's kernel module: build it with `strata agent build --kernel-headers DIR`", .0.display())]
    NotTheModule(PathBuf),
    /// It is the module, but not one whose events can be read.
    #[error("'{}' cannot be used: build it anew with `strata agent build --kernel-headers DIR`", module.display())]
    Events {
        /// The module's file.
        module: PathBuf,
        #[source]
        source: ModuleFileError,
    },
    /// It was built for another kernel.
    #[error(
        "the agent '{}' is built for kernel {built_for}, but '{}' is kernel {release}: build the agent for that kernel \
         with `strata agent build --kernel-headers DIR`",
        module.display(),
        kernel.display()
    )]
    OtherKernel {
        /// The module's file.
        module: PathBuf,
        /// The kernel release that it is for.
        built_for: String,
        /// The kernel's file.
        kernel: PathBuf,
        /// That kernel's release.
        release: String,
    },
}

/// Checks that the file `module` (with content `module_bytes`) is the agent's kernel module, and for the kernel in the
/// file `kernel` (`kernel_bytes`, bzImage or ELF). A kernel that does not tell its release is taken as it is.
///
/// # Errors
/// It is something else, or for another kernel.
pub fn check_module(module: &Path, module_bytes: &[u8], kernel: &Path, kernel_bytes: &[u8]) -> Result<(), AgentError> {
    let built_for = release_of(module, module_bytes)?;
    match kernel_release(kernel_bytes) {
        Some(release) if release != built_for => Err(AgentError::OtherKernel {
            module: module.to_path_buf(),
            built_for,
            kernel: kernel.to_path_buf(),
            release,
        }),
        _ => Ok(()),
    }
}

/// Checks that the file `module` (with content `module_bytes`) is the agent's kernel module, for whatever kernel.
///
/// # Errors
/// It is something else.
pub fn check_is_module(module: &Path, module_bytes: &[u8]) -> Result<(), AgentError> {
    release_of(module, module_bytes).map(drop)
}

/// The events that the file `module` (with content `bytes`) records, if it is the agent's kernel module.
///
/// # Errors
/// It is something else, or damaged.
pub fn events(module: &Path, bytes: &[u8]) -> Result<ModuleEvents, AgentError> {
    check_is_module(module, bytes)?;
    ModuleEvents::read(bytes).map_err(|source| AgentError::Events { module: module.to_path_buf(), source })
}

fn release_of(module: &Path, module_bytes: &[u8]) -> Result<String, AgentError> {
    strata_kmod_build::module_release(module_bytes).ok_or_else(|| AgentError::NotTheModule(module.to_path_buf()))
}

/// The release of a kernel image, such as `6.1.0-56-cloud-amd64`: from the header of a bzImage, or the banner in an ELF
/// file. `None` when it does not say.
#[must_use]
pub fn kernel_release(image: &[u8]) -> Option<String> {
    let text = if image.get(0x202..0x206) == Some(b"HdrS") {
        let offset = u16::from_le_bytes(image.get(0x20e..0x210)?.try_into().ok()?);
        if offset == 0 {
            return None;
        }
        image.get(usize::from(offset) + 0x200..)?
    } else {
        banner(image)?
    };
    let end = text.iter().take(128).position(|byte| byte.is_ascii_whitespace() || *byte == 0)?;
    String::from_utf8(text[..end].to_vec()).ok().filter(|release| !release.is_empty())
}

/// What follows "Linux version " in the kernel's banner; the digit distinguishes it from format strings.
fn banner(image: &[u8]) -> Option<&[u8]> {
    const START: &[u8] = b"Linux version ";
    let mut rest = image;
    loop {
        let at = rest.iter().position(|&byte| byte == START[0])?;
        rest = &rest[at..];
        if let Some(release) = rest.strip_prefix(START)
            && release.first().is_some_and(u8::is_ascii_digit)
        {
            return Some(release);
        }
        rest = &rest[1..];
    }
}

/// How the overlay's program comes to be the guest's first one.
#[derive(Debug)]
pub enum Start {
    /// It takes the place of this `/init` of the initrd.
    InPlaceOf(GuestInit),
    /// `rdinit=` of the kernel command line names it.
    ByCommandLine(Reason),
}

/// Why the kernel command line has to name the program.
#[derive(Debug, Error)]
pub enum Reason {
    /// It names a first program already.
    #[error("the kernel command line has an rdinit= of its own")]
    Named,
    /// The guest has no initrd.
    #[error("there is no initrd")]
    NoInitrd,
    /// There is no telling what it takes the place of.
    #[error(transparent)]
    Initrd(#[from] InitrdError),
}

impl Start {
    /// How it does in a guest with the kernel command line `cmdline` and `initrd`.
    #[must_use]
    pub fn of(cmdline: &str, initrd: Option<impl BufRead + Seek>) -> Self {
        if named_init(&kernel_words(cmdline).0).is_some() {
            return Self::ByCommandLine(Reason::Named);
        }
        match initrd.map(initrd::find_init) {
            None => Self::ByCommandLine(Reason::NoInitrd),
            Some(Ok(init)) => Self::InPlaceOf(init),
            Some(Err(error)) => Self::ByCommandLine(error.into()),
        }
    }

    /// What the user of such a guest should know: the kernel of a further boot, by kexec or kdump, with the same command
    /// line and the guest's own initrd would not find the program. One that finds no `/init` either does not look for it.
    #[must_use]
    pub fn note(self) -> Option<String> {
        match self {
            Self::InPlaceOf(_) | Self::ByCommandLine(Reason::NoInitrd | Reason::Initrd(InitrdError::NoInit)) => None,
            Self::ByCommandLine(reason) => Some(format!(
                "the guest's kernel command line names the agent's program as rdinit=, which kexec and kdump must not \
                 pass on: {:#}",
                anyhow::Error::from(reason)
            )),
        }
    }
}

/// The initramfs (`newc` cpio) that brings `module` along. It is appended to the user's initrd ([`append`]), or stands
/// alone.
#[must_use]
pub fn overlay(module: &[u8], start: &Start) -> Vec<u8> {
    let entry = |name, mode, content| (newc::Builder::new(name).mode(mode), content);
    let mut entries = vec![
        entry("strata", FOLDER, [].as_slice()),
        entry(PROGRAM_PATH, EXECUTABLE, PROGRAM),
        entry(MODULE_PATH, REGULAR, module),
    ];
    if let Start::InPlaceOf(init) = start {
        let kept = newc::Builder::new(KEPT_INIT_PATH).mode(init.mode).uid(init.uid).gid(init.gid).mtime(init.mtime);
        entries.push((kept, &init.content));
        // Before the kernel makes a link, it removes what has its name. Into a file, it would write, and into all other
        // names of that file. The link comes last: it is there only if all else is.
        entries.push(entry(INIT_PATH, SYMBOLIC_LINK, PROGRAM_PATH.as_bytes()));
    }
    let mut archive = Vec::new();
    let written = entries
        .into_iter()
        .zip(1..)
        .try_for_each(|((entry, content), inode)| write(&mut archive, entry.ino(inode).nlink(1), content))
        .and_then(|()| newc::trailer(&mut archive).map(drop));
    debug_assert!(written.is_ok(), "writing to memory does not fail");
    archive
}

fn write(archive: &mut Vec<u8>, entry: newc::Builder, content: &[u8]) -> io::Result<()> {
    let size = u32::try_from(content.len()).map_err(io::Error::other)?;
    let mut writer = entry.write(archive, size);
    io::Write::write_all(&mut writer, content)?;
    writer.finish().map(drop)
}

/// Appends `overlay` to `initrd`, where the kernel looks for it.
pub fn append(initrd: &mut Vec<u8>, overlay: &[u8]) {
    let length = initrd.len() as u64;
    initrd.extend((length..overlay_offset(length)).map(|_| 0));
    initrd.extend(overlay);
}

/// The kernel command line by which the overlay's program runs first as `start` says, and knows the guest's own one: what
/// `cmdline` names as `rdinit=`, or the kernel's default; and how many samples a second the module takes, if
/// `sample_frequency` says so. What follows `--` stays last, for that init.
#[must_use]
pub fn append_cmdline(cmdline: &str, start: &Start, sample_frequency: Option<u32>) -> String {
    let (mut kernel, init) = kernel_words(cmdline);
    let mut ours = Vec::new();
    if let Start::ByCommandLine(_) = start {
        let own = named_init(&kernel).unwrap_or(DEFAULT_INIT);
        ours = vec![format!("rdinit=/{PROGRAM_PATH}"), format!("strata_init={own}")];
        kernel.retain(|word| !word.starts_with(RDINIT));
    }
    ours.extend(sample_frequency.map(|hertz| format!("strata_sample_frequency={hertz}")));
    let all: Vec<&str> = kernel.into_iter().chain(ours.iter().map(String::as_str)).chain(init).collect();
    all.join(" ")
}

/// The words of `cmdline` for the kernel, and those from `--` on for the first program.
fn kernel_words(cmdline: &str) -> (Vec<&str>, Vec<&str>) {
    let mut words: Vec<&str> = cmdline.split_ascii_whitespace().collect();
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let init = words.split_off(end);
    (words, init)
}

/// The program that the kernel's words name as the first one: it takes the last one.
fn named_init<'a>(words: &[&'a str]) -> Option<&'a str> {
    words.iter().rev().find_map(|word| word.strip_prefix(RDINIT))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use object::write::{Object as Writer, StandardSegment};
    use object::{Architecture, BinaryFormat, Endianness, SectionKind};
    use std::io::{Cursor, Read};

    fn module(information: &[u8]) -> Vec<u8> {
        let mut object = Writer::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let segment = object.segment_name(StandardSegment::Data).to_vec();
        let section = object.add_section(segment, b".modinfo".to_vec(), SectionKind::ReadOnlyData);
        object.append_section_data(section, information, 1);
        object.write().unwrap()
    }

    /// A file that is the agent's module as far as one can see.
    pub(crate) fn agent() -> Vec<u8> {
        module(b"license=Dual MIT/GPL\0name=strata\0vermagic=6.1.0-56-cloud-amd64 SMP preempt\0")
    }

    fn bzimage(version: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x300 + version.len()].copy_from_slice(version);
        image
    }

    fn check(module: &[u8], kernel: &[u8]) -> Result<(), String> {
        check_module(Path::new("a.ko"), module, Path::new("vmlinuz"), kernel).map_err(|error| error.to_string())
    }

    #[test]
    fn module_for_this_kernel_is_accepted() {
        assert_eq!(check(&agent(), &bzimage(b"6.1.0-56-cloud-amd64 (debian) #1 SMP")), Ok(()));
        assert_eq!(check(&agent(), b"\x7fELF Linux version %s, Linux version 6.1.0-56-cloud-amd64 (debian)"), Ok(()));
    }

    #[test]
    fn module_for_another_kernel_is_refused_by_both_releases() {
        let message = check(&agent(), &bzimage(b"6.12.95-cloud-amd64 (debian)")).unwrap_err();

        assert!(message.contains("6.1.0-56-cloud-amd64") && message.contains("6.12.95-cloud-amd64"));
        assert!(message.contains("strata agent build"));
    }

    #[test]
    fn file_that_is_not_the_module_is_refused() {
        let other = module(b"name=kvm\0vermagic=6.1.0-56-cloud-amd64 SMP\0");

        assert!(check(b"text", &bzimage(b"6.1.0 ")).unwrap_err().contains("'a.ko' is not strata's kernel module"));
        assert!(check(&other, &bzimage(b"6.1.0 ")).unwrap_err().contains("is not strata's kernel module"));
    }

    #[test]
    fn module_of_a_version_without_descriptors_is_refused() {
        let error = events(Path::new("a.ko"), &agent()).unwrap_err();

        assert!(matches!(error, AgentError::Events { source: ModuleFileError::NoEvents, .. }));
    }

    #[test]
    fn kernel_that_does_not_tell_its_release_is_taken_as_it_is() {
        assert_eq!(kernel_release(b"\x7fELF without a banner: Linux version %s"), None);
        assert_eq!(kernel_release(&bzimage(b"")), None);
        assert_eq!(kernel_release(b"HdrS"), None);
        assert_eq!(check(&agent(), b"\x7fELF"), Ok(()));
    }

    /// The guest's `/init`, a script.
    pub(crate) fn script() -> GuestInit {
        GuestInit { mode: 0o100_755, uid: 1, gid: 2, mtime: 3, content: b"#!/bin/sh\n".into() }
    }

    /// Names, modes and contents of an archive.
    fn entries(mut archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            let mut reader = newc::Reader::new(archive).unwrap();
            if reader.entry().is_trailer() {
                return entries;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            entries.push((name, mode, content));
            archive = reader.finish().unwrap();
        }
    }

    #[test]
    fn overlay_is_an_archive_of_program_and_module() {
        let entries = entries(&overlay(b"the module", &Start::ByCommandLine(Reason::NoInitrd)));

        assert_eq!(entries[0], ("strata".into(), FOLDER, vec![]));
        assert_eq!((entries[1].0.as_str(), entries[1].1), ("strata-init", EXECUTABLE));
        assert!(entries[1].2.starts_with(b"\x7fELF"));
        assert_eq!(entries[2..], [("strata/strata.ko".into(), REGULAR, b"the module".to_vec())]);
    }

    #[test]
    fn overlay_keeps_the_init_whose_place_its_program_takes() {
        let archive = overlay(b"the module", &Start::InPlaceOf(script()));

        let entries = entries(&archive);
        assert_eq!(entries[3], ("strata-init.guest".into(), 0o100_755, b"#!/bin/sh\n".to_vec()));
        assert_eq!(entries[4..], [("init".into(), 0o120_777, b"strata-init".to_vec())]);
        // an initrd that has an overlay already gets one for the same init
        assert_eq!(initrd::find_init(Cursor::new(&archive)).unwrap(), script());
    }

    #[test]
    fn archive_is_appended_behind_zeros_that_end_a_frame_of_lz4() {
        let appended = |length: usize| {
            let mut initrd = vec![1; length];
            append(&mut initrd, b"0707");
            initrd.split_off(length)
        };

        assert_eq!(appended(0), b"0707");
        assert_eq!(appended(8), b"\0\0\0\x000707");
        assert_eq!(appended(9), b"\0\0\0\0\0\0\x000707");
    }

    #[test]
    fn program_takes_the_place_of_init_where_the_initrd_tells_which() {
        let init = overlay(b"", &Start::InPlaceOf(script()));
        let start = |cmdline, initrd: Option<&[u8]>| Start::of(cmdline, initrd.map(Cursor::new));

        assert!(matches!(start("quiet -- rdinit=x", Some(&init)), Start::InPlaceOf(found) if found == script()));
        assert!(matches!(start("rdinit=/init", Some(&init)), Start::ByCommandLine(Reason::Named)));
        assert!(matches!(start("", None), Start::ByCommandLine(Reason::NoInitrd)));
        assert!(matches!(start("", Some(b"\x89LZO")), Start::ByCommandLine(Reason::Initrd(_))));
    }

    #[test]
    fn word_of_the_command_line_that_further_kernels_must_not_have_is_noted() {
        let note = |initrd: &[u8]| Start::of("", Some(Cursor::new(initrd))).note();

        assert!(note(b"\x89LZO").unwrap().ends_with("must not pass on: the initrd is compressed by LZO"));
        assert!(Start::ByCommandLine(Reason::Named).note().unwrap().ends_with("has an rdinit= of its own"));
        assert_eq!(note(&overlay(b"", &Start::ByCommandLine(Reason::NoInitrd))), None);
        assert_eq!(note(&overlay(b"", &Start::InPlaceOf(script()))), None);
    }

    #[test]
    fn command_line_stays_as_it_is_where_the_program_takes_the_place_of_init() {
        let line = |frequency| append_cmdline("quiet -- x", &Start::InPlaceOf(script()), frequency);

        assert_eq!(line(None), "quiet -- x");
        assert_eq!(line(Some(99)), "quiet strata_sample_frequency=99 -- x");
    }

    #[test]
    fn command_line_names_the_default_init() {
        let line = append_cmdline("console=ttyS0", &Start::ByCommandLine(Reason::NoInitrd), None);

        assert_eq!(line, "console=ttyS0 rdinit=/strata-init strata_init=/init");
    }

    #[test]
    fn command_line_keeps_the_users_init_and_its_arguments() {
        let cmdline = "quiet rdinit=/bin/sh ro -- -c rdinit=x";

        let line = append_cmdline(cmdline, &Start::of(cmdline, None::<Cursor<&[u8]>>), Some(99));

        assert_eq!(line, "quiet ro rdinit=/strata-init strata_init=/bin/sh strata_sample_frequency=99 -- -c rdinit=x");
    }
}
