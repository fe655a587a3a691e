//! Text of others on a terminal: which characters act on it instead of being shown, and how they are shown all the same.

pub mod foreign;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether `character` acts on what is shown around it: a control, or one that changes the direction of text or begins a
/// line, so that what stands beside it is read as something else.
#[must_use]
pub fn acts(character: char) -> bool {
    let is_of_direction = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    is_of_direction || character.is_control()
}

/// `text`, which a guest may have chosen, so that nothing in it acts on a terminal.
#[must_use]
pub fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if acts(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// `json`, a JSON document, so that nothing in it acts on a terminal and it means the same: what acts stands in its texts,
/// where it has an escape.
#[must_use]
pub fn harmless_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if acts(character) && character != '\n' {
            shown.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Writes text to `W` so that nothing in it acts on a terminal but the ends of its lines: for reports, which quote what a
/// recording says in many places.
#[derive(Debug)]
pub struct HarmlessText<W>(pub W);

impl<W: Write> Write for HarmlessText<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Text comes in whole characters.
        for chunk in bytes.utf8_chunks() {
            let mut lines = chunk.valid().split('\n');
            lines.next().map_or(Ok(()), |line| self.0.write_all(harmless(line).as_bytes()))?;
            lines.try_for_each(|line| write!(self.0, "\n{}", harmless(line)))?;
            self.0.write_all(chunk.invalid())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes JSON to `W` as [`harmless_json`] shows it.
#[derive(Debug)]
pub struct HarmlessJson<W>(pub W);

impl<W: Write> Write for HarmlessJson<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // JSON comes in whole characters.
        for chunk in bytes.utf8_chunks() {
            if chunk.valid().chars().any(acts) {
                self.0.write_all(harmless_json(chunk.valid()).as_bytes())?;
            } else {
                self.0.write_all(chunk.valid().as_bytes())?;
            }
            self.0.write_all(chunk.invalid())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// `text` as a word of a shell's command line, for advice that is copied: nothing in it acts on the terminal or the shell.
/// What begins with `-` may still pass for an option: [`shell_path`] and [`shell_option`] see to that.
#[must_use]
pub fn shell_word(text: impl AsRef<OsStr>) -> String {
    let text = text.as_ref();
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/._-+:,@%".contains(character);
    match text.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(is_plain) => return text.into(),
        Some(text) if !text.chars().any(acts) => return format!("'{}'", text.replace('\'', r"'\''")),
        _ => {}
    }
    let mut word = String::from("$'");
    let escape = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    for chunk in text.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\'' | '\\' => word.extend(['\\', character]),
                _ if acts(character) => word.push_str(&escape(character.encode_utf8(&mut [0; 4]).as_bytes())),
                _ => word.push(character),
            }
        }
        word.push_str(&escape(chunk.invalid()));
    }
    word.push('\'');
    word
}

/// `path` as such a word, which passes for no option.
#[must_use]
pub fn shell_path(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    if path.as_os_str().as_bytes().starts_with(b"-") { shell_word(Path::new(".").join(path)) } else { shell_word(path) }
}

/// `option` with its `value` as such words: in one where the value would pass for an option itself.
#[must_use]
pub fn shell_option(option: &str, value: impl AsRef<OsStr>) -> String {
    let between = if value.as_ref().as_bytes().starts_with(b"-") { '=' } else { ' ' };
    format!("{option}{between}{}", shell_word(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_written_keeps_its_lines_and_nothing_else_that_acts() {
        let mut out = HarmlessText(Vec::new());

        out.write_all("\na\x1b[2J\né\u{202e}\r\n\n".as_bytes()).unwrap();

        assert_eq!(String::from_utf8(out.0).unwrap(), "\na\\u{1b}[2J\né\\u{202e}\\r\n\n");
    }

    #[test]
    fn json_has_nothing_that_acts_but_its_lines_and_means_the_same() {
        let value = serde_json::json!({"a\n\u{9b}": ["\x1b[2J", "\u{202e}é\x7f"]});

        let shown = harmless_json(&serde_json::to_string_pretty(&value).unwrap());
        let mut written = HarmlessJson(Vec::new());
        serde_json::to_writer_pretty(&mut written, &value).unwrap();

        assert_eq!(String::from_utf8(written.0).unwrap(), shown);
        assert!(!shown.chars().any(|character| acts(character) && character != '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn word_of_a_shell_stands_for_the_text_and_for_nothing_else() {
        assert_eq!(shell_word("/run/strata/vm0-42"), "/run/strata/vm0-42");
        assert_eq!(shell_word("/run/x; touch pwned; #"), "'/run/x; touch pwned; #'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("a\x1b'\\\u{202e}"), r"$'a\x1b\'\\\xe2\x80\xae'");
    }

    #[test]
    fn what_begins_as_an_option_passes_for_none() {
        let paths = ["-rf", "-r f", "a-b", "/-x"].map(shell_path);
        let options = ["-x", "- x", "x-"].map(|name| shell_option("--task", name));

        assert_eq!(paths, ["./-rf", "'./-r f'", "a-b", "/-x"]);
        assert_eq!(options, ["--task=-x", "--task='- x'", "--task x-"]);
    }

    #[test]
    fn shell_reads_the_word_as_the_text_whatever_its_bytes() {
        let text = b"a\x1b'\\ $(id) \xe2\x80\xae\n;\xff1";

        let script = format!("printf %s {}", shell_word(OsStr::from_bytes(text)));
        let read = std::process::Command::new("bash").args(["-c", &script]).output().unwrap().stdout;

        assert_eq!(read, text);
    }

    #[test]
    fn controls_and_marks_of_direction_act_and_letters_of_any_script_do_not() {
        // Every character that Unicode calls Bidi_Control.
        let marks = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";

        assert!(marks.chars().chain("\x1b\n\u{9b}\u{2028}".chars()).all(acts));
        assert!(!"aé…שع中\u{200d}".chars().any(acts));
    }

    #[test]
    fn controls_are_harmless_and_letters_stay() {
        assert_eq!(harmless("a\x1b\u{202e}é"), "a\\u{1b}\\u{202e}é");
    }
}
