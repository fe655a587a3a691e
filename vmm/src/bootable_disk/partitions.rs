//! The partitions of an image that may hold a Linux root.

use super::volume::Volume;
use gpt::disk::LogicalBlockSize;
use gpt::{header, partition, partition_types};
use std::io;

/// Bytes of a block of the disk, as virtio block devices have them, and of an MBR.
const BLOCK: u64 = 512;
/// Most entries of a partition table: tools make 128.
const ENTRIES_MAX: u32 = 1024;
/// Bytes of an entry.
const ENTRY_SIZE: u32 = 128;
/// Where the four records of an MBR begin, and how long they are, bytes.
const MBR_RECORDS: (usize, usize) = (446, 16);
/// What ends an MBR.
const MBR_SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// Type of a partition with a Linux file system, and of the one that stands for a GPT.
const MBR_LINUX: u8 = 0x83;
const MBR_PROTECTIVE: u8 = 0xee;

/// A partition.
#[derive(Debug)]
pub struct Partition {
    /// Its number, from 1, as Linux has it.
    pub number: u32,
    /// Its content.
    pub volume: Volume,
}

/// The partitions of `disk` with a Linux file system, those first that say they are a root; none if it has no
/// partition table.
///
/// # Errors
/// The table is damaged.
pub fn of_linux(disk: &Volume) -> io::Result<Vec<Partition>> {
    let mut mbr = [0; 512];
    if disk.size() < BLOCK {
        return Ok(Vec::new());
    }
    disk.read_at(0, &mut mbr)?;
    if mbr[510..] != MBR_SIGNATURE {
        return Ok(Vec::new());
    }
    let (start, length) = MBR_RECORDS;
    let records = || mbr[start..510].chunks_exact(length);
    if records().any(|record| record[4] == MBR_PROTECTIVE) {
        return of_gpt(disk);
    }
    let field = |record: &[u8], at: usize| -> u64 {
        u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]).into()
    };
    let partitions = (1..).zip(records()).filter(|(_, record)| record[4] == MBR_LINUX);
    Ok(partitions
        .filter_map(|(number, record)| {
            let volume = disk.part(field(record, 8) * BLOCK, field(record, 12) * BLOCK)?;
            Some(Partition { number, volume })
        })
        .collect())
}

fn of_gpt(disk: &Volume) -> io::Result<Vec<Partition>> {
    let mut reader = disk.clone();
    let header =
        header::read_header_from_arbitrary_device(&mut reader, LogicalBlockSize::Lb512).map_err(io::Error::other)?;
    // The library believes both.
    if header.num_parts > ENTRIES_MAX || header.part_size != ENTRY_SIZE {
        let (entries, size) = (header.num_parts, header.part_size);
        return Err(io::Error::other(format!("it has {entries} entries of {size} bytes")));
    }
    let entries = partition::file_read_partitions(&mut reader, &header, LogicalBlockSize::Lb512)?;
    let of_type = |wanted: partition_types::Type| {
        entries.iter().filter(move |(_, entry)| entry.part_type_guid == wanted).filter_map(|(number, entry)| {
            let blocks = entry.last_lba.checked_sub(entry.first_lba)?.checked_add(1)?;
            let volume = disk.part(entry.first_lba.checked_mul(BLOCK)?, blocks.checked_mul(BLOCK)?)?;
            Some(Partition { number: *number, volume })
        })
    };
    Ok(of_type(partition_types::LINUX_ROOT_X64).chain(of_type(partition_types::LINUX_FS)).collect())
}
