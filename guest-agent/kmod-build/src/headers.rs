//! Making an unpacked kernel header tree usable where it lies.
//!
//! Debian's header packages include their common part by an absolute path, which is right only once they are installed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where header packages are installed.
const INSTALLED: &str = "/usr/src";

/// A tree's configuration, as `make` reads it.
const CONFIGURATION: &str = "include/config/auto.conf";

/// Why a header tree cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HeadersError {
    /// A file of the tree could not be read or written.
    #[error("{} is not a usable kernel header tree: name the folder that `make -C` takes, such as /lib/modules/VERSION/build", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The tree does not say for which kernel it is.
    #[error("{} does not contain the kernel release", .0.display())]
    NoRelease(PathBuf),
}

/// Rewrites the absolute paths in the tree's `Makefile` to relative ones, when the tree was unpacked elsewhere: they name
/// what is not there, and it lies beside the tree. A tree without a `Makefile` is left to what comes next.
///
/// # Errors
///
/// When the Makefile cannot be read or written.
pub fn relocate(tree: &Path) -> Result<(), HeadersError> {
    let makefile = tree.join("Makefile");
    if !makefile.exists() {
        return Ok(());
    }
    let error = |source| HeadersError::File { path: makefile.clone(), source };
    let text = fs::read_to_string(&makefile).map_err(error)?;
    let relocated = relative_paths(&text);
    let is_beside = |folder: &str| tree.join("..").join(folder).exists() && !Path::new(INSTALLED).join(folder).exists();
    if relocated != text && included(&text).is_some_and(is_beside) {
        fs::write(&makefile, relocated).map_err(error)?;
    }
    Ok(())
}

/// The folder below [`INSTALLED`] whose Makefile the tree's own includes.
fn included(makefile: &str) -> Option<&str> {
    let line = makefile.lines().find_map(|line| line.strip_prefix("include /usr/src/"))?;
    line.split('/').next()
}

fn relative_paths(makefile: &str) -> String {
    let here = "$(dir $(lastword $(MAKEFILE_LIST)))";
    makefile
        .replace("include /usr/src/", &format!("include {here}../"))
        // read while this file is the last one in the list
        .replace("KBUILD_OUTPUT=/usr/src/", &format!("KBUILD_OUTPUT := $(abspath {here}..)/"))
}

/// The kernel release that modules built with this tree are for, such as `6.1.0-56-cloud-amd64`.
///
/// # Errors
///
/// When the tree does not hold `include/generated/utsrelease.h` with a release.
pub fn release(tree: &Path) -> Result<String, HeadersError> {
    let path = tree.join("include/generated/utsrelease.h");
    let text = fs::read_to_string(&path).map_err(|source| HeadersError::File { path: tree.to_path_buf(), source })?;
    parse_release(&text).ok_or(HeadersError::NoRelease(path))
}

fn parse_release(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("UTS_RELEASE"))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// The compiler that the tree's kernel was built with, such as `gcc-12`, if the tree says so: Debian's do, all that were
/// configured for clang, and those whose gcc has its version in its name.
#[must_use]
pub fn compiler(tree: &Path) -> Option<String> {
    let clang = clang(tree).map(|major| format!("clang-{major}"));
    let variables = || parse_compiler(&fs::read_to_string(tree.join(".kernelvariables")).ok()?);
    clang.or_else(variables).or_else(|| unsaid_gcc(tree))
}

/// The gcc with its version in its name, such as `gcc-14`, that the tree's kernel was built with, where the tree does not say
/// so to `make`.
#[must_use]
pub fn unsaid_gcc(tree: &Path) -> Option<String> {
    let configuration = fs::read_to_string(tree.join(CONFIGURATION)).ok()?;
    if tree.join(".kernelvariables").exists() { None } else { parse_gcc(&configuration) }
}

/// From a line such as `CONFIG_CC_VERSION_TEXT="gcc-14 (Debian 14.2.0-19) 14.2.0"`.
fn parse_gcc(configuration: &str) -> Option<String> {
    let text = configuration.lines().find_map(|line| line.strip_prefix("CONFIG_CC_VERSION_TEXT="))?;
    let program = text.trim_start_matches('"').split_whitespace().next()?;
    let (_, version) = program.rsplit_once("gcc-")?;
    let is_version = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    is_version.then(|| program.to_owned())
}

/// The major version of the clang that the tree's kernel was built with; `None` of one that gcc built.
#[must_use]
pub fn clang(tree: &Path) -> Option<u32> {
    parse_clang(&fs::read_to_string(tree.join(CONFIGURATION)).ok()?)
}

fn parse_clang(configuration: &str) -> Option<u32> {
    let value = |option: &str| configuration.lines().find_map(|line| line.strip_prefix(option)?.strip_prefix('='));
    let version: u32 = value("CONFIG_CLANG_VERSION")?.parse().ok()?;
    // 190107 is 19.1.7; a kernel of gcc says 0
    (value("CONFIG_CC_IS_CLANG") == Some("y")).then_some(version / 10_000)
}

/// From a line such as `CC = $(if $(X),ccache) $(CROSS_COMPILE)gcc-12`.
fn parse_compiler(variables: &str) -> Option<String> {
    let value = variables.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim_end_matches([':', ' ']).ends_with("CC") && !name.contains("CCACHE")).then_some(value)
    })?;
    let program = value.rsplit([' ', ')']).next()?.trim();
    (!program.is_empty()).then(|| program.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gcc_with_a_version_in_its_name_is_read_from_the_configuration() {
        let named =
            parse_gcc("CONFIG_A=y\nCONFIG_CC_VERSION_TEXT=\"x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0) 13.3.0\"\n");
        let unquoted = parse_gcc("CONFIG_CC_VERSION_TEXT=gcc-14 (Debian 14.2.0-19) 14.2.0\n");
        let plain = parse_gcc("CONFIG_CC_VERSION_TEXT=\"gcc (GCC) 14.2.1\"\n");
        let clang = parse_gcc("CONFIG_CC_VERSION_TEXT=\"Debian clang version 19.1.7\"\n");

        assert_eq!((named.as_deref(), unquoted.as_deref()), (Some("x86_64-linux-gnu-gcc-13"), Some("gcc-14")));
        assert_eq!((plain, clang), (None, None));
    }

    #[test]
    fn relative_paths_replace_only_absolute_ones() {
        let text = "KBUILD_OUTPUT=/usr/src/linux-headers-x\ninclude /usr/src/linux-headers-common/Makefile\n";

        let relocated = relative_paths(text);

        assert_eq!(
            relocated,
            "KBUILD_OUTPUT := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)/linux-headers-x\n\
             include $(dir $(lastword $(MAKEFILE_LIST)))../linux-headers-common/Makefile\n"
        );
        assert_eq!(relative_paths(&relocated), relocated);
    }

    #[test]
    fn unpacked_tree_is_relocated_and_an_incomplete_one_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("linux-headers-0.0-x");
        let text = "include /usr/src/linux-headers-0.0-common/Makefile\n";
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("Makefile"), text).unwrap();

        relocate(&tree).unwrap();
        let incomplete = fs::read_to_string(tree.join("Makefile")).unwrap();
        fs::create_dir_all(folder.path().join("linux-headers-0.0-common")).unwrap();
        relocate(&tree).unwrap();

        assert_eq!(incomplete, text);
        assert_eq!(fs::read_to_string(tree.join("Makefile")).unwrap(), relative_paths(text));
    }

    #[test]
    fn parse_release_reads_the_quoted_name() {
        let text = "#define UTS_RELEASE \"6.1.0-56-cloud-amd64\"\n";

        assert_eq!(parse_release(text).as_deref(), Some("6.1.0-56-cloud-amd64"));
        assert_eq!(parse_release("nothing"), None);
    }

    #[test]
    fn compiler_is_the_one_that_debian_names() {
        let new =
            "CCACHE = ccache\nCC = $(if $(X),$(CCACHE)) $(CROSS_COMPILE)gcc-14\noverride CROSS_COMPILE = x86_64-\n";
        let old = "override CC = $(if $(X),ccache )$(CROSS_COMPILE)gcc-12\n";

        assert_eq!(parse_compiler(new).as_deref(), Some("gcc-14"));
        assert_eq!(parse_compiler(old).as_deref(), Some("gcc-12"));
        assert_eq!(parse_compiler("ARCH = x86\n"), None);
    }

    #[test]
    fn clang_is_the_one_of_the_configuration() {
        let clang = "CONFIG_CC_IS_CLANG=y\nCONFIG_CLANG_VERSION=190107\nCONFIG_LD_IS_LLD=y\n";
        let gcc = "CONFIG_CC_IS_GCC=y\nCONFIG_GCC_VERSION=120200\nCONFIG_CLANG_VERSION=0\n";

        assert_eq!(parse_clang(clang), Some(19));
        assert_eq!(parse_clang(gcc), None);
    }

    #[test]
    fn release_of_another_folder_says_what_to_name() {
        let folder = tempfile::tempdir().unwrap();

        let error = release(folder.path()).unwrap_err();

        assert!(error.to_string().contains("make -C"));
    }
}
