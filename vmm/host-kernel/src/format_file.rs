//! Format files in the form that the kernel gives them, or none: their parser relies on it.

/// The format file `text` as the parser takes it, in ASCII: each of its parts once, and fields whose numbers fit. The
/// error is the line that no kernel writes.
pub(super) fn checked(text: &str) -> Result<String, String> {
    // C has nothing else than ASCII but in texts, which are not recorded.
    let text = text.replace(|character: char| !character.is_ascii(), "_");
    let (mut checked, mut known) = (String::with_capacity(text.len()), Vec::new());
    // The list of fields ends with its second empty line: the first one is behind those that all events have.
    let (mut rest, mut empty_lines_to_come) = (text.as_str(), None::<u32>);
    while !rest.is_empty() {
        let (line, behind) = rest.split_once('\n').unwrap_or((rest, ""));
        let line = line.strip_suffix('\r').unwrap_or(line);
        let part = ["name:", "ID:", "format:", "print fmt:"].into_iter().find(|part| line.starts_with(part));
        let is_known = match part {
            Some(part) if known.contains(&part) || empty_lines_to_come.is_some_and(|lines| lines > 0) => false,
            Some("ID:") => line["ID:".len()..].trim().parse::<u32>().is_ok(),
            Some(_) => true,
            None => line.trim().is_empty() || (empty_lines_to_come.is_some() && is_field(line)),
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
        checked.push_str(if part.is_none() && line.trim().is_empty() { "" } else { line });
        checked.push('\n');
        rest = behind;
    }
    Ok(checked)
}

/// Whether `line` is one such as ` field:TYPE NAME; offset:N; size:N; signed:N;`, of a field within the 65,535 bytes
/// that the parser counts.
fn is_field(line: &str) -> bool {
    let mut parts = line.trim().strip_suffix(';').unwrap_or_default().split(';').map(str::trim);
    let declaration = parts.next().and_then(|part| part.strip_prefix("field:").or(part.strip_prefix("field special:")));
    let mut number = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix(':')?.parse::<u16>().ok();
    let (offset, size) = (number("offset"), number("size"));
    let (Some(declaration), Some(offset), Some(size)) = (declaration, offset, size) else { return false };
    let is_within = offset.checked_add(size).is_some();
    let is_whole = parts.next().is_none_or(|part| matches!(part, "signed:0" | "signed:1"));
    is_within && is_whole && parts.next().is_none() && is_declaration(declaration, size)
}

/// Whether `declaration` is that of a field of `size` bytes: if it counts elements, they fill them.
fn is_declaration(declaration: &str, size: u16) -> bool {
    let is_c = |c: char| c.is_ascii_alphanumeric() || "_ *[]()+-/,".contains(c);
    let is_located = ["__data_loc", "__rel_loc"].iter().any(|word| declaration.contains(word));
    let mut counts = declaration.split('[').skip(1).map(|behind| behind.split_once(']').map(|(count, _)| count.trim()));
    let fits = |count: Option<&str>| match count {
        None => false,
        Some(count) if count.bytes().all(|byte| byte.is_ascii_digit()) && !count.is_empty() => {
            count.parse::<u16>().is_ok_and(|count| is_located || count == 0 || size.is_multiple_of(count))
        }
        // The name of a constant, or nothing.
        Some(count) => !count.contains(|c: char| c.is_ascii_digit()),
    };
    declaration.trim() != "" && declaration.chars().all(is_c) && counts.all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: event\nID: 77\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
         \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\nprint fmt: \"%s\", REC->comm\n";

    #[test]
    fn format_file_of_a_kernel_stays_as_it_is() {
        assert_eq!(checked(FORMAT).unwrap().trim_end(), FORMAT.trim_end());
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
        assert!(changed("size:16", "size:65536").contains("size:65536"));
        assert!(changed("offset:8", "offset:65530").contains("offset:65530"));
        assert!(changed("comm[16]", "comm[99999]").contains("comm[99999]"));
        assert!(changed("comm[16]", "comm[3]").contains("comm[3]"));
        assert!(changed("comm[16]", "comm[16").contains("comm[16;"));
    }

    #[test]
    fn what_is_printed_may_be_several_lines_and_is_read_as_one() {
        let checked = checked(&format!("{FORMAT}name: other\nformat:\n")).unwrap();

        assert!(checked.ends_with("REC->comm name: other format: "), "{checked}");
    }
}
