//! The examples in C and C++ compile without a warning, against the shared and the static library as they would be
//! installed, and run where nothing traces.
//!
//! Shows: C and C++ examples compile without a warning against the installed libraries, and run untraced.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

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

/// The code blocks of `language` in the document for users.
fn documented(language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/applications.md");
    let text = fs::read_to_string(path).unwrap();
    let begin = format!("```{language}\n");
    let blocks = text.split(&begin).skip(1);
    blocks.map(|block| block.split("\n```").next().unwrap().to_owned()).collect()
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
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include")).arg(source);
        assert_succeeded(&command.output().unwrap());
    }

    assert_eq!(examples.len(), 2);
}
