//! Which crates are in the programs of a package: a bill of materials in `CycloneDX`'s JSON, made of `cargo metadata`.

use crate::build::binaries;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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
pub struct Materials(Metadata);

impl Materials {
    /// Asks cargo.
    ///
    /// # Errors
    /// When it does not say.
    pub fn of(paths: &Paths) -> Result<Self, MaterialsError> {
        let target = paths.builds().join("metadata");
        let arguments =
            ["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
        let printed = process::capture(binaries::cargo(paths, Path::new(&target)).args(arguments))?;
        serde_json::from_str(&printed).map(Self).map_err(MaterialsError::Metadata)
    }

    /// The bill of the Debian package `name`: what is linked into the programs of the crates `roots`, each with its version,
    /// licence and what it uses itself. Crates that only build or test others are not in it.
    ///
    /// # Errors
    /// When one of `roots` does not exist.
    pub fn bill(&self, name: &str, roots: &[&str]) -> Result<Value, MaterialsError> {
        let packages: BTreeMap<&str, &Package> =
            self.0.packages.iter().map(|package| (package.id.as_str(), package)).collect();
        let nodes: BTreeMap<&str, &Node> = self.0.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let linked = |id: &str| -> Vec<&str> {
            let is_linked = |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
            let dependencies = nodes.get(id).map_or(&[][..], |node| &node.deps);
            dependencies.iter().filter(is_linked).map(|dependency| dependency.pkg.as_str()).collect()
        };
        let own = |root: &&str| {
            let found = self.0.packages.iter().find(|package| package.source.is_none() && package.name == **root);
            found.map(|package| package.id.as_str()).ok_or_else(|| MaterialsError::NoCrate((*root).to_owned()))
        };
        let mut waiting = roots.iter().map(own).collect::<Result<Vec<_>, _>>()?;
        let own_ids = waiting.clone();
        let mut there = BTreeSet::new();
        while let Some(id) = waiting.pop() {
            if there.insert(id) {
                waiting.extend(linked(id));
            }
        }
        let reference = |id: &str| packages.get(id).map(|package| url(package));
        let of = |ids: &[&str]| -> Vec<String> { ids.iter().filter_map(|id| reference(id)).collect() };
        let components: Vec<Value> =
            there.iter().filter_map(|id| packages.get(id)).map(|package| component(package)).collect();
        let mut dependencies = vec![json!({ "ref": name, "dependsOn": of(&own_ids) })];
        dependencies.extend(there.iter().map(|id| json!({ "ref": reference(id), "dependsOn": of(&linked(id)) })));
        Ok(json!({
            "bomFormat": "CycloneDX",
            "specVersion": SPECIFICATION,
            "version": 1,
            "metadata": {
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

/// The package URL, which names it in the bill.
fn url(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

fn component(package: &Package) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": url(package),
        "name": package.name,
        "version": package.version,
        "purl": url(package),
    });
    if let Some(licence) = &package.license {
        // Older crates write '/' for OR, which is no expression of SPDX.
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    fn materials() -> Materials {
        let metadata = json!({
            "packages": [
                { "id": "a", "name": "vmm", "version": "0.1.0", "license": "MIT", "source": null },
                { "id": "b", "name": "used", "version": "1.2.3", "license": "MIT/Apache-2.0", "source": "registry" },
                { "id": "c", "name": "deep", "version": "2.0.0", "license": null, "source": "registry" },
                { "id": "d", "name": "tests-only", "version": "3.0.0", "license": "MIT", "source": "registry" },
            ],
            "resolve": { "nodes": [
                { "id": "a", "deps": [
                    { "pkg": "b", "dep_kinds": [{ "kind": null }] },
                    { "pkg": "d", "dep_kinds": [{ "kind": "dev" }] },
                ] },
                { "id": "b", "deps": [{ "pkg": "c", "dep_kinds": [{ "kind": "build" }, { "kind": null }] }] },
                { "id": "c", "deps": [] },
                { "id": "d", "deps": [] },
            ] },
        });
        Materials(serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn bill_lists_what_is_linked_with_licences_and_uses() {
        let bill = materials().bill("strata", &["vmm"]).unwrap();

        let names: Vec<_> = bill["components"].as_array().unwrap().iter().map(|component| &component["name"]).collect();
        assert_eq!(names, ["vmm", "used", "deep"]);
        assert_eq!(bill["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["components"][1]["purl"], "pkg:cargo/used@1.2.3");
        assert_eq!(bill["dependencies"][0], json!({ "ref": "strata", "dependsOn": ["pkg:cargo/vmm@0.1.0"] }));
        assert_eq!(bill["dependencies"][1]["dependsOn"], json!(["pkg:cargo/used@1.2.3"]));
    }

    #[test]
    fn bill_of_the_command_has_the_crates_of_the_machine_and_none_of_its_tests() {
        let bill = Materials::of(&Paths::of_workspace()).unwrap().bill("strata", &["vmm"]).unwrap();

        let components = bill["components"].as_array().unwrap();
        let has = |name: &str| components.iter().any(|component| component["name"] == name);
        assert!(has("vmm") && has("kvm-ioctls") && has("seccompiler") && !has("proptest"), "{bill:#}");
        assert!(components.iter().all(|component| component["licenses"].is_array()), "{bill:#}");
    }

    #[test]
    fn crate_that_does_not_exist_is_named() {
        assert!(matches!(materials().bill("strata", &["vmn"]), Err(MaterialsError::NoCrate(name)) if name == "vmn"));
    }
}
