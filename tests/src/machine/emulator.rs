//! QEMU's emulation of an AMD processor without its two faults that guests of a guest die of.
//!
//! - `helper_vmrun()`, which enters a nested guest, stores the vector of an injected interrupt in the CPU's
//!   `exception_index`, delivers that interrupt itself, and leaves the index as it is. Where the CPU's loop is left right
//!   then, the interrupt is delivered once more (docs/qemu.md).
//! - `cpu_clear_ignne()`, which each restored state of an FPU calls, reads, changes and writes the first CPU's flags
//!   without a lock, from any thread (docs/qemu.md, "The other fault"). What it clears is set by an error of an
//!   FPU that reports errors by interrupt 13 only, which Linux has never asked for on this processor.
//!
//! The lab runs a copy of the installed program. In it the first function's store is a no-op, and the second function
//! returns at once. Both are found by their symbols, the store by what follows it. A program in which they are not
//! found is used as it is.

use crate::process;
use crate::progress;
use object::{Object, ObjectSegment, ObjectSymbol};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The function with the store, and the one that it calls to deliver an interrupt.
const ENTERS_GUEST: &str = "helper_vmrun";
const DELIVERS: &str = "do_interrupt_x86_hardirq";
/// The function that changes another CPU's flags.
const CHANGES_FLAGS: &str = "cpu_clear_ignne";
/// `mov %r32, disp32(%r64)`, with the destination that `-0x28f0(%rbx)` has in Debian's builds: any low registers.
const STORE: u8 = 0x89;
/// Bytes of that instruction.
const STORE_BYTES: usize = 6;
/// A no-op of as many bytes.
const NO_OP: [u8; STORE_BYTES] = [0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00];
/// `movl $0, disp32(%r64)` and `movq $-1, disp32(%r64)`, which follow it: no software interrupt, no next instruction.
/// `None` stands for any byte.
const FOLLOWS: [Option<u8>; 21] = [
    Some(0xc7),
    None,
    None,
    None,
    None,
    None,
    Some(0),
    Some(0),
    Some(0),
    Some(0),
    Some(0x48),
    Some(0xc7),
    None,
    None,
    None,
    None,
    None,
    Some(0xff),
    Some(0xff),
    Some(0xff),
    Some(0xff),
];
/// How far behind them the call lies at most, bytes.
const CALL_WITHIN: usize = 48;
/// `call rel32`, and `ret`.
const CALL: u8 = 0xe8;
const RETURN: u8 = 0xc3;

/// Chooses the time of emulated hosts when it is set, to `virtual` or `real`.
pub const TIME_VARIABLE: &str = "STRATA_LAB_TIME";
/// The seed of emulated hosts, a number: what a host does in virtual time depends on it alone.
pub const SEED_VARIABLE: &str = "STRATA_LAB_SEED";
/// That seed, unless another one is requested.
pub const SEED: u32 = 1;
/// The installed program.
const PROGRAM: &str = "qemu-system-x86_64";

/// What emulates a host, and in what time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulator {
    /// QEMU.
    pub program: PathBuf,
    /// The time of what it emulates.
    pub time: Time,
}

/// The time of an emulated host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Each instruction takes as long as every other, and waiting for a timer takes none of this machine's time. The
    /// same seed gives the same run, whatever else the machine does.
    Virtual {
        /// Where chance begins.
        seed: u32,
    },
    /// This machine's.
    Real,
}

/// The environment asks for what no emulator does.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorChoiceError {
    #[error("{TIME_VARIABLE} is {0:?}: set it to virtual or real, or unset it")]
    Time(String),
    /// The seed.
    #[error("{SEED_VARIABLE} is {0:?}: set it to a number, or unset it")]
    Seed(String),
    /// Virtual time, with a QEMU that cannot be mended.
    #[error("{TIME_VARIABLE} is virtual, which this QEMU cannot do: set it to real")]
    NotMended(#[source] EmulatorError),
}

impl Emulator {
    /// The installed QEMU without its faults, whose copy is in `folder`, in the time that [`TIME_VARIABLE`] asks for,
    /// else in virtual time; as it is and in real time, where it cannot be mended. Says which, where it is not the
    /// usual one.
    ///
    /// # Errors
    ///
    /// When the environment asks for what cannot be had.
    pub fn choose(folder: &Path) -> Result<Self, EmulatorChoiceError> {
        let wanted = std::env::var(TIME_VARIABLE).ok();
        let seed = std::env::var(SEED_VARIABLE).ok();
        let time = chosen_time(wanted.as_deref(), seed.as_deref())?;
        let Some(installed) = process::find_program(PROGRAM) else {
            return Ok(Self { program: PROGRAM.into(), time });
        };
        match mended(&installed, folder) {
            Ok(program) => Ok(Self { program, time }),
            Err(error) if wanted.as_deref() == Some("virtual") => Err(EmulatorChoiceError::NotMended(error)),
            Err(error) => {
                progress::note(&format!("emulated hosts run in real time, since {error}"));
                Ok(Self { program: installed, time: Time::Real })
            }
        }
    }
}

fn chosen_time(wanted: Option<&str>, seed: Option<&str>) -> Result<Time, EmulatorChoiceError> {
    let seed = seed.map_or(Ok(SEED), |text| text.parse().map_err(|_| EmulatorChoiceError::Seed(text.to_owned())))?;
    match wanted {
        Some("real") => Ok(Time::Real),
        None | Some("virtual") => Ok(Time::Virtual { seed }),
        Some(other) => Err(EmulatorChoiceError::Time(other.to_owned())),
    }
}

/// Why there is no program without the faults.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The program is not an ELF file.
    #[error("{} is not a program that can be mended", path.display())]
    Format {
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: object::Error,
    },
    /// The program is another one than those that have the faults.
    #[error("{} has no {what}", path.display())]
    Unknown {
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
}

/// Makes the copy of `program` without the faults in `folder`, unless it is there, and returns its path. Its name has the
/// program's build ID in it.
///
/// # Errors
///
/// When `program` is not one that is known to have the faults, or a file cannot be used.
pub fn mended(program: &Path, folder: &Path) -> Result<PathBuf, EmulatorError> {
    let error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| EmulatorError::File { path, source }
    };
    let mut bytes = fs::read(program).map_err(error(program))?;
    let build = build_id(program, &bytes)?;
    let copy = folder.join(format!("qemu-system-x86_64-{build}"));
    if copy.exists() {
        return Ok(copy);
    }
    mend(program, &mut bytes)?;
    let unfinished = copy.with_extension(format!("{}", std::process::id()));
    fs::create_dir_all(folder).map_err(error(folder))?;
    fs::write(&unfinished, &bytes)
        .and_then(|()| fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&unfinished, &copy))
        .map_err(error(&unfinished))?;
    Ok(copy)
}

fn build_id(path: &Path, bytes: &[u8]) -> Result<String, EmulatorError> {
    let format = |source| EmulatorError::Format { path: path.to_path_buf(), source };
    let file = object::File::parse(bytes).map_err(format)?;
    let id = file.build_id().map_err(format)?.unwrap_or_default();
    if id.is_empty() {
        return Err(EmulatorError::Unknown { path: path.to_path_buf(), what: "build ID" });
    }
    Ok(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A function of the program: where its code lies in the file, and at which address it is called.
#[derive(Clone, Copy, Debug)]
struct Function {
    offset: usize,
    address: u64,
    bytes: usize,
}

/// Takes the faults out of the program in `bytes`; `path` is for errors.
fn mend(path: &Path, bytes: &mut [u8]) -> Result<(), EmulatorError> {
    let unknown = |what| EmulatorError::Unknown { path: path.to_path_buf(), what };
    let functions = {
        let file = object::File::parse(&*bytes)
            .map_err(|source| EmulatorError::Format { path: path.to_path_buf(), source })?;
        [ENTERS_GUEST, DELIVERS, CHANGES_FLAGS].map(|name| function(&file, name).ok_or_else(|| unknown(name)))
    };
    let [enters, delivers, changes] = functions;
    let (enters, delivers, changes) = (enters?, delivers?, changes?);
    let code = bytes.get(enters.offset..enters.offset + enters.bytes).ok_or_else(|| unknown(ENTERS_GUEST))?;
    let store = store_before_delivery(code, enters.address, delivers.address)
        .ok_or_else(|| unknown("store of an injected interrupt's vector"))?;
    let flags = bytes.get_mut(changes.offset).filter(|_| changes.bytes > 0).ok_or_else(|| unknown(CHANGES_FLAGS))?;
    *flags = RETURN;
    bytes[enters.offset + store..][..STORE_BYTES].copy_from_slice(&NO_OP);
    Ok(())
}

/// The exported function `name`.
fn function(file: &object::File<'_>, name: &str) -> Option<Function> {
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name) && symbol.is_definition())?;
    let segment = file
        .segments()
        .find(|segment| (segment.address()..segment.address() + segment.size()).contains(&symbol.address()))?;
    let offset = segment.file_range().0 + (symbol.address() - segment.address());
    Some(Function {
        offset: usize::try_from(offset).ok()?,
        address: symbol.address(),
        bytes: usize::try_from(symbol.size()).ok()?,
    })
}

/// Where in `code`, which lies at `address`, the vector is stored that the function at `delivers` is called for. `None`
/// unless there is one such place.
fn store_before_delivery(code: &[u8], address: u64, delivers: u64) -> Option<usize> {
    let mut found = (0..code.len()).filter(|&at| {
        let Some(store) = code.get(at..at + STORE_BYTES + FOLLOWS.len()) else { return false };
        let follows = store[STORE_BYTES..].iter().zip(FOLLOWS).all(|(byte, wanted)| wanted.is_none_or(|w| w == *byte));
        store[0] == STORE && follows && first_call(code, at + store.len(), address) == Some(delivers)
    });
    found.next().filter(|_| found.next().is_none())
}

/// Whom the first call in `code` from `start` on calls, if it is near.
fn first_call(code: &[u8], start: usize, address: u64) -> Option<u64> {
    let at = (start..start + CALL_WITHIN).find(|&at| code.get(at) == Some(&CALL))?;
    let distance = i32::from_le_bytes(code.get(at + 1..at + 5)?.try_into().ok()?);
    (address + at as u64 + 5).checked_add_signed(i64::from(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x7c_0000;

    /// What the function does for one type of event: stores, and a call of the function at `target` from byte `at` on.
    fn event(at: usize, target: u64) -> Vec<u8> {
        let mut code = vec![0x89, 0xb3, 0x10, 0xd7, 0xff, 0xff];
        code.extend([
            0xc7, 0x83, 0xe4, 0x33, 0, 0, 0, 0, 0, 0, 0x48, 0xc7, 0x83, 0xe8, 0x33, 0, 0, 0xff, 0xff, 0xff, 0xff,
        ]);
        code.extend([0xba, 1, 0, 0, 0, 0x48, 0x89, 0xdf, CALL]);
        let next = ADDRESS + (at + code.len() + 4) as u64;
        code.extend(i32::try_from(target.cast_signed() - next.cast_signed()).unwrap().to_le_bytes());
        code
    }

    #[test]
    fn store_is_the_one_whose_interrupt_is_delivered_at_once() {
        let others = event(0, 0x80_0000);
        let code = [others.clone(), event(others.len(), 0x82_f5d0)].concat();

        assert_eq!(store_before_delivery(&code, ADDRESS, 0x82_f5d0), Some(others.len()));
    }

    #[test]
    fn two_such_stores_or_none_are_not_known() {
        let one = event(0, 0x82_f5d0);
        let two = [one.clone(), event(one.len(), 0x82_f5d0)].concat();

        let found = [two, event(0, 0x80_0000), one[..20].to_vec(), Vec::new()]
            .map(|code| store_before_delivery(&code, ADDRESS, 0x82_f5d0));

        assert_eq!(found, [None; 4]);
    }

    #[test]
    fn program_without_the_functions_is_refused_by_name_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();

        let error = mended(Path::new("/proc/self/exe"), folder.path()).unwrap_err();

        assert!(error.to_string().contains(ENTERS_GUEST), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
