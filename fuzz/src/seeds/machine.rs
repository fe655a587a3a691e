//! Inputs for the machine's readers: what a driver does, and small kernels.

use crate::bootable_disk;
use crate::devices::Op;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

/// Guest-physical addresses of a queue's parts, of a request's parts, and of a table of indirect descriptors.
const DESCRIPTORS: u16 = 0x1000;
const AVAILABLE: u16 = 0x2000;
const USED: u16 = 0x3000;
const HEADER: u16 = 0x4000;
const DATA: u16 = 0x5000;
const STATUS: u16 = 0x6000;
const INDIRECT: u16 = 0x7000;

/// Numbers of registers: offsets of `virtio_mmio.h`, in words.
const DRIVER_FEATURES: u8 = 0x020 / 4;
const DRIVER_FEATURES_SELECT: u8 = 0x024 / 4;
const QUEUE_SELECT: u8 = 0x030 / 4;
const QUEUE_SIZE: u8 = 0x038 / 4;
const QUEUE_READY: u8 = 0x044 / 4;
const INTERRUPT_STATUS: u8 = 0x060 / 4;
const INTERRUPT_ACKNOWLEDGE: u8 = 0x064 / 4;
const DEVICE_STATUS: u8 = 0x070 / 4;
const QUEUE_DESCRIPTORS: u8 = 0x080 / 4;
const QUEUE_AVAILABLE: u8 = 0x090 / 4;
const QUEUE_USED: u8 = 0x0a0 / 4;
const CONFIGURATION: u8 = 0x40;

/// Devices after the disks, and what stands for the second and the third queue of one.
const NETWORK: u8 = 2;
const RANDOM: u8 = 3;
const SOCKETS: u8 = 4;
const BALLOON: u8 = 5;
const SECOND_QUEUE: u8 = 0x80;
const THIRD_QUEUE: u8 = 0x40;

/// Flags of a descriptor.
const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
const IS_TABLE: u16 = 4;

/// Kinds of requests.
const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;

/// A descriptor: address, length, flags, next.
fn descriptor(address: u16, length: u32, flags: u16, next: u16) -> Vec<u8> {
    [&u64::from(address).to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

/// A driver that makes `device` ready: features, its first queue, and go.
fn driver(device: u8, features: u64) -> Vec<u8> {
    driver_of_queue(device, features, 0)
}

/// A driver that makes `queue` of `device` ready, and no other.
fn driver_of_queue(device: u8, features: u64, queue: u64) -> Vec<u8> {
    let mut script = Vec::new();
    let mut store = |register, value| Op::Store { device, register, width: 4, value }.encode(&mut script);
    store(DEVICE_STATUS, 0);
    store(DEVICE_STATUS, 3);
    for (half, value) in [(0, features & 0xffff_ffff), (1, 1)] {
        store(DRIVER_FEATURES_SELECT, half);
        store(DRIVER_FEATURES, value);
    }
    store(DEVICE_STATUS, 3 | 8);
    store(QUEUE_SELECT, queue);
    store(QUEUE_SIZE, 8);
    for (register, address) in [(QUEUE_DESCRIPTORS, DESCRIPTORS), (QUEUE_AVAILABLE, AVAILABLE), (QUEUE_USED, USED)] {
        store(register, address.into());
    }
    store(QUEUE_READY, 1);
    store(DEVICE_STATUS, 3 | 8 | 4);
    script
}

/// A request of `kind` with `length` bytes of data, the `number`th of its device.
fn request(script: &mut Vec<u8>, device: u8, number: u16, (kind, sector, length): (u32, u64, u32), is_indirect: bool) {
    let to_guest = if kind == WRITE { 0 } else { DEVICE_WRITES };
    let chain = |first: u16| {
        [
            descriptor(HEADER, 16, NEXT, first + 1),
            descriptor(DATA, length, NEXT | to_guest, first + 2),
            descriptor(STATUS, 1, DEVICE_WRITES, 0),
        ]
        .concat()
    };
    Op::Write { address: HEADER, bytes: &header(kind, sector) }.encode(script);
    Op::Write { address: DATA, bytes: &[0x5a; 64] }.encode(script);
    if is_indirect {
        Op::Write { address: INDIRECT, bytes: &chain(0) }.encode(script);
        Op::Write { address: DESCRIPTORS, bytes: &descriptor(INDIRECT, 48, IS_TABLE, 0) }.encode(script);
    } else {
        Op::Write { address: DESCRIPTORS, bytes: &chain(0) }.encode(script);
    }
    Op::Write { address: AVAILABLE + 4 + number % 8 * 2, bytes: &[0, 0] }.encode(script);
    Op::Write { address: AVAILABLE, bytes: &[[0, 0], (number + 1).to_le_bytes()].concat() }.encode(script);
    Op::Notify { device }.encode(script);
    Op::Load { device, register: INTERRUPT_STATUS, width: 4 }.encode(script);
    Op::Store { device, register: INTERRUPT_ACKNOWLEDGE, width: 4, value: 3 }.encode(script);
}

/// The first buffer of a queue: `length` bytes at [`DATA`].
fn buffer(script: &mut Vec<u8>, length: u32, flags: u16) {
    Op::Write { address: DESCRIPTORS, bytes: &descriptor(DATA, length, flags, 0) }.encode(script);
    Op::Write { address: AVAILABLE + 4, bytes: &[0, 0] }.encode(script);
    Op::Write { address: AVAILABLE, bytes: &[0, 0, 1, 0] }.encode(script);
}

/// The header of a packet of a guest's stream, of the operation `op`, with `length` bytes behind it.
fn stream_header(ports: [u32; 2], op: u16, length: u32) -> Vec<u8> {
    let addresses = [3_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat();
    let words = [ports[0], ports[1], length, u32::from(op) << 16 | 1, 3, 4096, 0].map(u32::to_le_bytes);
    [&addresses[..], &words.concat()].concat()
}

/// What drivers do to a balloon: pages that they may give and may not, in and out again, and a report of free memory.
fn balloon_scripts() -> [(&'static str, Vec<u8>); 3] {
    let named = [8_u32, 9, 9, 15, 16, u32::MAX].map(u32::to_le_bytes).concat();
    let names = |script: &mut Vec<u8>, queue: u8| {
        Op::Write { address: DATA, bytes: &named }.encode(script);
        buffer(script, 24, 0);
        Op::Notify { device: BALLOON | queue }.encode(script);
        Op::Load { device: BALLOON, register: INTERRUPT_STATUS, width: 4 }.encode(script);
    };
    let mut inflates = driver(BALLOON, 1 << 2);
    Op::Want { pages: 3 }.encode(&mut inflates);
    Op::Load { device: BALLOON, register: CONFIGURATION, width: 8 }.encode(&mut inflates);
    names(&mut inflates, 0);
    Op::Store { device: BALLOON, register: CONFIGURATION + 1, width: 4, value: 3 }.encode(&mut inflates);
    let mut deflates = driver_of_queue(BALLOON, 1 << 2, 1);
    Op::Want { pages: 0 }.encode(&mut deflates);
    names(&mut deflates, SECOND_QUEUE);
    let mut reports = driver_of_queue(BALLOON, 1 << 2 | 1 << 5, 2);
    Op::Write { address: DESCRIPTORS, bytes: &descriptor(0x8000, 0x4000, DEVICE_WRITES, 0) }.encode(&mut reports);
    Op::Write { address: AVAILABLE, bytes: &[0, 0, 1, 0, 0, 0] }.encode(&mut reports);
    Op::Notify { device: BALLOON | THIRD_QUEUE }.encode(&mut reports);
    [("inflates", inflates), ("deflates", deflates), ("reports", reports)]
}

/// What drivers do to a network, to a source of random bytes and to a socket device.
fn other_scripts() -> [(&'static str, Vec<u8>); 5] {
    let mut receives = driver(NETWORK, 1 << 5);
    buffer(&mut receives, 1526, DEVICE_WRITES);
    for length in [60, 1514, 14] {
        Op::Arrive { length }.encode(&mut receives);
    }
    Op::Load { device: NETWORK, register: CONFIGURATION, width: 8 }.encode(&mut receives);
    // The header asks for a checksum and for segments.
    let mut sends = driver_of_queue(NETWORK, 1 | 1 << 11, 1);
    Op::Write { address: DATA, bytes: &[1, 1, 54, 0, 100, 0, 34, 0, 16, 0, 0, 0] }.encode(&mut sends);
    buffer(&mut sends, 512, 0);
    Op::Notify { device: NETWORK | SECOND_QUEUE }.encode(&mut sends);
    let mut random = driver(RANDOM, 0);
    buffer(&mut random, 64, DEVICE_WRITES);
    Op::Notify { device: RANDOM }.encode(&mut random);
    let mut called = driver(SOCKETS, 0);
    buffer(&mut called, 512, DEVICE_WRITES);
    Op::Call { bytes: b"CONNECT 22\nhello" }.encode(&mut called);
    Op::Notify { device: SOCKETS }.encode(&mut called);
    Op::Load { device: SOCKETS, register: CONFIGURATION, width: 8 }.encode(&mut called);
    // A request, data, and both halves closed.
    let mut connects = driver_of_queue(SOCKETS, 0, 1);
    for (number, op, length) in [(1_u16, 1, 0), (2, 5, 20), (3, 4, 0)] {
        Op::Write { address: DATA, bytes: &stream_header([1024, 77], op, length) }.encode(&mut connects);
        Op::Write { address: DESCRIPTORS, bytes: &descriptor(DATA, 44 + length, 0, 0) }.encode(&mut connects);
        Op::Write { address: AVAILABLE, bytes: &[[0, 0], number.to_le_bytes()].concat() }.encode(&mut connects);
        Op::Notify { device: SOCKETS | SECOND_QUEUE }.encode(&mut connects);
    }
    [("receives", receives), ("sends", sends), ("random", random), ("called", called), ("connects", connects)]
}

/// What drivers do to disks, and what a console and an end look like.
pub(super) fn device_scripts() -> Vec<(&'static str, Vec<u8>)> {
    let mut all_kinds = driver(0, 0);
    for (number, requested) in
        (0u16..).zip([(WRITE, 3, 1024), (READ, 3, 1024), (FLUSH, 0, 0), (GET_ID, 0, 20), (99, 0, 512)])
    {
        request(&mut all_kinds, 0, number, requested, false);
    }
    let mut indirect = driver(0, 1 << 28 | 1 << 29);
    request(&mut indirect, 0, 0, (READ, 15, 512), true);
    request(&mut indirect, 0, 1, (READ, 15, 1024), true);
    let mut refused = driver(1, 1 << 5);
    request(&mut refused, 1, 0, (WRITE, 0, 512), false);
    request(&mut refused, 1, 1, (READ, u64::MAX, 512), false);
    Op::Load { device: 1, register: CONFIGURATION, width: 8 }.encode(&mut refused);
    // More than the disk may do at once.
    let mut limited = driver(0, 0);
    for number in 0..12 {
        request(&mut limited, 0, number, (READ, 3, 1024), false);
    }
    for ms in [5, 100, 1000] {
        Op::Wait { ms }.encode(&mut limited);
    }

    let mut console = Vec::new();
    for byte in b"hello\n" {
        Op::Out { place: 0, width: 1, value: u64::from(*byte) }.encode(&mut console);
    }
    Op::Out { place: 1, width: 1, value: 1 }.encode(&mut console);
    Op::Input { bytes: b"typed" }.encode(&mut console);
    for place in [2, 5, 0, 0] {
        Op::In { place, width: 1 }.encode(&mut console);
    }
    Op::Out { place: 0x80, width: 1, value: 0x34 }.encode(&mut console);
    Op::Out { place: 0x82, width: 1, value: 1 }.encode(&mut console);
    let mut scripts = vec![
        ("requests", all_kinds),
        ("indirect", indirect),
        ("refused", refused),
        ("limited", limited),
        ("console-and-end", console),
    ];
    scripts.extend(other_scripts());
    scripts.extend(balloon_scripts());
    scripts
}

/// Images of a few instructions: an ELF file with one segment, and a bzImage; the first with an initrd.
pub(super) fn boot_images() -> Vec<(&'static str, Vec<u8>)> {
    let input = |cmdline: &[u8], initrd: &[u8], image: Vec<u8>| {
        let block = |bytes: &[u8]| {
            let length = u16::try_from(bytes.len()).expect("the parts are short");
            [&length.to_le_bytes()[..], bytes].concat()
        };
        [block(cmdline), block(initrd), image].concat()
    };
    vec![("elf", input(b"console=ttyS0", b"070701", elf())), ("bzimage", input(b"console=ttyS0", b"", bzimage()))]
}

/// An image of a few instructions by each compression that is unpacked.
pub(super) fn kernel_images() -> Vec<(&'static str, Vec<u8>)> {
    let kernel = elf();
    let size = u32::try_from(kernel.len()).expect("it is short").to_le_bytes();
    let image = |(name, payload): (_, Vec<u8>)| match name {
        // its last bytes are the size
        "gzip" => (name, image_with(&payload)),
        _ => (name, image_with(&[&payload[..], &size].concat())),
    };
    packed(&kernel).map(image).into()
}

/// Initrds: early microcode and an archive with a link, or with a script, by each compression.
pub(super) fn initrds() -> Vec<(&'static str, Vec<u8>)> {
    let mut early = archive(&[("kernel/x86/microcode/AuthenticAMD.bin", 0o100_644, b"microcode")]);
    early.resize(early.len().next_multiple_of(512), 0);
    let link = archive(&[("bin", 0o040_755, b""), ("init", 0o120_777, b"usr/lib/systemd/systemd")]);
    let script = archive(&[("bin/sh", 0o100_755, b"program"), ("./init", 0o100_755, b"#!/bin/sh\nexec bin/sh\n")]);
    let mut initrds = vec![("plain", [&early[..], &link].concat())];
    initrds.extend(packed(&script).map(|(name, packed)| (name, [&early[..], &packed].concat())));
    initrds
}

/// A `newc` archive of files by name, mode and content.
fn archive(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (inode, (name, mode, content)) in (1..).zip(files.iter().chain([&("TRAILER!!!", 0, &b""[..])])) {
        let sizes = [content.len(), name.len() + 1].map(|size| u32::try_from(size).expect("they are short"));
        let fields = [inode, *mode, 0, 0, 1, 0, sizes[0], 0, 0, 0, 0, sizes[1], 0];
        archive.extend(b"070701");
        fields.iter().for_each(|field| archive.extend(format!("{field:08x}").bytes()));
        for part in [[name.as_bytes(), &[0]].concat(), content.to_vec()] {
            archive.extend(part);
            archive.resize(archive.len().next_multiple_of(4), 0);
        }
    }
    archive
}

/// `content` by each compression. Programs pack it, but for LZ4, whose block here is of literals alone.
fn packed(content: &[u8]) -> [(&'static str, Vec<u8>); 6] {
    let packed = |program: &str, options: &[&str]| {
        let mut command = Command::new(program);
        command.args(options).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = command.spawn().expect("the program is installed");
        running.stdin.take().expect("it is piped").write_all(content).expect("it takes so little at once");
        running.wait_with_output().expect("it ends").stdout
    };
    let literals = content.len() - 15;
    let more = u8::try_from(literals % 255).expect("it is a remainder");
    let block = [&[0xf0][..], &vec![255; literals / 255], &[more], content].concat();
    let length = u32::try_from(block.len()).expect("it is short").to_le_bytes();
    [
        ("gzip", packed("gzip", &["-n"])),
        ("bzip2", packed("bzip2", &[])),
        ("lzma", packed("xz", &["--format=lzma", "--lzma1=dict=64KiB"])),
        ("xz", packed("xz", &["--check=crc32", "--x86", "--lzma2=dict=64KiB"])),
        ("zstd", zstd::bulk::compress(content, 1).expect("memory is enough")),
        ("lz4", [&[0x02, 0x21, 0x4c, 0x18][..], &length, &block].concat()),
    ]
}

/// A bzImage as far as it says where its payload lies.
fn image_with(payload: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 1024];
    image[0x1f1] = 1;
    image[0x202..0x206].copy_from_slice(b"HdrS");
    let length = u32::try_from(payload.len()).expect("it is short");
    image[0x24c..0x250].copy_from_slice(&length.to_le_bytes());
    [&image, payload].concat()
}

/// Disks of 640 KiB with a kernel and an initrd: one file system, with extents and without, with links and
/// without, and the second partition of an MBR. There are no checksums in them: damage would get no further.
pub(super) fn disks() -> Vec<(&'static str, Vec<u8>)> {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let (root, image) = (folder.path().join("root"), folder.path().join("image"));
    fs::create_dir_all(root.join("boot")).expect("the folder is new");
    for name in ["vmlinuz-6.1.0-9", "vmlinuz-6.1.0-10", "initrd.img-6.1.0-9", "initramfs-6.1.0-10.img"] {
        fs::write(root.join("boot").join(name), name).expect("the folder is ours");
    }
    let make = |options: &[&str]| {
        let mut command = Command::new("mke2fs");
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").env("E2FSPROGS_FAKE_TIME", "1");
        command.args([
            "-q",
            "-F",
            "-t",
            "ext4",
            "-b",
            "1024",
            "-N",
            "32",
            "-m",
            "0",
            "-E",
            "hash_seed=00000000-0000-0000-0000-000000000001",
        ]);
        command.args(["-U", "clear", "-O", "^metadata_csum,^resize_inode,^has_journal"]).args(options).arg("-d");
        let made = command.arg(&root).arg(&image).arg("640k").output().expect("e2fsprogs is installed");
        assert!(made.status.success(), "{made:?}");
        fs::read(&image).expect("mke2fs has made it")
    };
    let newest = make(&[]);
    let blocks = make(&["-O", "^extents,^64bit"]);
    symlink("boot/vmlinuz-6.1.0-9", root.join("vmlinuz")).expect("there is no such file");
    symlink("/boot/../boot/initrd.img-6.1.0-9", root.join("initrd.img")).expect("there is no such file");
    let linked = make(&[]);
    let mut partitioned = vec![0; 512];
    partitioned[446 + 16 + 4] = 0x83;
    partitioned[446 + 16 + 8..446 + 16 + 12].copy_from_slice(&1_u32.to_le_bytes());
    partitioned[446 + 16 + 12..446 + 16 + 16].copy_from_slice(&1280_u32.to_le_bytes());
    partitioned[510..].copy_from_slice(&[0x55, 0xaa]);
    partitioned.extend_from_slice(&linked);
    let disks = [("newest", newest), ("blocks", blocks), ("linked", linked), ("partitioned", partitioned)];
    disks.map(|(name, image)| (name, bootable_disk::input(&image))).into()
}

/// A 64-bit executable with one segment at 16 MiB.
fn elf() -> Vec<u8> {
    let (code, base) = ([0xf4; 16], 0x100_0000_u64);
    let mut image = b"\x7fELF\x02\x01\x01".to_vec();
    image.resize(16, 0);
    image.extend(2_u16.to_le_bytes());
    image.extend(62_u16.to_le_bytes());
    image.extend(1_u32.to_le_bytes());
    for word in [base, 64, 0] {
        image.extend(word.to_le_bytes());
    }
    image.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        image.extend(half.to_le_bytes());
    }
    image.extend(1_u32.to_le_bytes());
    image.extend(5_u32.to_le_bytes());
    let length = code.len() as u64;
    for word in [120, base, base, length, length, 4096] {
        image.extend(word.to_le_bytes());
    }
    image.extend(code);
    image
}

/// A bzImage of protocol 2.15 that can be entered in 64-bit mode.
fn bzimage() -> Vec<u8> {
    let mut image = vec![0; 0x400];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1f1, &[1]);
    put(0x202, b"HdrS");
    put(0x206, &0x20f_u16.to_le_bytes());
    put(0x211, &[1]);
    put(0x214, &0x10_0000_u32.to_le_bytes());
    put(0x22c, &0x7fff_ffff_u32.to_le_bytes());
    put(0x236, &3_u16.to_le_bytes());
    put(0x238, &2047_u32.to_le_bytes());
    put(0x258, &0x100_0000_u64.to_le_bytes());
    put(0x260, &0x10_0000_u32.to_le_bytes());
    image.extend([0x90; 0x300]);
    image
}
