//! Lengths of time, as users write them.

use std::time::Duration;

/// How they are written, behind "write a time in".
pub const LENGTH: &str = "seconds, or with ns, us, ms, s, m or h, as in 1.5 or 500ms";

/// Units, and how many nanoseconds they are.
const UNITS: [(&str, u64); 8] = [
    ("", 1_000_000_000),
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A length of time: seconds, or with a unit behind the number, exact to the nanosecond. `None` for what is none.
#[must_use]
pub fn parse_length(text: &str) -> Option<Duration> {
    let number = text.trim_end_matches(char::is_alphabetic);
    let (_, unit_ns) = UNITS.into_iter().find(|(unit, _)| *unit == &text[number.len()..])?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let whole_ns = whole.parse::<u64>().ok()?.checked_mul(unit_ns)?;
    let billionths: u64 = format!("{fraction:0<9}").parse().ok()?;
    let fraction_ns = u128::from(billionths) * u128::from(unit_ns);
    if !fraction_ns.is_multiple_of(1_000_000_000) {
        return None;
    }
    let fraction_ns = u64::try_from(fraction_ns / 1_000_000_000).ok()?;
    Some(Duration::from_nanos(whole_ns.checked_add(fraction_ns)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_without_a_unit_is_seconds() {
        assert_eq!(parse_length("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(["", "ms", "-1ms", "+1s", "1.s", "1 s", "1d"].map(parse_length), [None; 7]);
    }
}
