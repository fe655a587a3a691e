//! What a build's output says of its failure.

/// Lines of the log that an error shows.
const SHOWN_LINES: usize = 8;

/// Of a failed build's output, the lines that name an error; the last lines when none does.
pub(crate) fn telling_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let errors = ["error:", "ERROR:", "not found", "No such file"];
    let telling: Vec<&str> =
        lines.iter().copied().filter(|line| errors.iter().any(|error| line.contains(error))).collect();
    let chosen = if telling.is_empty() { &lines[lines.len().saturating_sub(SHOWN_LINES)..] } else { &telling[..] };
    chosen.iter().take(SHOWN_LINES).copied().collect::<Vec<_>>().join("; ")
}

/// The first line in which the kernel's objtool complains.
pub(crate) fn objtool_complaint(log: &str) -> Option<&str> {
    log.lines().find(|line| line.contains("objtool:")).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn telling_lines_are_the_last_when_none_names_an_error() {
        let text: Vec<String> = (0..20).map(|line| format!("line {line}")).collect();

        let shown = telling_lines(&text.join("\n"));

        assert!(shown.starts_with("line 12;") && shown.ends_with("line 19"), "{shown}");
    }

    #[test]
    fn objtool_complaint_is_found_among_other_lines() {
        let silent = "  CC [M]  strata_main.o\nSkipping BTF generation\n";
        let loud = "  LD [M] x.o\nrust.o: warning: objtool: f+0x1: 'naked' return found\n";

        assert_eq!(objtool_complaint(silent), None);
        assert!(objtool_complaint(loud).unwrap().contains("naked"));
    }
}
