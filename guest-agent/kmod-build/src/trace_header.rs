//! A kernel's trace header as text: what it declares, and a copy without what cannot be compiled outside the kernel.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;

/// What marks a file as a trace header.
const MARK: &str = "#include <trace/define_trace.h>";

/// What a trace header declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHeader {
    /// How it is included: `trace/events/sched.h`.
    pub include: String,
    /// Where it lies.
    pub path: PathBuf,
    /// The group of its events.
    pub system: String,
    /// Names that its events may have: macros in the header may make more of fewer, so each may also be one with
    /// `_entry` or `_exit` behind it.
    pub events: BTreeSet<String>,
    /// Tracepoints without an event.
    pub bare: BTreeSet<String>,
}

impl TraceHeader {
    /// Its file's name without the ending.
    #[must_use]
    pub fn file_stem(&self) -> &str {
        self.include.rsplit('/').next().unwrap_or_default().trim_end_matches(".h")
    }
}

/// Reads the header with the content `text`; `None` when it is not a trace header.
#[must_use]
pub fn parse(text: &str, include: String, path: PathBuf) -> Option<TraceHeader> {
    if !text.contains(MARK) {
        return None;
    }
    let text = without_comments(text);
    let system = text.lines().find_map(|line| line.trim().strip_prefix("#define TRACE_SYSTEM"))?;
    let mut header =
        TraceHeader { include, path, system: system.trim().to_owned(), events: BTreeSet::new(), bare: BTreeSet::new() };
    for (name, arguments) in calls(&text) {
        // the name comes first or, after that of a class, second
        let mut names = arguments.split(',').take(2).map(str::trim).filter(|name| is_identifier(name));
        if name.starts_with("DECLARE_TRACE") {
            header.bare.extend(names.next().map(str::to_owned));
        } else if name.contains("EVENT") || name.starts_with("DEFINE_") {
            for name in names {
                header.events.extend([name.to_owned(), format!("{name}_entry"), format!("{name}_exit")]);
            }
        }
    }
    Some(header)
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut result = String::with_capacity(text.len());
    while let Some((before, after)) = rest.split_once("/*") {
        result.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    result + rest
}

/// The calls of macros whose names are in capitals, with the beginning of their arguments, up to a bracket.
fn calls(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices('(').filter_map(|(at, _)| {
        let before = text[..at].trim_end();
        let start = before.rfind(|character: char| {
            !(character.is_ascii_uppercase() || character.is_ascii_digit() || character == '_')
        });
        let name = &before[start.map_or(0, |start| start + 1)..];
        let arguments = text[at + 1..].split(['(', ')']).next()?;
        (name.len() > 3).then_some((name, arguments))
    })
}

/// The header `text` without the fields that calls of `unexported` functions compute, without those that nothing
/// assigns (the kernel itself records what its buffer held before), and without inclusions by relative path of files
/// that are not there, as `exists` says.
#[must_use]
pub fn without(text: &str, unexported: &[&str], exists: impl Fn(&str) -> bool) -> String {
    let mut result = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let included = line.trim().strip_prefix("#include \"").and_then(|path| path.split('"').next());
        if included.is_none_or(&exists) {
            result.push_str(line);
        }
    }
    let mut rest = result.as_str();
    let mut edited = String::with_capacity(rest.len());
    // also of `# define`; what is none does no harm
    let macros: BTreeSet<&str> = rest.split("define").skip(1).filter_map(|after| words(after).next()).collect();
    while let Some(at) = rest.find("TP_STRUCT__entry") {
        // up to the next event's structure: this event's assignments come before it
        let next = rest[at + 1..].find("TP_STRUCT__entry").map_or(rest.len(), |next| at + 1 + next);
        edited.push_str(&rest[..at]);
        let mut event = without_fields(&rest[at..next], unexported);
        for field in unassigned_fields(&event, &macros) {
            event = without_field(&event, &field);
        }
        edited.push_str(&event);
        rest = &rest[next..];
    }
    edited + rest
}

/// One event's part of a header without the fields that calls of `unexported` compute.
fn without_fields(event: &str, unexported: &[&str]) -> String {
    let mut text = event.to_owned();
    let mut names: Vec<String> = unexported.iter().map(|name| (*name).to_owned()).collect();
    while let Some(name) = names.pop() {
        while let Some(field) = computed_field(&text, &name) {
            let shorter = without_field(&text, &field);
            if shorter == text {
                break;
            }
            text = shorter;
            // what is computed from it
            names.push(format!("__entry->{field}"));
        }
    }
    text
}

/// The fixed fields that `event` declares and does not assign.
fn unassigned_fields(event: &str, macros: &BTreeSet<&str>) -> Vec<String> {
    let Some((fields, rest)) = event.split_once("TP_fast_assign") else { return Vec::new() };
    let rest = rest.trim_start();
    let Some(assignments) = closing(rest).map(|end| &rest[..end]) else { return Vec::new() };
    // the header's own macros, and whoever is given the whole entry, may assign any of them
    let entry_itself = assignments.split("__entry").skip(1).any(|after| !after.trim_start().starts_with("->"));
    let assigned: BTreeSet<&str> = words(assignments).collect();
    if entry_itself || !assigned.is_disjoint(macros) {
        return Vec::new();
    }
    let fixed =
        declarations(fields).filter(|field| ["__field", "__array"].iter().any(|kind| field.kind.starts_with(kind)));
    fixed.filter(|field| !assigned.contains(field.name)).map(|field| field.name.to_owned()).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// The field that a statement of `text` computes by means of `name`: a function, a variable or another field.
fn computed_field(text: &str, name: &str) -> Option<String> {
    let (_, statements) = text.split_once("TP_fast_assign")?;
    let computed = statements.split(';').find_map(|statement| {
        let assigned = statement.split_once("__entry->").and_then(|(_, rest)| rest.split_once('='));
        let copied = statement.split_once("__assign_str(").and_then(|(_, rest)| rest.split_once([',', ')']));
        let (target, _) = [assigned, copied].into_iter().flatten().find(|(_, value)| mentions(value, name))?;
        is_identifier(target.trim()).then(|| target.trim().to_owned())
    });
    computed.or_else(|| declared_by(text, name))
}

/// The string whose declaration uses `name`: kernels from 6.10 on name its source there only.
fn declared_by(text: &str, name: &str) -> Option<String> {
    let (fields, _) = text.split_once("TP_fast_assign")?;
    fields.match_indices("__string").find_map(|(at, _)| {
        let open = at + fields[at..].find('(')?;
        let arguments = &fields[open + 1..open + closing(&fields[open..])?];
        let (field, source) = arguments.split_once(',')?;
        mentions(source, name).then(|| field.trim().to_owned())
    })
}

/// Whether `name` stands in `text` as a word.
fn mentions(text: &str, name: &str) -> bool {
    let continues = |character: Option<char>| character.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    text.match_indices(name)
        .any(|(at, _)| !continues(text[..at].chars().next_back()) && !continues(text[at + name.len()..].chars().next()))
}

/// A field's declaration: `__field(type, name)`, `__string(name, source)` and the like.
struct Declaration<'t> {
    at: Range<usize>,
    kind: &'t str,
    name: &'t str,
}

/// The declarations in `text`, in order.
fn declarations(text: &str) -> impl Iterator<Item = Declaration<'_>> {
    text.match_indices("__").filter_map(|(at, _)| {
        let open = at + text[at..].find('(')?;
        let kind = text[at..open].trim_end();
        let end = open + closing(&text[open..])?;
        let mut arguments = text[open + 1..end].split(',').map(str::trim);
        let name_comes_first = !(kind.contains("field") || kind.contains("array"));
        let name = arguments.nth(usize::from(!name_comes_first))?;
        let known = ["__field", "__array", "__dynamic_array", "__string"];
        known.iter().any(|known| kind.starts_with(known)).then_some(Declaration { at: at..end + 1, kind, name })
    })
}

/// `text` without the declaration of `field` and the statement that computes it.
fn without_field(text: &str, field: &str) -> String {
    let mut result = text.to_owned();
    let declaration = declarations(text).find(|declaration| declaration.name == field);
    if let Some(declaration) = declaration {
        result.replace_range(declaration.at, "");
    }
    let statement = ["__entry->", "__assign_str("].iter().find_map(|start| {
        result.match_indices(start).find_map(|(at, _)| {
            let end = at + result[at..].find(';')? + 1;
            let before_value = result[at..end].split(['=', ',']).next()?;
            let computes = *start != "__entry->" || result[at..end].contains('=');
            (computes && words(before_value).any(|word| word == field)).then_some((at, end))
        })
    });
    if let Some((from, to)) = statement {
        // an empty one: it may be what an `if` is about
        result.replace_range(from..to, ";");
    }
    result
}

/// Where the bracket that `text` begins with is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "\
#undef TRACE_SYSTEM
#define TRACE_SYSTEM example
#include \"../../../private.h\"
/* TRACE_EVENT(in_a_comment, */
TRACE_EVENT(first,
	TP_STRUCT__entry(
		__field( u64, cookie )
		__field( int, plain )
		__field( u64, twice )
		__string( driver, name_of(dev) )
	),
	TP_fast_assign(
		__entry->plain = 1;
		__entry->cookie = cookie_of(sk);
		__assign_str(driver, name_of(dev));
		__entry->twice = 2 * __entry->cookie;
	),
	TP_printk(\"%llu\", __entry->cookie)
);
DEFINE_EVENT(class, second, TP_PROTO(int a), TP_ARGS(a));
DEFINE_VECTOR_EVENT(third);
DECLARE_TRACE(bare, TP_PROTO(int a), TP_ARGS(a));
#include <trace/define_trace.h>
";

    fn header() -> TraceHeader {
        parse(HEADER, "trace/events/example.h".into(), "/k/example.h".into()).unwrap()
    }

    #[test]
    fn events_and_bare_tracepoints_are_distinguished() {
        let header = header();

        assert_eq!((header.system.as_str(), header.file_stem()), ("example", "example"));
        assert!(["first", "second", "third_entry"].iter().all(|name| header.events.contains(*name)));
        assert!(!header.events.contains("in_a_comment") && !header.events.contains("bare"));
        assert_eq!(header.bare.into_iter().collect::<Vec<_>>(), ["bare"]);
    }

    #[test]
    fn other_headers_are_no_trace_headers() {
        assert_eq!(parse("#define TRACE_SYSTEM x\n", "x.h".into(), "/x.h".into()), None);
    }

    #[test]
    fn computed_fields_are_left_out_with_their_statements() {
        let text = without(HEADER, &["cookie_of", "name_of"], |_| true);

        assert!(!text.contains("u64, cookie") && !text.contains("cookie_of") && !text.contains("name_of"), "{text}");
        assert!(!text.contains("twice"), "{text}");
        assert!(text.contains("__field( int, plain )") && text.contains("__entry->plain = 1;"));
        assert_eq!(without(HEADER, &["another"], |_| true), HEADER);
    }

    #[test]
    fn fields_that_nothing_assigns_are_left_out() {
        let unassigned = HEADER.replace("__entry->plain = 1;", "");

        let text = without(&unassigned, &[], |_| true);

        assert!(!text.contains("plain") && text.contains("__field( u64, cookie )"), "{text}");
        // by the whole entry, or by a macro of the header
        for statement in ["fill(__entry);", "ASSIGN(a);"] {
            let other =
                format!("#define ASSIGN(a) __entry->plain = a\n{}", HEADER.replace("__entry->plain = 1;", statement));
            assert_eq!(without(&other, &[], |_| true), other);
        }
    }

    #[test]
    fn inclusion_of_a_file_that_is_not_there_is_left_out() {
        let text = without(HEADER, &[], |path| path != "../../../private.h");

        assert!(!text.contains("private.h") && text.contains("define_trace.h"));
    }
}
