//! Lines for people that are no wider than there is room.

/// Stands between a number and its percent sign, where a line does not end.
const NO_BREAK: &str = "\u{a0}";

/// `text` in lines of at most `columns` characters, words aside that are longer. All lines but the first begin with `hang`
/// blanks.
#[must_use]
pub fn wrap(text: &str, columns: usize, hang: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.replace(" %", &format!("{NO_BREAK}%")).split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(std::mem::replace(&mut line, " ".repeat(hang)));
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines.into_iter().map(|line| line.replace(NO_BREAK, " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_full_and_what_follows_the_first_hangs() {
        assert_eq!(wrap("1. one in a hundred took longer", 15, 3), ["1. one in a", "   hundred took", "   longer"]);
        assert_eq!(wrap("a_word_that_is_longer than", 10, 0), ["a_word_that_is_longer", "than"]);
        assert_eq!(wrap("", 10, 0), [""]);
    }

    #[test]
    fn number_and_percent_sign_stay_together() {
        assert_eq!(wrap("it took 51.5 % of it", 12, 0), ["it took", "51.5 % of it"]);
    }
}
