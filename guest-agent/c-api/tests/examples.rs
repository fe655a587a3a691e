//! The examples in C and C++ compile without a warning, against the shared and the static library as they would be
//! installed, and run where nothing traces; that in Python does, too.
//!
//! Shows: C and C++ examples compile without a warning against the installed libraries, and run untraced.
//! Shows: A Python program hands the library what a C program does, and runs without it.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where cargo puts the libraries that it builds for this test: beside the test itself.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

/// A folder with header, libraries and the description for pkg-config, as a package installs them.
fn install(prefix: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = prefix.join("lib/x86_64-linux-gnu");
    fs::create_dir_all(library.join("pkgconfig")).unwrap();
    fs::create_dir_all(prefix.join("include")).unwrap();
    fs::copy(source.join("include/strata.h"), prefix.join("include/strata.h")).unwrap();
    fs::copy(source.join("strata.pc"), library.join("pkgconfig/strata.pc")).unwrap();
    fs::copy(libraries().join("libstrata.a"), library.join("libstrata.a")).unwrap();
    fs::copy(libraries().join("libstrata.so"), library.join("libstrata.so.1")).unwrap();
    std::os::unix::fs::symlink("libstrata.so.1", library.join("libstrata.so")).unwrap();
}

fn pkg_config(prefix: &Path, options: &[&str]) -> Vec<String> {
    let output = Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", prefix.join("lib/x86_64-linux-gnu/pkgconfig"))
        .args(options)
        .arg("strata")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Compiles and runs an example; returns what it wrote.
fn run(compiler: &[&str], source: &str, link: &[&str]) -> String {
    let prefix = tempfile::tempdir().unwrap();
    install(prefix.path());
    let program = prefix.path().join("program");
    let compiled = Command::new(compiler[0])
        .args(&compiler[1..])
        .args(["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(source))
        .args(pkg_config(prefix.path(), &[&["--cflags", "--libs"], link].concat()))
        .output()
        .unwrap();
    assert_succeeded(&compiled);
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", prefix.path().join("lib/x86_64-linux-gnu")).arg("100");
    let output = command.output().unwrap();
    assert_succeeded(&output);
    String::from_utf8(output.stdout).unwrap()
}

fn assert_succeeded(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn c_program_runs_with_the_shared_library() {
    let printed = run(&["gcc", "-std=c99"], "shop.c", &[]);

    assert!(printed.contains("errno 0"), "{printed}");
}

#[test]
fn c_program_runs_with_the_static_library() {
    let printed = run(&["gcc", "-std=c11", "-static"], "shop.c", &["--static"]);

    assert!(printed.contains("errno 0"), "{printed}");
}

/// Records, and says nothing.
const PLUGIN: &str = r#"
#include <strata.h>
void work(void) { strata_connect(); }
"#;

/// Loads a plugin, lets it record, and closes it: it has to stay.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **arguments) {
    void *plugin = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    void (*work)(void) = plugin ? (void (*)(void))dlsym(plugin, "work") : NULL;
    if (!work)
        return puts(dlerror()), 1;
    work();
    dlclose(plugin);
    puts(dlopen(arguments[1], RTLD_NOW | RTLD_NOLOAD) ? "stays" : "is gone");
    return 0;
}
"#;

#[test]
fn plugin_with_the_static_library_stays_where_its_threads_name_it() {
    let prefix = tempfile::tempdir().unwrap();
    install(prefix.path());
    let path = |name: &str| prefix.path().join(name);
    fs::remove_file(path("lib/x86_64-linux-gnu/libstrata.so")).unwrap();
    fs::write(path("plugin.c"), PLUGIN).unwrap();
    fs::write(path("program.c"), PROGRAM).unwrap();
    let link = pkg_config(prefix.path(), &["--cflags", "--libs", "--static"]);
    let cc = |output: &str, source: &str, options: &[String]| {
        let mut command = Command::new("gcc");
        command.arg("-o").arg(path(output)).arg(path(source)).args(options);
        assert_succeeded(&command.output().unwrap());
    };
    cc("plugin.so", "plugin.c", &[&["-shared".to_owned(), "-fPIC".to_owned()][..], &link].concat());
    cc("program", "program.c", &["-ldl".to_owned()]);

    let output = Command::new(path("program")).arg(path("plugin.so")).output().unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "stays\n", "{output:?}");
}

#[test]
fn description_for_pkg_config_has_the_librarys_version() {
    let prefix = tempfile::tempdir().unwrap();
    install(prefix.path());

    assert_eq!(pkg_config(prefix.path(), &["--modversion"]), [env!("CARGO_PKG_VERSION")]);
}

#[test]
fn cpp_program_runs_with_the_shared_library() {
    let printed = run(&["g++", "-std=c++11", "-pthread"], "baker.cpp", &[]);

    assert!(printed.contains("0 lost"), "{printed}");
}

/// Runs `program`, its file or `-c` and the text, in Python with the module and the libraries in `libraries`; returns
/// what it printed.
fn python(libraries: &Path, program: &[&OsStr]) -> String {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("python"));
    command.env("LD_LIBRARY_PATH", libraries).arg("-B").args(program);
    let output = command.output().unwrap();
    assert_succeeded(&output);
    String::from_utf8(output.stdout).unwrap()
}

/// The example in Python, with `libraries`; what it printed.
fn shop_in_python(libraries: &Path) -> String {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/shop.py");
    python(libraries, &[example.as_os_str(), OsStr::new("100")])
}

#[test]
fn python_program_runs_with_the_shared_library() {
    let prefix = tempfile::tempdir().unwrap();
    install(prefix.path());

    let printed = shop_in_python(&prefix.path().join("lib/x86_64-linux-gnu"));

    assert!(printed.starts_with("shop.py: ") && !printed.contains("libstrata.so.1"), "{printed}");
}

#[test]
fn python_program_without_the_library_runs_and_says_why() {
    let empty = tempfile::tempdir().unwrap();

    let printed = shop_in_python(empty.path());

    assert!(printed.starts_with("shop.py: 0 recorded, 0 lost, libstrata.so.1 cannot be used: "), "{printed}");
}

/// In place of the library: prints what it is given, as the header has it.
const PRINTING: &str = r#"
#include <stdio.h>
#include <strata.h>
static const uint64_t wanted = (uint64_t)1 << STRATA_CLASS_USER, *const word = &wanted;
const uint64_t *const *strata_wanted_word(void) { return &word; }
const char *strata_error(void) { return NULL; }
uint64_t strata_lost(void) { return 40; }
void strata_flush(void) {}
int strata_record_values(struct strata_event *event, const union strata_value *values) {
    printf("%s", event->name);
    for (uint32_t i = 0; i < event->field_count; i++) {
        const struct strata_field *field = &event->fields[i];
        printf(" %s:%x=", field->name, field->type);
        if (field->type == STRATA_TYPE_text)
            printf("%s", values[i].text);
        else
            printf("%lx", (unsigned long)values[i].integer);
    }
    puts("");
    fflush(stdout);
    return event->size == sizeof(*event) && !event->type;
}
"#;

/// A folder with [`PRINTING`] as the library.
fn printing_library() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("printing.c");
    fs::write(&source, PRINTING).unwrap();
    let mut command = Command::new("gcc");
    command
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
    assert_succeeded(&command.arg("-o").arg(folder.path().join("libstrata.so.1")).arg(source).output().unwrap());
    folder
}

#[test]
fn values_of_a_python_program_are_those_of_the_header() {
    let library = printing_library();
    let program = r#"
import strata
every = strata.Event("a:every", a="u8", b="i64", c="hex32", d=str, e=int, f=bool, g="text", h=float)
plain = strata.Event("a:plain")
print([every(255, -2, 0x10, "ä\0b", -3, True, 7, -2.0), plain(), every(0, -1 << 63, (1 << 32) - 1, "", 0, 0, "", 1)])
wrong = [("x", 0, 0, 0, 0), (300, 0, 0, 0, 0), (-1, 0, 0, 0, 0), (0, 1 << 63, 0, 0, 0), (0, 0, 2.7, 0, 0), (0, 0, 0, 2, 0)]
wrong.append((0, 0, 0, 0, "1.5"))
print([every(a, b, c, "", 0, f, "", h) for a, b, c, f, h in wrong], strata.lost())
"#;

    let printed = python(library.path(), &[OsStr::new("-c"), OsStr::new(program)]);

    let expected = "a:every a:1=ff b:8=fffffffffffffffe c:103=10 d:a=ä e:8=fffffffffffffffd f:1=1 g:a=7 h:c=c000000000000000\n\
                    a:plain\n\
                    a:every a:1=0 b:8=8000000000000000 c:103=ffffffff d:a= e:8=0 f:1=0 g:a= h:c=3ff0000000000000\n\
                    [True, True, True]\n\
                    [False, False, False, False, False, False, False] 47\n";
    assert_eq!(printed, expected);
}

#[test]
fn python_handler_that_interrupts_the_counting_of_a_loss_does_not_wait() {
    let library = printing_library();
    let program = r#"
import signal, sys, strata
signal.alarm(20)
number = strata.Event("a:b", x="u8")
def interrupt(frame, what, _):
    if frame.f_code.co_name == "_lose" and what == "line":
        number(300)
    return interrupt
sys.settrace(interrupt)
number(300)
sys.settrace(None)
print(strata.lost() > 41)
"#;

    let printed = python(library.path(), &[OsStr::new("-c"), OsStr::new(program)]);

    assert_eq!(printed, "True\n");
}

#[test]
fn python_program_with_a_wrong_event_is_refused_where_it_is_made() {
    let library = printing_library();
    let program = r#"
import strata
def refused(make):
    try:
        make()
    except (TypeError, ValueError) as error:
        print(error)
refused(lambda: strata.Event("a:b", x=list))
refused(lambda: strata.Event("a:b", **{f"f{n}": int for n in range(9)}))
refused(lambda: strata.Event("a:b", x=int)())
"#;

    let printed = python(library.path(), &[OsStr::new("-c"), OsStr::new(program)]);

    let lines: Vec<&str> = printed.lines().collect();
    assert!(
        lines[0].starts_with("a:b: no field has the type <class 'list'>: there are int, bool, float, str, u8, "),
        "{printed}"
    );
    assert_eq!(lines[1..], ["a:b: 9 fields, 8 at most", "0 values for an event of 1 fields"]);
}

/// The code blocks of `language` in the document for users.
fn documented(language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/applications.md");
    let text = fs::read_to_string(path).unwrap();
    let begin = format!("```{language}\n");
    let blocks = text.split(&begin).skip(1);
    blocks.map(|block| block.split("\n```").next().unwrap().to_owned()).collect()
}

/// `compiler` takes `source`, and warns of nothing.
fn assert_compiles(compiler: &str, source: &Path) {
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Werror", "-fsyntax-only", "-I"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include")).arg(source);
    assert_succeeded(&command.output().unwrap());
}

#[test]
fn fields_are_called_as_the_program_likes() {
    let folder = tempfile::tempdir().unwrap();
    let code = r#"
#include <strata.h>
STRATA_EVENT(event, "a:b", (u32, values), (text, value), (u8, event), (u16, size), (hex8, name), (i8, fields));
int record(void) { return STRATA_RECORD(event, 1, "a", 2, 3, 4, 5); }
"#;

    for (source, compiler) in [("fields.c", "gcc"), ("fields.cpp", "g++")] {
        let source = folder.path().join(source);
        fs::write(&source, code).unwrap();
        assert_compiles(compiler, &source);
    }
}

#[test]
fn documented_examples_compile() {
    let folder = tempfile::tempdir().unwrap();
    let examples: Vec<_> = [("c", "gcc"), ("cpp", "g++")]
        .into_iter()
        .flat_map(|(language, compiler)| documented(language).into_iter().map(move |code| (language, compiler, code)))
        .collect();
    for (language, compiler, code) in &examples {
        let source = folder.path().join(format!("example.{language}"));
        fs::write(&source, code).unwrap();
        assert_compiles(compiler, &source);
    }

    let printed: Vec<_> = documented("python")
        .iter()
        .map(|code| python(printing_library().path(), &[OsStr::new("-c"), OsStr::new(code)]))
        .collect();
    assert_eq!(
        (examples.len(), &printed[..]),
        (2, &["shop:sold what:a=bread pieces:3=2 flags:104=10\n".to_owned()][..])
    );
}
