//! Format files: how the kernel describes an event.
//!
//! The kernel prints a field's declaration as its source has it. The length of an array may be any expression there
//! (`sizeof(struct sockaddr_in6)`, `(48) + 10`, the name of a constant), and only the size says what it comes to: a
//! length counts where it is a number. A field may be called as a type is (`u16 short`), as in probes that users
//! define: the name is the last word, whatever it is.

/// A format file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FormatFile {
    /// The event's number, if there is one.
    pub(crate) number: Option<u32>,
    /// The fields that all events have.
    pub(crate) common: Vec<Field>,
    /// The event's own.
    pub(crate) own: Vec<Field>,
    /// How the event is printed, on one line.
    pub(crate) print_format: String,
}

/// A field of an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// As the kernel prints it, in ASCII.
    pub(crate) declaration: String,
    /// Bytes from the begin of a record.
    pub(crate) offset: u32,
    /// Bytes.
    pub(crate) size: u32,
    pub(crate) is_signed: bool,
    pub(crate) is_pointer: bool,
    pub(crate) shape: Shape,
}

/// How a field holds its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One value.
    Value,
    /// Values, one behind the other.
    Array(Element),
    /// Values elsewhere in the record, to which a word of 4 bytes points.
    Located {
        element: Element,
        /// The word counts from its own end instead of the start of the record.
        is_relative: bool,
    },
    /// Values up to the end of the record.
    Rest(Element),
    /// Anything else, such as several texts.
    Other,
}

/// What an array has of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// Characters of a text.
    Char,
    /// Integers of so many bytes: 1, 2, 4 or 8.
    Integer(u16),
    /// What is not known.
    Unknown,
}

/// A field that is not recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedField {
    /// The kernel's name of the field.
    pub name: String,
    /// Its declaration in the format file.
    pub declaration: String,
}

impl FormatFile {
    /// Reads a format file of a 64-bit kernel. The error is the line that no kernel writes.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        // C has nothing else than ASCII but in texts, which are not recorded.
        let text = text.replace(|character: char| !character.is_ascii(), "_");
        let mut file = Self { number: None, common: Vec::new(), own: Vec::new(), print_format: String::new() };
        let mut known = Vec::new();
        // The list of fields ends with its second empty line: the first one is behind those that all events have.
        let (mut rest, mut empty_lines_to_come) = (text.as_str(), None::<u32>);
        while !rest.is_empty() {
            let (line, behind) = rest.split_once('\n').unwrap_or((rest, ""));
            let line = line.strip_suffix('\r').unwrap_or(line);
            let malformed = || line.to_owned();
            if line.trim().is_empty() {
                empty_lines_to_come = empty_lines_to_come.map(|lines| lines.saturating_sub(1));
            } else if let Some(part) = PARTS.into_iter().find(|part| line.starts_with(part)) {
                if known.contains(&part) || empty_lines_to_come.is_some_and(|lines| lines > 0) {
                    return Err(malformed());
                }
                known.push(part);
                match part {
                    PRINT_FORMAT => {
                        // It is the last part, and may be several lines.
                        let on_one_line = |character| if matches!(character, '\n' | '\r') { ' ' } else { character };
                        file.print_format = rest[PRINT_FORMAT.len()..].chars().map(on_one_line).collect();
                        break;
                    }
                    NUMBER => file.number = Some(line[NUMBER.len()..].trim().parse().map_err(|_| malformed())?),
                    FIELDS => empty_lines_to_come = Some(2),
                    _ => {}
                }
            } else {
                let field = Field::parse(line).ok_or_else(malformed)?;
                match empty_lines_to_come {
                    Some(2) => file.common.push(field),
                    Some(1) => file.own.push(field),
                    _ => return Err(malformed()),
                }
            }
            rest = behind;
        }
        Ok(file)
    }
}

const NUMBER: &str = "ID:";
const FIELDS: &str = "format:";
const PRINT_FORMAT: &str = "print fmt:";
const PARTS: [&str; 4] = ["name:", NUMBER, FIELDS, PRINT_FORMAT];

impl Field {
    /// Reads a line such as ` field:TYPE NAME; offset:N; size:N; signed:N;`; `None` where it is not one.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut parts = line.trim().strip_suffix(';')?.split(';').map(str::trim);
        let declaration = parts.next()?;
        let declaration = declaration.strip_prefix("field:").or(declaration.strip_prefix("field special:"))?;
        let mut number = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix(':')?.parse::<u32>().ok();
        let (offset, size) = (number("offset")?, number("size")?);
        // Old kernels do not say whether a field is signed.
        let is_signed = match parts.next() {
            None | Some("signed:0") => false,
            Some("signed:1") => true,
            Some(_) => return None,
        };
        let declared = Declaration::parse(declaration)?;
        let shape = declared.shape(size)?;
        let is_all = parts.next().is_none();
        is_all.then(|| Self {
            name: declared.name.to_owned(),
            declaration: declaration.trim().to_owned(),
            offset,
            size,
            is_signed,
            is_pointer: declared.is_pointer,
            shape,
        })
    }

    /// As it is listed where it is not recorded.
    pub(crate) fn skipped(&self) -> SkippedField {
        SkippedField { name: self.name.clone(), declaration: self.declaration.clone() }
    }
}

/// A declaration, taken apart.
struct Declaration<'d> {
    name: &'d str,
    /// The words of its type.
    words: Vec<&'d str>,
    is_pointer: bool,
    /// What each of its brackets holds.
    lengths: Vec<&'d str>,
}

impl<'d> Declaration<'d> {
    /// `None` where a bracket is open, where there is no name, and where there is something that no declaration has.
    fn parse(declaration: &'d str) -> Option<Self> {
        let (mut outside, mut lengths, mut is_pointer) = (Vec::new(), Vec::new(), false);
        let (mut brackets, mut parentheses, mut begin, mut length_begin) = (0_u32, 0_u32, 0, 0);
        for (at, character) in declaration.char_indices() {
            let was_outside = brackets == 0 && parentheses == 0;
            match character {
                '[' => {
                    if brackets == 0 {
                        length_begin = at + 1;
                    }
                    brackets += 1;
                }
                ']' => {
                    brackets = brackets.checked_sub(1)?;
                    if brackets == 0 {
                        lengths.push(declaration.get(length_begin..at)?.trim());
                    }
                }
                _ if brackets > 0 => {}
                '(' => parentheses += 1,
                ')' => parentheses = parentheses.checked_sub(1)?,
                '*' => is_pointer = true,
                _ if character.is_ascii_alphanumeric() || "_ +-/,".contains(character) => {}
                _ => return None,
            }
            match (was_outside, brackets == 0 && parentheses == 0) {
                (true, false) => outside.push(declaration.get(begin..at)?),
                (false, true) => begin = at + 1,
                _ => {}
            }
        }
        if brackets > 0 || parentheses > 0 {
            return None;
        }
        outside.push(declaration.get(begin..)?);
        let words = outside.into_iter().flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        let mut words: Vec<&str> = words.filter(|word| !matches!(*word, "" | "__attribute__")).collect();
        let name = words.pop().filter(|name| !name.starts_with(|c: char| c.is_ascii_digit()))?;
        Some(Self { name, words, is_pointer, lengths })
    }

    fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    /// What its type is, as far as the name of the type says it.
    fn element(&self) -> Element {
        const QUALIFIERS: [&str; 8] =
            ["long", "short", "unsigned", "signed", "const", "volatile", "__data_loc", "__rel_loc"];
        if self.is_pointer {
            return Element::Integer(8);
        }
        if self.has("struct") {
            return Element::Unknown;
        }
        match self.words.iter().rfind(|word| !QUALIFIERS.contains(word)) {
            None | Some(&"int") if self.has("long") => Element::Integer(8),
            None | Some(&"int") if self.has("short") => Element::Integer(2),
            None | Some(&("int" | "u32" | "__u32" | "uint32_t" | "s32" | "__s32" | "int32_t")) => Element::Integer(4),
            Some(&"char") if !self.has("unsigned") && !self.has("signed") => Element::Char,
            Some(&("char" | "u8" | "__u8" | "uint8_t" | "s8" | "__s8" | "int8_t")) => Element::Integer(1),
            Some(&("u16" | "__u16" | "uint16_t" | "s16" | "__s16" | "int16_t")) => Element::Integer(2),
            Some(&("u64" | "__u64" | "uint64_t" | "s64" | "__s64" | "int64_t")) => Element::Integer(8),
            Some(_) => Element::Unknown,
        }
    }

    /// How a field of `size` bytes holds its values; `None` where that many elements do not fill it.
    fn shape(&self, size: u32) -> Option<Shape> {
        let element = self.element();
        let is_relative = self.has("__rel_loc");
        let is_located = is_relative || self.has("__data_loc");
        let count = match self.lengths[..] {
            [length] if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) => {
                length.parse().ok()?
            }
            _ => 0_u32,
        };
        if count > 0 && !is_located && !size.is_multiple_of(count) {
            return None;
        }
        // Several texts are not one.
        let is_table = self.lengths.len() > 1 && (element == Element::Char || is_located);
        Some(match size {
            _ if is_table => Shape::Other,
            0 => Shape::Rest(element),
            4 if is_located => Shape::Located { element, is_relative },
            _ if is_located => Shape::Other,
            _ if self.lengths.is_empty() => Shape::Value,
            _ => Shape::Array(self.counted(element, size, count)),
        })
    }

    /// What an array of `size` bytes has of: `count` elements, or as many as fit where that is 0.
    fn counted(&self, element: Element, size: u32, count: u32) -> Element {
        match element {
            Element::Char => Element::Char,
            _ if count > 0 && !self.has("struct") => match size / count {
                1 => Element::Integer(1),
                2 => Element::Integer(2),
                4 => Element::Integer(4),
                8 => Element::Integer(8),
                _ => Element::Unknown,
            },
            Element::Integer(bytes) if size.is_multiple_of(bytes.into()) => Element::Integer(bytes),
            _ => Element::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: event\nID: 77\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
         \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\nprint fmt: \"%s\", REC->comm\n";

    #[test]
    fn file_of_a_kernel_is_taken_apart() {
        let file = FormatFile::parse(FORMAT).unwrap();

        let [pid] = &file.common[..] else { panic!("{file:?}") };
        let [comm] = &file.own[..] else { panic!("{file:?}") };
        assert_eq!((file.number, file.print_format.trim()), (Some(77), "\"%s\", REC->comm"));
        assert_eq!(
            (&*pid.name, pid.offset, pid.size, pid.is_signed, pid.shape),
            ("common_pid", 4, 4, true, Shape::Value)
        );
        assert_eq!((&*comm.declaration, comm.shape), ("char comm[16]", Shape::Array(Element::Char)));
    }

    #[test]
    fn line_that_no_kernel_writes_is_named() {
        let changed = |from: &str, to: &str| FormatFile::parse(&FORMAT.replace(from, to)).unwrap_err();

        assert_eq!(changed("ID: 77", "ID: 4294967296"), "ID: 4294967296");
        assert_eq!(changed("ID: 77", "ID: 77\nname: other"), "name: other");
        assert_eq!(changed("signed:0;\n\n", "signed:0;\n"), "print fmt: \"%s\", REC->comm");
        assert!(changed("print fmt", "\n\tfield:u8 late;\toffset:1;\tsize:1;\nprint fmt").contains("late"));
        assert!(changed("signed:1", "signed:99999999999").contains("signed:99999999999"));
        assert!(changed("signed:1;", "signed:1;\tmore:1;").contains("more:1"));
        assert!(changed("size:16", "size:x").contains("size:x"));
        assert!(changed("comm[16]", "comm]16[").contains("comm]16["));
        assert!(changed("char comm[16]", "[16]").contains("[16]"));
        assert!(changed("comm[16]", "comm\"[16]").contains("comm\"[16]"));
        assert!(changed("comm[16]", "comm[99999]").contains("comm[99999]"));
        assert!(changed("comm[16]", "comm[3]").contains("comm[3]"));
        assert!(changed("comm[16]", "comm[16").contains("comm[16;"));
        assert!(changed("comm[16]", "comm (x").contains("comm (x"));
    }

    #[test]
    fn what_is_printed_may_be_several_lines_and_is_read_as_one() {
        let file = FormatFile::parse(&format!("{FORMAT}name: other\nformat:\n")).unwrap();

        assert!(file.print_format.ends_with("REC->comm name: other format: "), "{file:?}");
    }

    /// Name and shape of the field that is declared so.
    fn field(declaration: &str, size: u32) -> (String, Shape) {
        let field = Field::parse(&format!("\tfield:{declaration};\toffset:8;\tsize:{size};")).unwrap();
        (field.name, field.shape)
    }

    fn array(name: &str, element: Element) -> (String, Shape) {
        (name.to_owned(), Shape::Array(element))
    }

    #[test]
    fn length_that_is_no_number_is_left_to_the_size() {
        let lengths = [
            "28",
            "sizeof(struct sockaddr_in6)",
            "(48) + 10",
            "EXT4_FC_REASON_MAX",
            "2 * N",
            "1 << 4",
            "sizeof(x[0]->y)",
            "0x1c",
            "",
        ];
        for length in lengths {
            let found = field(&format!("__u8 addr[{length}]"), 28);
            assert_eq!(found, array("addr", Element::Integer(1)), "{length}");
        }
        let located = field("__data_loc __u8[sizeof(struct x)] addr", 4);
        let bytes = Shape::Located { element: Element::Integer(1), is_relative: false };
        assert_eq!(located, ("addr".to_owned(), bytes));
    }

    #[test]
    fn element_is_what_fills_the_array_and_else_what_its_type_says() {
        assert_eq!(field("enum kind a[4]", 16), array("a", Element::Integer(4)));
        assert_eq!(field("enum kind a[N]", 16), array("a", Element::Unknown));
        assert_eq!(field("struct pair a[2]", 16), array("a", Element::Unknown));
        assert_eq!(field("unsigned long long a[N]", 16), array("a", Element::Integer(8)));
        assert_eq!(field("short a[N]", 16), array("a", Element::Integer(2)));
        assert_eq!(field("u32 a[N]", 6), array("a", Element::Unknown));
        assert_eq!(field("signed char a[N]", 16), array("a", Element::Integer(1)));
        assert_eq!(field("unsigned a[N]", 16), array("a", Element::Integer(4)));
    }

    #[test]
    fn array_of_arrays_is_one_and_several_texts_are_none() {
        assert_eq!(field("u32 a[2][N]", 24), array("a", Element::Integer(4)));
        assert_eq!(field("char names[4][16]", 64).1, Shape::Other);
        assert_eq!(field("__data_loc char[][16] names", 4).1, Shape::Other);
        assert_eq!(field("char *names[4]", 32), array("names", Element::Integer(8)));
    }

    #[test]
    fn attributes_and_arguments_of_functions_are_no_names() {
        assert_eq!(field("u8 x __attribute__((aligned(8)))", 1), ("x".to_owned(), Shape::Value));
        assert_eq!(field("__attribute__((packed)) u8 x", 1), ("x".to_owned(), Shape::Value));
        assert_eq!(field("void (*)(struct work_struct *work) function", 8), ("function".to_owned(), Shape::Value));
    }

    #[test]
    fn field_may_be_called_as_a_type_is() {
        for name in ["short", "signed", "unsigned", "long", "struct", "char", "const"] {
            let text = Shape::Located { element: Element::Char, is_relative: false };
            assert_eq!(field(&format!("u16 {name}"), 2), (name.to_owned(), Shape::Value));
            assert_eq!(field(&format!("unsigned short {name}[3]"), 6), array(name, Element::Integer(2)));
            assert_eq!(field(&format!("__data_loc char[] {name}"), 4), (name.to_owned(), text));
        }
    }
}
