//! A package as Debian has it: `dpkg-deb` puts it together.

use crate::fetch::apt::PackageError;
use crate::packaging::RELEASED;
use crate::packaging::package::{Control, Package, error, listed};
use crate::process;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of what describes the package.
const CONTROL_FOLDER: &str = "DEBIAN";
/// Where zsh looks for what packages bring to complete command lines: elsewhere, and in Debian.
const ZSH_FOLDERS: [&str; 2] = ["usr/share/zsh/site-functions", "usr/share/zsh/vendor-completions"];

/// Adds to `package` what only Debian's tools read, puts it together as `version` in the folder `out`, and returns its
/// file. `changelog` says what has changed.
///
/// # Errors
///
/// When a file cannot be written, or `dpkg-deb` fails.
pub fn write(package: &mut Package<'_>, version: &str, changelog: &str, out: &Path) -> Result<PathBuf, PackageError> {
    let name = package.name();
    package.compressed(&format!("/usr/share/doc/{name}/changelog.Debian"), changelog.as_bytes())?;
    if let Some(text) = package.lintian_overrides().map(str::to_owned) {
        package.bytes(&format!("/usr/share/lintian/overrides/{name}"), 0o644, text.as_bytes())?;
    }
    let [elsewhere, here] = ZSH_FOLDERS.map(|folder| package.root().join(folder));
    if elsewhere.is_dir() {
        fs::rename(&elsewhere, &here).map_err(error(&here))?;
    }
    let size = installed_kib(package.root())?;
    let folder = package.root().join(CONTROL_FOLDER);
    fs::create_dir_all(&folder).map_err(error(&folder))?;
    let control = control_text(package.control(), version, size);
    let scripts =
        package.scripts().iter().map(|script| (script.name.as_str(), script.permissions, script.text.as_str()));
    for (name, permissions, text) in scripts.chain([("control", 0o644, control.as_str())]) {
        let path = folder.join(name);
        fs::write(&path, text).map_err(error(&path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(permissions)).map_err(error(&path))?;
    }
    let sums = "cd \"$1\" && find . -type f ! -path './DEBIAN/*' -printf '%P\\0' | LC_ALL=C sort -z | \
                xargs -r -0 md5sum > DEBIAN/md5sums";
    process::capture(Command::new("sh").args(["-c", sums, "sums"]).arg(package.root()))?;
    package.settle()?;
    let file = out.join(format!("{name}_{version}_{}.deb", package.control().architecture));
    fs::create_dir_all(out).map_err(error(out))?;
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.env("SOURCE_DATE_EPOCH", RELEASED.to_string());
    process::capture(dpkg.args(["--root-owner-group", "-Zxz", "--build"]).arg(package.root()).arg(&file))?;
    fs::remove_dir_all(&folder).map_err(error(&folder))?;
    Ok(file)
}

/// What the files below `root` take, KiB, by Debian's reckoning: each rounded up, a folder is one.
fn installed_kib(root: &Path) -> Result<u64, PackageError> {
    let mut size = 0;
    for path in listed(root)? {
        let path = root.join(path);
        let meta = fs::symlink_metadata(&path).map_err(error(&path))?;
        size += if meta.is_dir() { 1 } else { meta.len().div_ceil(1024) };
    }
    Ok(size)
}

/// The packages' maintainer: whom the variables of Debian's tools name, or a name without an address that works.
#[must_use]
pub fn maintainer() -> String {
    let variable = |name: &str, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    format!(
        "{} <{}>",
        variable("DEBFULLNAME", "The Strata authors"),
        variable("DEBEMAIL", "strata@localhost.localdomain")
    )
}

fn control_text(control: &Control<'_>, version: &str, installed_kib: u64) -> String {
    let mut text = format!("Package: {}\nVersion: {version}\n", control.name);
    let mut field = |name: &str, value: &str| text.push_str(&format!("{name}: {value}\n"));
    field("Architecture", control.architecture);
    field("Maintainer", &maintainer());
    field("Installed-Size", &installed_kib.to_string());
    for (name, value) in control.relations {
        field(name, value);
    }
    field("Section", control.section);
    field("Priority", "optional");
    field("Description", control.summary);
    // a line of the extended description begins with a blank
    for line in wrapped(control.description, 78) {
        text.push_str(&format!(" {line}\n"));
    }
    text
}

/// Words in lines of at most `width` characters.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last].push_str(word);
        } else if lines[last].len() + 1 + word.len() <= width {
            lines[last].push(' ');
            lines[last].push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: Control<'_> = Control {
        name: "x-y",
        architecture: "all",
        section: "kernel",
        relations: &[("Depends", "dkms (>= 3)")],
        summary: "does x",
        description: "It does x and y and z, on every machine that there is, on each of them more than once a day.",
    };

    #[test]
    fn control_has_the_fields_in_order_and_a_wrapped_description() {
        let text = control_text(&CONTROL, "1.0-1", 17);

        assert!(text.starts_with("Package: x-y\nVersion: 1.0-1\nArchitecture: all\nMaintainer: "), "{text}");
        assert!(text.contains("Installed-Size: 17\nDepends: dkms (>= 3)\nSection: kernel\n"), "{text}");
        assert!(text.lines().skip_while(|line| !line.starts_with("Description: does x")).count() == 3, "{text}");
        assert!(text.lines().all(|line| line.len() <= 80));
    }

    #[test]
    fn package_holds_its_files_with_their_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let mut package = Package::begin(folder.path(), CONTROL).unwrap();
        package.bytes("/usr/bin/x", 0o755, b"#!/bin/sh\n").unwrap();
        package.link("/usr/bin/y", "x").unwrap();
        package.script("postinst", 0o755, "#!/bin/sh\n");
        package.manual_page("x-y.8", b".TH x-y 8\n").unwrap();
        package.bytes("/usr/share/zsh/site-functions/_x", 0o644, b"#compdef x\n").unwrap();

        let changelog = "x-y (1.0-1) unstable; urgency=low\n";
        let file = write(&mut package, "1.0-1", changelog, &folder.path().join("out")).unwrap();

        assert!(file.ends_with("out/x-y_1.0-1_all.deb"));
        let listed = process::capture(Command::new("dpkg-deb").arg("--contents").arg(&file)).unwrap();
        let has = |mode: &str, name: &str| listed.lines().any(|line| line.starts_with(mode) && line.ends_with(name));
        assert!(has("-rwxr-xr-x root/root", "./usr/bin/x"), "{listed}");
        assert!(has("lrwxrwxrwx root/root", "./usr/bin/y -> x"), "{listed}");
        assert!(has("-rw-r--r-- root/root", "./usr/share/doc/x-y/changelog.Debian.gz"), "{listed}");
        assert!(has("-rw-r--r-- root/root", "./usr/share/man/man8/x-y.8.gz"), "{listed}");
        assert!(has("-rw-r--r-- root/root", "./usr/share/zsh/vendor-completions/_x"), "{listed}");
        assert!(!listed.contains("site-functions"), "{listed}");
        let information = process::capture(Command::new("dpkg-deb").arg("--info").arg(&file)).unwrap();
        assert!(information.contains("postinst") && information.contains("md5sums"), "{information}");
    }
}
