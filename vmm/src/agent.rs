//! Bringing the agent into a guest that nobody has prepared: a small initramfs appended to the user's, with the kernel
//! module and a first program that loads it and then becomes the guest's own init.

use cpio::newc;
use std::io;
use std::path::{Path, PathBuf};
use strata_kmod::module_file::{ModuleEvents, ModuleFileError};
use thiserror::Error;

/// The first program, compiled by the build script.
const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/strata-init"));
/// Its path in the guest, without the leading slash.
const INIT_PATH: &str = "strata-init";
/// Where it looks for the module.
const MODULE_PATH: &str = "strata/strata.ko";
/// What the kernel runs as the first program in an initramfs unless told otherwise.
const DEFAULT_INIT: &str = "/init";

const EXECUTABLE: u32 = 0o100_755;
const REGULAR: u32 = 0o100_644;
const FOLDER: u32 = 0o040_755;

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
        /// Why.
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

/// The initramfs (`newc` cpio) that brings `module` along. It is appended to the user's initrd, or stands alone.
#[must_use]
pub fn overlay(module: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    let entries = [("strata", FOLDER, [].as_slice()), (INIT_PATH, EXECUTABLE, INIT), (MODULE_PATH, REGULAR, module)];
    let written = entries
        .iter()
        .zip(1..)
        .try_for_each(|((name, mode, content), inode)| append(&mut archive, name, *mode, inode, content))
        .and_then(|()| newc::trailer(&mut archive).map(drop));
    debug_assert!(written.is_ok(), "writing to memory does not fail");
    archive
}

fn append(archive: &mut Vec<u8>, name: &str, mode: u32, inode: u32, content: &[u8]) -> io::Result<()> {
    let size = u32::try_from(content.len()).map_err(io::Error::other)?;
    let mut writer = newc::Builder::new(name).ino(inode).mode(mode).nlink(1).write(archive, size);
    io::Write::write_all(&mut writer, content)?;
    writer.finish().map(drop)
}

/// The kernel command line that runs the overlay's program first and tells it the guest's own: what `cmdline` names as
/// `rdinit=`, or the kernel's default; and how many samples a second the module takes, if `sample_frequency` says so. What
/// follows `--` stays last, for that init.
#[must_use]
pub fn append_cmdline(cmdline: &str, sample_frequency: Option<u32>) -> String {
    let words: Vec<&str> = cmdline.split_ascii_whitespace().collect();
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let (kernel, init) = words.split_at(end);
    // The kernel takes the last one.
    let own = kernel.iter().rev().find_map(|word| word.strip_prefix("rdinit=")).unwrap_or(DEFAULT_INIT);
    let mut ours = vec![format!("rdinit=/{INIT_PATH}"), format!("strata_init={own}")];
    ours.extend(sample_frequency.map(|hertz| format!("strata_sample_frequency={hertz}")));
    let kernel = kernel.iter().copied().filter(|word| !word.starts_with("rdinit="));
    let all: Vec<&str> = kernel.chain(ours.iter().map(String::as_str)).chain(init.iter().copied()).collect();
    all.join(" ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use object::write::{Object as Writer, StandardSegment};
    use object::{Architecture, BinaryFormat, Endianness, SectionKind};
    use std::io::Read;

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

    #[test]
    fn overlay_is_an_archive_of_program_and_module() {
        let archive = overlay(b"the module");

        let mut entries = Vec::new();
        let mut rest = archive.as_slice();
        for _ in 0..3 {
            let mut reader = newc::Reader::new(rest).unwrap();
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            entries.push((name, mode, content));
            rest = reader.finish().unwrap();
        }
        assert_eq!(entries[0], ("strata".into(), FOLDER, vec![]));
        assert_eq!((entries[1].0.as_str(), entries[1].1), ("strata-init", EXECUTABLE));
        assert!(entries[1].2.starts_with(b"\x7fELF"));
        assert_eq!(entries[2], ("strata/strata.ko".into(), REGULAR, b"the module".to_vec()));
        assert!(newc::Reader::new(rest).unwrap().entry().is_trailer());
    }

    #[test]
    fn command_line_names_the_default_init() {
        assert_eq!(append_cmdline("console=ttyS0", None), "console=ttyS0 rdinit=/strata-init strata_init=/init");
    }

    #[test]
    fn command_line_keeps_the_users_init_and_its_arguments() {
        let line = append_cmdline("quiet rdinit=/bin/sh ro -- -c rdinit=x", Some(99));

        assert_eq!(line, "quiet ro rdinit=/strata-init strata_init=/bin/sh strata_sample_frequency=99 -- -c rdinit=x");
    }
}
