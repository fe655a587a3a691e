//! One package in the making, whatever its form will be: a tree of files, and what describes it.

use crate::fetch::apt::{PackageError, recreate};
use crate::packaging::RELEASED;
use crate::process;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a package is called, for whom, and what it needs.
#[derive(Clone, Copy, Debug)]
pub struct Control<'a> {
    /// The package's name.
    pub name: &'a str,
    /// `amd64`, or `all` for what any machine can use.
    pub architecture: &'a str,
    /// The archive's section.
    pub section: &'a str,
    /// Relations to other packages, as Debian writes them: a field name and its value.
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
    root: PathBuf,
    has_configuration: bool,
    scripts: Vec<Script>,
    lintian_overrides: Option<String>,
}

/// A script that dpkg runs, or another file that describes a package to it.
#[derive(Debug)]
pub struct Script {
    /// Its name, such as `postinst`.
    pub name: String,
    /// Its permissions (octal).
    pub permissions: u32,
    /// Its content.
    pub text: String,
}

pub(super) fn error(path: &Path) -> impl FnOnce(io::Error) -> PackageError + use<> {
    let path = path.to_path_buf();
    move |source| PackageError::File { path, source }
}

impl<'a> Package<'a> {
    /// Begins a package in an empty folder below `staging`.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made.
    pub fn begin(staging: &Path, control: Control<'a>) -> Result<Self, PackageError> {
        let root = staging.join(control.name);
        recreate(&root)?;
        Ok(Self { control, root, has_configuration: false, scripts: Vec::new(), lintian_overrides: None })
    }

    /// What describes the package.
    #[must_use]
    pub fn control(&self) -> &Control<'a> {
        &self.control
    }

    /// The folder that holds its files by their paths.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What dpkg is given beside the files.
    #[must_use]
    pub fn scripts(&self) -> &[Script] {
        &self.scripts
    }

    /// Lintian's findings that do not hold for it.
    #[must_use]
    pub fn lintian_overrides(&self) -> Option<&str> {
        self.lintian_overrides.as_deref()
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
        // A build id is a hash of the whole program. The names of functions that LLVM makes public between modules end
        // with a hash that two builds of the same sources may not share.
        let sections = [".comment", ".note", ".note.gnu.build-id"].map(|name| format!("--remove-section={name}"));
        process::capture(strip.args(sections).arg("--strip-unneeded").arg("-o").arg(&target).arg(from))?;
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
    pub fn script(&mut self, name: &str, permissions: u32, text: &str) {
        self.scripts.push(Script { name: name.to_owned(), permissions, text: text.to_owned() });
    }

    /// Says what lintian is not to say.
    pub fn override_lintian(&mut self, text: String) {
        self.lintian_overrides = Some(text);
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
    ///
    /// # Errors
    ///
    /// When it cannot be compressed or written.
    pub fn compressed(&mut self, path: &str, content: &[u8]) -> Result<(), PackageError> {
        self.bytes(path, 0o644, content)?;
        process::capture(Command::new("gzip").args(["-9", "--no-name"]).arg(self.target(path)?))?;
        Ok(())
    }

    /// Gives every file and folder the time of the release, and folders the usual permissions, behind all that was
    /// added.
    ///
    /// # Errors
    ///
    /// When a time or permissions cannot be set.
    pub fn settle(&self) -> Result<(), PackageError> {
        let mut find = Command::new("find");
        process::capture(find.arg(&self.root).args(["-type", "d", "-exec", "chmod", "0755", "{}", "+"]))?;
        settle(&self.root)
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
}

/// Gives `root` and all that is below it the time of the release.
///
/// # Errors
///
/// When a time cannot be set.
pub(super) fn settle(root: &Path) -> Result<(), PackageError> {
    let date = format!("--date=@{RELEASED}");
    let mut touch = Command::new("find");
    process::capture(touch.arg(root).args(["-exec", "touch", "--no-dereference", &date, "{}", "+"]))?;
    Ok(())
}

/// The files below `root`, and its folders, by their paths in it: each folder before what it holds.
///
/// # Errors
///
/// When a folder cannot be read.
pub fn listed(root: &Path) -> Result<Vec<PathBuf>, PackageError> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(error(&folder))? {
            let entry = entry.map_err(error(&folder))?;
            let kind = entry.file_type().map_err(error(&folder))?;
            if kind.is_dir() {
                folders.push(entry.path());
            }
            found.extend(entry.path().strip_prefix(root).map(Path::to_path_buf));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: Control<'_> =
        Control { name: "made", architecture: "amd64", section: "misc", relations: &[], summary: "", description: "" };

    #[test]
    fn folders_of_a_settled_package_are_open_to_all() {
        let staging = tempfile::tempdir().unwrap();
        let mut package = Package::begin(staging.path(), CONTROL).unwrap();
        package.bytes("/usr/bin/x", 0o700, b"x").unwrap();
        let usr = package.root().join("usr");
        fs::set_permissions(&usr, fs::Permissions::from_mode(0o700)).unwrap();

        package.settle().unwrap();

        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!([mode(&usr), mode(&usr.join("bin")), mode(&usr.join("bin/x"))], [0o755, 0o755, 0o700]);
    }

    #[test]
    fn programs_that_only_the_build_id_tells_apart_are_equal_once_stripped() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source.c");
        fs::write(&source, "int main(void) { return 0; }").unwrap();
        let mut package = Package::begin(folder.path(), CONTROL).unwrap();
        let mut stripped = |id: &str| {
            let program = folder.path().join(id);
            let link = format!("-Wl,--build-id={id}");
            process::capture(Command::new("gcc-12").arg(link).arg("-o").arg(&program).arg(&source)).unwrap();
            package.stripped(&format!("/{id}"), 0o755, &program).unwrap();
            [program, package.root().join(id)].map(|path| fs::read(path).unwrap())
        };

        let [built, shipped] = stripped("0x01");
        let [other_built, other_shipped] = stripped("0x02");

        assert!(built != other_built && shipped == other_shipped, "{} and {} bytes", built.len(), shipped.len());
    }
}
