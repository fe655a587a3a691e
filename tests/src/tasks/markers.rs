//! Parts of documents that commands write: what stands between the lines `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why a part was not written.
#[derive(Debug, thiserror::Error)]
pub enum MarkersError {
    /// The document cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// The document.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// There is no such part.
    #[error("{} lacks the lines {} and {}", path.display(), begin(name), end(name))]
    Missing {
        /// The document.
        path: PathBuf,
        /// The part's name.
        name: String,
    },
}

fn begin(name: &str) -> String {
    format!("<!-- {name}: begin -->")
}

fn end(name: &str) -> String {
    format!("<!-- {name}: end -->")
}

/// Puts `content`, whose last line is a whole one, into the part `name` of `document`.
///
/// # Errors
///
/// When the document has no such part, or cannot be read or written.
pub fn write_into(document: &Path, name: &str, content: &str) -> Result<(), MarkersError> {
    let error = |source| MarkersError::File { path: document.into(), source };
    let text = fs::read_to_string(document).map_err(error)?;
    let missing = || MarkersError::Missing { path: document.into(), name: name.to_owned() };
    let new = replaced(&text, name, content).ok_or_else(missing)?;
    fs::write(document, new).map_err(error)
}

fn replaced(text: &str, name: &str, content: &str) -> Option<String> {
    let (begin, end) = (begin(name), end(name));
    let (before, rest) = text.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n\n{content}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_replaces_what_was_in_its_part_and_nothing_else() {
        let part = |content| format!("<!-- b: begin -->\n\n{content}\n<!-- b: end -->");
        let text = |content| format!("a\n<!-- a: begin -->\nx\n<!-- a: end -->\n{}\nc\n", part(content));

        assert_eq!(replaced(&text("old\n"), "b", "new\n"), Some(text("new\n")));
        assert_eq!(replaced("<!-- b: begin -->", "b", "new\n"), None);
    }
}
