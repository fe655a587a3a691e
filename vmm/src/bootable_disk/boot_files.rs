//! Which of the files of a root are its kernel and initrd.

use super::file_system::{Entry, FileSystem};
use super::{BootableDiskError, INITRD_MAX, KERNEL_MAX};
use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::Arc;
use strata_machine::BootFile;

/// Links that distributions keep to the kernel that is to be booted, and to its initrd.
const LINKS: [(&str, &str); 2] = [("/vmlinuz", "/initrd.img"), ("/boot/vmlinuz", "/boot/initrd.img")];
/// Where kernels lie, and how their names begin; the kernel's release follows.
const FOLDER: &str = "/boot";
const KERNEL: &str = "vmlinuz-";
/// What stands behind the name of a kernel whose place another of its release has taken, and of one that dpkg unpacks.
const EARLIER: &str = ".old";
const UNPACKED: &str = ".dpkg-";

/// Kernel and initrd of a root.
#[derive(Debug)]
pub struct Found {
    pub kernel: BootFile,
    /// Its initrd, if there is one.
    pub initrd: Option<BootFile>,
}

/// Finds kernel and initrd in `files`: by the links that a distribution keeps, else the newest kernel and what is its
/// initrd by name.
///
/// # Errors
/// There is no kernel, or a file cannot be read.
pub fn find(files: &FileSystem) -> Result<Found, BootableDiskError> {
    let (kernel, initrds) = find_kernel(files)?;
    let mut initrd = None;
    for path in initrds {
        initrd = initrd.or(regular(files, &path)?);
    }
    let held = |entry: &Entry, max| -> Result<BootFile, BootableDiskError> {
        let content = Arc::new(files.read(entry, max)?);
        Ok(BootFile::Held { name: PathBuf::from(&entry.path), content })
    };
    let initrd = initrd.map(|entry| held(&entry, INITRD_MAX)).transpose()?;
    Ok(Found { kernel: held(&kernel, KERNEL_MAX)?, initrd })
}

/// The kernel, and where its initrd may be.
fn find_kernel(files: &FileSystem) -> Result<(Entry, Vec<String>), BootableDiskError> {
    for (kernel, initrd) in LINKS {
        if let Some(kernel) = regular(files, kernel)? {
            let named = kernel.path.rsplit_once(KERNEL).map(|(_, release)| initrds_of(release));
            return Ok((kernel, [vec![initrd.to_owned()], named.unwrap_or_default()].concat()));
        }
    }
    if let Some(folder) = files.look_up(FOLDER)?.filter(|folder| folder.metadata.is_dir()) {
        for release in releases(&files.names(&folder.path)?) {
            if let Some(kernel) = regular(files, &format!("{}/{KERNEL}{release}", folder.path))? {
                return Ok((kernel, initrds_of(release)));
            }
        }
    }
    Err(BootableDiskError::NoKernel { path: files.image().into() })
}

/// The releases of the kernels among `names`, the newest first.
fn releases(names: &[String]) -> Vec<&str> {
    let kernels = names.iter().filter_map(|name| name.strip_prefix(KERNEL));
    let mut releases: Vec<&str> = kernels.filter(|release| !release.contains(UNPACKED)).collect();
    releases.sort_by(|one, other| {
        let are_earlier = (one.ends_with(EARLIER), other.ends_with(EARLIER));
        by_version(without_earlier(other), without_earlier(one)).then(are_earlier.0.cmp(&are_earlier.1))
    });
    releases
}

fn without_earlier(release: &str) -> &str {
    release.strip_suffix(EARLIER).unwrap_or(release)
}

/// The regular file that `path` leads to, if there is one that is not empty.
fn regular(files: &FileSystem, path: &str) -> Result<Option<Entry>, BootableDiskError> {
    let entry = files.look_up(path)?;
    Ok(entry.filter(|entry| entry.metadata.file_type().is_regular_file() && entry.metadata.len() > 0))
}

/// What distributions call the initrd of the kernel `release`: Debian's, Fedora's, Alpine's and openSUSE's way.
fn initrds_of(release: &str) -> Vec<String> {
    let names = [
        format!("initrd.img-{release}"),
        format!("initramfs-{release}.img"),
        format!("initramfs-{release}"),
        format!("initrd-{release}"),
    ];
    names.iter().map(|name| format!("{FOLDER}/{name}")).collect()
}

/// Compares releases of kernels: numbers as numbers, anything else by its bytes.
fn by_version(one: &str, other: &str) -> Ordering {
    parts(one).cmp(&parts(other))
}

/// A part of a release, in order: 6.1-rc1 comes before 6.1, and that before 6.1-1 and 6.1.1.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    /// What follows is the number of a release candidate.
    Candidate,
    End,
    Text(&'a str),
    /// Length without leading zeros, then the digits: as a number, of any length.
    Number(usize, &'a str),
}

fn parts(release: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = release;
    while let Some(first) = rest.chars().next() {
        let is_number = first.is_ascii_digit();
        let end = rest.find(|letter: char| letter.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(end);
        let digits = part.trim_start_matches('0');
        parts.push(match part {
            _ if is_number => Part::Number(digits.len(), digits),
            "-rc" | "~rc" => Part::Candidate,
            text => Part::Text(text),
        });
        rest = behind;
    }
    parts.push(Part::End);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_releases_compare_as_numbers() {
        assert_eq!(by_version("6.1.0-9-amd64", "6.1.0-10-amd64"), Ordering::Less);
        assert_eq!(by_version("6.12.1", "6.2.10"), Ordering::Greater);
        assert_eq!(by_version("6.1", "6.1.1"), Ordering::Less);
        assert_eq!(by_version("6.01", "6.1"), Ordering::Equal);
    }

    #[test]
    fn release_candidate_comes_before_its_release() {
        let names =
            ["vmlinuz-6.12.0-rc7", "vmlinuz-6.12.0", "vmlinuz-6.12~rc2-amd64", "vmlinuz-6.12-amd64", "vmlinuz-6.11.9"]
                .map(String::from);

        let found = releases(&names);

        assert_eq!(found, ["6.12.0", "6.12.0-rc7", "6.12-amd64", "6.12~rc2-amd64", "6.11.9"]);
    }

    #[test]
    fn kernel_that_gave_way_comes_behind_the_one_of_its_release() {
        let names = ["vmlinuz-6.1.0.old", "vmlinuz-6.1.0", "vmlinuz-6.0.9", "vmlinuz-6.1.1.dpkg-new", "config-6.1.0"];

        assert_eq!(releases(&names.map(String::from)), ["6.1.0", "6.1.0.old", "6.0.9"]);
    }

    #[test]
    fn rescue_kernel_is_older_than_any_release() {
        assert_eq!(by_version("0-rescue-5f0e0c9a", "6.1.0"), Ordering::Less);
        assert_eq!(by_version("virt", "6.1.0"), Ordering::Less);
    }
}
