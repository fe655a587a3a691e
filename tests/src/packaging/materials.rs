//! What is in the programs of a package: a bill of materials in `CycloneDX`'s JSON. The crates are those of `cargo metadata`;
//! with them goes what every program of Rust has, and what Debian's linker adds to a program without shared libraries.

use crate::build::binaries;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Version of the format that is written.
const SPECIFICATION: &str = "1.6";

/// Why the crates are not known.
#[derive(Debug, thiserror::Error)]
pub enum MaterialsError {
    /// cargo does not say what the workspace is built from.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// cargo's answer is not understood.
    #[error("cannot read what `cargo metadata` printed")]
    Metadata(#[source] serde_json::Error),
    /// The compiler does not say its version.
    #[error("cannot read the version in '{0}'")]
    Compiler(String),
    /// The workspace has no such crate.
    #[error("the workspace has no crate {0}")]
    NoCrate(String),
}

/// What `cargo metadata` prints, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for the crates of the workspace.
    source: Option<String>,
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
}

impl Package {
    /// Whether it runs in the compiler, and is in no program.
    fn is_macros(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    /// `None` for what is linked; else `build` or `dev`.
    kind: Option<String>,
}

/// The crates of the workspace and all that they are built from.
#[derive(Debug)]
pub struct Materials {
    crates: Metadata,
    /// Rust's own libraries, which are in every program and library.
    rust: Value,
    /// What is in programs that are linked statically, besides.
    c: Vec<Value>,
}

/// What a package holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The crates of the workspace whose programs, libraries or objects it holds.
    pub crates: &'static [&'static str],
    /// Whether there are programs among them: these are linked statically.
    pub has_programs: bool,
}

/// Libraries that the linker adds to programs, and their licences.
const C_LIBRARIES: [(&str, &str); 2] =
    [("libc.a", "LGPL-2.1-or-later"), ("libgcc_eh.a", "GPL-3.0-or-later WITH GCC-exception-3.1")];

impl Materials {
    /// Asks cargo, of the workspace with the file `manifest`.
    ///
    /// # Errors
    /// When it does not say.
    pub fn of(paths: &Paths, manifest: &str) -> Result<Self, MaterialsError> {
        let target = paths.builds().join("metadata");
        let arguments =
            ["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
        let mut metadata = binaries::cargo(paths, Path::new(&target));
        let printed = process::capture(metadata.args(arguments).args(["--manifest-path", manifest]))?;
        let crates = serde_json::from_str(&printed).map_err(MaterialsError::Metadata)?;
        let printed = process::capture(Command::new("rustc").arg("--version").current_dir(paths.workspace()))?;
        let version = printed.split_whitespace().nth(1).ok_or_else(|| MaterialsError::Compiler(printed.clone()))?;
        let rust = library("rust-std", version, &format!("pkg:generic/rust-std@{version}"), "MIT OR Apache-2.0");
        let c = C_LIBRARIES.map(|(file, licence)| debian_library(file, licence));
        let c = c.into_iter().collect::<Result<_, _>>()?;
        Ok(Self { crates, rust, c })
    }

    /// The bill of the Debian package `name`, which holds `held`: what is linked into that, each with its version, licence and
    /// what it uses itself. Crates that only build or test others are not in it.
    ///
    /// # Errors
    /// When one of the crates does not exist.
    pub fn bill(&self, name: &str, held: Held) -> Result<Value, MaterialsError> {
        let Metadata { packages: all, resolve } = &self.crates;
        let packages: BTreeMap<&str, &Package> = all.iter().map(|package| (package.id.as_str(), package)).collect();
        let nodes: BTreeMap<&str, &Node> = resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let linked = |id: &str| -> Vec<&str> {
            let is_linked = |dependency: &&Dependency| {
                let is_macros = packages.get(dependency.pkg.as_str()).is_some_and(|package| package.is_macros());
                !is_macros && dependency.dep_kinds.iter().any(|kind| kind.kind.is_none())
            };
            let dependencies = nodes.get(id).map_or(&[][..], |node| &node.deps);
            dependencies.iter().filter(is_linked).map(|dependency| dependency.pkg.as_str()).collect()
        };
        let own = |root: &&str| {
            let found = all.iter().find(|package| package.source.is_none() && package.name == **root);
            found.map(|package| package.id.as_str()).ok_or_else(|| MaterialsError::NoCrate((*root).to_owned()))
        };
        let mut waiting = held.crates.iter().map(own).collect::<Result<Vec<_>, _>>()?;
        let own_ids = waiting.clone();
        let mut there = BTreeSet::new();
        while let Some(id) = waiting.pop() {
            if there.insert(id) {
                waiting.extend(linked(id));
            }
        }
        let reference = |id: &str| packages.get(id).map(|package| url(package));
        let of = |ids: &[&str]| -> Vec<String> { ids.iter().filter_map(|id| reference(id)).collect() };
        let mut components: Vec<Value> =
            there.iter().filter_map(|id| packages.get(id)).map(|package| component(package)).collect();
        let with_all: Vec<&Value> =
            [&self.rust].into_iter().chain(self.c.iter().filter(|_| held.has_programs)).collect();
        let uses =
            of(&own_ids).into_iter().map(Value::from).chain(with_all.iter().map(|library| library["bom-ref"].clone()));
        let mut dependencies = vec![json!({ "ref": name, "dependsOn": uses.collect::<Vec<_>>() })];
        components.extend(with_all.into_iter().cloned());
        dependencies.extend(there.iter().map(|id| json!({ "ref": reference(id), "dependsOn": of(&linked(id)) })));
        Ok(json!({
            "bomFormat": "CycloneDX",
            "specVersion": SPECIFICATION,
            "version": 1,
            "metadata": {
                "authors": [{ "name": "The Strata authors" }],
                "component": {
                    "type": "application",
                    "bom-ref": name,
                    "name": name,
                    "version": env!("CARGO_PKG_VERSION"),
                },
            },
            "components": components,
            "dependencies": dependencies,
        }))
    }
}

/// The Debian package that has the library `file` of the linker, whose licence is `licence`.
fn debian_library(file: &str, licence: &str) -> Result<Value, MaterialsError> {
    let path = process::capture(Command::new("gcc").arg(format!("-print-file-name={file}")))?;
    let path = Path::new(path.trim()).canonicalize().unwrap_or_else(|_| file.into());
    let owner = process::capture(Command::new("dpkg-query").arg("--search").arg(path))?;
    let package = owner.split(':').next().unwrap_or_default();
    let query = ["--show", "--showformat", "${Version}", package];
    let version = process::capture(Command::new("dpkg-query").args(query))?;
    let url = format!("pkg:deb/debian/{package}@{}?arch=amd64", version.replace('+', "%2B"));
    Ok(library(package, &version, &url, licence))
}

/// The package URL, which names it in the bill.
fn url(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

fn component(package: &Package) -> Value {
    // Older crates write '/' for OR, which is not an expression of SPDX.
    let licence = package.license.as_deref().unwrap_or_default();
    let licence = licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ");
    library(&package.name, &package.version, &url(package), &licence)
}

/// A component whose licence is empty where nothing is known of it.
fn library(name: &str, version: &str, url: &str, licence: &str) -> Value {
    let mut component = json!({ "type": "library", "bom-ref": url, "name": name, "version": version, "purl": url });
    if !licence.is_empty() {
        component["licenses"] = json!([{ "expression": licence }]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    fn materials() -> Materials {
        let metadata = json!({
            "packages": [
                { "id": "e", "name": "macros", "version": "4.0.0", "license": "MIT", "source": "registry",
                  "targets": [{ "kind": ["proc-macro"] }] },
                { "id": "a", "name": "vmm", "version": "0.1.0", "license": "MIT", "source": null },
                { "id": "b", "name": "used", "version": "1.2.3", "license": "MIT / Apache-2.0", "source": "registry" },
                { "id": "c", "name": "deep", "version": "2.0.0", "license": null, "source": "registry" },
                { "id": "d", "name": "tests-only", "version": "3.0.0", "license": "MIT", "source": "registry" },
            ],
            "resolve": { "nodes": [
                { "id": "a", "deps": [
                    { "pkg": "b", "dep_kinds": [{ "kind": null }] },
                    { "pkg": "d", "dep_kinds": [{ "kind": "dev" }] },
                    { "pkg": "e", "dep_kinds": [{ "kind": null }] },
                ] },
                { "id": "b", "deps": [{ "pkg": "c", "dep_kinds": [{ "kind": "build" }, { "kind": null }] }] },
                { "id": "c", "deps": [] },
                { "id": "d", "deps": [] },
                { "id": "e", "deps": [] },
            ] },
        });
        let crates = serde_json::from_value(metadata).unwrap();
        Materials {
            crates,
            rust: library("rust-std", "1.0.0", "std", "MIT"),
            c: vec![library("libc6-dev", "2", "c", "")],
        }
    }

    const COMMAND: Held = Held { crates: &["vmm"], has_programs: true };

    #[test]
    fn bill_lists_what_is_linked_with_licences_and_uses() {
        let bill = materials().bill("strata", COMMAND).unwrap();

        let names: Vec<_> = bill["components"].as_array().unwrap().iter().map(|component| &component["name"]).collect();
        assert_eq!(names, ["vmm", "used", "deep", "rust-std", "libc6-dev"]);
        assert_eq!(bill["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["components"][1]["purl"], "pkg:cargo/used@1.2.3");
        assert_eq!(
            bill["dependencies"][0],
            json!({ "ref": "strata", "dependsOn": ["pkg:cargo/vmm@0.1.0", "std", "c"] })
        );
        assert_eq!(bill["dependencies"][1]["dependsOn"], json!(["pkg:cargo/used@1.2.3"]));
    }

    #[test]
    fn bill_of_the_command_has_the_crates_of_the_machine_and_none_of_its_tests() {
        let bill = Materials::of(&Paths::of_workspace(), "Cargo.toml").unwrap().bill("strata", COMMAND).unwrap();

        let components = bill["components"].as_array().unwrap();
        let has = |name: &str| components.iter().any(|component| component["name"] == name);
        assert!(has("vmm") && has("kvm-ioctls") && has("seccompiler") && !has("proptest") && !has("syn"), "{bill:#}");
        assert!(components.iter().all(|component| component["licenses"].is_array()), "{bill:#}");
    }

    #[test]
    fn crate_that_does_not_exist_is_named() {
        let held = Held { crates: &["vmn"], has_programs: true };
        assert!(matches!(materials().bill("strata", held), Err(MaterialsError::NoCrate(name)) if name == "vmn"));
    }
}
