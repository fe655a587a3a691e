//! Expressions of triggers and of filters, as the command line gives them.

use strata_analysis::filter::{FieldValue, Filters};
use strata_recorder::trigger::expression::Trigger;

/// Runs an input: an expression.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Trigger::parse(&text) {
        Ok(trigger) => {
            assert_eq!(Trigger::parse(&trigger.to_string()), Ok(trigger.clone()), "what is shown means the same");
            judge(&trigger.filters, &text);
        }
        Err(error) => assert!(!error.to_string().is_empty(), "an error says something"),
    }
    match text.parse::<Filters>() {
        Ok(filters) => {
            assert_eq!(filters.to_string().parse(), Ok(filters.clone()), "what is shown means the same");
            judge(&filters, &text);
        }
        Err(error) => assert!(!error.to_string().is_empty(), "an error says something"),
    }
}

fn judge(filters: &Filters, text: &str) {
    for filter in filters.iter() {
        let values = [FieldValue::Number(0), FieldValue::Number(i128::MIN), FieldValue::Text(text)];
        let _ = values.map(|value| filter.holds(value));
    }
}
