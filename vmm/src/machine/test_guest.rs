//! Hand-written guests for tests: a few instructions in an ELF executable.

/// Where the code of a test guest is loaded and entered.
pub const LOAD_ADDRESS: u64 = 0x20_0000;

/// Wraps `code` into an ELF executable that is entered at its first byte.
pub fn elf(code: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    let size = code.len() as u64;
    let mut image = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    image.extend_from_slice(&2u16.to_le_bytes()); // e_type: executable
    image.extend_from_slice(&62u16.to_le_bytes()); // e_machine: x86-64
    image.extend_from_slice(&1u32.to_le_bytes()); // e_version
    image.extend_from_slice(&LOAD_ADDRESS.to_le_bytes()); // e_entry
    image.extend_from_slice(&64u64.to_le_bytes()); // e_phoff
    image.extend_from_slice(&0u64.to_le_bytes()); // e_shoff
    image.extend_from_slice(&0u32.to_le_bytes()); // e_flags
    for half in [64u16, 56, 1, 0, 0, 0] {
        image.extend_from_slice(&half.to_le_bytes()); // sizes and counts of the headers
    }
    image.extend_from_slice(&1u32.to_le_bytes()); // p_type: load
    image.extend_from_slice(&7u32.to_le_bytes()); // p_flags
    for word in [HEADERS, LOAD_ADDRESS, LOAD_ADDRESS, size, size, 1] {
        image.extend_from_slice(&word.to_le_bytes());
    }
    image.extend_from_slice(code);
    image
}
