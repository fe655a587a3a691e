//! A kernel that another one can boot, and that is over at once: it says that it is up and ends the machine.
//!
//! To decompress and boot Linux a second time takes an emulated host most of a minute, and shows no more of the first one.

/// What it prints.
pub const GREETING: &str = "another kernel is up";

/// How it ends the machine: a port and what is written there, as the machine's ACPI tables have it.
#[derive(Clone, Copy, Debug)]
pub struct End {
    port: u16,
    value: u8,
}

/// The power goes off.
pub const POWER_OFF: End = End { port: 0x600, value: 0x34 };
/// The machine is reset.
pub const RESET: End = End { port: 0x602, value: 1 };

/// Bytes before the part that is loaded: the boot sector and one sector of setup code.
const SETUP: usize = 1024;
/// Where a 64-bit boot loader enters the loaded part.
const ENTRY: usize = 0x200;

/// The kernel image, a bzImage with the header of the 64-bit boot protocol (`Documentation/arch/x86/boot.rst`).
#[must_use]
pub fn image(end: End) -> Vec<u8> {
    let program = program(end);
    let mut image = vec![0; SETUP + ENTRY];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1f1, &[1]); // setup_sects
    put(0x1fe, &0xaa55_u16.to_le_bytes()); // boot_flag
    put(0x200, &[0xeb, 0x66]); // jump: the header ends at 0x268
    put(0x202, b"HdrS");
    put(0x206, &0x020c_u16.to_le_bytes()); // version
    put(0x211, &[1]); // loadflags: LOADED_HIGH
    put(0x22c, &0x7fff_ffff_u32.to_le_bytes()); // initrd_addr_max
    put(0x230, &0x20_0000_u32.to_le_bytes()); // kernel_alignment
    put(0x234, &[1, 21]); // relocatable_kernel, min_alignment
    put(0x236, &3_u16.to_le_bytes()); // xloadflags: KERNEL_64, CAN_BE_LOADED_ABOVE_4G
    put(0x238, &2047_u32.to_le_bytes()); // cmdline_size
    put(0x258, &0x100_0000_u64.to_le_bytes()); // pref_address
    put(0x260, &0x1_0000_u32.to_le_bytes()); // init_size
    image.extend(program);
    image
}

/// Bytes of the program behind its first instruction, up to the greeting.
const TO_GREETING: u8 = 31;

/// Position-independent 64-bit code that writes the greeting to the serial port, computes for a second or more, in which the
/// host takes its snapshot, and ends.
fn program(end: End) -> Vec<u8> {
    let [low, high] = end.port.to_le_bytes();
    let instructions: [&[u8]; 6] = [
        &[0x48, 0x8d, 0x35, TO_GREETING, 0, 0, 0],         // lea rsi, [rip + greeting]
        &[0xba, 0xf8, 0x03, 0, 0],                         // mov edx, 0x3f8
        &[0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8], // next: lodsb; test al, al; jz done; out dx, al; jmp next
        &[0xb9, 0, 0, 0, 0x04, 0xe2, 0xfe],                // done: mov ecx, 0x4000000; loop: loop loop
        &[0xba, low, high, 0, 0, 0xb0, end.value, 0xee],   // mov edx, port; mov al, value; out dx, al
        &[0xf4, 0xeb, 0xfd],                               // rest: hlt; jmp rest
    ];
    let greeting = format!("{GREETING}\r\n\0");
    [&instructions.concat(), greeting.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_lies_where_the_program_looks_for_it() {
        let program = program(RESET);

        let behind_lea = &program[7..];

        assert!(behind_lea[TO_GREETING.into()..].starts_with(GREETING.as_bytes()));
    }

    #[test]
    fn image_has_its_program_where_a_boot_loader_enters_it() {
        let image = image(POWER_OFF);

        assert_eq!((&image[0x202..0x206], &image[SETUP + ENTRY..]), (&b"HdrS"[..], &program(POWER_OFF)[..]));
    }
}
