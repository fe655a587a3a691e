//! A kernel's ELF image: what lies at which of its addresses, its description of types, and its symbols.

pub mod kallsyms;

use kallsyms::Kallsyms;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, elf};
use strata_kmod_build::kernel_image::{self, KernelError};

/// Where Linux maps its image on x86-64, before it is moved at random.
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// Longest text that is read out of the image, bytes.
const MAX_TEXT: usize = 64 << 10;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The compressed image cannot be unpacked.
    #[error("its image cannot be unpacked")]
    Payload(#[from] KernelError),
    /// What is in it is not a kernel.
    #[error("it is not an ELF file that can be read")]
    Elf(#[from] object::Error),
}

/// A part of the image that is loaded.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    physical: u64,
    offset: usize,
    bytes: usize,
    memory: u64,
}

/// A kernel's image.
#[derive(Debug)]
pub struct KernelImage {
    bytes: Vec<u8>,
    segments: Vec<Segment>,
}

impl KernelImage {
    /// Reads `file`, an ELF kernel or a bzImage.
    ///
    /// # Errors
    /// It cannot be unpacked, or is not a kernel.
    pub fn read(file: &[u8]) -> Result<Self, ImageError> {
        let bytes = if file.starts_with(b"\x7fELF") { file.to_vec() } else { kernel_image::extract(file)? };
        let header = elf::FileHeader64::<Endianness>::parse(&*bytes)?;
        let endian = header.endian()?;
        let mut segments = Vec::new();
        for part in header.program_headers(endian, &*bytes)? {
            let (address, length) = (part.p_vaddr(endian), part.p_filesz(endian));
            let place = (usize::try_from(part.p_offset(endian)), usize::try_from(length));
            if let (elf::PT_LOAD, (Ok(offset), Ok(length))) = (part.p_type(endian), place)
                && address >= KERNEL_MAP
                && offset.checked_add(length).is_some_and(|end| end <= bytes.len())
            {
                let (physical, memory) = (part.p_paddr(endian), part.p_memsz(endian));
                segments.push(Segment { address, physical, offset, bytes: length, memory });
            }
        }
        Ok(Self { bytes, segments })
    }

    /// The section `.BTF`, if there is one.
    #[must_use]
    pub fn btf(&self) -> Option<&[u8]> {
        let file = object::File::parse(&*self.bytes).ok()?;
        let (offset, length) = file.section_by_name(".BTF")?.file_range()?;
        let start = usize::try_from(offset).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)
    }

    /// The loaded parts: address and content of each.
    pub fn loaded(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.segments.iter().map(|part| (part.address, &self.bytes[part.offset..part.offset + part.bytes]))
    }

    /// Its symbols, if it carries them along.
    #[must_use]
    pub fn kallsyms(&self) -> Option<Kallsyms<'_>> {
        self.loaded().find_map(|(address, bytes)| Kallsyms::find(address, bytes))
    }

    /// `length` bytes at `address`.
    #[must_use]
    pub fn at(&self, address: u64, length: usize) -> Option<&[u8]> {
        self.behind(address)?.get(..length)
    }

    fn behind(&self, address: u64) -> Option<&[u8]> {
        self.loaded().find_map(|(start, bytes)| bytes.get(usize::try_from(address.checked_sub(start)?).ok()?..))
    }

    /// The number at `address`.
    #[must_use]
    pub fn u64_at(&self, address: u64) -> Option<u64> {
        Some(u64::from_le_bytes(*self.at(address, 8)?.first_chunk()?))
    }

    /// The number at `address`.
    #[must_use]
    pub fn u32_at(&self, address: u64) -> Option<u32> {
        Some(u32::from_le_bytes(*self.at(address, 4)?.first_chunk()?))
    }

    /// The text that ends with a NUL at `address`.
    #[must_use]
    pub fn text_at(&self, address: u64) -> Option<&str> {
        let bytes = self.behind(address)?;
        let bytes = &bytes[..bytes.len().min(MAX_TEXT)];
        std::str::from_utf8(&bytes[..bytes.iter().position(|byte| *byte == 0)?]).ok()
    }

    /// Where `address` lies in physical memory if the image is loaded where it was linked for.
    #[must_use]
    pub fn physical(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|part| {
            let offset = address.checked_sub(part.address)?;
            part.physical.checked_add(offset).filter(|_| offset < part.memory)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_that_ends_behind_all_memory_has_no_place_there() {
        let part = Segment { address: KERNEL_MAP, physical: u64::MAX, offset: 0, bytes: 0, memory: 4096 };
        let image = KernelImage { bytes: Vec::new(), segments: vec![part] };

        let places = [0, 1, 4096].map(|offset| image.physical(KERNEL_MAP + offset));

        assert_eq!(places, [Some(u64::MAX), None, None]);
    }
}
