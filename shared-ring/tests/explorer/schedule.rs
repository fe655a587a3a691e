//! Every sequence of choices, depth first, by running the same code again and again.

/// A sequence of choices that is being replayed, then extended by the first option of each new choice.
#[derive(Debug, Default)]
pub struct Schedule {
    taken: Vec<Choice>,
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    option: usize,
    options: usize,
}

impl Schedule {
    /// Which of `options` is taken at this point of this run.
    pub fn choose(&mut self, options: usize) -> usize {
        if self.next == self.taken.len() {
            self.taken.push(Choice { option: 0, options });
        }
        let choice = self.taken[self.next];
        assert_eq!(choice.options, options, "a run does not repeat itself: it depends on more than its schedule");
        self.next += 1;
        choice.option
    }

    /// Turns to the next schedule; `false` after the last.
    pub fn advance(&mut self) -> bool {
        self.next = 0;
        while let Some(last) = self.taken.last_mut() {
            last.option += 1;
            if last.option < last.options {
                return true;
            }
            self.taken.pop();
        }
        false
    }

    /// The choices of the last run that were not the first option: (number of the choice, option).
    pub fn deviations(&self) -> Vec<(usize, usize)> {
        self.taken
            .iter()
            .enumerate()
            .filter(|(_, choice)| choice.option != 0)
            .map(|(at, choice)| (at, choice.option))
            .collect()
    }
}
