//! Text of others on a terminal: which characters act on it instead of being shown, and how they are shown all the same.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
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

/// `value` with all texts in it harmless, keys of maps too: for showing what a stranger's process has answered.
///
/// # Errors
/// When `value` is not the same after it has been JSON.
pub fn harmless_copy<T: Serialize + DeserializeOwned>(value: &T) -> serde_json::Result<T> {
    serde_json::from_value(harmless_value(serde_json::to_value(value)?))
}

fn harmless_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(harmless(&text)),
        Value::Array(values) => values.into_iter().map(harmless_value).collect(),
        Value::Object(entries) => {
            entries.into_iter().map(|(key, value)| (harmless(&key), harmless_value(value))).collect()
        }
        other => other,
    }
}

/// `path` as a word of a shell's command line, for advice that is copied: nothing in it acts on the terminal or the
/// shell.
#[must_use]
pub fn shell_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/._-+:,@%".contains(character);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        return text.into_owned();
    }
    if !text.chars().any(acts) {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut word = String::from("$'");
    for character in text.chars() {
        match character {
            '\'' | '\\' => word.extend(['\\', character]),
            _ if acts(character) => {
                let mut bytes = [0; 4];
                word.extend(character.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\x{byte:02x}")));
            }
            _ => word.push(character),
        }
    }
    word.push('\'');
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn copy_of_a_value_is_harmless_in_each_text() {
        let value = BTreeMap::from([("a\n".to_owned(), vec![Some("\x1b[2J".to_owned()), None])]);

        let copy = harmless_copy(&value).unwrap();

        assert_eq!(copy, BTreeMap::from([("a\\n".to_owned(), vec![Some("\\u{1b}[2J".to_owned()), None])]));
    }

    #[test]
    fn word_of_a_shell_stands_for_the_path_and_for_nothing_else() {
        let word = |path: &str| shell_word(Path::new(path));

        assert_eq!(word("/run/strata/vm0-42"), "/run/strata/vm0-42");
        assert_eq!(word("/run/x; touch pwned; #"), "'/run/x; touch pwned; #'");
        assert_eq!(word("-rf"), "'-rf'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word("a\x1b'\\\u{202e}"), r"$'a\x1b\'\\\xe2\x80\xae'");
    }

    #[test]
    fn shell_reads_the_word_as_the_path() {
        let path = "a\x1b'\\ $(id) \u{202e}\n;";

        let script = format!("printf %s {}", shell_word(Path::new(path)));
        let read = std::process::Command::new("bash").args(["-c", &script]).output().unwrap().stdout;

        assert_eq!(String::from_utf8(read).unwrap(), path);
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
