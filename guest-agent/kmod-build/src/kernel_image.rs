//! Getting the ELF `vmlinux` out of a compressed kernel image: its BTF is in there.
//!
//! The layout of the image is that of Linux' x86 boot protocol (`Documentation/arch/x86/boot.rst`): the setup header
//! tells where the compressed payload lies.

use crate::compression::{Compression, is_lzo};
use crate::lzop::{self, LzopError};
use crate::partial_file::partial;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// More than any kernel: a bound on what a damaged image can make us allocate.
const LARGEST_KERNEL: usize = 512 << 20;

/// Bytes of the kernel's size at the end of a payload.
const SIZE_BYTES: usize = 4;

const SETUP_SECTORS: usize = 0x1f1;
const HEADER_MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// Why no kernel could be extracted.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file is not a bzImage, or is damaged.
    #[error("not a bzImage: {0}")]
    NotABzImage(&'static str),
    /// The payload is compressed by something that is not read.
    #[error(
        "the kernel's payload is compressed by nothing that is known: name the uncompressed vmlinux instead, as the \
         kernel's scripts/extract-vmlinux makes it"
    )]
    Compression,
    /// LZO compresses the payload, and `lzop` does not unpack it.
    #[error("lzop does not unpack the kernel's payload")]
    Lzop(#[from] LzopError),
    /// The payload does not decompress.
    #[error("the kernel's payload is damaged")]
    Payload(#[source] io::Error),
}

/// Extracts the ELF kernel of the image `bzimage` into `vmlinux`, which is replaced when it is older.
///
/// # Errors
///
/// When a file cannot be read or written, or the kernel does not come out of the image ([`extract`]).
pub fn extract_file(bzimage: &Path, vmlinux: &Path) -> Result<(), KernelError> {
    let file_error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| KernelError::File { path, source }
    };
    let modified = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified());
    let from = modified(bzimage).map_err(file_error(bzimage))?;
    if modified(vmlinux).is_ok_and(|to| to >= from) {
        return Ok(());
    }
    let image = fs::read(bzimage).map_err(file_error(bzimage))?;
    let kernel = extract(&image)?;
    if let Some(folder) = vmlinux.parent() {
        fs::create_dir_all(folder).map_err(file_error(folder))?;
    }
    let partial = partial(vmlinux).map_err(file_error(vmlinux))?;
    fs::write(&partial, kernel).map_err(file_error(&partial))?;
    partial.persist(vmlinux).map_err(|refused| file_error(vmlinux)(refused.error))
}

/// The ELF kernel inside a bzImage whose payload is compressed by gzip, bzip2, LZMA, XZ, LZ4, Zstandard or LZO: all that
/// the kernel's build can do. LZO takes the program `lzop`.
///
/// # Errors
///
/// When the image is not a bzImage, its payload is compressed otherwise, or does not decompress to an ELF file.
pub fn extract(image: &[u8]) -> Result<Vec<u8>, KernelError> {
    extract_within(image, LARGEST_KERNEL)
}

/// As [`extract`], for a kernel of `largest` bytes at most. Its decompressor takes no more memory than that in this
/// process either, but for some megabytes of its own.
///
/// # Errors
///
/// As those of [`extract`], and when the kernel, or what its decompressor needs, is larger.
pub fn extract_within(image: &[u8], largest: usize) -> Result<Vec<u8>, KernelError> {
    let payload = payload(image)?;
    // The kernel's size at its end is a part of gzip's format. The others leave it over, but for those that do not tell
    // where they end.
    let without_size = &payload[..payload.len() - SIZE_BYTES];
    let kernel = match Compression::of(payload) {
        None if is_lzo(payload) => lzop::decompress(without_size, largest)?,
        None => return Err(KernelError::Compression),
        Some(Compression::Lz4) => read(Compression::Lz4, without_size, largest)?,
        Some(compression) => read(compression, payload, largest)?,
    };
    if kernel.starts_with(&ELF_MAGIC) {
        Ok(kernel)
    } else {
        Err(KernelError::NotABzImage("the payload is not an ELF file"))
    }
}

/// Whether [`extract`] of `image` takes another program, which a process in a jail cannot start.
#[must_use]
pub fn takes_a_program(image: &[u8]) -> bool {
    payload(image).is_ok_and(is_lzo)
}

/// What `compressed` holds, unless that is more than `largest` bytes.
fn read(compression: Compression, compressed: &[u8], largest: usize) -> Result<Vec<u8>, KernelError> {
    let mut output = Vec::new();
    let decoder = compression.decoder(compressed, largest).map_err(KernelError::Payload)?;
    decoder.take((largest as u64).saturating_add(1)).read_to_end(&mut output).map_err(KernelError::Payload)?;
    if output.len() > largest {
        return Err(KernelError::NotABzImage("the payload is larger than any kernel"));
    }
    Ok(output)
}

fn u32_at(image: &[u8], offset: usize) -> Result<usize, KernelError> {
    image
        .get(offset..)
        .and_then(|rest| rest.first_chunk::<4>())
        .map(|bytes| u32::from_le_bytes(*bytes) as usize)
        .ok_or(KernelError::NotABzImage("the file is too short"))
}

/// The compressed payload, with the kernel's size at its end.
fn payload(image: &[u8]) -> Result<&[u8], KernelError> {
    if image.get(HEADER_MAGIC..HEADER_MAGIC + 4) != Some(b"HdrS") {
        return Err(KernelError::NotABzImage("no setup header"));
    }
    // 0 means 4, says the boot protocol; the boot sector itself is not counted
    let sectors = match usize::from(image[SETUP_SECTORS]) {
        0 => 4,
        count => count,
    };
    let start = (sectors + 1) * 512 + u32_at(image, PAYLOAD_OFFSET)?;
    let length = u32_at(image, PAYLOAD_LENGTH)?;
    image
        .get(start..start + length)
        .filter(|payload| payload.len() > SIZE_BYTES)
        .ok_or(KernelError::NotABzImage("the payload lies outside the file"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::error::Error;
    use std::io::{Seek, Write};
    use std::process::Command;

    /// A bzImage whose payload is `kernel` as one legacy block.
    pub(crate) fn image_of(kernel: &[u8]) -> Vec<u8> {
        let block = lz4_flex::block::compress(kernel);
        let mut payload = vec![0x02, 0x21, 0x4c, 0x18];
        payload.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
        payload.extend(block);
        image_with(payload, kernel)
    }

    /// A bzImage with `payload`, which is `kernel` compressed.
    fn image_with(mut payload: Vec<u8>, kernel: &[u8]) -> Vec<u8> {
        payload.extend(u32::try_from(kernel.len()).unwrap().to_le_bytes());
        image_of_payload(payload)
    }

    fn image_of_payload(payload: Vec<u8>) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[SETUP_SECTORS] = 1;
        image[HEADER_MAGIC..HEADER_MAGIC + 4].copy_from_slice(b"HdrS");
        let length = u32::try_from(payload.len()).unwrap();
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend(payload);
        image
    }

    #[test]
    fn extract_returns_the_elf_inside() {
        let mut kernel = ELF_MAGIC.to_vec();
        kernel.extend(vec![7; 100_000]);

        let extracted = extract(&image_of(&kernel)).unwrap();

        assert_eq!(extracted, kernel);
    }

    /// What a program makes of `kernel`: the kernel's build uses the same ones with the same options.
    pub(crate) fn packed_by(program: &str, options: &[&str], kernel: &[u8]) -> Vec<u8> {
        let mut input = tempfile::tempfile().unwrap();
        input.write_all(kernel).unwrap();
        input.rewind().unwrap();
        let packed = Command::new(program).args(options).stdin(input).output().unwrap();
        assert!(packed.status.success(), "{packed:?}");
        packed.stdout
    }

    #[test]
    fn extract_takes_each_compression_of_the_kernels_build() {
        let mut kernel = ELF_MAGIC.to_vec();
        kernel.extend((0..30_000_u32).flat_map(u32::to_le_bytes));
        let gzip = packed_by("gzip", &["-n", "-9"], &kernel);
        let mut bzip2 = Vec::new();
        bzip2::bufread::BzEncoder::new(&*kernel, bzip2::Compression::best()).read_to_end(&mut bzip2).unwrap();
        let images = [
            // its last bytes are the size
            image_of_payload(gzip),
            image_with(bzip2, &kernel),
            image_with(packed_by("xz", &["--format=lzma", "-9"], &kernel), &kernel),
            image_with(packed_by("xz", &["--check=crc32", "--x86", "--lzma2=,dict=32MiB"], &kernel), &kernel),
            image_with(zstd::bulk::compress(&kernel, 1).unwrap(), &kernel),
            image_of(&kernel),
            image_with(packed_by("lzop", &["-9"], &kernel), &kernel),
        ];

        for image in images {
            let half = [&image[..1024 + (image.len() - 1024) / 2]].concat();
            let cut = image_with(half[1024..].to_vec(), &kernel);

            assert!(extract(&image).unwrap() == kernel, "{:02x?}", &image[1024..1030]);
            assert!(extract(&cut).is_err(), "{:02x?}", &image[1024..1030]);
        }
    }

    #[test]
    fn extract_within_refuses_what_is_larger() {
        let mut kernel = ELF_MAGIC.to_vec();
        kernel.extend(vec![7; 1 << 20]);
        let gzip = image_of_payload(packed_by("gzip", &["-n"], &kernel));
        let lzo = image_with(packed_by("lzop", &[], &kernel), &kernel);

        for image in [gzip, lzo] {
            let (fits, refused) = (extract_within(&image, kernel.len()), extract_within(&image, kernel.len() - 1));

            assert!(fits.unwrap() == kernel);
            let why = refused.unwrap_err();
            let why = why.source().map_or_else(|| why.to_string(), ToString::to_string);
            assert!(why.contains("larger than any kernel"), "{why}");
        }
    }

    #[test]
    fn program_is_taken_for_lzo_alone() {
        let kernel = ELF_MAGIC.to_vec();
        let lzo = image_with(packed_by("lzop", &[], &kernel), &kernel);

        assert_eq!([&lzo, &image_of(&kernel), &kernel].map(|image| takes_a_program(image)), [true, false, false]);
    }

    #[test]
    fn extract_of_another_file_is_refused() {
        assert!(matches!(extract(&[0; 4096]), Err(KernelError::NotABzImage(_))));
        assert!(matches!(extract(b"short"), Err(KernelError::NotABzImage(_))));
    }

    #[test]
    fn extract_of_a_truncated_image_is_refused() {
        let image = image_of(&ELF_MAGIC);

        let result = extract(&image[..image.len() - 8]);

        assert!(matches!(result, Err(KernelError::NotABzImage(_))));
    }

    #[test]
    fn extract_of_an_unknown_compression_names_the_way_out() {
        let mut image = image_of(&ELF_MAGIC);
        image[1024..1028].copy_from_slice(b"what");

        let refused = extract(&image).unwrap_err().to_string();

        assert!(refused.contains("compressed by nothing that is known: name the uncompressed vmlinux"), "{refused}");
    }

    #[test]
    fn extract_of_a_payload_that_is_no_elf_is_refused() {
        assert!(matches!(extract(&image_of(b"text")), Err(KernelError::NotABzImage(_))));
    }
}
