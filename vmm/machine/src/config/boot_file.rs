//! A file that a guest is booted with: kernel or initrd.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that a guest is booted with.
#[derive(Clone, Debug)]
pub enum BootFile {
    /// A file of the host, opened when the guest is loaded.
    Path(PathBuf),
    /// Content that is in memory already.
    Held {
        /// Where it comes from, for messages.
        name: PathBuf,
        /// The content. Whoever opens it reads it from its beginning, one after another.
        content: Arc<File>,
    },
}

impl BootFile {
    /// Its path, or where it comes from.
    #[must_use]
    pub fn name(&self) -> &Path {
        match self {
            Self::Path(path) => path,
            Self::Held { name, .. } => name,
        }
    }

    /// Opens it for reading at its beginning, without waiting: a FIFO would have it wait for somebody at its other end.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(&self) -> io::Result<File> {
        match self {
            Self::Path(path) => open(path, OpenOptions::new().read(true)),
            Self::Held { content, .. } => {
                let mut file = content.try_clone()?;
                file.rewind()?;
                Ok(file)
            }
        }
    }

    /// Its whole content.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open()?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The same by name only: what it holds in memory is no longer needed.
    #[must_use]
    pub fn named(&self) -> Self {
        Self::Path(self.name().to_path_buf())
    }
}

impl From<PathBuf> for BootFile {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

/// Opens `path` as `options` say, without waiting.
pub(super) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = i32::from_ne_bytes(rustix::fs::OFlags::NONBLOCK.bits().to_ne_bytes());
    options.custom_flags(flags).open(path)
}
