//! Kernel modules out of an unpacked kernel package: which files are needed for a module, and in which order.

use crate::process::{self, ProcessError};
use object::{Object, ObjectSection};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::NamedTempFile;

/// Why modules could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum ModulesError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel package has no such module, and it is not built in.
    #[error("the kernel has no module {0}")]
    Missing(String),
    /// A compressed module could not be unpacked.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A module file is damaged.
    #[error("{} is not a kernel module", .0.display())]
    NotAModule(PathBuf),
}

/// The ending of modules that newer kernels compress.
const COMPRESSED: &str = ".xz";

/// The modules of one kernel.
#[derive(Debug)]
pub struct ModuleTree {
    files: BTreeMap<String, PathBuf>,
    builtin: Vec<String>,
}

/// The name by which the kernel knows a module file: without the endings, with underscores. `None` for other files.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy().replace('-', "_");
    name.strip_suffix(COMPRESSED).unwrap_or(&name).strip_suffix(".ko").map(str::to_owned)
}

/// Unpacks a compressed module beside itself, unless that has been done; returns the file to load. Others may do the
/// same at the same time: the file appears when it is complete.
fn uncompressed(path: &Path) -> Result<PathBuf, ModulesError> {
    if path.extension().is_none_or(|ending| ending != "xz") {
        return Ok(path.to_path_buf());
    }
    let plain = path.with_extension("");
    if !plain.exists() {
        let error = |source| ModulesError::File { path: plain.clone(), source };
        let folder = path.parent().unwrap_or(Path::new("."));
        let unpacked = NamedTempFile::new_in(folder).map_err(error)?;
        let into = unpacked.reopen().map_err(error)?;
        let mut unpack = Command::new("xz");
        process::capture(unpack.args(["--decompress", "--stdout", "--quiet"]).arg(path).stdout(into))?;
        unpacked.persist(&plain).map_err(|failed| error(failed.error))?;
    }
    Ok(plain)
}

impl ModuleTree {
    /// Lists the modules below `folder`, the kernel's `lib/modules/RELEASE`.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn open(folder: &Path) -> Result<Self, ModulesError> {
        let mut files = BTreeMap::new();
        let mut folders = vec![folder.join("kernel")];
        while let Some(folder) = folders.pop() {
            let error = |source| ModulesError::File { path: folder.clone(), source };
            for entry in fs::read_dir(&folder).map_err(error)? {
                let entry = entry.map_err(error)?;
                let path = entry.path();
                if entry.file_type().map_err(error)?.is_dir() {
                    folders.push(path);
                } else if let Some(name) = module_name(&path) {
                    files.insert(name, path);
                }
            }
        }
        let list = folder.join("modules.builtin");
        let text = fs::read_to_string(&list).map_err(|source| ModulesError::File { path: list, source })?;
        let builtin = text.lines().filter_map(|line| module_name(Path::new(line))).collect();
        Ok(Self { files, builtin })
    }

    /// The files of `wanted` and of everything they depend on, each once, dependencies first: the order of insertion.
    /// What is built into the kernel is left out.
    ///
    /// # Errors
    ///
    /// When a module is neither there nor built in, or its file cannot be read.
    pub fn closure(&self, wanted: &[&str]) -> Result<Vec<PathBuf>, ModulesError> {
        let order = dependency_order(wanted, |name| {
            if self.builtin.iter().any(|builtin| builtin == name) {
                return Ok(None);
            }
            let path = self.files.get(name).ok_or_else(|| ModulesError::Missing(name.to_owned()))?;
            uncompressed(path).and_then(|path| depends(&path)).map(Some)
        })?;
        order.iter().map(|name| uncompressed(&self.files[name])).collect()
    }
}

/// Depth-first order of `wanted` over the relation `depends`, which answers `None` for what needs no loading.
fn dependency_order<E>(
    wanted: &[&str],
    depends: impl Fn(&str) -> Result<Option<Vec<String>>, E>,
) -> Result<Vec<String>, E> {
    let mut order: Vec<String> = Vec::new();
    // (name, its dependencies are already pushed)
    let mut stack: Vec<(String, bool)> = wanted.iter().rev().map(|name| (name.replace('-', "_"), false)).collect();
    while let Some((name, expanded)) = stack.pop() {
        if order.contains(&name) {
            continue;
        }
        if expanded {
            order.push(name);
        } else if let Some(needed) = depends(&name)? {
            stack.push((name, true));
            stack.extend(needed.into_iter().map(|needed| (needed, false)));
        }
    }
    Ok(order)
}

/// The names on the `depends=` entry of a module file.
fn depends(path: &Path) -> Result<Vec<String>, ModulesError> {
    let bytes = fs::read(path).map_err(|source| ModulesError::File { path: path.to_path_buf(), source })?;
    let file = object::File::parse(&*bytes).map_err(|_| ModulesError::NotAModule(path.to_path_buf()))?;
    let info = file
        .section_by_name(".modinfo")
        .and_then(|section| section.data().ok())
        .ok_or_else(|| ModulesError::NotAModule(path.to_path_buf()))?;
    Ok(parse_depends(info))
}

fn parse_depends(modinfo: &[u8]) -> Vec<String> {
    modinfo
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(b"depends="))
        .flat_map(|names| names.split(|byte| *byte == b','))
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(name: &str) -> Result<Option<Vec<String>>, String> {
        let needed = match name {
            "kvm_amd" => vec!["kvm"],
            "kvm" => vec!["irqbypass"],
            "irqbypass" => vec![],
            "ext4" => return Ok(None),
            other => return Err(other.to_owned()),
        };
        Ok(Some(needed.into_iter().map(str::to_owned).collect()))
    }

    #[test]
    fn dependency_order_puts_what_is_needed_first_and_once() {
        let order = dependency_order(&["kvm-amd", "kvm", "ext4"], graph).unwrap();

        assert_eq!(order, ["irqbypass", "kvm", "kvm_amd"]);
    }

    #[test]
    fn dependency_order_names_what_is_missing() {
        assert_eq!(dependency_order(&["nothere"], graph), Err("nothere".to_owned()));
    }

    #[test]
    fn module_name_is_that_of_the_kernel() {
        assert_eq!(module_name(Path::new("kernel/arch/x86/kvm/kvm-amd.ko")).as_deref(), Some("kvm_amd"));
        assert_eq!(module_name(Path::new("kvm-amd.ko.xz")).as_deref(), Some("kvm_amd"));
        assert_eq!(module_name(Path::new("modules.order")), None);
    }

    #[test]
    fn parse_depends_splits_the_list() {
        let modinfo = b"license=GPL\0depends=virtio_ring,virtio-pci\0name=x\0";

        assert_eq!(parse_depends(modinfo), ["virtio_ring", "virtio_pci"]);
        assert!(parse_depends(b"depends=\0").is_empty());
    }
}
