//! One Debian package: a tree of files, the fields that describe it, and `dpkg-deb` to put them together.

use crate::fetch::apt::{PackageError, recreate};
use crate::process;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a package is called, for whom, and what it needs.
#[derive(Debug, Clone, Copy)]
pub struct Control<'a> {
    /// The package's name.
    pub name: &'a str,
    /// `amd64`, or `all` for what any machine can use.
    pub architecture: &'a str,
    /// The archive's section.
    pub section: &'a str,
    /// Relations to other packages: a field name and its value.
    pub relations: &'a [(&'a str, &'a str)],
    /// First line of the description.
    pub summary: &'a str,
    /// The description's text, a paragraph.
    pub description: &'a str,
}

/// A package in the making, in a folder of its own.
#[derive(Debug)]
pub struct Package<'a> {
    control: Control<'a>,
    version: &'a str,
    root: PathBuf,
    has_configuration: bool,
}

fn error(path: &Path) -> impl FnOnce(io::Error) -> PackageError + use<> {
    let path = path.to_path_buf();
    move |source| PackageError::File { path, source }
}

impl<'a> Package<'a> {
    /// Begins a package in an empty folder below `staging`.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made.
    pub fn begin(staging: &Path, control: Control<'a>, version: &'a str) -> Result<Self, PackageError> {
        let root = staging.join(control.name);
        recreate(&root)?;
        Ok(Self { control, version, root, has_configuration: false })
    }

    /// The package's name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.control.name
    }

    /// Adds a file with this content and these permissions (octal, such as `0o755`); `path` is absolute.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn bytes(&mut self, path: &str, permissions: u32, content: &[u8]) -> Result<(), PackageError> {
        let target = self.target(path)?;
        fs::write(&target, content).map_err(error(&target))?;
        fs::set_permissions(&target, fs::Permissions::from_mode(permissions)).map_err(error(&target))
    }

    /// Adds a copy of a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read or written.
    pub fn file(&mut self, path: &str, permissions: u32, from: &Path) -> Result<(), PackageError> {
        let content = fs::read(from).map_err(error(from))?;
        self.bytes(path, permissions, &content)
    }

    /// Adds a program or library without what only debuggers use.
    ///
    /// # Errors
    ///
    /// When it cannot be stripped or written.
    pub fn stripped(&mut self, path: &str, permissions: u32, from: &Path) -> Result<(), PackageError> {
        let target = self.target(path)?;
        let mut strip = Command::new("strip");
        let sections = ["--remove-section=.comment", "--remove-section=.note", "--strip-unneeded"];
        process::capture(strip.args(sections).arg("-o").arg(&target).arg(from))?;
        fs::set_permissions(&target, fs::Permissions::from_mode(permissions)).map_err(error(&target))
    }

    /// Adds copies of all files below a folder, hidden ones left out.
    ///
    /// # Errors
    ///
    /// When one cannot be read or written.
    pub fn folder(&mut self, path: &str, from: &Path) -> Result<(), PackageError> {
        for entry in fs::read_dir(from).map_err(error(from))? {
            let entry = entry.map_err(error(from))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let inner = format!("{path}/{name}");
            if name.starts_with('.') {
                continue;
            }
            if entry.path().is_dir() {
                self.folder(&inner, &entry.path())?;
            } else {
                self.file(&inner, 0o644, &entry.path())?;
            }
        }
        Ok(())
    }

    /// Adds a symbolic link at `path`.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn link(&mut self, path: &str, to: &str) -> Result<(), PackageError> {
        let target = self.target(path)?;
        symlink(to, &target).map_err(error(&target))
    }

    /// Adds a script that dpkg runs, such as `postinst`, or another file that describes the package to it.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn script(&mut self, name: &str, permissions: u32, text: &str) -> Result<(), PackageError> {
        self.bytes(&format!("/DEBIAN/{name}"), permissions, text.as_bytes())
    }

    /// Adds what every package says of itself: the licence and what has changed.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn documentation(&mut self, copyright: &str, changelog: &str) -> Result<(), PackageError> {
        let folder = format!("/usr/share/doc/{}", self.control.name);
        self.bytes(&format!("{folder}/copyright"), 0o644, copyright.as_bytes())?;
        self.compressed(&format!("{folder}/changelog.Debian"), changelog.as_bytes())
    }

    /// Adds a manual page; `name` has its section: `strata.1`.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn manual_page(&mut self, name: &str, page: &[u8]) -> Result<(), PackageError> {
        let section = name.rsplit('.').next().unwrap_or_default();
        self.compressed(&format!("/usr/share/man/man{section}/{name}"), page)
    }

    /// Adds the file `path`.gz.
    fn compressed(&mut self, path: &str, content: &[u8]) -> Result<(), PackageError> {
        self.bytes(path, 0o644, content)?;
        process::capture(Command::new("gzip").args(["-9", "--no-name"]).arg(self.target(path)?))?;
        Ok(())
    }

    /// Puts the package together in the folder `out` and returns its file.
    ///
    /// # Errors
    ///
    /// When `dpkg-deb` fails.
    pub fn finish(mut self, out: &Path) -> Result<PathBuf, PackageError> {
        let size = self.installed_kib(&self.root)?;
        let control = control_text(&self.control, self.version, size);
        self.script("control", 0o644, &control)?;
        let sums = "cd \"$1\" && find . -type f ! -path './DEBIAN/*' -printf '%P\\0' | LC_ALL=C sort -z | \
                    xargs -r -0 md5sum > DEBIAN/md5sums && find . -type d -exec chmod 0755 {} +";
        process::capture(Command::new("sh").args(["-c", sums, "sums"]).arg(&self.root))?;
        let file = out.join(format!("{}_{}_{}.deb", self.control.name, self.version, self.control.architecture));
        fs::create_dir_all(out).map_err(error(out))?;
        let mut dpkg = Command::new("dpkg-deb");
        process::capture(dpkg.args(["--root-owner-group", "-Zxz", "--build"]).arg(&self.root).arg(&file))?;
        Ok(file)
    }

    /// The place of the file `path` in the package's tree, whose folders are made.
    fn target(&mut self, path: &str) -> Result<PathBuf, PackageError> {
        self.has_configuration |= path.starts_with("/etc/");
        debug_assert!(!self.has_configuration, "a package with configuration files has to list them");
        let target = self.root.join(path.trim_start_matches('/'));
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(error(folder))?;
        }
        Ok(target)
    }

    fn installed_kib(&self, folder: &Path) -> Result<u64, PackageError> {
        let mut size = 0;
        for entry in fs::read_dir(folder).map_err(error(folder))? {
            let path = entry.map_err(error(folder))?.path();
            let meta = fs::symlink_metadata(&path).map_err(error(&path))?;
            size += if meta.is_dir() { 1 + self.installed_kib(&path)? } else { meta.len().div_ceil(1024) };
        }
        Ok(size)
    }
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
        let mut package = Package::begin(folder.path(), CONTROL, "1.0-1").unwrap();
        package.bytes("/usr/bin/x", 0o755, b"#!/bin/sh\n").unwrap();
        package.link("/usr/bin/y", "x").unwrap();
        package.script("postinst", 0o755, "#!/bin/sh\n").unwrap();
        package.documentation("mine", "x-y (1.0-1) unstable; urgency=low\n").unwrap();
        package.manual_page("x-y.8", b".TH x-y 8\n").unwrap();

        let file = package.finish(&folder.path().join("out")).unwrap();

        assert!(file.ends_with("out/x-y_1.0-1_all.deb"));
        let listed = process::capture(Command::new("dpkg-deb").arg("--contents").arg(&file)).unwrap();
        let has = |mode: &str, name: &str| listed.lines().any(|line| line.starts_with(mode) && line.ends_with(name));
        assert!(has("-rwxr-xr-x root/root", "./usr/bin/x"), "{listed}");
        assert!(has("lrwxrwxrwx root/root", "./usr/bin/y -> x"), "{listed}");
        assert!(has("-rw-r--r-- root/root", "./usr/share/doc/x-y/changelog.Debian.gz"), "{listed}");
        assert!(has("-rw-r--r-- root/root", "./usr/share/man/man8/x-y.8.gz"), "{listed}");
        let information = process::capture(Command::new("dpkg-deb").arg("--info").arg(&file)).unwrap();
        assert!(information.contains("postinst") && information.contains("md5sums"), "{information}");
    }
}
