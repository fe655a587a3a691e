//! Texts and paths that another process, another user or a file has chosen: shown only so that nothing in them acts on
//! a terminal or a shell.

use super::{harmless, shell_option, shell_path, shell_word};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

/// A text (`Foreign<String>`) or path (`Foreign<PathBuf>`) from outside. [`Display`](fmt::Display) and
/// [`Debug`](fmt::Debug) escape it, [`Self::word`] and its like quote it for a shell; JSON has it as it is.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Foreign<T>(T);

impl<T> Foreign<T> {
    /// As it came: for comparing, opening and passing on, and not for showing.
    pub const fn raw(&self) -> &T {
        &self.0
    }

    /// As it came, not for showing either.
    pub fn into_raw(self) -> T {
        self.0
    }
}

impl<T: AsRef<OsStr>> Foreign<T> {
    /// As a word of a command line, as [`shell_word`] makes it.
    #[must_use]
    pub fn word(&self) -> String {
        shell_word(&self.0)
    }

    /// As a path of a command line, as [`shell_path`] makes it.
    #[must_use]
    pub fn path_word(&self) -> String {
        shell_path(Path::new(&self.0))
    }

    /// As the value of `option` of a command line, as [`shell_option`] makes it.
    #[must_use]
    pub fn option_word(&self, option: &str) -> String {
        shell_option(option, &self.0)
    }
}

impl<T: AsRef<OsStr>> fmt::Display for Foreign<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&harmless(&self.0.as_ref().to_string_lossy()))
    }
}

impl<T: AsRef<OsStr>> fmt::Debug for Foreign<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{self}\"")
    }
}

impl<T> From<T> for Foreign<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl From<&str> for Foreign<String> {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<&str> for Foreign<PathBuf> {
    fn from(path: &str) -> Self {
        Self(path.into())
    }
}

impl From<&Path> for Foreign<PathBuf> {
    fn from(path: &Path) -> Self {
        Self(path.into())
    }
}

impl<T: AsRef<OsStr>> PartialEq<str> for Foreign<T> {
    fn eq(&self, text: &str) -> bool {
        self.0.as_ref() == text
    }
}

impl<T: AsRef<OsStr>> PartialEq<&str> for Foreign<T> {
    fn eq(&self, text: &&str) -> bool {
        self == *text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Escapes, a line of its own, a mark of direction, and what a shell runs.
    const HOSTILE: &str = "-x\x1b[2J\n\u{202e}'$(id)'";

    #[test]
    fn what_is_shown_has_nothing_that_acts() {
        let (text, path) = (Foreign::<String>::from(HOSTILE), Foreign::<PathBuf>::from(HOSTILE));
        let shown = r"-x\u{1b}[2J\n\u{202e}'$(id)'";

        assert_eq!([text.to_string(), path.to_string()], [shown; 2]);
        assert_eq!(format!("{text:?} {path:?}"), format!("\"{shown}\" \"{shown}\""));
        assert_eq!(format!("{:?}", Some(&text)), format!("Some(\"{shown}\")"));
    }

    #[test]
    fn what_is_copied_to_a_shell_is_one_word_and_no_option() {
        let text = Foreign::<String>::from(HOSTILE);
        let word = r"$'-x\x1b[2J\x0a\xe2\x80\xae\'$(id)\''";

        assert_eq!(text.word(), word);
        assert_eq!(text.option_word("--region"), format!("--region={word}"));
        assert_eq!(text.path_word(), word.replace("$'-x", "$'./-x"));
    }

    #[test]
    fn json_has_it_as_it_came() {
        let text = Foreign::<String>::from(HOSTILE);

        let json = serde_json::to_string(&text).unwrap();

        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), HOSTILE);
        assert_eq!(serde_json::from_str::<Foreign<String>>(&json).unwrap(), text);
    }

    #[test]
    fn width_counts_what_is_shown() {
        assert_eq!(format!("{:<8}|", Foreign::<String>::from("a\n")), "a\\n     |");
    }
}
