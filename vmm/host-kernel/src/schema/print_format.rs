//! Finds out which fields of an event its author meant to be read in base 16.
//!
//! The `format` file of an event does not say so in its list of fields, but its `print fmt` line does: it holds a
//! printf format string and the expressions that it prints. A field that is printed by `%x` or `%p` is hexadecimal.

/// The names of the fields that `print_fmt` prints in base 16: those that an argument of a `%x`, `%X` or `%p`
/// conversion names directly, casts apart. Fields that are only part of a larger expression are left out.
pub fn hex_fields(print_fmt: &str) -> Vec<&str> {
    let (format, arguments) = split_format(print_fmt);
    let conversions = conversions(&format);
    conversions
        .into_iter()
        .zip(split_arguments(arguments))
        .filter(|(conversion, _)| matches!(conversion, 'x' | 'X' | 'p'))
        .filter_map(|(_, argument)| plain_field(argument))
        .collect()
}

/// Splits `"literal" MACRO "literal", arguments` into the joined literals and the arguments.
fn split_format(print_fmt: &str) -> (String, &str) {
    let mut format = String::new();
    let mut in_string = false;
    let mut escaped = false;
    for (at, c) in print_fmt.char_indices() {
        match c {
            ',' if !in_string => return (format, &print_fmt[at + 1..]),
            '"' if !escaped => in_string = !in_string,
            _ if in_string => format.push(c),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    (format, "")
}

/// The conversion character of each argument that a printf format consumes; `*` for a width or precision taken from
/// an argument.
fn conversions(format: &str) -> Vec<char> {
    let mut found = Vec::new();
    let mut chars = format.chars();
    while chars.by_ref().any(|c| c == '%') {
        for c in chars.by_ref() {
            match c {
                '*' => found.push('*'),
                '-' | '+' | ' ' | '#' | '.' | '0'..='9' | 'h' | 'l' | 'L' | 'z' | 'j' | 't' | 'q' => {}
                '%' => break,
                conversion => {
                    found.push(conversion);
                    break;
                }
            }
        }
    }
    found
}

/// Splits at the commas outside of parentheses, braces, brackets and strings.
pub(super) fn split_arguments(arguments: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    arguments.split(move |c: char| {
        match c {
            '"' if !escaped => in_string = !in_string,
            '(' | '{' | '[' if !in_string => depth += 1,
            ')' | '}' | ']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        c == ',' && depth == 0 && !in_string
    })
}

/// The field that an expression names, if it is nothing but that field, in parentheses or with casts.
pub(super) fn plain_field(argument: &str) -> Option<&str> {
    let (before, name) = argument.split_once("REC->")?;
    let name = name.trim_end_matches([' ', ')']);
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    // What stands before is at most casts: letters and parentheses, closed again but for those around the field.
    let only_casts = before.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '(' | ')' | ' ' | '*'));
    let is_call = before.split('(').next().is_some_and(|callee| !callee.trim().is_empty());
    (is_name && only_casts && !is_call).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_behind_hex_conversions_are_found_among_nested_arguments() {
        let print_fmt = r#""vcpu %u reason %s%s rip 0x%lx info1 0x%016llx", REC->vcpu_id, (REC->isa == 1) ? __print_symbolic(REC->exit_reason & 0xffff, { 0, "A, \"B\"" }, { 1, "C" }) : "x", "", REC->guest_rip, (unsigned long long)REC->info1"#;

        assert_eq!(hex_fields(print_fmt), ["guest_rip", "info1"]);
    }

    #[test]
    fn pointers_and_upper_case_count_and_decimals_do_not() {
        let print_fmt = r#""%p %X %d %zu %%x %i", REC->pointer, (REC->upper), REC->a, REC->b, REC->c"#;

        assert_eq!(hex_fields(print_fmt), ["pointer", "upper"]);
    }

    #[test]
    fn width_from_an_argument_consumes_one() {
        assert_eq!(hex_fields(r#""%*d %x", REC->width, REC->value, REC->address"#), ["address"]);
    }

    #[test]
    fn literals_in_pieces_are_one_format() {
        assert_eq!(hex_fields(r#""%d" " %" "llx", REC->a, REC->b"#), ["b"]);
    }

    #[test]
    fn fields_inside_larger_expressions_and_calls_are_left_out() {
        let print_fmt = r#""%x %x %lx", REC->a & 7, __get_dynamic_array_len(b), f(REC->c)"#;

        assert_eq!(hex_fields(print_fmt), Vec::<&str>::new());
    }

    #[test]
    fn line_without_arguments_or_with_broken_quotes_names_nothing() {
        assert_eq!(hex_fields(r#""plain""#), Vec::<&str>::new());
        assert_eq!(hex_fields(r#""%x, REC->a"#), Vec::<&str>::new());
        assert_eq!(hex_fields("%"), Vec::<&str>::new());
    }
}
