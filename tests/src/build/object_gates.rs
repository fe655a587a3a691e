//! Checks on the object code of the guest kernel module that neither compiler, linker nor `modpost` make.
//!
//! The Rust part is compiled for user space's target with kernel flags. What could slip in: calls to functions that the
//! kernel does not have, relocations that its module loader refuses, vector registers that the kernel does not save,
//! and code that its unwinder and its mitigations do not accept.

use crate::process::{self, ProcessError};
use object::elf;
use object::{Object, ObjectSection, ObjectSymbol, RelocationFlags, SymbolKind};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// What the Rust object may leave undefined: the kernel's own helpers, and what the C shim defines for it.
pub const ALLOWED_SYMBOLS: [&str; 3] = ["memcpy", "memset", "__x86_return_thunk"];

/// The prefix of the functions that the C shim defines for the Rust object.
pub const SHIM_PREFIX: &str = "strata_";

/// Bytes of one-byte nops before each function: what a kernel with call depth tracking takes for its count of calls
/// (`CONFIG_FUNCTION_PADDING_BYTES`). It calls a function that has none without counting, and says so in its log.
pub const PADDING: usize = 16;
/// The one-byte nop.
const NOP: u8 = 0x90;

/// The relocations that the kernel's module loader handles and expects.
const ALLOWED_RELOCATIONS: [(u32, &str); 4] = [
    (elf::R_X86_64_PLT32, "PLT32"),
    (elf::R_X86_64_PC32, "PC32"),
    (elf::R_X86_64_32S, "32S"),
    (elf::R_X86_64_64, "64"),
];

/// Why object code is refused.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The object could not be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The object.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The object is damaged.
    #[error("{} is not a usable object file", path.display())]
    Object {
        /// The object.
        path: PathBuf,
        /// The parser's reason.
        #[source]
        source: object::Error,
    },
    /// The disassembler failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Calls to what the kernel does not offer.
    #[error("the Rust object needs {}, which the kernel does not offer: a panicking path or a library call was compiled in", .0.join(", "))]
    Undefined(Vec<String>),
    /// Relocations that the module loader refuses.
    #[error("the Rust object has relocations that the kernel refuses: {}", .0.join(", "))]
    Relocations(Vec<String>),
    /// Vector registers in use.
    #[error("the Rust object uses vector registers, which the kernel does not save, in {}", .0.join(", "))]
    VectorRegisters(Vec<String>),
    /// Functions that a kernel cannot count the calls of.
    #[error("the Rust object has no {PADDING} nops before {}", .0.join(", "))]
    Padding(Vec<String>),
}

/// Runs all gates that look at the linked Rust object.
///
/// # Errors
///
/// The first gate that does not pass, or an object that cannot be read.
pub fn check_object(path: &Path) -> Result<(), GateError> {
    let bytes = fs::read(path).map_err(|source| GateError::File { path: path.to_path_buf(), source })?;
    let file = object::File::parse(&*bytes).map_err(|source| GateError::Object { path: path.to_path_buf(), source })?;
    let refused = refused_relocations(&file);
    if !refused.is_empty() {
        return Err(GateError::Relocations(refused));
    }
    let undefined: Vec<&str> = file
        .symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| !name.is_empty())
        .collect();
    let refused = refused_symbols(&undefined);
    if !refused.is_empty() {
        return Err(GateError::Undefined(refused));
    }
    let unpadded = unpadded_functions(&file);
    if !unpadded.is_empty() {
        return Err(GateError::Padding(unpadded));
    }
    let code = process::capture(Command::new("objdump").args(["--disassemble", "--no-show-raw-insn"]).arg(path))?;
    let users = vector_register_users(&code);
    if users.is_empty() { Ok(()) } else { Err(GateError::VectorRegisters(users)) }
}

fn refused_symbols(undefined: &[&str]) -> Vec<String> {
    let refused: BTreeSet<&str> = undefined
        .iter()
        .copied()
        .filter(|name| !ALLOWED_SYMBOLS.contains(name) && !name.starts_with(SHIM_PREFIX))
        .collect();
    refused.into_iter().map(str::to_owned).collect()
}

fn refused_relocations(file: &object::File<'_>) -> Vec<String> {
    let mut refused = BTreeSet::new();
    for section in file.sections() {
        let name = section.name().unwrap_or("?");
        for (_, relocation) in section.relocations() {
            if let RelocationFlags::Elf { r_type } = relocation.flags()
                && !ALLOWED_RELOCATIONS.iter().any(|(allowed, _)| *allowed == r_type)
            {
                refused.insert(format!("type {r_type} in {name}"));
            }
        }
    }
    refused.into_iter().collect()
}

/// The functions without [`PADDING`] nops before them.
fn unpadded_functions(file: &object::File<'_>) -> Vec<String> {
    let is_padded = |function: &object::Symbol<'_, '_>| {
        let section = file.section_by_index(function.section_index()?).ok()?;
        let end = usize::try_from(function.address() - section.address()).ok()?;
        let room = section.data().ok()?.get(end.checked_sub(PADDING)?..end)?;
        Some(room.iter().all(|&byte| byte == NOP))
    };
    let functions = file.symbols().filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
    functions
        .filter(|function| is_padded(function) != Some(true))
        .map(|function| function.name().unwrap_or("?").to_owned())
        .collect()
}

/// The functions of a disassembly that name a vector register.
fn vector_register_users(disassembly: &str) -> Vec<String> {
    let mut function = "?";
    let mut users = BTreeSet::new();
    for line in disassembly.lines() {
        if let Some(name) = line.strip_suffix(">:").and_then(|line| line.split('<').nth(1)) {
            function = name;
        } else if ["%xmm", "%ymm", "%zmm"].iter().any(|register| line.contains(register)) {
            users.insert(function);
        }
    }
    users.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_symbols_allows_the_kernel_and_the_shim() {
        let found = refused_symbols(&["memcpy", "__x86_return_thunk", "strata_panic", "memcmp", "_ZN4core"]);

        assert_eq!(found, ["_ZN4core", "memcmp"]);
    }

    #[test]
    fn vector_register_users_names_the_function() {
        let code = "0000 <clean>:\n  0: mov %rax,%rbx\n0010 <fast>:\n 10: movaps %xmm0,(%rdi)\n 14: ret\n";

        assert_eq!(vector_register_users(code), ["fast"]);
    }

    /// Assembles `source` with the system's assembler.
    fn assemble(source: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("x.s");
        let output = folder.path().join("x.o");
        fs::write(&input, source).unwrap();
        process::capture(Command::new("as").arg("-o").arg(&output).arg(&input)).unwrap();
        (folder, output)
    }

    #[test]
    fn check_object_accepts_plain_kernel_code() {
        let (_folder, path) = assemble(
            ".globl f\n.type f,@function\n.skip 16, 0x90\nf: call memcpy\n movq $f, %rax\n jmp __x86_return_thunk\n",
        );

        check_object(&path).unwrap();
    }

    #[test]
    fn check_object_refuses_an_unknown_symbol() {
        let (_folder, path) = assemble("f: call printf\n");

        assert!(matches!(check_object(&path), Err(GateError::Undefined(names)) if names == ["printf"]));
    }

    #[test]
    fn check_object_refuses_a_got_relocation() {
        let (_folder, path) = assemble("f: movq memcpy@GOTPCREL(%rip), %rax\n");

        assert!(matches!(check_object(&path), Err(GateError::Relocations(_))));
    }

    #[test]
    fn check_object_refuses_vector_registers() {
        let (_folder, path) = assemble(".type f,@function\n.skip 16, 0x90\nf: movaps %xmm0, (%rdi)\n");

        assert!(matches!(check_object(&path), Err(GateError::VectorRegisters(names)) if names == ["f"]));
    }

    #[test]
    fn check_object_refuses_a_function_without_room_before_it() {
        let source =
            ".type f,@function\n.type g,@function\n.skip 16, 0x90\nf: nop\n.skip 15, 0x90\n.byte 0xcc\ng: nop\n";
        let (_folder, path) = assemble(source);

        assert!(matches!(check_object(&path), Err(GateError::Padding(names)) if names == ["g"]));
    }
}
