//! Text of others on a terminal: which characters act on it instead of being shown.

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

#[cfg(test)]
mod tests {
    use super::*;

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
