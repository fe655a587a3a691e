//! Counts in words.

use std::fmt::Display;

/// `count` and what there are so many of: `one` of them, else `many`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, one: &str, many: &str) -> String {
    let what = if count == N::from(1) { one } else { many };
    format!("{count} {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_the_words_of_one() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "task", "tasks")), ["0 tasks", "1 task", "2 tasks"]);
    }
}
