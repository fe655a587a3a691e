//! What a print format says about a field: whether the kernel shows it in hexadecimal.
//!
//! A print format is what follows `print fmt:` in a tracepoint's `format` file: a format string in quotes and its
//! arguments, in which fields are `REC->name`.

/// What comes between the format string and its arguments.
const SEPARATOR: &[u8] = b"\", ";

/// Whether `print` shows the field called `name` by a conversion to hexadecimal, as the only field of an argument.
#[must_use]
pub fn shows_in_hexadecimal(print: &[u8], name: &[u8]) -> bool {
    let Some(end) = find(print, SEPARATOR) else { return false };
    let mut arguments = Arguments { rest: print.get(end + SEPARATOR.len()..).unwrap_or_default() };
    let mut conversions = Conversions { rest: print.get(..end).unwrap_or_default() };
    while let Some(conversion) = conversions.next() {
        for _ in 0..conversion.widths {
            arguments.next();
        }
        let Some(argument) = arguments.next() else { return false };
        if conversion.hexadecimal && only_field(argument).is_some_and(|field| begins_with(field, name, field.len())) {
            return true;
        }
    }
    false
}

/// The field that `argument` is about, when it is about one.
fn only_field(argument: &[u8]) -> Option<&[u8]> {
    const REFERENCE: &[u8] = b"REC->";
    let after = argument.get(find(argument, REFERENCE)? + REFERENCE.len()..)?;
    if find(after, REFERENCE).is_some() {
        return None;
    }
    let mut end = 0;
    while after.get(end).is_some_and(|&byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        end += 1;
    }
    after.get(..end)
}

struct Conversion {
    hexadecimal: bool,
    /// Arguments that it takes besides its own: widths and precisions given by `*`.
    widths: usize,
}

struct Conversions<'a> {
    rest: &'a [u8],
}

impl Conversions<'_> {
    fn next(&mut self) -> Option<Conversion> {
        loop {
            while *self.rest.first()? != b'%' {
                self.skip();
            }
            self.skip();
            if self.rest.first() == Some(&b'%') {
                self.skip();
                continue;
            }
            let mut widths = 0;
            loop {
                let byte = *self.rest.first()?;
                self.skip();
                match byte {
                    b'*' => widths += 1,
                    b'a'..=b'g'
                    | b'i'..=b'k'
                    | b'm'..=b'p'
                    | b'r'
                    | b's'
                    | b'u'
                    | b'v'
                    | b'w'
                    | b'x'
                    | b'y'
                    | b'A'..=b'Z' => {
                        return Some(Conversion { hexadecimal: matches!(byte, b'x' | b'X' | b'p'), widths });
                    }
                    // Flags, digits, and the lengths h, l, q, t and z.
                    _ => {}
                }
            }
        }
    }

    fn skip(&mut self) {
        self.rest = self.rest.get(1..).unwrap_or_default();
    }
}

struct Arguments<'a> {
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    /// The next argument; commas within brackets or quotes separate none.
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let (mut depth, mut quoted, mut at) = (0_usize, false, 0);
        while let Some(&byte) = self.rest.get(at) {
            match byte {
                b'\\' if quoted => at += 1,
                b'"' => quoted = !quoted,
                _ if quoted => {}
                b'(' | b'{' | b'[' => depth += 1,
                b')' | b'}' | b']' => depth = depth.saturating_sub(1),
                b',' if depth == 0 => break,
                _ => {}
            }
            at += 1;
        }
        let argument = self.rest.get(..at).unwrap_or(self.rest);
        self.rest = self.rest.get(at + 1..).unwrap_or_default();
        Some(argument)
    }
}

/// Where `wanted` begins in `bytes`.
fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at + wanted.len() <= bytes.len() {
        if begins_with(bytes.get(at..).unwrap_or_default(), wanted, wanted.len()) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Whether `bytes` begin with `wanted`, which has `length` bytes. Comparing slices would call into a C library.
fn begins_with(bytes: &[u8], wanted: &[u8], length: usize) -> bool {
    wanted.len() == length && bytes.len() >= length && bytes.iter().zip(wanted).all(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hexadecimal(print: &str, name: &str) -> bool {
        shows_in_hexadecimal(print.as_bytes(), name.as_bytes())
    }

    #[test]
    fn field_is_shown_as_its_own_conversion_says() {
        let print = r#""address=%ps ip=%#lx count=%d 100%%", (void *)REC->address, REC->ip, REC->count"#;

        assert_eq!(["address", "ip", "count"].map(|name| hexadecimal(print, name)), [true, true, false]);
    }

    #[test]
    fn commas_inside_an_argument_do_not_count() {
        let print = r#""%s %x %d", __print_symbolic(REC->a, { 1, "x, (" }, { 2, "y" }), (REC->b), REC->c"#;

        assert_eq!(["a", "b", "c"].map(|name| hexadecimal(print, name)), [false, true, false]);
    }

    #[test]
    fn widths_take_arguments_of_their_own() {
        let print = r#""%*d %.*s %llx", 3, REC->a, 4, REC->b, (unsigned long long)REC->c"#;

        assert_eq!(["a", "b", "c"].map(|name| hexadecimal(print, name)), [false, false, true]);
    }

    #[test]
    fn element_of_an_array_stands_for_the_array() {
        assert!(hexadecimal(r#""NR %ld (%lx, %lx)", REC->id, REC->args[0], REC->args[1]"#, "args"));
    }

    #[test]
    fn argument_about_two_fields_says_nothing_of_either() {
        let print = r#""%x", REC->a | REC->b"#;

        assert!(!hexadecimal(print, "a") && !hexadecimal(print, "b"));
    }

    #[test]
    fn damaged_formats_end() {
        for print in ["", "\"", "\"%", "\"%\", ", "\"%l\", REC->", "\"%x\", (REC->a", "\"%*\", \"\\"] {
            assert!(!hexadecimal(print, "b"));
        }
    }
}
