//! Images as `mke2fs` makes them, and broken ones.
//!
//! Shows: A distribution boots from its image, fails no unit, runs apt-get, powers off.

use super::journal::Journal;
use super::*;
use gpt::disk::LogicalBlockSize;
use gpt::{GptConfig, mbr::ProtectiveMBR, partition_types};
use proptest::prelude::*;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::process::Command;
use tempfile::TempDir;

/// Bytes of the file systems.
const SIZE: u64 = 16 << 20;

/// An ext4 file system with `files` (paths and contents) and `links` (paths and targets), of [`SIZE`] bytes.
fn file_system(files: &[(&str, &[u8])], links: &[(&str, &str)]) -> Vec<u8> {
    let folder = TempDir::new().unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("boot")).unwrap();
    for (path, content) in files {
        fs::write(root.join(path), content).unwrap();
    }
    for (path, target) in links {
        symlink(target, root.join(path)).unwrap();
    }
    make(&folder, &["-t", "ext4"])
}

fn make(folder: &TempDir, options: &[&str]) -> Vec<u8> {
    let image = folder.path().join("image");
    let mut command = Command::new("mke2fs");
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").args(["-q", "-F"]).args(options).arg("-d");
    let made = command.arg(folder.path().join("root")).arg(&image).arg(format!("{}k", SIZE >> 10)).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::read(image).unwrap()
}

fn image_of(bytes: &[u8]) -> File {
    let mut image = tempfile::tempfile().unwrap();
    image.write_all(bytes).unwrap();
    image
}

fn find_in_bytes(bytes: &[u8]) -> Result<Bootable, BootableDiskError> {
    find(Path::new("root.img"), image_of(bytes), bytes.len() as u64)
}

fn content(file: &BootFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.open().unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// The name of what was found for the kernel, and for the initrd.
fn names(found: &Bootable) -> (String, Option<String>) {
    let name = |file: &BootFile| file.name().display().to_string();
    (name(&found.kernel), found.initrd.as_ref().map(name))
}

#[test]
fn links_of_a_distribution_name_kernel_and_initrd() {
    let kernel: Vec<u8> = (0..3_000_001_u32).flat_map(u32::to_le_bytes).take(3_000_001).collect();
    let files: [(&str, &[u8]); 4] = [
        ("boot/vmlinuz-6.1.0-9", &kernel),
        ("boot/initrd.img-6.1.0-9", b"initrd"),
        ("boot/vmlinuz-6.1.0-10", b"newer"),
        ("boot/initrd.img-6.1.0-10", b"newer"),
    ];
    let links = [("vmlinuz", "boot/vmlinuz-6.1.0-9"), ("initrd.img", "/boot/../boot/initrd.img-6.1.0-9")];

    let found = find_in_bytes(&file_system(&files, &links)).unwrap();

    assert_eq!(names(&found), ("/boot/vmlinuz-6.1.0-9".into(), Some("/boot/initrd.img-6.1.0-9".into())));
    assert_eq!(content(&found.kernel), kernel);
    assert_eq!(content(found.initrd.as_ref().unwrap()), b"initrd");
    // It is read for the agent, too.
    assert_eq!(content(&found.kernel).len(), kernel.len());
    assert_eq!(found.partition, None);
    assert!(found.description.starts_with("boots /boot/vmlinuz-6.1.0-9 with /boot/initrd"), "{}", found.description);
}

#[test]
fn newest_kernel_is_booted_where_there_is_no_link() {
    let files: [(&str, &[u8]); 5] = [
        ("boot/vmlinuz-6.1.0-9-amd64", b"old"),
        ("boot/vmlinuz-6.1.0-10-amd64", b"new"),
        ("boot/vmlinuz-0-rescue", b"rescue"),
        ("boot/initrd.img-6.1.0-9-amd64", b"old"),
        ("boot/initramfs-6.1.0-10-amd64.img", b"initrd"),
    ];

    let found = find_in_bytes(&file_system(&files, &[])).unwrap();

    let initrd = Some("/boot/initramfs-6.1.0-10-amd64.img".into());
    assert_eq!(names(&found), ("/boot/vmlinuz-6.1.0-10-amd64".into(), initrd));
}

#[test]
fn kernel_without_an_initrd_is_booted_and_that_is_reported() {
    let files: [(&str, &[u8]); 2] = [("boot/vmlinuz-6.1", b"kernel"), ("boot/initrd.img-6.0", b"another's")];

    let found = find_in_bytes(&file_system(&files, &[])).unwrap();

    assert!(found.initrd.is_none());
    assert!(found.description.contains("without an initrd"), "{}", found.description);
}

#[test]
fn links_that_lead_nowhere_or_in_circles_are_no_kernel() {
    let links = [("vmlinuz", "boot/vmlinuz-1"), ("boot/vmlinuz", "vmlinuz"), ("boot/vmlinuz-2", "../vmlinuz/x")];

    let error = find_in_bytes(&file_system(&[], &links)).unwrap_err();

    assert!(matches!(error, BootableDiskError::NoKernel { .. }), "{error}");
    assert!(error.to_string().starts_with("'root.img' has no kernel (/vmlinuz,"), "{error}");
}

#[test]
fn file_systems_before_ext4_are_read_too() {
    let folder = TempDir::new().unwrap();
    fs::create_dir_all(folder.path().join("root/boot")).unwrap();
    fs::write(folder.path().join("root/boot/vmlinuz-1"), b"kernel").unwrap();

    let found = find_in_bytes(&make(&folder, &["-t", "ext2", "-b", "1024"])).unwrap();

    assert_eq!(content(&found.kernel), b"kernel");
}

#[test]
fn partition_that_says_it_is_the_root_is_found_by_its_number() {
    let root = file_system(&[("boot/vmlinuz-1", b"kernel")], &[]);
    let mut disk = tempfile::tempfile().unwrap();
    disk.set_len(SIZE + (8 << 20)).unwrap();
    let blocks = u32::try_from((SIZE + (8 << 20)) / 512 - 1).unwrap();
    ProtectiveMBR::with_lb_size(blocks).overwrite_lba0(&mut disk).unwrap();
    let config = GptConfig::new().writable(true).logical_block_size(LogicalBlockSize::Lb512);
    let mut table = config.create_from_device(disk, None).unwrap();
    table.add_partition("EFI", 1 << 20, partition_types::EFI, 0, None).unwrap();
    table.add_partition("data", 1 << 20, partition_types::LINUX_FS, 0, None).unwrap();
    let number = table.add_partition("root", SIZE, partition_types::LINUX_ROOT_X64, 0, None).unwrap();
    let start = table.partitions()[&number].first_lba * 512;
    let mut disk = table.write().unwrap();
    disk.write_all_at(&root, start).unwrap();
    let size = disk.seek(SeekFrom::End(0)).unwrap();

    let found = find(Path::new("disk.img"), disk, size).unwrap();

    assert_eq!((found.partition, content(&found.kernel)), (Some(3), b"kernel".to_vec()));
    assert!(found.description.contains("out of partition 3 of 'disk.img'"), "{}", found.description);
}

/// A disk of `blocks` blocks whose MBR has a Linux partition `first`, from block 2048 on, with `partition` in it.
fn mbr_disk(first: usize, kind: u8, partition: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; 2048 * 512];
    let record = 446 + 16 * first;
    disk[record + 4] = kind;
    disk[record + 8..record + 12].copy_from_slice(&2048_u32.to_le_bytes());
    let blocks = u32::try_from(partition.len() / 512).unwrap();
    disk[record + 12..record + 16].copy_from_slice(&blocks.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend_from_slice(partition);
    disk
}

#[test]
fn primary_partition_of_an_mbr_is_found() {
    let disk = mbr_disk(1, 0x83, &file_system(&[("boot/vmlinuz-1", b"kernel")], &[]));

    let found = find_in_bytes(&disk).unwrap();

    assert_eq!((found.partition, content(&found.kernel)), (Some(2), b"kernel".to_vec()));
}

#[test]
fn partition_beyond_the_end_of_the_disk_is_passed_over() {
    let mut disk = mbr_disk(0, 0x83, &[0; 512]);
    disk[446 + 12..446 + 16].copy_from_slice(&u32::MAX.to_le_bytes());

    let error = find_in_bytes(&disk).unwrap_err();

    assert!(matches!(error, BootableDiskError::NotExt4 { .. }), "{error}");
}

#[test]
fn damaged_gpt_is_refused() {
    let error = find_in_bytes(&mbr_disk(0, 0xee, &[0; 512])).unwrap_err();

    assert!(matches!(error, BootableDiskError::PartitionTable { .. }), "{error}");
}

#[test]
fn image_without_a_file_system_is_refused_with_the_way_out() {
    for bytes in [vec![0; 512], vec![0; 1 << 20], b"text".to_vec()] {
        let error = find_in_bytes(&bytes).unwrap_err();

        assert!(error.to_string().contains("no ext4 file system in 'root.img'"), "{error}");
        assert!(error.to_string().ends_with("with --disk"), "{error}");
    }
}

#[test]
fn file_system_that_claims_to_be_larger_than_its_image_is_not_opened() {
    let mut image = file_system(&[("boot/vmlinuz-1", b"kernel")], &[]);
    // Its library would make room for 2^32 block groups.
    image[1024 + 4..1024 + 8].copy_from_slice(&u32::MAX.to_le_bytes());
    image[1024 + 32..1024 + 36].copy_from_slice(&1_u32.to_le_bytes());

    let error = find_in_bytes(&image).unwrap_err();

    assert!(matches!(error, BootableDiskError::NotExt4 { .. }), "{error}");
}

/// Bytes of a block of the file system `image`.
fn block_of(image: &[u8]) -> usize {
    1024 << image[1024 + 24]
}

/// A file system whose journal is to be replayed, and where in it the journal's inode lies.
fn with_journal_to_replay() -> (Vec<u8>, usize) {
    let mut image = file_system(&[("boot/vmlinuz-1", b"kernel")], &[]);
    let number = |at: usize| usize::from(u16::from_le_bytes([image[at], image[at + 1]]));
    let block = block_of(&image);
    // The eighth of the inodes, whose table the first group's descriptor names.
    let inode = number(block.max(2048) + 8) * block + 7 * number(1024 + 0x58);
    image[1024 + 0x60] |= 4;
    (image, inode)
}

#[test]
fn journal_as_mke2fs_makes_it_names_each_block_once() {
    let (image, _) = with_journal_to_replay();
    let volume = Volume::new(image_of(&image), SIZE);

    let journal = Journal::to_replay(&volume, &volume.superblock().unwrap()).unwrap();

    assert!(journal.size() > 0 && journal.names_each_block_once(&volume));
}

#[test]
fn journal_that_names_a_block_twice_is_not_replayed() {
    let (mut image, inode) = with_journal_to_replay();
    // A second extent, which is the first one's copy.
    image[inode + 0x2a] = 2;
    image.copy_within(inode + 0x34..inode + 0x40, inode + 0x40);

    let error = find_in_bytes(&image).unwrap_err();

    assert!(matches!(error, BootableDiskError::Journal { .. }), "{error}");
}

#[test]
fn journal_whose_extents_lead_in_circles_is_not_replayed() {
    let (mut image, inode) = with_journal_to_replay();
    let block = 4000_u16;
    // The head of a node of one entry that leads to another node, and that entry.
    let mut node = [0x0a, 0xf3, 1, 0, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    node[16..18].copy_from_slice(&block.to_le_bytes());
    let place = usize::from(block) * block_of(&image);
    image[inode + 0x28..inode + 0x40].copy_from_slice(&node);
    image[place..place + 24].copy_from_slice(&node);

    let error = find_in_bytes(&image).unwrap_err();

    assert!(matches!(error, BootableDiskError::Journal { .. }), "{error}");
}

#[test]
fn journal_without_extents_is_not_replayed() {
    let (mut image, inode) = with_journal_to_replay();
    image[inode + 0x22] &= !8;

    let error = find_in_bytes(&image).unwrap_err();

    assert!(matches!(error, BootableDiskError::Journal { .. }), "{error}");
}

#[test]
fn journal_that_is_larger_than_any_is_not_replayed() {
    let (mut image, inode) = with_journal_to_replay();
    image[inode + 0x6c] = 1;

    let error = find_in_bytes(&image).unwrap_err();

    assert!(matches!(error, BootableDiskError::TooLarge { size, .. } if size >= 1 << 32), "{error}");
}

#[test]
fn kernel_of_holes_is_refused_by_its_size() {
    let folder = TempDir::new().unwrap();
    fs::create_dir_all(folder.path().join("root/boot")).unwrap();
    let kernel = File::create(folder.path().join("root/boot/vmlinuz-1")).unwrap();
    kernel.set_len(SIZE + 1).unwrap();

    let error = find_in_bytes(&make(&folder, &["-t", "ext4"])).unwrap_err();

    assert!(matches!(error, BootableDiskError::TooLarge { size, max: SIZE, .. } if size == SIZE + 1), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Superblock, group descriptors, inodes and folders lie in the first blocks. Without checksums damage gets
    /// further.
    #[test]
    fn damaged_file_system_is_read_or_refused(
        damage in prop::collection::vec((0..80_usize << 10, any::<u64>()), 1..40)
    ) {
        thread_local! {
            static IMAGE: Vec<u8> = {
                let folder = TempDir::new().unwrap();
                fs::create_dir_all(folder.path().join("root/boot")).unwrap();
                fs::write(folder.path().join("root/boot/vmlinuz-1"), b"kernel").unwrap();
                symlink("boot/vmlinuz-1", folder.path().join("root/vmlinuz")).unwrap();
                make(&folder, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"])
            };
        }
        let mut image = IMAGE.with(Clone::clone);
        for (at, bytes) in damage {
            image[1024 + at..1024 + at + 8].copy_from_slice(&bytes.to_le_bytes());
        }

        let found = find_in_bytes(&image);

        let is_bad =
            matches!(found, Err(BootableDiskError::Ended { .. } | BootableDiskError::TookTooLong { .. }));
        prop_assert!(!is_bad, "{found:?}");
    }
}
