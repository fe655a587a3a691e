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
const PARTS: [&str; 6] = ["linux-image-", "linux-binary-", MODULES, "linux-base-", "linux-headers-", "linux-kbuild-"];
/// Of these, the one with the kernel's modules, where that is a package of its own.
const MODULES: &str = "linux-modules-";

/// Where a kernel comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Debian 11's own kernel: 5.10.
    Bullseye,
    /// Debian 12's own kernel: 6.1.
    Bookworm,
    /// What Debian 12's backports have: 6.12.
    BookwormBackports,
    /// Debian 13's own kernel: 6.12.
    Trixie,
    /// What Debian 13's backports have: 7.3 at the time of writing. Its modules need Debian 13's compiler.
    TrixieBackports,
    /// What Debian 14 will be: 7.2 at the time of writing.
    Forky,
    /// What is uploaded to Debian before it comes into any other suite.
    Sid,
}

impl Suite {
    /// Every suite with a kernel of the lab, oldest kernel first.
    pub const ALL: [Self; 3] = [Self::Bookworm, Self::BookwormBackports, Self::TrixieBackports];
    /// Every suite with a kernel that the guest kernel module is for, oldest release first.
    pub const WITH_MODULE: [Self; 7] = [
        Self::Bullseye,
        Self::Bookworm,
        Self::BookwormBackports,
        Self::Trixie,
        Self::TrixieBackports,
        Self::Forky,
        Self::Sid,
    ];

    /// The suite's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bullseye => "bullseye",
            Self::Bookworm => "bookworm",
            Self::BookwormBackports => "bookworm-backports",
            Self::Trixie => "trixie",
            Self::TrixieBackports => "trixie-backports",
            Self::Forky => "forky",
            Self::Sid => "sid",
        }
    }

    /// apt's sources for it. Only the suite's own packages are fetched, so that the kernel is the one of this suite.
    pub(super) fn sources(self) -> &'static str {
        match self {
            Self::Bullseye => {
                "deb http://deb.debian.org/debian bullseye main\n\
                 deb http://deb.debian.org/debian-security bullseye-security main\n"
            }
            Self::Bookworm => {
                "deb http://deb.debian.org/debian bookworm main\n\
                 deb http://deb.debian.org/debian bookworm-updates main\n\
                 deb http://deb.debian.org/debian-security bookworm-security main\n"
            }
            Self::BookwormBackports => "deb http://deb.debian.org/debian bookworm-backports main\n",
            Self::Trixie => {
                "deb http://deb.debian.org/debian trixie main\n\
                 deb http://deb.debian.org/debian trixie-updates main\n\
                 deb http://deb.debian.org/debian-security trixie-security main\n"
            }
            Self::TrixieBackports => "deb http://deb.debian.org/debian trixie-backports main\n",
            Self::Forky => "deb http://deb.debian.org/debian forky main\n",
            Self::Sid => "deb http://deb.debian.org/debian sid main\n",
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        Self::of(&Suite::ALL)
    }

    /// Every kernel that the guest kernel module is for. Some suites lack some of them.
    pub fn with_module() -> impl Iterator<Item = Self> {
        Self::of(&Suite::WITH_MODULE)
    }

    fn of(suites: &[Suite]) -> impl Iterator<Item = Self> {
        let flavours = [Flavour::Cloud, Flavour::Generic, Flavour::Realtime];
        suites.iter().flat_map(move |&suite| flavours.map(|flavour| Self { suite, flavour }))
    }

    /// The kernel `text` among those that the guest kernel module is for.
    ///
    /// # Errors
    ///
    /// When there is none of that name.
    pub fn parse_with_module(text: &str) -> Result<Self, UnknownKernelWithModule> {
        let found = Self::with_module().find(|kernel| kernel.to_string() == text);
        found.ok_or_else(|| UnknownKernelWithModule(text.to_owned()))
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

/// Text that names no kernel which the guest kernel module is for.
#[derive(Debug, thiserror::Error)]
#[error(
    "'{0}' is not a kernel of Debian that the module is for: write {names}, with -generic or -rt or without",
    names = Suite::WITH_MODULE.map(Suite::name).join(", ")
)]
pub struct UnknownKernelWithModule(String);

impl FromStr for KernelChoice {
    type Err = UnknownKernel;

    fn from_str(text: &str) -> Result<Self, UnknownKernel> {
        Self::all().find(|kernel| kernel.to_string() == text).ok_or_else(|| UnknownKernel(text.to_owned()))
    }
}

/// The kernel packages that were unpacked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        let packages = Offered::of(paths, choice)?.unpack(paths, &root, |_| true)?;
        let text = serde_json::to_vec(&packages).unwrap_or_default();
        fs::write(&record, text).map_err(|source| PackageError::File { path: record, source })?;
        Ok(packages)
    })
}

/// A kernel as its suite offers it now.
pub(crate) struct Offered {
    choice: KernelChoice,
    apt: Apt,
    packages: KernelPackages,
}

impl Offered {
    /// Asks the suite of `choice`.
    ///
    /// # Errors
    ///
    /// When the suite's lists cannot be had, or have no such kernel.
    pub(crate) fn of(paths: &Paths, choice: KernelChoice) -> Result<Self, PackageError> {
        let apt = Apt::with_sources(paths, paths.apt().join(choice.suite.name()), choice.suite.sources())?;
        let meta = choice.meta_package();
        let (release, version) =
            kernel_release(&apt.show(meta)?).ok_or_else(|| PackageError::Unknown(meta.to_owned()))?;
        Ok(Self { choice, apt, packages: KernelPackages { release, version } })
    }

    /// Downloads and unpacks what a module is built with into the new folder `root`: the kernel and its headers, without
    /// its modules where these are a package of their own.
    ///
    /// # Errors
    ///
    /// When apt or dpkg fails, or a file cannot be written.
    pub(crate) fn unpack_for_module(self, paths: &Paths, root: &Path) -> Result<KernelPackages, PackageError> {
        self.unpack(paths, root, |name| !name.starts_with(MODULES))
    }

    fn unpack(
        self,
        paths: &Paths,
        root: &Path,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<KernelPackages, PackageError> {
        let release = &self.packages.release;
        let first = [format!("linux-image-{release}"), format!("linux-headers-{release}")];
        let mut names = parts(first, |name| self.apt.show(name))?;
        names.retain(|name| is_wanted(name));
        self.apt.unpack(&names, &paths.packages().join(self.choice.to_string()), root)?;
        Ok(self.packages)
    }
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
    fn kernels_that_the_module_is_for_are_those_of_the_lab_and_more() {
        let with_module: Vec<_> = KernelChoice::with_module().collect();

        let oldest = KernelChoice::parse_with_module("bullseye-rt").unwrap();

        assert_eq!(oldest, KernelChoice::realtime(Suite::Bullseye));
        assert!(KernelChoice::all().all(|kernel| with_module.contains(&kernel)));
        assert!("bullseye-rt".parse::<KernelChoice>().unwrap_err().to_string().contains("'bullseye-rt'"));
        assert!("trixie".parse::<Suite>().is_err());
        assert!(KernelChoice::parse_with_module("buster").unwrap_err().to_string().contains("bullseye, bookworm"));
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
