//! Debian's kernels and their headers: downloaded and unpacked, never installed.

use crate::fetch::apt::{Apt, PackageError};
use crate::paths::Paths;
use crate::progress;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The prefixes of the packages that make up a kernel and its headers.
const PARTS: [&str; 6] =
    ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-", "linux-headers-", "linux-kbuild-"];

/// Where a kernel comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Debian 12's own kernel: 6.1.
    Bookworm,
    /// What Debian 12's backports have: 6.12.
    BookwormBackports,
    /// What Debian 13's backports have: 7.3 at the time of writing. Its modules need Debian 13's compiler.
    TrixieBackports,
}

impl Suite {
    /// Every suite, oldest kernel first.
    pub const ALL: [Self; 3] = [Self::Bookworm, Self::BookwormBackports, Self::TrixieBackports];

    /// The suite's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::BookwormBackports => "bookworm-backports",
            Self::TrixieBackports => "trixie-backports",
        }
    }

    /// apt's sources for it. Only the suite's own packages are fetched, so that the kernel is the one of this suite.
    pub(super) fn sources(self) -> &'static str {
        match self {
            Self::Bookworm => {
                "deb http://deb.debian.org/debian bookworm main\n\
                 deb http://deb.debian.org/debian bookworm-updates main\n\
                 deb http://deb.debian.org/debian-security bookworm-security main\n"
            }
            Self::BookwormBackports => "deb http://deb.debian.org/debian bookworm-backports main\n",
            Self::TrixieBackports => "deb http://deb.debian.org/debian trixie-backports main\n",
        }
    }
}

/// Text that names no suite.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is not a suite with a kernel: write bookworm, bookworm-backports or trixie-backports")]
pub struct UnknownSuite(String);

impl FromStr for Suite {
    type Err = UnknownSuite;

    fn from_str(text: &str) -> Result<Self, UnknownSuite> {
        Self::ALL.into_iter().find(|suite| suite.name() == text).ok_or_else(|| UnknownSuite(text.to_owned()))
    }
}

/// How Debian configures a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// For virtual machines.
    Cloud,
    /// For any machine.
    Generic,
    /// Preemptible-RT: nearly everything is a task, soft interrupts and most locks too.
    Realtime,
}

impl Flavour {
    /// What the lab's names of its kernels end with.
    const fn ending(self) -> &'static str {
        match self {
            Self::Cloud => "",
            Self::Generic => "-generic",
            Self::Realtime => "-rt",
        }
    }
}

/// A kernel of the lab. Written `SUITE`, `SUITE-generic` or `SUITE-rt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelChoice {
    /// Where it comes from.
    pub suite: Suite,
    /// How it is configured.
    pub flavour: Flavour,
}

impl KernelChoice {
    /// The kernel of most tests, of the demonstration and of the emulated host.
    pub const DEFAULT: Self = Self { suite: Suite::Bookworm, flavour: Flavour::Cloud };

    /// Every kernel of the lab.
    pub fn all() -> impl Iterator<Item = Self> {
        let flavours = [Flavour::Cloud, Flavour::Generic, Flavour::Realtime];
        Suite::ALL.into_iter().flat_map(move |suite| flavours.map(|flavour| Self { suite, flavour }))
    }

    /// The preemptible-RT kernel of a suite.
    #[must_use]
    pub const fn realtime(suite: Suite) -> Self {
        Self { suite, flavour: Flavour::Realtime }
    }

    /// The suite's kernel for virtual machines.
    #[must_use]
    pub const fn cloud(suite: Suite) -> Self {
        Self { suite, flavour: Flavour::Cloud }
    }

    /// The suite's kernel for any machine.
    #[must_use]
    pub const fn generic(suite: Suite) -> Self {
        Self { suite, flavour: Flavour::Generic }
    }

    /// The package that always depends on the current image.
    fn meta_package(self) -> &'static str {
        match self.flavour {
            Flavour::Cloud => "linux-image-cloud-amd64",
            Flavour::Generic => "linux-image-amd64",
            Flavour::Realtime => "linux-image-rt-amd64",
        }
    }
}

impl fmt::Display for KernelChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", self.suite.name(), self.flavour.ending())
    }
}

/// Text that names no kernel of the lab.
#[derive(Debug, thiserror::Error)]
#[error(
    "'{0}' is not a kernel of the lab: write bookworm, bookworm-backports or trixie-backports, with -generic or -rt or \
     without"
)]
pub struct UnknownKernel(String);

impl FromStr for KernelChoice {
    type Err = UnknownKernel;

    fn from_str(text: &str) -> Result<Self, UnknownKernel> {
        Self::all().find(|kernel| kernel.to_string() == text).ok_or_else(|| UnknownKernel(text.to_owned()))
    }
}

/// The kernel packages that were unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelPackages {
    /// The kernel release, as `uname -r` says it: `6.1.0-56-cloud-amd64`.
    pub release: String,
    /// The version of the packages: `6.1.192-2`.
    pub version: String,
}

impl KernelPackages {
    /// The compressed kernel inside the unpacked root.
    #[must_use]
    pub fn bzimage(&self, root: &Path) -> PathBuf {
        let beside_modules = self.modules(root).join("vmlinuz");
        if beside_modules.exists() {
            return beside_modules;
        }
        root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The folder that module builds name with `make -C`.
    #[must_use]
    pub fn headers(&self, root: &Path) -> PathBuf {
        root.join("usr/src").join(format!("linux-headers-{}", self.release))
    }

    /// The folder of the kernel's modules.
    #[must_use]
    pub fn modules(&self, root: &Path) -> PathBuf {
        let merged = root.join("usr/lib/modules").join(&self.release);
        if merged.exists() { merged } else { root.join("lib/modules").join(&self.release) }
    }
}

/// Downloads and unpacks a kernel with its headers into [`Paths::kernel_root`]; the packages found there by an earlier
/// call are kept.
///
/// # Errors
///
/// When apt or dpkg fails, or a file cannot be written.
pub fn fetch(paths: &Paths, choice: KernelChoice) -> Result<KernelPackages, PackageError> {
    let root = paths.kernel_root(choice);
    // written last, so that an interrupted call is repeated
    let record = root.join("packages.json");
    if let Some(known) = fs::read(&record).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
        return Ok(known);
    }
    progress::step(&format!("fetching the kernel of {choice} and its headers"), || {
        let apt = Apt::with_sources(paths, paths.apt().join(choice.suite.name()), choice.suite.sources())?;
        let meta = choice.meta_package();
        let (release, version) =
            kernel_release(&apt.show(meta)?).ok_or_else(|| PackageError::Unknown(meta.to_owned()))?;
        let first = [format!("linux-image-{release}"), format!("linux-headers-{release}")];
        let names = parts(first, |name| apt.show(name))?;
        apt.unpack(&names, &paths.packages().join(choice.to_string()), &root)?;
        let packages = KernelPackages { release, version };
        let text = serde_json::to_vec(&packages).unwrap_or_default();
        fs::write(&record, text).map_err(|source| PackageError::File { path: record, source })?;
        Ok(packages)
    })
}

/// The packages `first` and what they depend on, as far as it is a part of the kernel or its headers. `show` gives a
/// package's description.
fn parts<E>(
    first: impl IntoIterator<Item = String>,
    show: impl Fn(&str) -> Result<String, E>,
) -> Result<BTreeSet<String>, E> {
    let mut found = BTreeSet::new();
    let mut open: Vec<String> = first.into_iter().collect();
    while let Some(name) = open.pop() {
        if found.contains(&name) {
            continue;
        }
        let description = show(&name)?;
        let needed = dependencies(&description).filter(|name| PARTS.iter().any(|part| name.starts_with(part)));
        open.extend(needed.map(str::to_owned));
        found.insert(name);
    }
    Ok(found)
}

/// The release and the package version that the meta-package's description depends on.
fn kernel_release(description: &str) -> Option<(String, String)> {
    let release = dependencies(description).find_map(|name| name.strip_prefix("linux-image-"))?.to_owned();
    let version = description.lines().find_map(|line| line.strip_prefix("Version: "))?.trim().to_owned();
    Some((release, version))
}

/// The names on the `Depends:` line of a package description; of alternatives, the first.
pub(super) fn dependencies(description: &str) -> impl Iterator<Item = &str> {
    description
        .lines()
        .filter_map(|line| line.strip_prefix("Depends: "))
        .flat_map(|line| line.split(','))
        .filter_map(|item| item.split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_release_is_read_from_the_meta_package() {
        let text = "Package: linux-image-cloud-amd64\nVersion: 6.1.192-2\n\
                    Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)\n";

        let found = kernel_release(text);

        assert_eq!(found, Some(("6.1.0-56-cloud-amd64".to_owned(), "6.1.192-2".to_owned())));
    }

    #[test]
    fn parts_follow_a_split_kernel_and_nothing_else() {
        let show = |name: &str| {
            Ok::<_, ()>(
                match name {
                    "linux-image-7.2-x" => "Depends: dracut | y, linux-base-7.2-x (= 1), linux-modules-7.2-x (= 1)\n",
                    "linux-headers-7.2-x" => "Depends: gcc-14, linux-base (>= 4), linux-kbuild-7.2, linux-base-7.2-x\n",
                    _ => "Depends: libc6, pahole\n",
                }
                .to_owned(),
            )
        };

        let found = parts(["linux-image-7.2-x".to_owned(), "linux-headers-7.2-x".to_owned()], show).unwrap();

        let found: Vec<_> = found.iter().map(String::as_str).collect();
        let expected =
            ["linux-base-7.2-x", "linux-headers-7.2-x", "linux-image-7.2-x", "linux-kbuild-7.2", "linux-modules-7.2-x"];
        assert_eq!(found, expected);
    }

    #[test]
    fn kernels_are_named_by_suite_and_flavour() {
        let generic: KernelChoice = "bookworm-backports-generic".parse().unwrap();
        let realtime: KernelChoice = "bookworm-rt".parse().unwrap();

        assert_eq!(generic, KernelChoice { suite: Suite::BookwormBackports, flavour: Flavour::Generic });
        assert_eq!(generic.to_string(), "bookworm-backports-generic");
        assert_eq!("bookworm".parse::<KernelChoice>().unwrap(), KernelChoice::DEFAULT);
        assert_eq!(realtime, KernelChoice::realtime(Suite::Bookworm));
        assert_eq!("trixie-backports".parse::<Suite>().unwrap(), Suite::TrixieBackports);
        assert!("bookworm-rt".parse::<Suite>().unwrap_err().to_string().contains("bookworm-backports"));
        assert!("6.1".parse::<KernelChoice>().unwrap_err().to_string().contains("trixie-backports"));
    }
}
