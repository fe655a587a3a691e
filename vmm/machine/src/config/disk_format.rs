//! Files that hold a disk in another form than byte for byte.
//!
//! A guest that had one as a raw disk would read the format's own tables, and write over them.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use strata_recording::text::terminal::shell_path;

/// What makes a raw image of such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `qemu-img convert`.
    Convert,
    /// This program, with the file as its argument.
    Unpack(&'static str),
}

/// A format of images, or of compressed files, that is not raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFormat {
    /// What people call it.
    name: &'static str,
    /// Where its mark lies in the file, bytes.
    offset: usize,
    mark: &'static [u8],
    way: Way,
}

const fn image(name: &'static str, offset: usize, mark: &'static [u8]) -> DiskFormat {
    DiskFormat { name, offset, mark, way: Way::Convert }
}

const fn compressed(name: &'static str, mark: &'static [u8], program: &'static str) -> DiskFormat {
    DiskFormat { name, offset: 0, mark, way: Way::Unpack(program) }
}

/// Marks as QEMU's own drivers and the formats' documents have them. A fixed VHD is not among them: it is a raw image
/// with a sector more.
const FORMATS: [DiskFormat; 16] = [
    image("qcow2", 0, b"QFI\xfb"),
    image("VMDK", 0, b"KDMV"),
    image("VMDK", 0, b"COWD"),
    image("VMDK", 0, b"# Disk DescriptorFile"),
    image("VDI", 64, b"\x7f\x10\xda\xbe"),
    image("VHDX", 0, b"vhdxfile"),
    image("VHD", 0, b"conectix"),
    image("QED", 0, b"QED\0"),
    image("Parallels", 0, b"WithoutFreeSpace"),
    image("Parallels", 0, b"WithouFreSpacExt"),
    compressed("gzip", b"\x1f\x8b\x08", "gunzip --keep"),
    compressed("xz", b"\xfd7zXZ\0", "unxz --keep"),
    compressed("zstd", b"\x28\xb5\x2f\xfd", "unzstd"),
    compressed("bzip2", b"BZh91AY&SY", "bunzip2 --keep"),
    compressed("lz4", b"\x04\x22\x4d\x18", "unlz4"),
    compressed("zip", b"PK\x03\x04", "unzip"),
];
/// Bytes of a file in which all marks lie.
const HEAD: usize = 128;

impl DiskFormat {
    /// The format whose mark `file` has; none if its bytes can be a disk's.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of(file: &File) -> io::Result<Option<Self>> {
        let mut head = [0; HEAD];
        let mut filled = 0;
        loop {
            match file.read_at(&mut head[filled..], filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let has_mark =
            |format: &&Self| head[..filled].get(format.offset..).is_some_and(|rest| rest.starts_with(format.mark));
        Ok(FORMATS.iter().find(has_mark).copied())
    }

    /// What the file at `path` is, and the command that makes a raw image of it.
    pub(super) fn way_out<'a>(&'a self, path: &'a Path) -> impl fmt::Display + 'a {
        fmt::from_fn(move |out| {
            let name = self.name;
            match self.way {
                Way::Convert => {
                    // QEMU takes what stands before a colon for a protocol, if no slash does.
                    let beginning = path.as_os_str().as_bytes().split(|byte| *byte == b'/').next().unwrap_or_default();
                    let file = if beginning.contains(&b':') { Path::new(".").join(path) } else { path.to_owned() };
                    let mut raw = file.as_os_str().to_owned();
                    raw.push(".raw");
                    let (file, raw) = (shell_path(file), shell_path(raw));
                    write!(out, "is a {name} image: make a raw one with `qemu-img convert -O raw {file} {raw}`")
                }
                Way::Unpack(program) => {
                    write!(out, "is compressed by {name}: unpack it with `{program} {}`", shell_path(path))
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn format_of(bytes: &[u8]) -> Option<DiskFormat> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        DiskFormat::of(&file).unwrap()
    }

    #[test]
    fn mark_of_each_format_is_found_where_it_lies() {
        for format in FORMATS {
            let mut image = vec![0; 1 << 10];
            image[format.offset..][..format.mark.len()].copy_from_slice(format.mark);

            let found = format_of(&image);

            assert_eq!(found.map(|found| found.name), Some(format.name));
            assert!(format.offset + format.mark.len() <= HEAD);
        }
    }

    #[test]
    fn raw_disks_have_no_mark() {
        let mut bootable = vec![0xfa; 512];
        bootable[510..].copy_from_slice(&[0x55, 0xaa]);

        for disk in [&bootable[..], &[0; 4096], b"QFI", b""] {
            assert_eq!(format_of(disk), None);
        }
    }

    #[test]
    fn way_out_is_the_command_for_that_file() {
        let way_out = |mark: &[u8], path: &str| format_of(mark).unwrap().way_out(Path::new(path)).to_string();

        let image = way_out(b"QFI\xfb\0\0\0\x03", "a/disk.qcow2");
        let packed = way_out(b"\xfd7zXZ\0", "disk.raw.xz");

        assert_eq!(
            image,
            "is a qcow2 image: make a raw one with `qemu-img convert -O raw a/disk.qcow2 a/disk.qcow2.raw`"
        );
        assert_eq!(packed, "is compressed by xz: unpack it with `unxz --keep disk.raw.xz`");
    }

    #[test]
    fn way_out_quotes_what_a_shell_would_take_for_something_else() {
        let way_out = |mark: &[u8], path: &str| format_of(mark).unwrap().way_out(Path::new(path)).to_string();

        let image = way_out(b"QFI\xfb\0\0\0\x03", "Ann's disk");
        let packed = way_out(b"\xfd7zXZ\0", "-disk;.xz");

        assert!(image.ends_with(r"`qemu-img convert -O raw 'Ann'\''s disk' 'Ann'\''s disk.raw'`"), "{image}");
        assert!(packed.ends_with("`unxz --keep './-disk;.xz'`"), "{packed}");
    }

    #[test]
    fn way_out_names_a_file_with_a_colon_so_that_qemu_finds_no_protocol() {
        let image = |path: &str| format_of(b"QFI\xfb\0\0\0\x03").unwrap().way_out(Path::new(path)).to_string();

        let images = ["nbd:1", "a/b:1", "/a:1"].map(image);

        assert!(images[0].ends_with("`qemu-img convert -O raw ./nbd:1 ./nbd:1.raw`"), "{}", images[0]);
        assert!(images[1].ends_with(" a/b:1 a/b:1.raw`") && images[2].ends_with(" /a:1 /a:1.raw`"), "{images:?}");
    }
}
