//! The names that a kernel gives to flags in fields of its events.

use super::Layer;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Flags whose names are looked for, of a field.
const MOST: usize = 256;

/// Names of flags, and the fields that have such.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlagNames {
    /// Event types, each with the name of a field.
    pub fields: Vec<(String, String)>,
    /// Masks and names, in the order in which they are looked for: one of several bits before those of one of them.
    pub flags: Vec<(u64, String)>,
}

impl FlagNames {
    /// Those of the field `field` of the events called `event` of `layer`; `None` where its kernel told none.
    #[must_use]
    pub fn of<'l>(layer: &'l Layer, event: &str, field: &str) -> Option<&'l Self> {
        let is_it = |known: &(String, String)| known.0 == event && known.1 == field;
        layer.flag_names.iter().find(|names| names.fields.iter().any(is_it))
    }

    /// The flags in `number` by their names, as the kernel writes them, and what has no name as a number; `None` where none has
    /// one. A name that would act on a terminal is none.
    #[must_use]
    pub fn text(&self, number: u64) -> Option<String> {
        let (mut rest, mut text) = (number, String::new());
        for (mask, name) in self.flags.iter().take(MOST) {
            if *mask != 0 && rest & mask == *mask && is_plain(name) {
                rest &= !mask;
                text.push_str(if text.is_empty() { "" } else { "|" });
                text.push_str(name);
            }
        }
        if text.is_empty() {
            return None;
        }
        if rest != 0 {
            // Writing to a string does not fail.
            let _ = write!(text, "|{rest:#x}");
        }
        Some(text)
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(flags: &[(u64, &str)]) -> FlagNames {
        FlagNames { fields: Vec::new(), flags: flags.iter().map(|&(mask, name)| (mask, name.to_owned())).collect() }
    }

    #[test]
    fn flags_are_named_in_their_order_and_the_rest_is_a_number() {
        let gfp = names(&[(0xcc0, "GFP_KERNEL"), (0x40, "__GFP_IO"), (0x100, "__GFP_ZERO")]);

        let texts = [0xcc0, 0xdc0, 0x140, 0x1cc0, 0x1000, 0].map(|number| gfp.text(number));

        let expected = ["GFP_KERNEL", "GFP_KERNEL|__GFP_ZERO", "__GFP_IO|__GFP_ZERO", "GFP_KERNEL|0x1000"];
        assert_eq!(texts[..4].iter().flatten().collect::<Vec<_>>(), expected);
        assert_eq!(texts[4..], [None, None]);
    }

    #[test]
    fn name_that_acts_on_a_terminal_is_none() {
        assert_eq!(names(&[(1, "\u{1b}[2J"), (2, ""), (4, "a\"b")]).text(7), None);
    }
}
