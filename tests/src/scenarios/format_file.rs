//! The kernel's own description of its events: tracefs' `format` files.

/// An event as its `format` file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatFile {
    /// Name of the event, without its group.
    pub name: String,
    /// Its fields without those that all events have.
    pub fields: Vec<FormatField>,
}

/// A field as a `format` file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatField {
    /// Name of the field.
    pub name: String,
    /// Its size, bytes; that of a dynamic field is the size of the word that tells its place.
    pub size: u32,
    /// Whether it is signed.
    pub signed: bool,
    /// Whether its bytes lie elsewhere in the record.
    pub dynamic: bool,
}

/// Reads the `format` files that follow one another in `text`.
#[must_use]
pub fn parse(text: &str) -> Vec<FormatFile> {
    let mut files: Vec<FormatFile> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("name: ") {
            files.push(FormatFile { name: name.to_owned(), fields: Vec::new() });
        } else if let (Some(declared), Some(file)) = (line.strip_prefix("\tfield:"), files.last_mut()) {
            file.fields.extend(field(declared).filter(|field| !field.name.starts_with("common_")));
        }
    }
    files
}

/// The field on a line such as `char comm[16];\toffset:8;\tsize:16;\tsigned:0;`.
fn field(line: &str) -> Option<FormatField> {
    let mut parts = line.split(';').map(str::trim);
    let declaration = parts.next()?;
    let number = |name: &str| {
        let value = line.split(';').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix(':'))?;
        value.parse::<u32>().ok()
    };
    let name = declaration.split('[').next()?;
    let name = if declaration.starts_with("__data_loc") || declaration.starts_with("__rel_loc") {
        declaration.rsplit(' ').next()?
    } else {
        name.rsplit([' ', '*']).next()?
    };
    Some(FormatField {
        name: name.to_owned(),
        size: number("size")?,
        signed: number("signed")? != 0,
        dynamic: declaration.starts_with("__data_loc") || declaration.starts_with("__rel_loc"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_all_shapes_are_read() {
        let text = "name: irq_handler_entry\nID: 90\nformat:\n\
                    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
                    \tfield:int irq;\toffset:8;\tsize:4;\tsigned:1;\n\
                    \tfield:__data_loc char[] name;\toffset:12;\tsize:4;\tsigned:0;\n\
                    \tfield:const char * text;\toffset:16;\tsize:8;\tsigned:0;\n\
                    \tfield:unsigned long args[6];\toffset:24;\tsize:48;\tsigned:0;\n\n\
                    print fmt: \"irq=%d\", REC->irq\n\nname: other\nID: 1\n";

        let files = parse(text);

        let field = |name: &str, size, signed, dynamic| FormatField { name: name.into(), size, signed, dynamic };
        let expected = [
            field("irq", 4, true, false),
            field("name", 4, false, true),
            field("text", 8, false, false),
            field("args", 48, false, false),
        ];
        assert_eq!((files[0].name.as_str(), files.len()), ("irq_handler_entry", 2));
        assert_eq!(files[0].fields, expected);
    }
}
