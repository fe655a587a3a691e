//! Files that get their name once complete.

use std::io;
use std::path::Path;
use tempfile::TempPath;

/// Where `file` is written: beside it, `.partial` behind its name. [`TempPath::persist`] gives it its name; without
/// that, or when that fails, what was written is removed.
///
/// # Errors
/// When the path is relative and the current folder is gone.
pub fn partial(file: &Path) -> io::Result<TempPath> {
    let mut path = file.as_os_str().to_owned();
    path.push(".partial");
    TempPath::try_from_path(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn file_that_is_complete_has_its_name_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.ko");

        let partial = partial(&file).unwrap();
        fs::write(&partial, "module").unwrap();
        partial.persist(&file).unwrap();

        assert_eq!(fs::read(&file).unwrap(), b"module");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_that_cannot_have_its_name_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.ko");
        fs::create_dir(&file).unwrap();

        let partial = partial(&file).unwrap();
        fs::write(&partial, "module").unwrap();
        let refused = partial.persist(&file).map_err(io::Error::from);

        assert!(refused.is_err());
        assert!(!folder.path().join("a.ko.partial").exists());
    }
}
