//! A file of options for `strata run`, in TOML.
//!
//! Each key is an option without its dashes: `memory = "1G"`, `cpus = 4`, `pmu = true`, `disk = ["a.img", "b.img"]`.
//! The file's options are put in front of those on the command line, and whatever is on the command line replaces the
//! file's option of that name. From there on nothing knows where an option came from: the file equals the options.

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};
use strata_recording::text::nearest;
use thiserror::Error;
use toml::{Table, Value};

/// The subcommand that takes such a file.
const SUBCOMMAND: &str = "run";
/// Options that are not in files.
const NOT_IN_FILES: [&str; 3] = ["config", "print-config", "help"];

/// Why a file of options cannot be used or written.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        path: PathBuf,
        /// The line of the file.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// There is no such option.
    #[error("{}: there is no option '{key}'{}", path.display(), did_you_mean(nearest))]
    UnknownOption {
        path: PathBuf,
        /// The key.
        key: String,
        /// Options with such names.
        nearest: Vec<String>,
    },
    /// The value is not one that the option takes.
    #[error("{}: '{key}' takes {expected}", path.display())]
    Value {
        path: PathBuf,
        /// The key.
        key: String,
        /// What it takes.
        expected: &'static str,
    },
    /// The value of an option is not text.
    #[error("the value of --{key} is not UTF-8, which a configuration in TOML is")]
    NotText { key: String },
}

fn did_you_mean(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; there are {}", nearest.join(", ")) }
}

/// The command line `args` of `program`, with the options of the file that its `--config` names.
///
/// # Errors
/// When the file cannot be read, is not TOML, or has an option that there is not or a value that it does not take.
pub fn with_config(program: &Command, args: Vec<OsString>) -> Result<Vec<OsString>, ConfigError> {
    let Some(options) = program.find_subcommand(SUBCOMMAND) else { return Ok(args) };
    if args.get(1).is_none_or(|subcommand| subcommand != SUBCOMMAND) {
        return Ok(args);
    }
    let Some(path) = config_of(&args) else { return Ok(args) };
    let text = fs::read_to_string(&path).map_err(|source| ConfigError::Read { path: path.clone(), source })?;
    let from_file = arguments(options, &path, &text, &args[2..])?;
    Ok([&args[..2], &from_file, &args[2..]].concat())
}

/// The file that `args` name.
fn config_of(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--config" {
            return args.next().map(PathBuf::from);
        }
        // The path may be no text.
        if let Some(path) = arg.as_bytes().strip_prefix(b"--config=") {
            return Some(OsStr::from_bytes(path).into());
        }
    }
    None
}

/// The options of the file `path`, whose content is `text`, but for those that are among the arguments `given`.
fn arguments(options: &Command, path: &Path, text: &str, given: &[OsString]) -> Result<Vec<OsString>, ConfigError> {
    let table: Table = toml::from_str(text).map_err(|error| ConfigError::Syntax {
        path: path.into(),
        line: text[..error.span().map_or(0, |span| span.start)].matches('\n').count() + 1,
        message: error.message().replace('\n', " "),
    })?;
    let known = || {
        let options = options.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg.get_action())));
        options.filter(|(long, _)| !NOT_IN_FILES.contains(long))
    };
    let mut arguments = Vec::new();
    for (key, value) in &table {
        let Some((_, action)) = known().find(|(long, _)| long == key) else {
            let nearest = nearest::nearest(key, known().map(|(long, _)| long));
            return Err(ConfigError::UnknownOption { path: path.into(), key: key.clone(), nearest });
        };
        let values = values(action, value).map_err(|expected| ConfigError::Value {
            path: path.into(),
            key: key.clone(),
            expected,
        })?;
        if !given.iter().any(|argument| is_option(argument, key)) {
            arguments.extend(values.into_iter().map(|value| match value {
                None => format!("--{key}").into(),
                Some(value) => format!("--{key}={value}").into(),
            }));
        }
    }
    Ok(arguments)
}

/// Whether `argument` is the option called `name`.
fn is_option(argument: &OsStr, name: &str) -> bool {
    let rest = argument.as_bytes().strip_prefix(b"--").and_then(|option| option.strip_prefix(name.as_bytes()));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
}

/// What stands behind an option of `action` on a command line that means `value`: once for each time it is given. The
/// error says what the option takes.
fn values(action: &ArgAction, value: &Value) -> Result<Vec<Option<String>>, &'static str> {
    match (action, value) {
        (ArgAction::SetTrue, Value::Boolean(true)) => Ok(vec![None]),
        (ArgAction::SetTrue, Value::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err("true or false"),
        (ArgAction::Append, Value::Array(values)) => {
            values.iter().map(|value| text(value).map(Some).ok_or("texts")).collect()
        }
        (ArgAction::Append, value) => Ok(vec![Some(text(value).ok_or("a text or an array of texts")?)]),
        (_, value) => Ok(vec![Some(text(value).ok_or("a text or a number")?)]),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The file that equals the options in `matches` of `program`, if they ask for it by `--print-config`. What has its
/// default is there as a comment.
///
/// # Errors
/// When a value is not text.
pub fn printed(program: &Command, matches: &ArgMatches) -> Result<Option<String>, ConfigError> {
    let (Some(options), Some(matches)) = (program.find_subcommand(SUBCOMMAND), matches.subcommand_matches(SUBCOMMAND))
    else {
        return Ok(None);
    };
    if !matches.get_flag("print_config") {
        return Ok(None);
    }
    let mut file = String::new();
    for option in options.get_arguments() {
        let (id, Some(key)) = (option.get_id().as_str(), option.get_long()) else { continue };
        let Some(source) = matches.value_source(id) else { continue };
        if NOT_IN_FILES.contains(&key) {
            continue;
        }
        let value = match option.get_action() {
            ArgAction::SetTrue => Value::Boolean(matches.get_flag(id)),
            action => {
                let texts = matches.get_raw(id).into_iter().flatten().map(OsStr::to_str);
                let texts: Option<Vec<&str>> = texts.collect();
                let texts = texts.ok_or_else(|| ConfigError::NotText { key: key.into() })?;
                of_texts(action, &texts)
            }
        };
        let comment = if source == ValueSource::DefaultValue { "# " } else { "" };
        // Writing to a String does not fail.
        let _ = writeln!(file, "{comment}{key} = {value}");
    }
    Ok(Some(file))
}

/// The value in a file of an option of `action` that is given with `texts`.
fn of_texts(action: &ArgAction, texts: &[&str]) -> Value {
    let value = |text: &&str| {
        let number: Option<i64> = text.parse().ok();
        number.filter(|number| number.to_string() == **text).map_or_else(|| Value::from(*text), Value::Integer)
    };
    match (action, texts) {
        (ArgAction::Append, texts) => Value::Array(texts.iter().map(|text| Value::from(*text)).collect()),
        (_, texts) => texts.last().map_or_else(|| Value::from(""), value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;
    use std::io::Write as _;

    /// The command line `words` with the configuration `text`, which `FILE` in it stands for.
    fn with(text: &str, words: &[&str]) -> Result<Vec<String>, ConfigError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        let args = words.iter().map(|word| word.replace("FILE", path).into()).collect();
        let args = with_config(&Cli::command(), args)?;
        Ok(args.into_iter().map(|arg| arg.into_string().unwrap().replace(path, "FILE")).collect())
    }

    fn refusal(text: &str) -> String {
        let message = with(text, &["strata", "run", "--config", "FILE"]).unwrap_err().to_string();
        message.split_once(".tmp").map_or(message.clone(), |(_, behind)| behind[6..].to_owned())
    }

    #[test]
    fn file_equals_the_options_that_it_names() {
        let text = "kernel = 'vmlinuz'\ncpus = 4\npmu = true\nnested = false\ndisk = ['a.img,ro', 'b.img']\n";

        let args = with(text, &["strata", "run", "--config=FILE"]).unwrap();

        let from_file = ["--cpus=4", "--disk=a.img,ro", "--disk=b.img", "--kernel=vmlinuz", "--pmu"];
        assert_eq!(args, [&["strata", "run"][..], &from_file, &["--config=FILE"]].concat());
    }

    #[test]
    fn option_on_the_command_line_replaces_the_files() {
        let text = "kernel = 'vmlinuz'\ndisk = ['a.img', 'b.img']\nmemory = '1G'\n";
        let given = ["--config", "FILE", "--disk", "c.img", "--memory=2G"];

        let args = with(text, &[&["strata", "run"][..], &given].concat()).unwrap();

        assert_eq!(args, [&["strata", "run", "--kernel=vmlinuz"][..], &given].concat());
    }

    #[test]
    fn paths_that_are_no_text_count_as_others_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(OsStr::from_bytes(b"\xff.toml"));
        fs::write(&path, "kernel = 'vmlinuz'\ncpus = 4\n").unwrap();
        let option = |name: &str, value: &OsStr| {
            let mut option = OsString::from(name);
            option.push(value);
            option
        };
        let (config, kernel) = (option("--config=", path.as_os_str()), option("--kernel=", OsStr::from_bytes(b"\xff")));
        let words: Vec<OsString> = vec!["strata".into(), "run".into(), config, kernel];

        let args = with_config(&Cli::command(), words.clone()).unwrap();

        let from_file = [OsString::from("--cpus=4")];
        assert_eq!(args, [&words[..2], &from_file, &words[2..]].concat());
    }

    #[test]
    fn other_commands_take_no_file() {
        let words = ["strata", "report", "--config", "FILE"];

        assert_eq!(with("cpus = 4", &words).unwrap(), words);
    }

    #[test]
    fn refusal_names_the_place_and_what_is_taken() {
        assert_eq!(refusal("cpu = 4"), ": there is no option 'cpu'; there are cpus, compress");
        assert_eq!(refusal("config = 'other'").split(';').next(), Some(": there is no option 'config'"));
        assert_eq!(refusal("pmu = 1"), ": 'pmu' takes true or false");
        assert_eq!(refusal("memory = ['1G']"), ": 'memory' takes a text or a number");
        assert_eq!(refusal("disk = [['a']]"), ": 'disk' takes texts");
        assert!(refusal("cpus = 1\nmemory = \n").starts_with(":2: "), "{}", refusal("cpus = 1\nmemory = \n"));
    }

    #[test]
    fn what_is_printed_is_read_as_the_same_options() {
        let options = ["--kernel", "a b", "--cpus", "2", "--disk", "a.img,ro", "--disk", "7", "--pmu"];
        let options = [&options[..], &["--cmdline", "root=\"x\" 'y' \\ ä"]].concat();
        let parsed = |args: &[&str]| {
            let args = [&["strata", "run"][..], args].concat();
            Cli::command().try_get_matches_from(args).unwrap()
        };

        let file = printed(&Cli::command(), &parsed(&[&options[..], &["--print-config"]].concat())).unwrap().unwrap();

        let read = with(&file, &["strata", "run", "--config", "FILE", "--print-config"]).unwrap();
        let read: Vec<&str> = read[2..].iter().map(String::as_str).collect();
        let again = printed(&Cli::command(), &parsed(&read)).unwrap().unwrap();
        assert_eq!(again, file);
        assert!(file.contains("cpus = 2\n") && file.contains("\n# memory = \"512M\"\n"), "{file}");
    }

    #[test]
    fn nothing_is_printed_unless_it_is_requested() {
        let matches = Cli::command().try_get_matches_from(["strata", "run", "--kernel", "k"]).unwrap();

        assert_eq!(printed(&Cli::command(), &matches).unwrap(), None);
    }
}
