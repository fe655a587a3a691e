//! Standard output of reading commands. On a terminal text goes through a pager, with colours; anywhere else it is what the
//! command writes, byte for byte.

use crate::cli::TerminalArgs;
use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use clap::ColorChoice;
use rustix::termios;
use signal_hook::consts::SIGINT;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::{env, mem};
use trace_merge::report::rows::width;
use trace_merge::report::sink::Sink;

/// The pager if the user names none: it ends at once where all fits the screen, and leaves it there.
const PAGER: &str = "less";
const LESS: &str = "FRX";
/// For lines that are longer than the terminal is wide: arrow keys show the rest.
const LESS_CHOPS: &str = "FRSX";
/// Narrower than that, nothing is cut or wrapped.
const NARROWEST: u16 = 40;

/// What the lines of reports begin with that have a colour, behind blanks.
const STYLES: [(&str, Style); 7] = [
    ("INCOMPLETE", AnsiColor::Red.on_default().bold()),
    ("NOTE:", AnsiColor::Yellow.on_default()),
    ("next: ", AnsiColor::Cyan.on_default()),
    ("Next: ", AnsiColor::Cyan.on_default()),
    ("What stands out:", Style::new().bold()),
    ("no violations", AnsiColor::Green.on_default()),
    ("0 violations", AnsiColor::Green.on_default()),
];
/// What steps of critical paths begin with that have a colour, behind a time and a share.
const STEPS: [(&str, Style); 5] = [
    ("the host ", AnsiColor::Red.on_default()),
    ("ready", AnsiColor::Yellow.on_default()),
    ("waits for", AnsiColor::Blue.on_default()),
    ("disk: ", AnsiColor::Magenta.on_default()),
    ("not known", Style::new().dimmed()),
];

/// Standard output, or a pager before it.
#[derive(Debug)]
pub struct Output {
    /// What the pager's options are if the user sets none; `None` where no pager is wanted.
    pager: Option<&'static str>,
    /// Where it goes, once there is something.
    started: Option<Started>,
    /// The line under construction, where lines have colours or are wrapped.
    line: Option<Vec<u8>>,
    is_colourful: bool,
    /// The terminal's width, where tables and sentences keep to it.
    width: Option<usize>,
}

#[derive(Debug)]
struct Started {
    out: BufWriter<Target>,
    pager: Option<Child>,
}

#[derive(Debug)]
enum Target {
    Stdout(Stdout),
    Pager(ChildStdin),
    /// The pager gets no more.
    None,
}

impl Output {
    /// As `args` say. Text has colours where `is_text`; JSON and the like never do.
    #[must_use]
    pub fn new(args: &TerminalArgs, is_text: bool) -> Self {
        let stdout = io::stdout();
        let is_colourful = match args.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => AutoStream::choice(&stdout) != anstream::ColorChoice::Never,
        };
        let is_terminal = stdout.is_terminal();
        let width = termios::tcgetwinsize(&stdout).ok().filter(|size| is_terminal && size.ws_col >= NARROWEST);
        let width = width.map(|size| size.ws_col.into()).filter(|_| is_text && !args.wide);
        let pager = (is_terminal && !args.no_pager).then_some(if args.wide { LESS } else { LESS_CHOPS });
        let line = (is_text && (is_colourful || width.is_some())).then(Vec::new);
        Self { pager, started: None, line, is_colourful, width }
    }

    /// Writes `bytes` as they are.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let pager = self.pager;
        self.started.get_or_insert_with(|| Started::new(pager)).out.write_all(bytes)
    }
}

impl Started {
    fn new(pager: Option<&str>) -> Self {
        let mut pager = pager.and_then(|options| start_pager(options, |name| env::var_os(name)));
        let sink = match pager.as_mut().and_then(|pager| pager.stdin.take()) {
            Some(input) => {
                // Ctrl-C is the pager's: who ends it ends this, too. Where that cannot be, the terminal is shared.
                let _ = signal_hook::flag::register(SIGINT, Arc::default());
                Target::Pager(input)
            }
            None => Target::Stdout(io::stdout()),
        };
        Self { out: BufWriter::new(sink), pager }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Who closed it has seen enough.
        let _ = self.out.flush();
        if let Some(mut pager) = self.pager.take() {
            *self.out.get_mut() = Target::None;
            let _ = pager.wait();
        }
    }
}

/// Starts the pager that the environment says, with `options` of less; `None` where it says none, or there is none.
fn start_pager(options: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<Child> {
    let mut command = pager(&variable)?;
    if variable("LESS").is_none() {
        command.env("LESS", options);
    }
    command.stdin(Stdio::piped()).spawn().ok()
}

/// The command of the pager: what `STRATA_PAGER` or else `PAGER` says, which is a shell's, or else [`PAGER`]. `None` where that
/// is empty or `cat`.
fn pager(variable: &impl Fn(&str) -> Option<OsString>) -> Option<Command> {
    match variable("STRATA_PAGER").or_else(|| variable("PAGER")) {
        Some(line) if line.is_empty() || line == "cat" => None,
        Some(line) => {
            let mut command = Command::new("sh");
            command.arg("-c").arg(line);
            Some(command)
        }
        None => Some(Command::new(PAGER)),
    }
}

impl Sink for Output {
    fn columns(&self) -> Option<usize> {
        self.width
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(mut line) = self.line.take() else { return self.put(bytes).map(|()| bytes.len()) };
        let mut lines = Vec::with_capacity(bytes.len());
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            line.extend_from_slice(part);
            if let Some((b'\n', text)) = line.split_last() {
                write_line(text, self.is_colourful, self.width, &mut lines)?;
                line.clear();
            }
        }
        self.line = Some(line);
        self.put(&lines).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(rest) = self.line.as_mut().map(mem::take).filter(|rest| !rest.is_empty()) {
            self.put(&rest)?;
        }
        self.started.as_mut().map_or(Ok(()), |started| started.out.flush())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Who closed it has seen enough.
        let _ = self.flush();
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::Pager(out) => out.write(bytes),
            Self::None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::Pager(out) => out.flush(),
            Self::None => Ok(()),
        }
    }
}

fn write_line(line: &[u8], is_colourful: bool, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let line = String::from_utf8_lossy(line);
    let style = if is_colourful { style_of(&line) } else { Style::new() };
    for part in wrapped(&line, width.unwrap_or(usize::MAX)) {
        writeln!(out, "{style}{part}{style:#}")?;
    }
    Ok(())
}

/// `line` in lines of at most `columns` characters. Lines of tables, which have blanks between their columns, and commands
/// stay as they are.
fn wrapped(line: &str, columns: usize) -> Vec<String> {
    let text = line.trim_start();
    let indent = line.chars().count() - text.chars().count();
    let is_sentence = !text.contains("  ") && !text.to_lowercase().starts_with("next: ");
    if line.chars().count() <= columns || !is_sentence {
        return vec![line.into()];
    }
    // What follows a number with a point stands below what is behind it.
    let behind_number = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let digits = text.len() - behind_number.len();
    let hang = if digits > 0 && behind_number.starts_with(". ") { digits + 2 } else { 0 };
    let lines = width::wrap(text, columns.saturating_sub(indent), hang);
    lines.into_iter().map(|line| " ".repeat(indent) + &line).collect()
}

/// The colour of a line of a report.
fn style_of(line: &str) -> Style {
    let text = line.trim_start();
    let begins = |(begin, _): &&(&str, Style)| text.starts_with(begin);
    if let Some((_, style)) = STYLES.iter().find(begins) {
        return *style;
    }
    // A finding: a number and a point.
    let digits = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    if digits.len() < line.len() && digits.starts_with(". ") {
        return Style::new().bold();
    }
    if digits.len() < line.len() && [" violation: ", " violations: "].iter().any(|what| digits.starts_with(what)) {
        return AnsiColor::Red.on_default().bold();
    }
    // A step: a time, a share, and what it was.
    let step = text.split_once(" %  ").map_or("", |(_, step)| step.trim_start());
    STEPS.iter().find(|(begin, _)| step.starts_with(begin)).map_or_else(Style::new, |(_, style)| *style)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coloured(text: &str) -> String {
        let mut out = Vec::new();
        text.lines().for_each(|line| write_line(line.as_bytes(), true, None, &mut out).unwrap());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn findings_and_what_to_do_next_have_colours_and_tables_have_none() {
        assert_eq!(coloured("1. 57 exits of vm0\n"), "\u{1b}[1m1. 57 exits of vm0\u{1b}[0m\n");
        assert_eq!(coloured("   next: strata check a\n"), "\u{1b}[36m   next: strata check a\u{1b}[0m\n");
        assert_eq!(
            coloured("3 violations: 3 out of order\n1 violation: 1 out of order\n"),
            "\u{1b}[1m\u{1b}[31m3 violations: 3 out of order\u{1b}[0m\n\u{1b}[1m\u{1b}[31m1 violation: 1 out of order\u{1b}[0m\n"
        );
        assert_eq!(coloured("0 violations: 0 out of order\n"), "\u{1b}[32m0 violations: 0 out of order\u{1b}[0m\n");
        let table = "task  wall\ndd/145  297.349 ms\n1.5 ms  3\n\n";
        assert_eq!(coloured(table), table);
    }

    #[test]
    fn steps_have_the_colour_of_what_they_wait_for() {
        let line = "    4.431 ms   20.5 %    the host runs backup/4711";
        assert_eq!(coloured(line), format!("\u{1b}[31m{line}\u{1b}[0m\n"));
        let task = "   21.607 ms  100.0 %  dd/145";
        assert_eq!(coloured(task), format!("{task}\n"));
    }

    #[test]
    fn sentences_keep_to_the_terminals_width_and_tables_do_not() {
        let finding = "1. one in a hundred of 120 disk requests took longer";
        assert_eq!(wrapped(finding, 30), ["1. one in a hundred of 120", "   disk requests took longer"]);
        assert_eq!(wrapped("   the step took 16 ms", 15), ["   the step", "   took 16 ms"]);
        for whole in ["task      wall  running", "   next: strata report flows trace", "short"] {
            assert_eq!(wrapped(whole, 10), [whole]);
        }
        assert_eq!(wrapped("a_word_that_is_longer than", 10), ["a_word_that_is_longer", "than"]);
    }

    /// The pager where these variables are set: its program and arguments.
    fn pager_of(variables: &[(&str, &str)]) -> Option<Vec<String>> {
        let variable = |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
        let command = pager(&variable)?;
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        Some(words.map(|word| word.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn pager_is_what_the_environment_says_or_less() {
        let words = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect());

        assert_eq!(pager_of(&[]), words(&["less"]));
        assert_eq!(pager_of(&[("PAGER", "more -s")]), words(&["sh", "-c", "more -s"]));
        assert_eq!(pager_of(&[("PAGER", "more"), ("STRATA_PAGER", "most")]), words(&["sh", "-c", "most"]));
        assert_eq!((pager_of(&[("PAGER", "cat")]), pager_of(&[("PAGER", "more"), ("STRATA_PAGER", "")])), (None, None));
    }

    #[test]
    fn text_is_as_it_is_without_colours_or_has_them_in_whole_lines() {
        let written = |line| {
            let started = Started { out: BufWriter::new(Target::None), pager: None };
            let mut output = Output { pager: None, started: Some(started), line, is_colourful: true, width: None };
            output.write_all(b"1. a\n2. ").unwrap();
            output.write_all(b"b\nrest").unwrap();
            String::from_utf8(output.started.as_ref().unwrap().out.buffer().to_vec()).unwrap()
        };

        assert_eq!(written(None), "1. a\n2. b\nrest");
        assert_eq!(written(Some(Vec::new())), "\u{1b}[1m1. a\u{1b}[0m\n\u{1b}[1m2. b\u{1b}[0m\n");
    }
}
