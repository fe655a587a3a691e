//! Getting the ELF `vmlinux` out of a compressed kernel image: its BTF is in there.
//!
//! The layout of the image is that of Linux' x86 boot protocol (`Documentation/arch/x86/boot.rst`): the setup header
//! tells where the compressed payload lies.

use std::fs;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The LZ4 legacy frame, which `lz4 -l` writes and the kernel build uses.
const LZ4_LEGACY_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
/// Every block of a legacy frame holds this much but for the last, which holds less.
const LZ4_LEGACY_BLOCK: usize = 8 << 20;
/// A Zstandard frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The beginning of an XZ stream.
const XZ_MAGIC: [u8; 4] = [0xfd, b'7', b'z', b'X'];
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// More than any kernel: a bound on what a damaged image can make us allocate.
const LARGEST_KERNEL: usize = 512 << 20;

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
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The file is not a bzImage, or is damaged.
    #[error("not a bzImage: {0}")]
    NotABzImage(&'static str),
    /// The payload is compressed by something else than LZ4, Zstandard or XZ.
    #[error(
        "the kernel's payload is neither LZ4 nor Zstandard nor XZ (it begins with {0:02x?}); boot the bzImage itself"
    )]
    Compression([u8; 4]),
    /// The payload does not decompress.
    #[error("the kernel's payload is damaged")]
    Payload(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Extracts the ELF kernel of the image `bzimage` into `vmlinux`, which is replaced when it is older.
///
/// # Errors
///
/// When a file cannot be read or written, or the image is not one with an LZ4, Zstandard or XZ payload.
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
    let partial = vmlinux.with_extension("partial");
    fs::write(&partial, kernel).map_err(file_error(&partial))?;
    fs::rename(&partial, vmlinux).map_err(file_error(vmlinux))
}

/// The ELF kernel inside a bzImage with an LZ4, Zstandard or XZ payload.
///
/// # Errors
///
/// When the image is not a bzImage, its payload is compressed otherwise, or does not decompress to an ELF file.
pub fn extract(image: &[u8]) -> Result<Vec<u8>, KernelError> {
    let payload = payload(image)?;
    let (magic, blocks) = payload.split_first_chunk::<4>().ok_or(KernelError::NotABzImage("the payload is empty"))?;
    let kernel = match *magic {
        LZ4_LEGACY_MAGIC => decompress_legacy_frame(blocks)?,
        ZSTD_MAGIC => decompress_zstd(payload)?,
        XZ_MAGIC => decompress_xz(payload)?,
        other => return Err(KernelError::Compression(other)),
    };
    if kernel.starts_with(&ELF_MAGIC) {
        Ok(kernel)
    } else {
        Err(KernelError::NotABzImage("the payload is not an ELF file"))
    }
}

fn u32_at(image: &[u8], offset: usize) -> Result<usize, KernelError> {
    image
        .get(offset..)
        .and_then(|rest| rest.first_chunk::<4>())
        .map(|bytes| u32::from_le_bytes(*bytes) as usize)
        .ok_or(KernelError::NotABzImage("the file is too short"))
}

/// The compressed payload, without the uncompressed length that the kernel build appends to it.
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
        .and_then(|payload| payload.get(..length.checked_sub(4)?))
        .ok_or(KernelError::NotABzImage("the payload lies outside the file"))
}

/// By the program `xz`: the stream is filtered for x86 code. The size that the kernel's build puts behind it is left
/// over.
fn decompress_xz(payload: &[u8]) -> Result<Vec<u8>, KernelError> {
    let run = || -> io::Result<Vec<u8>> {
        let mut input = tempfile::tempfile()?;
        input.write_all(payload)?;
        input.rewind()?;
        let mut xz = Command::new("xz");
        xz.args(["--decompress", "--stdout", "--single-stream", "--quiet"]).stdin(input);
        let output = xz.output()?;
        let complaint = || io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        if output.status.success() { Ok(output.stdout.clone()) } else { Err(complaint()) }
    };
    run().map_err(|error| KernelError::Payload(error.into()))
}

fn decompress_legacy_frame(mut blocks: &[u8]) -> Result<Vec<u8>, KernelError> {
    let mut output = Vec::new();
    while let Some((length, rest)) = blocks.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let (block, rest) =
            rest.split_at_checked(length).ok_or(KernelError::NotABzImage("the payload ends inside a block"))?;
        let start = output.len();
        if start + LZ4_LEGACY_BLOCK > LARGEST_KERNEL {
            return Err(KernelError::NotABzImage("the payload is larger than any kernel"));
        }
        output.resize(start + LZ4_LEGACY_BLOCK, 0);
        let written = lz4_flex::block::decompress_into(block, &mut output[start..])
            .map_err(|error| KernelError::Payload(error.into()))?;
        output.truncate(start + written);
        blocks = rest;
    }
    Ok(output)
}

fn decompress_zstd(frame: &[u8]) -> Result<Vec<u8>, KernelError> {
    let decoder =
        zstd::stream::read::Decoder::with_buffer(frame).map_err(|error| KernelError::Payload(error.into()))?;
    let mut output = Vec::new();
    let limit = LARGEST_KERNEL as u64 + 1;
    io::Read::read_to_end(&mut io::Read::take(decoder.single_frame(), limit), &mut output)
        .map_err(|error| KernelError::Payload(error.into()))?;
    if output.len() > LARGEST_KERNEL {
        return Err(KernelError::NotABzImage("the payload is larger than any kernel"));
    }
    Ok(output)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A bzImage whose payload is `kernel` as one legacy block.
    pub(crate) fn image_of(kernel: &[u8]) -> Vec<u8> {
        let block = lz4_flex::block::compress(kernel);
        let mut payload = LZ4_LEGACY_MAGIC.to_vec();
        payload.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
        payload.extend(block);
        image_with(payload, kernel)
    }

    /// A bzImage with `payload`, which is `kernel` compressed.
    fn image_with(mut payload: Vec<u8>, kernel: &[u8]) -> Vec<u8> {
        payload.extend(u32::try_from(kernel.len()).unwrap().to_le_bytes());
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

    #[test]
    fn extract_takes_a_zstandard_payload() {
        let mut kernel = ELF_MAGIC.to_vec();
        kernel.extend(vec![7; 100_000]);
        let payload = zstd::bulk::compress(&kernel, 1).unwrap();

        let extracted = extract(&image_with(payload.clone(), &kernel)).unwrap();

        assert_eq!(extracted, kernel);
        let cut = payload[..payload.len() / 2].to_vec();
        assert!(matches!(extract(&image_with(cut, &kernel)), Err(KernelError::Payload(_))));
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
    fn extract_of_another_compression_names_its_magic() {
        let mut image = image_of(&ELF_MAGIC);
        image[1024..1028].copy_from_slice(b"BZh9");

        let result = extract(&image);

        assert!(matches!(result, Err(KernelError::Compression(magic)) if magic == *b"BZh9"));
    }

    #[test]
    fn extract_of_a_payload_that_is_no_elf_is_refused() {
        assert!(matches!(extract(&image_of(b"text")), Err(KernelError::NotABzImage(_))));
    }
}
