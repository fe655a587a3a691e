//! Names that the page refers to by number.

use super::category::Category;
use foldhash::HashMap;
use serde::Serialize;
use strata_recording::text::terminal::harmless;

/// Names that are distinguished; a guest may make up any number.
const MOST: usize = 1 << 16;
/// Characters of a name that are kept.
const LONGEST: usize = 200;
/// What all further names are.
const FURTHER: &str = "(one of too many names)";

/// Names in the order of their numbers.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Names {
    /// Each with the number of its category.
    names: Vec<(String, u8)>,
    #[serde(skip)]
    numbers: HashMap<(Category, String), u32>,
}

impl Names {
    /// A number that nothing else has for what is called `name`, which a guest may have chosen.
    pub(super) fn own_number(&mut self, category: Category, name: &str) -> u32 {
        if self.names.len() >= MOST {
            return self.number(category, name);
        }
        self.names.push((shown(name), category as u8));
        u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX)
    }

    /// The number of `name`, which a guest may have chosen.
    pub(super) fn number(&mut self, category: Category, name: &str) -> u32 {
        let name = shown(name);
        if let Some(&number) = self.numbers.get(&(category, name.clone())) {
            return number;
        }
        let name = if self.names.len() >= MOST { FURTHER.into() } else { name };
        if let Some(&number) = self.numbers.get(&(category, name.clone())) {
            return number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push((name.clone(), category as u8));
        self.numbers.insert((category, name), number);
        number
    }
}

fn shown(name: &str) -> String {
    harmless(name).chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_one_number_for_each_category() {
        let mut names = Names::default();

        let numbers =
            [("a", Category::Idle), ("a", Category::Running), ("a", Category::Idle), ("b\x1b", Category::Idle)]
                .map(|(name, category)| names.number(category, name));

        assert_eq!(numbers, [0, 1, 0, 2]);
        assert_eq!(names.names[2].0, "b\\u{1b}");
    }

    #[test]
    fn own_number_is_nothing_elses() {
        let mut names = Names::default();

        let numbers = [
            names.number(Category::Running, "a"),
            names.own_number(Category::Running, "a"),
            names.own_number(Category::Running, "a"),
            names.number(Category::Running, "a"),
        ];

        assert_eq!(numbers, [0, 1, 2, 0]);
    }

    #[test]
    fn too_many_names_become_one_of_each_category() {
        let mut names = Names::default();
        for number in 0..MOST {
            names.number(Category::Idle, &number.to_string());
        }

        let further = ["x", "y"].map(|name| names.number(Category::Idle, name));

        assert_eq!(further, [u32::try_from(MOST).unwrap(); 2]);
        assert_eq!(names.own_number(Category::Idle, "z"), further[0]);
        assert_eq!(names.number(Category::Idle, "7"), 7);
    }
}
