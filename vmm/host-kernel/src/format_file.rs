//! Format files in the form that the kernel gives them, or none: their parser relies on it.
//!
//! The kernel prints a field's declaration as its source has it. The length of an array may be any expression there
//! (`sizeof(struct sockaddr_in6)`, `(48) + 10`, the name of a constant), and only the size says what it comes to. The
//! parser takes such a length for a number, and words of C's types for the type even where they are the field's name,
//! as they are in probes that a user has defined. So it gets no length but numbers, and other names.

use super::schema::{SkippedField, is_plain_char};

/// A format file as the parser takes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Checked {
    /// The text, in ASCII: each of its parts once, and fields whose numbers fit.
    pub(super) text: String,
    /// The fields that the text has in another form.
    pub(super) rewritten: Vec<Rewritten>,
    /// The fields that it has not, because the parser has no room for them or would take them for something else.
    pub(super) left_out: Vec<SkippedField>,
}

/// A field whose declaration is another one than the kernel's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rewritten {
    /// Its name in the text.
    pub(super) given_name: String,
    /// Its own name and declaration.
    pub(super) own: SkippedField,
}

/// The format file `text` as the parser takes it. The error is the line that no kernel writes.
pub(super) fn checked(text: &str) -> Result<Checked, String> {
    // C has nothing else than ASCII but in texts, which are not recorded.
    let text = text.replace(|character: char| !character.is_ascii(), "_");
    let (mut checked, mut known) = (String::with_capacity(text.len()), Vec::new());
    let (mut rewritten, mut left_out) = (Vec::new(), Vec::new());
    // The list of fields ends with its second empty line: the first one is behind those that all events have.
    let (mut rest, mut empty_lines_to_come) = (text.as_str(), None::<u32>);
    while !rest.is_empty() {
        let (line, behind) = rest.split_once('\n').unwrap_or((rest, ""));
        let line = line.strip_suffix('\r').unwrap_or(line);
        let part = ["name:", "ID:", "format:", "print fmt:"].into_iter().find(|part| line.starts_with(part));
        let mut field = None;
        let is_known = match part {
            Some(part) if known.contains(&part) || empty_lines_to_come.is_some_and(|lines| lines > 0) => false,
            Some("ID:") => line["ID:".len()..].trim().parse::<u32>().is_ok(),
            Some(_) => true,
            None if line.trim().is_empty() => true,
            None => {
                field = empty_lines_to_come.and_then(|_| Field::parse(line));
                field.is_some()
            }
        };
        if !is_known {
            return Err(line.to_owned());
        }
        if part == Some("print fmt:") {
            // It is the last part, and may be several lines.
            let on_one_line = |character| if matches!(character, '\n' | '\r') { ' ' } else { character };
            checked.extend(rest.chars().map(on_one_line));
            break;
        }
        known.extend(part);
        empty_lines_to_come = match empty_lines_to_come {
            None => (part == Some("format:")).then_some(2),
            Some(lines) => Some(lines.saturating_sub(u32::from(line.trim().is_empty()))),
        };
        // A quote would hide the end of the line, and the parser ends one here, too.
        if part.is_some() && line.contains(['"', '\r']) {
            return Err(line.to_owned());
        }
        rest = behind;
        match field.map(Field::form) {
            None | Some(Form::AsItIs) => {
                checked.push_str(if part.is_none() && line.trim().is_empty() { "" } else { line });
                checked.push('\n');
            }
            Some(Form::Rewritten(line, field)) => {
                checked.push_str(&line);
                rewritten.push(field);
            }
            Some(Form::None(field)) => left_out.push(field),
        }
    }
    Ok(Checked { text: checked, rewritten, left_out })
}

/// A field of an event.
struct Field<'l> {
    declaration: &'l str,
    offset: u32,
    size: u32,
    /// `signed:N`, where the kernel says it.
    sign: Option<&'l str>,
    /// The declaration without what is in brackets, and that.
    outside: String,
    lengths: Vec<&'l str>,
}

/// How the parser takes a field.
enum Form {
    AsItIs,
    /// By this line.
    Rewritten(String, Rewritten),
    None(SkippedField),
}

/// Words of a declaration that are never its name for the parser, and the one that says that an array is a text.
const WORDS: [&str; 10] =
    ["long", "short", "unsigned", "signed", "struct", "__data_loc", "__rel_loc", "const", "volatile", "char"];

impl<'l> Field<'l> {
    /// Reads a line such as ` field:TYPE NAME; offset:N; size:N; signed:N;`; `None` where it is not one.
    fn parse(line: &'l str) -> Option<Self> {
        let mut parts = line.trim().strip_suffix(';')?.split(';').map(str::trim);
        let declaration = parts.next()?;
        let declaration = declaration.strip_prefix("field:").or(declaration.strip_prefix("field special:"))?;
        let mut number = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix(':')?.parse::<u32>().ok();
        let (offset, size) = (number("offset")?, number("size")?);
        let sign = parts.next();
        if sign.is_some_and(|sign| !matches!(sign, "signed:0" | "signed:1")) || parts.next().is_some() {
            return None;
        }
        let (outside, lengths) = split_lengths(declaration)?;
        let field = Self { declaration, offset, size, sign, outside, lengths };
        (field.name().is_some() && field.counts_fit()).then_some(field)
    }

    /// Its name: the last word of the declaration.
    fn name(&self) -> Option<&str> {
        let behind_attributes = self.outside.rsplit(')').next().filter(|behind| !words(behind).is_empty());
        let part = behind_attributes.unwrap_or_else(|| self.outside.split('(').next().unwrap_or_default());
        let name = words(part).into_iter().rfind(|word| *word != "__attribute__");
        name.filter(|name| !name.starts_with(|c: char| c.is_ascii_digit()))
    }

    fn is_located(&self) -> bool {
        words(&self.outside).iter().any(|word| matches!(*word, "__data_loc" | "__rel_loc"))
    }

    /// Whether elements that are counted by a number alone fill the field.
    fn counts_fit(&self) -> bool {
        let is_fit = |count: u32| self.is_located() || count == 0 || self.size.is_multiple_of(count);
        match self.lengths[..] {
            [length] if is_number(length) => length.parse().is_ok_and(is_fit),
            _ => true,
        }
    }

    fn form(self) -> Form {
        let own = |field: &Self| SkippedField {
            name: field.name().unwrap_or_default().to_owned(),
            declaration: field.declaration.trim().to_owned(),
        };
        let is_within = u16::try_from(self.offset.saturating_add(self.size)).is_ok();
        let is_text = is_plain_char(&self.outside);
        // Several texts are not one.
        if !is_within || (self.lengths.len() > 1 && (is_text || self.is_located())) {
            return Form::None(own(&self));
        }
        let name = self.name().unwrap_or_default();
        let is_known_length = match self.lengths[..] {
            [] => true,
            [length] => length.is_empty() || is_number(length),
            _ => false,
        };
        let is_word = WORDS.contains(&name);
        if is_known_length && !is_word {
            return Form::AsItIs;
        }
        let given_name = if is_word { format!("strata_field_{name}") } else { name.to_owned() };
        let length = if is_known_length { self.lengths.first().copied().unwrap_or_default() } else { "" };
        // An array of arrays has the elements of both.
        let (before, behind) = self.outside.split_once("[]").unwrap_or((&self.outside, ""));
        let brackets = if self.lengths.is_empty() { String::new() } else { format!("[{length}]") };
        let mut declaration = format!("{before}{brackets}{}", behind.replace("[]", ""));
        if is_word && let Some(at) = declaration.rfind(name) {
            declaration.replace_range(at..at + name.len(), &given_name);
        }
        let sign = self.sign.map(|sign| format!("\t{sign};")).unwrap_or_default();
        let line = format!("\tfield:{declaration};\toffset:{};\tsize:{};{sign}\n", self.offset, self.size);
        let own = own(&self);
        Form::Rewritten(line, Rewritten { given_name, own })
    }
}

/// The words of `text`.
fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect()
}

fn is_number(length: &str) -> bool {
    !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit())
}

/// `declaration` without what is in its brackets, and that. `None` where brackets are not closed, and where something
/// is outside of them that no declaration has.
fn split_lengths(declaration: &str) -> Option<(String, Vec<&str>)> {
    let (mut outside, mut lengths) = (String::new(), Vec::new());
    let (mut depth, mut begin) = (0_u32, 0);
    for (at, character) in declaration.char_indices() {
        match character {
            '[' => {
                if depth == 0 {
                    (begin, outside) = (at + 1, outside + "[");
                }
                depth += 1;
            }
            ']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    lengths.push(declaration.get(begin..at)?.trim());
                    outside.push(']');
                }
            }
            _ if depth > 0 => {}
            _ if character.is_ascii_alphanumeric() || "_ *()+-/,".contains(character) => outside.push(character),
            _ => return None,
        }
    }
    (depth == 0).then_some((outside, lengths))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: event\nID: 77\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
         \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\nprint fmt: \"%s\", REC->comm\n";

    #[test]
    fn format_file_of_a_kernel_stays_as_it_is() {
        let checked = checked(FORMAT).unwrap();

        assert_eq!(checked.text.trim_end(), FORMAT.trim_end());
        assert_eq!((checked.rewritten, checked.left_out), (vec![], vec![]));
    }

    #[test]
    fn line_that_no_kernel_writes_is_named() {
        let changed = |from: &str, to: &str| checked(&FORMAT.replace(from, to)).unwrap_err();

        assert_eq!(changed("ID: 77", "ID: 4294967296"), "ID: 4294967296");
        assert_eq!(changed("ID: 77", "ID: 77\nname: other"), "name: other");
        assert_eq!(changed("name: event", "name: \"event"), "name: \"event");
        assert_eq!(changed("name: event", "name: x\rformat:"), "name: x\rformat:");
        assert_eq!(changed("signed:0;\n\n", "signed:0;\n"), "print fmt: \"%s\", REC->comm");
        assert!(changed("signed:1", "signed:99999999999").contains("signed:99999999999"));
        assert!(changed("size:16", "size:x").contains("size:x"));
        assert!(changed("comm[16]", "comm]16[").contains("comm]16["));
        assert!(changed("char comm[16]", "[16]").contains("[16]"));
        assert!(changed("comm[16]", "comm\"[16]").contains("comm\"[16]"));
        assert!(changed("comm[16]", "comm[99999]").contains("comm[99999]"));
        assert!(changed("comm[16]", "comm[3]").contains("comm[3]"));
        assert!(changed("comm[16]", "comm[16").contains("comm[16;"));
    }

    #[test]
    fn what_is_printed_may_be_several_lines_and_is_read_as_one() {
        let checked = checked(&format!("{FORMAT}name: other\nformat:\n")).unwrap();

        assert!(checked.text.ends_with("REC->comm name: other format: "), "{}", checked.text);
    }

    /// What the parser gets in place of `char comm[16]`, and what is left out.
    fn form(declaration: &str, size: u32) -> (Option<String>, Vec<String>) {
        let field = format!("{declaration};\toffset:8;\tsize:{size};");
        let checked = checked(&FORMAT.replace("char comm[16];\toffset:8;\tsize:16;", &field)).unwrap();
        let line = checked.text.lines().find(|line| line.contains("offset:8;"));
        let declared = line.and_then(|line| Some(line.trim().strip_prefix("field:")?.split(';').next()?.to_owned()));
        (declared, checked.left_out.into_iter().map(|field| field.name).collect())
    }

    #[test]
    fn length_that_is_no_number_is_left_to_the_size() {
        let given = |length: &str| form(&format!("__u8 addr[{length}]"), 28);

        let lengths = [
            "sizeof(struct sockaddr_in6)",
            "(48) + 10",
            "EXT4_FC_REASON_MAX",
            "2 * N",
            "1 << 4",
            "sizeof(x[0]->y)",
            "0x1c",
        ];
        for length in lengths {
            assert_eq!(given(length), (Some("__u8 addr[]".into()), vec![]), "{length}");
        }
        assert_eq!(given("28"), (Some("__u8 addr[28]".into()), vec![]));
        let located = form("__data_loc __u8[sizeof(struct x)] addr", 4);
        assert_eq!(located, (Some("__data_loc __u8[] addr".into()), vec![]));
    }

    #[test]
    fn array_of_arrays_is_one_and_several_texts_are_none() {
        assert_eq!(form("u32 a[2][N]", 24), (Some("u32 a[]".into()), vec![]));
        assert_eq!(form("char names[4][16]", 64), (None, vec!["names".into()]));
        assert_eq!(form("char *names[4]", 32), (Some("char *names[4]".into()), vec![]));
    }

    #[test]
    fn field_that_no_record_has_room_for_is_left_out() {
        assert_eq!(form("u8 table[70000]", 70_000), (None, vec!["table".into()]));
        assert_eq!(form("u8 table[65530]", 65_530), (None, vec!["table".into()]));
    }

    #[test]
    fn field_that_is_called_as_a_type_gets_another_name() {
        let names = |declaration: &str, size| {
            let field = format!("{declaration};\toffset:8;\tsize:{size};");
            let checked = checked(&FORMAT.replace("char comm[16];\toffset:8;\tsize:16;", &field)).unwrap();
            let [rewritten] = &checked.rewritten[..] else { panic!("{:?}", checked.rewritten) };
            (rewritten.given_name.clone(), rewritten.own.name.clone(), checked.text.contains(&rewritten.given_name))
        };

        for name in ["short", "signed", "unsigned", "long", "struct", "char", "const"] {
            let expected = (format!("strata_field_{name}"), name.to_owned(), true);
            assert_eq!(names(&format!("u16 {name}"), 2), expected);
            assert_eq!(names(&format!("unsigned short {name}[3]"), 6), expected);
            assert_eq!(names(&format!("__data_loc char[] {name}"), 4), expected);
        }
    }
}
