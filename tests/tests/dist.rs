//! What `cargo xtask dist` makes, installed where there is nothing else, and used.
//!
//! Shows: Each package form installs on an empty system; its `strata` runs and finds the guest's module.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::Purpose;
use lab::fetch::kernel_packages::KernelChoice;
use lab::fetch::tools::{self, Tool};
use lab::packaging::{self, Form, Selection};
use lab::paths::Paths;
use lab::{process, provision};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What other people's tools unpack.
const TOOLS: [Tool; 2] = [Tool { program: "rpm", package: "rpm" }, Tool { program: "skopeo", package: "skopeo" }];

const EVERYTHING: Selection<'_> = Selection { forms: &Form::ALL, kernels: &[KernelChoice::DEFAULT], query: true };

/// What was made, with the module of the lab's kernel.
struct Made(Vec<PathBuf>);

impl Made {
    /// What `selection` says, in the lab's folder `name`.
    fn of(selection: Selection<'_>, name: &str) -> Self {
        let paths = Paths::of_workspace();
        let out = paths.builds().join(name);
        Self(packaging::build(&paths, Purpose::Test, &out, selection).unwrap())
    }

    /// The file whose name begins with `begin` and ends with `end`.
    fn file(&self, begin: &str, end: &str) -> &Path {
        let is_wanted = |file: &&PathBuf| {
            let name = file.file_name().unwrap().to_string_lossy();
            name.starts_with(begin) && name.ends_with(end)
        };
        self.0.iter().find(is_wanted).unwrap_or_else(|| panic!("{:?}", self.0))
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    process::capture(Command::new(program).args(arguments)).unwrap()
}

/// Asserts that `strata`, the words before its arguments, runs, and brings the agent into an initrd for the lab's
/// kernel with the module that was installed beside it. The kernel is copied into the folder `root`, which the program
/// sees as `seen`.
#[track_caller]
fn assert_is_usable(strata: &[&str], root: &Path, seen: &str) {
    let kernels = provision::kernels(&Paths::of_workspace(), false).unwrap();
    fs::copy(&kernels.bzimage, root.join("vmlinuz")).unwrap();
    let (kernel, initrd) = (format!("{seen}/vmlinuz"), format!("{seen}/initrd"));

    let version = run(strata[0], &[&strata[1..], &["--version"]].concat());
    let inject = ["agent", "inject", "--kernel", &kernel, "--module", "auto", "--out", &initrd];
    let injected = run(strata[0], &[&strata[1..], &inject].concat());

    assert!(version.starts_with("strata "), "{version}");
    assert!(injected.contains("rdinit=/strata-init strata_init=/init (there is no initrd)"), "{injected}");
}

/// Asserts that `strata` writes tables, with the strata-query that was installed beside it; `root` and `seen` as above.
#[track_caller]
fn assert_exports_tables(strata: &[&str], root: &Path, seen: &str) {
    let shipped = Paths::of_workspace().workspace().join("docs/example.strata");
    fs::copy(shipped, root.join("example.strata")).unwrap();
    // What every system has, and every container gets.
    ["tmp", "dev"].iter().for_each(|folder| fs::create_dir_all(root.join(folder)).unwrap());
    for (name, minor) in [("random", "8"), ("urandom", "9")] {
        run("mknod", &[&root.join("dev").join(name).to_string_lossy(), "c", "1", minor]);
    }
    let (recording, tables) = (format!("{seen}/example.strata"), format!("{seen}/tables"));

    run(strata[0], &[&strata[1..], &["export", &recording, "--format", "parquet", "-o", &tables]].concat());

    assert!(root.join("tables/exits").is_dir());
}

/// As [`assert_is_usable`], of the program that is installed in `root` and sees nothing else.
#[track_caller]
fn assert_is_usable_in(root: &Path) {
    assert_is_usable(&["chroot", &root.to_string_lossy(), "/usr/bin/strata"], root, "");
}

/// Debian's packages, which have a guest of their own in `packages.rs`, stand for all forms.
#[test]
fn debian_packages_are_unpacked_where_nothing_else_is_and_used() {
    debian_packages_are_unpacked_in_an_empty_root_and_used(&Made::of(
        Selection { query: false, forms: &[Form::Deb], ..EVERYTHING },
        "dist-deb",
    ));
}

/// One test, since what it tries is made once.
#[test]
#[ignore = "tier all: every form"]
fn each_form_is_installed_where_nothing_else_is_and_used() {
    tools::install(&Paths::of_workspace(), &TOOLS).unwrap();
    let made = Made::of(EVERYTHING, "dist");

    made_again_is_the_same(&made);
    archive_is_unpacked_anywhere_and_used(&made);
    rpms_are_installed_in_an_empty_root_and_used(&made);
    image_is_read_by_other_tools_and_runs(&made);
    debian_packages_are_unpacked_in_an_empty_root_and_used(&made);
}

fn made_again_is_the_same(made: &Made) {
    let sums = |made: &Made| fs::read_to_string(made.0[0].with_file_name("SHA256SUMS")).unwrap();
    let first = sums(made);

    let again = Made::of(EVERYTHING, "dist-again");

    assert_eq!(first.lines().count(), made.0.len());
    assert_eq!(first, sums(&again));
}

fn archive_is_unpacked_anywhere_and_used(made: &Made) {
    let archive = made.file("strata-", "-x86_64-linux.tar.xz");
    let root = tempfile::tempdir().unwrap();

    run("tar", &["-C", &root.path().to_string_lossy(), "-xf", &archive.to_string_lossy()]);

    let folder = archive.file_name().unwrap().to_string_lossy().replace(".tar.xz", "");
    let program = root.path().join(&folder).join("bin/strata");
    assert_is_usable(&[&program.to_string_lossy()], root.path(), &root.path().to_string_lossy());
    assert_exports_tables(&[&program.to_string_lossy()], root.path(), &root.path().to_string_lossy());
    assert!(root.path().join(&folder).join("bin/strata-agent").is_file());
}

fn rpms_are_installed_in_an_empty_root_and_used(made: &Made) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_string_lossy();
    let files =
        ["strata-0", "strata-query-", "strata-modules-", "strata-agent-"].map(|name| made.file(name, ".x86_64.rpm"));
    let files: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
    let names: Vec<&str> = files.iter().map(AsRef::as_ref).collect();

    // what the agent needs, and its scripts, are a whole system's
    let install = ["--root", &path, "--dbpath", "/var/lib/rpm", "--nodeps", "--noscripts", "--install"];
    run("rpm", &[install.as_slice(), &names].concat());

    let listed = run("rpm", &["--root", &path, "--dbpath", "/var/lib/rpm", "--query", "--all"]);
    assert_eq!(listed.lines().count(), files.len(), "{listed}");
    let verified = run("rpm", &["--root", &path, "--dbpath", "/var/lib/rpm", "--verify", "--nodeps", "strata"]);
    assert_eq!(verified, "");
    assert_is_usable_in(root.path());
    assert_exports_tables(&["chroot", &path, "/usr/bin/strata"], root.path(), "");
}

fn image_is_read_by_other_tools_and_runs(made: &Made) {
    let archive = made.file("strata-", ".oci.tar");
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name).to_string_lossy().into_owned();

    let configuration = run("skopeo", &["inspect", "--config", &format!("oci-archive:{}", archive.display())]);
    run("skopeo", &["copy", &format!("oci-archive:{}", archive.display()), &format!("oci:{}:strata", path("layout"))]);
    run("umoci", &["unpack", "--image", &format!("{}:strata", path("layout")), &path("bundle")]);

    let configuration: Value = serde_json::from_str(&configuration).unwrap();
    assert_eq!(configuration["config"]["Entrypoint"], json!(["/usr/bin/strata"]), "{configuration}");
    let root = path("bundle/rootfs");
    let version = run("chroot", &[&root, "/usr/bin/strata", "--version"]);
    assert_exports_tables(&["chroot", &root, "/usr/bin/strata"], Path::new(&root), "");
    assert!(version.starts_with("strata "), "{version}");
}

fn debian_packages_are_unpacked_in_an_empty_root_and_used(made: &Made) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_string_lossy();

    for name in ["strata_", "strata-modules_"] {
        run("dpkg-deb", &["--extract", &made.file(name, "_amd64.deb").to_string_lossy(), &path]);
    }

    assert_is_usable_in(root.path());
}
