//! The names of flags in an event's fields, as its `print fmt` line tells them by `__print_flags`.
//!
//! The masks there are expressions of C, in which macros are expanded: `{( unsigned long)(((( gfp_t)0x40u) | …, "GFP_NOIO"}`.

use super::print_format::{plain_field, split_arguments};

/// What a flag's name follows in an argument.
const CALL: &str = "__print_flags(";
/// Parentheses in each other that are followed.
const MAX_DEPTH: usize = 64;
/// Flags of a field.
const MAX_FLAGS: usize = 256;

/// Masks and names, in the order in which the kernel looks for them.
pub type Flags = Vec<(u64, String)>;

/// The fields that `print_fmt` prints by the names of flags, with those. A flag whose mask is not a constant is left out.
pub fn flags(print_fmt: &str) -> Vec<(&str, Flags)> {
    let mut found = Vec::new();
    let mut rest = print_fmt;
    while let Some((_, behind)) = rest.split_once(CALL) {
        rest = behind;
        // The call's own arguments, and one more that holds what follows its end.
        let mut arguments = split_arguments(behind);
        let (Some(field), Some(_delimiter)) = (arguments.next().and_then(plain_field), arguments.next()) else {
            continue;
        };
        let flags: Flags = arguments.map_while(|entry| Some(flag(entry.trim().strip_prefix('{')?))).flatten().collect();
        if !flags.is_empty() {
            found.push((field, flags.into_iter().take(MAX_FLAGS).collect()));
        }
    }
    found
}

/// The flag of `MASK, "NAME"}…`.
fn flag(entry: &str) -> Option<(u64, String)> {
    let mut parts = split_arguments(entry);
    let (mask, name) = (parts.next()?, parts.next()?);
    let name = name.trim().strip_prefix('"')?.split('"').next()?;
    let mask = Expression { rest: mask, depth: 0 }.whole().filter(|&mask| mask != 0)?;
    Some((mask, name.to_owned()))
}

/// An expression of C that is constant: numbers, casts, parentheses, `|`, `^`, `&`, shifts, `+`, `-` and `~`.
struct Expression<'e> {
    rest: &'e str,
    depth: usize,
}

impl Expression<'_> {
    /// Its value, if that is all.
    fn whole(mut self) -> Option<u64> {
        let value = self.binary(0)?;
        self.rest.trim().is_empty().then_some(value)
    }

    /// Takes `token` if it comes next.
    fn takes(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Operators of the `level` and above: those that bind tighter are further down.
    fn binary(&mut self, level: usize) -> Option<u64> {
        const LEVELS: [&[&str]; 5] = [&["|"], &["^"], &["&"], &["<<", ">>"], &["+", "-"]];
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut value = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.takes(operator)) {
            let right = self.binary(level + 1)?;
            let bits = u32::try_from(right).ok();
            value = match *operator {
                "|" => value | right,
                "^" => value ^ right,
                "&" => value & right,
                "<<" => value.checked_shl(bits?)?,
                ">>" => value.checked_shr(bits?)?,
                "+" => value.wrapping_add(right),
                _ => value.wrapping_sub(right),
            };
        }
        Some(value)
    }

    fn unary(&mut self) -> Option<u64> {
        self.depth += 1;
        let value = if self.depth > MAX_DEPTH {
            None
        } else if self.takes("~") {
            self.unary().map(|value| !value)
        } else if self.takes("-") {
            self.unary().map(u64::wrapping_neg)
        } else if self.takes("(") {
            self.parenthesis()
        } else {
            self.number()
        };
        self.depth -= 1;
        value
    }

    /// A cast, or an expression in parentheses, behind what opens them.
    fn parenthesis(&mut self) -> Option<u64> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | ' ')))?;
        let word = self.rest[..end].trim();
        if word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && self.rest[end..].starts_with(')') {
            self.rest = &self.rest[end + 1..];
            return self.unary();
        }
        let value = self.binary(0)?;
        self.takes(")").then_some(value)
    }

    fn number(&mut self) -> Option<u64> {
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (number, behind) = rest.split_at(end);
        let digits = number.trim_end_matches(['u', 'U', 'l', 'L']);
        let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8),
            None => digits.parse(),
        };
        self.rest = behind;
        value.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.1 has it, but for most of its flags.
    const KMALLOC: &str = r#""call_site=%pS ptr=%p bytes_req=%zu gfp_flags=%s node=%d", (void *)REC->call_site, REC->ptr, REC->bytes_req, (REC->gfp_flags) ? __print_flags(REC->gfp_flags, "|", {( unsigned long)(((( gfp_t)(0x400u|0x800u)) | (( gfp_t)0x40u) | (( gfp_t)0x80u) | (( gfp_t)0x100000u)) & ~(( gfp_t)(0x400u|0x800u))), "GFP_LIGHT"}, {( unsigned long)((( gfp_t)(0x400u|0x800u)) | (( gfp_t)0x40u) | (( gfp_t)0x80u)), "GFP_KERNEL"}, {( unsigned long)(( gfp_t)0x100u), "__GFP_ZERO"} ) : "none", REC->node"#;

    fn named(flags: &[(u64, &str)]) -> Flags {
        flags.iter().map(|&(mask, name)| (mask, name.to_owned())).collect()
    }

    #[test]
    fn flags_of_a_field_are_read_with_their_masks() {
        let expected = named(&[(0x10_00c0, "GFP_LIGHT"), (0xcc0, "GFP_KERNEL"), (0x100, "__GFP_ZERO")]);

        assert_eq!(flags(KMALLOC), [("gfp_flags", expected)]);
    }

    #[test]
    fn masks_are_shifts_of_numbered_bits_since_linux_6_10() {
        let print = r#""%s", __print_flags(REC->gfp_flags, "|", {( unsigned long)(( gfp_t)((((1UL))) << (8))), "__GFP_ZERO"}, { 1 << (2 + 1), "A" }, { 010 - 1, "B" })"#;

        assert_eq!(flags(print)[0].1, named(&[(0x100, "__GFP_ZERO"), (8, "A"), (7, "B")]));
    }

    #[test]
    fn each_call_counts_whose_field_is_plain_and_each_flag_whose_mask_is_constant() {
        let print = r#""%s %s %s", __print_flags(REC->a, "", { 1, "x,y" }, { SIZE, "z" }, { 0, "none" }), __print_flags(REC->b & 3, "|", { 1, "C" }), __print_flags((unsigned long)REC->c, "|", { 2, "D" })"#;

        assert_eq!(flags(print), [("a", named(&[(1, "x,y")])), ("c", named(&[(2, "D")]))]);
    }

    #[test]
    fn text_that_is_no_expression_has_no_value() {
        let value = |text: &str| Expression { rest: text, depth: 0 }.whole();
        let deep = format!("{}1{}", "(".repeat(100), ")".repeat(100));

        assert_eq!(["", "1 |", "(1", "1)", "1 2", "1 << 64", "f(1)", &deep].map(value), [None; 8]);
        assert_eq!((value("-1"), value("~0 ^ 1"), value("8 >> 1 & 4")), (Some(u64::MAX), Some(u64::MAX - 1), Some(4)));
        assert!(flags("__print_flags(").is_empty() && flags("__print_flags(REC->a, \"|\", {").is_empty());
    }
}
