//! A package as distributions with RPM have it: `rpmbuild` puts it together from the files as they are.

use crate::fetch::apt::PackageError;
use crate::packaging::RELEASED;
use crate::packaging::package::{Package, error, listed};
use crate::process;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What RPM needs to know of a package and Debian does not.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    /// The licences of what it holds, an SPDX expression.
    pub license: &'a str,
    /// Packages that it needs.
    pub requires: &'a [&'a str],
    /// Scripts: when they run, such as `post`, and their text.
    pub scripts: &'a [(&'a str, &'a str)],
}

/// Nothing is changed in files that were made elsewhere, and nothing is derived from them.
const AS_IT_IS: [&str; 7] = [
    "%global debug_package %{nil}",
    "%global __os_install_post %{nil}",
    "%global _build_id_links none",
    "%global _binary_payload w19.zstdio",
    "%global use_source_date_epoch_as_buildtime 1",
    "%global _buildhost localhost",
    "AutoReqProv: no",
];

/// Puts `package` together as `version`, release 1, and returns its file in the folder `out`.
///
/// # Errors
///
/// When a file cannot be written, or `rpmbuild` fails.
pub fn write(package: &Package<'_>, fields: &Fields<'_>, version: &str, out: &Path) -> Result<PathBuf, PackageError> {
    fs::create_dir_all(out).map_err(error(out))?;
    let work = tempfile::tempdir_in(out).map_err(error(out))?;
    let spec = work.path().join("package.spec");
    let text = specification(package, fields, version, &listed(package.root())?);
    fs::write(&spec, text).map_err(error(&spec))?;
    let mut build = Command::new("rpmbuild");
    build.env("SOURCE_DATE_EPOCH", RELEASED.to_string());
    build.args(["-bb", "--quiet", "--target", "x86_64-linux", "--define"]);
    build.arg(format!("_topdir {}", work.path().display())).arg("--define").arg(format!("_rpmdir {}", out.display()));
    build.args(["--define", "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"]).arg(&spec);
    process::capture(&mut build)?;
    Ok(out.join(format!("{}-{version}-1.x86_64.rpm", package.name())))
}

/// The specification of `package` that `rpmbuild` reads; `files` are the paths of its files and folders.
fn specification(package: &Package<'_>, fields: &Fields<'_>, version: &str, files: &[PathBuf]) -> String {
    let control = package.control();
    let mut text = AS_IT_IS.join("\n");
    for (name, value) in [
        ("Name", control.name),
        ("Version", version),
        ("Release", "1"),
        ("Summary", control.summary),
        ("License", fields.license),
    ] {
        let _ = write!(text, "\n{name}: {value}");
    }
    for required in fields.requires {
        let _ = write!(text, "\nRequires: {required}");
    }
    let _ = write!(text, "\n\n%description\n{}\n\n%install\n", control.description);
    let _ = writeln!(text, "mkdir -p %{{buildroot}}\ncp -a '{}'/. %{{buildroot}}/\n\n%files", package.root().display());
    text.push_str("%defattr(-,root,root,-)\n");
    for path in files {
        let is_folder = package.root().join(path).is_dir();
        // folders that other packages have too are not this one's
        if !is_folder || path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("strata")) {
            let _ = writeln!(text, "{}\"/{}\"", if is_folder { "%dir " } else { "" }, path.display());
        }
    }
    for (when, script) in fields.scripts {
        let _ = write!(text, "\n%{when}\n{script}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packaging::package::Control;

    #[test]
    fn specification_lists_files_and_own_folders() {
        let folder = tempfile::tempdir().unwrap();
        let control = Control {
            name: "x",
            architecture: "amd64",
            section: "utils",
            relations: &[],
            summary: "does x",
            description: "It does x.",
        };
        let mut package = Package::begin(folder.path(), control).unwrap();
        package.bytes("/usr/bin/x", 0o755, b"#!/bin/sh\n").unwrap();
        package.bytes("/usr/lib/strata/modules/m.ko", 0o644, b"m").unwrap();
        let fields = Fields { license: "MIT", requires: &["kmod"], scripts: &[("post", "true\n")] };

        let text = specification(&package, &fields, "1.2", &listed(package.root()).unwrap());

        assert!(text.contains("\nName: x\nVersion: 1.2\nRelease: 1\nSummary: does x\nLicense: MIT\nRequires: kmod\n"));
        assert!(text.contains("%dir \"/usr/lib/strata\"\n%dir \"/usr/lib/strata/modules\"\n"), "{text}");
        assert!(text.contains("\n\"/usr/bin/x\"\n") && !text.contains("\"/usr/bin\""), "{text}");
        assert!(text.ends_with("\n%post\ntrue\n"), "{text}");
    }
}
