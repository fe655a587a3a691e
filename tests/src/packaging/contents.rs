//! What Strata's packages hold.
//!
//! Programs are linked statically, so that the packages fit every Debian and its derivatives; only the shared library
//! for applications is not. The module comes as source for DKMS, its Rust half ready-made.

use crate::build::binaries::{self, Purpose};
use crate::build::kmod::{self, KmodError};
use crate::fetch::apt::PackageError;
use crate::fetch::kernel_packages::KernelChoice;
use crate::fetch::tools::{self, Tool};
use crate::packaging::materials::{Held, Materials, MaterialsError};
use crate::packaging::package::{Control, Package};
use crate::packaging::{Selection, deb, released, rpm};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::progress;
use crate::provision::{self, ProvisionError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// The packages' version.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");
/// The module's version, for DKMS.
pub const MODULE_VERSION: &str = env!("CARGO_PKG_VERSION");
/// The licence of all that is not the kernel module.
const LICENSE: &str = env!("CARGO_PKG_LICENSE");

const TOOLS: [Tool; 2] = [Tool { program: "dpkg-deb", package: "dpkg" }, Tool { program: "gzip", package: "gzip" }];
/// Shells, and where each looks for what completes the command lines of strata.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "/usr/share/bash-completion/completions/strata"),
    ("fish", "/usr/share/fish/vendor_completions.d/strata.fish"),
    ("zsh", "/usr/share/zsh/site-functions/_strata"),
];
/// What systemd may run of the host's side; nothing is enabled by installing it.
const UNITS: [&str; 2] = ["strata-metrics.service", "strata-recorder@.service"];
/// What dpkg runs for them.
const HOST_SCRIPTS: [&str; 2] = ["prerm", "postrm"];
/// In a place for programs that are not for users.
const MODULE_BUILDER: &str = "/usr/libexec/strata/strata-kmod-build";
/// Where `strata run --agent auto` looks for modules.
const READY_MADE: &str = "/usr/lib/strata/modules";
/// The agent in distributions with RPM. Its user group and unit are systemd's to make and start.
const AGENT_RPM: rpm::Fields<'_> = rpm::Fields {
    license: LICENSE,
    requires: &["systemd", "kmod"],
    scripts: &[
        (
            "post",
            "systemd-sysusers strata.conf || :\n\
             if [ \"$1\" = 1 ]; then systemctl preset strata-agent.service > /dev/null 2>&1 || :; fi\n",
        ),
        ("preun", "if [ \"$1\" = 0 ]; then systemctl disable --now strata-agent.service > /dev/null 2>&1 || :; fi\n"),
        RELOAD,
    ],
};
/// The host's side in distributions with RPM. Units of a template are stopped by a pattern, and disabled by its name.
const HOST_RPM: rpm::Fields<'_> = rpm::Fields {
    // The sources of the module's C half come with it.
    license: concat!("(", env!("CARGO_PKG_LICENSE"), ") AND GPL-2.0-only"),
    requires: &[],
    scripts: &[
        (
            "preun",
            "if [ \"$1\" = 0 ]; then\n\
             systemctl stop strata-metrics.service 'strata-recorder@*.service' > /dev/null 2>&1 || :\n\
             systemctl disable strata-metrics.service strata-recorder@.service > /dev/null 2>&1 || :\n\
             fi\n",
        ),
        RELOAD,
    ],
};
/// A module that is built holds expanded trace headers of the kernel.
const MODULES_RPM: rpm::Fields<'_> = rpm::Fields { license: "GPL-2.0-only", requires: &[], scripts: &[] };
const QUERY_RPM: rpm::Fields<'_> = rpm::Fields { license: LICENSE, requires: &[], scripts: &[] };
const RELOAD: (&str, &str) = ("postun", "systemctl daemon-reload > /dev/null 2>&1 || :\n");
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// As the library's build script names it.
const SONAME: &str = "libstrata.so.1";
const HOMEPAGE: (&str, &str) = ("Homepage", "https://strata.invalid/");

/// Why the packages could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PackagingError {
    /// A tool is missing, or a package could not be written.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// A program could not be built.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The module's sources could not be made.
    #[error(transparent)]
    Kmod(#[from] KmodError),
    /// A kernel could not be had, or the module not be built for it.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// The crates in the programs are not known.
    #[error(transparent)]
    Materials(#[from] MaterialsError),
    /// A file of the source tree could not be read.
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A package, and what RPM needs to know if it is made as one, too.
pub(super) struct Product<'a> {
    pub package: Package<'a>,
    /// What RPM needs to know.
    pub rpm: Option<rpm::Fields<'a>>,
}

/// Builds everything that the packages of `selection` hold, for `purpose`, and their trees of files.
///
/// # Errors
///
/// When something cannot be built or written; the error names the log or the file.
pub(super) fn products(
    paths: &Paths,
    purpose: Purpose,
    selection: Selection<'_>,
) -> Result<Vec<Product<'static>>, PackagingError> {
    tools::install(paths, &TOOLS)?;
    let contents = progress::step("building what the packages hold", || Contents::build(paths, purpose))?;
    let modules = modules(paths, selection.kernels)?;
    let staging = paths.builds().join("packages");
    let texts = Texts::read(paths)?;
    let c_api = paths.workspace().join("guest-agent/c-api");
    let plain = |package| Product { package, rpm: None };
    let mut products = vec![
        Product { package: host(&contents, &texts, paths, &staging)?, rpm: Some(HOST_RPM) },
        Product { package: agent(&contents, &texts, paths, &staging)?, rpm: Some(AGENT_RPM) },
        plain(module(&contents, &texts, &staging)?),
        plain(library(&contents, &staging)?),
        plain(development(&contents, &c_api, &staging)?),
        plain(python(&c_api, &staging)?),
    ];
    if !modules.is_empty() {
        let package = ready_made(&modules, &staging)?;
        products.push(Product { package, rpm: Some(MODULES_RPM) });
    }
    let materials = Materials::of(paths, "Cargo.toml")?;
    add_texts(&mut products, &texts, &materials)?;
    if selection.query {
        let program = progress::step("building strata-query", || binaries::build_query(paths, purpose))?;
        let mut query = [Product { package: query(&program, &staging)?, rpm: Some(QUERY_RPM) }];
        add_texts(&mut query, &texts, &Materials::of(paths, binaries::QUERY_MANIFEST)?)?;
        products.extend(query);
    }
    Ok(products)
}

/// Adds the licence, and what is in the programs.
fn add_texts(products: &mut [Product<'_>], texts: &Texts, materials: &Materials) -> Result<(), PackagingError> {
    for Product { package, .. } in products {
        let folder = format!("/usr/share/doc/{}", package.name());
        package.bytes(&format!("{folder}/copyright"), 0o644, texts.copyright.as_bytes())?;
        let bill = materials.bill(package.name(), held_by(package.name()))?;
        let bill = format!("{bill:#}\n");
        package.bytes(&format!("{folder}/bill-of-materials.cdx.json"), 0o644, bill.as_bytes())?;
    }
    Ok(())
}

/// What has changed in the package `name`, as Debian writes it.
pub(super) fn changelog(name: &str) -> Result<String, ProcessError> {
    Ok(format!(
        "{name} ({VERSION}) unstable; urgency=medium\n\n  * See the history of the source.\n\n -- {}  {}\n",
        deb::maintainer(),
        released("--rfc-email")?
    ))
}

/// The modules for `kernels`: the release and the file of each.
fn modules(paths: &Paths, kernels: &[KernelChoice]) -> Result<Vec<(String, PathBuf)>, ProvisionError> {
    let module = |&choice| {
        let kernel = provision::kernel(paths, choice)?;
        let module = provision::agent_for(paths, &kernel)?;
        Ok((kernel.packages.release, module))
    };
    kernels.iter().map(module).collect()
}

/// What the package `name` holds. With the module's sources comes its Rust half, ready-made.
fn held_by(name: &str) -> Held {
    match name {
        "strata" => Held { crates: &["vmm", "strata-kmod"], has_programs: true },
        "strata-query" => Held { crates: &["strata-query"], has_programs: true },
        "strata-agent" => Held { crates: &["guest-agent"], has_programs: true },
        "strata-modules" => Held { crates: &["strata-kmod"], has_programs: true },
        "strata-dkms" => Held { crates: &["strata-kmod-build", "strata-kmod"], has_programs: true },
        _ => Held { crates: &["strata-c-api"], has_programs: false },
    }
}

/// What is built for the packages.
struct Contents {
    strata: PathBuf,
    /// Names and texts of the manual pages of `strata` and its commands.
    manual: Vec<(String, Vec<u8>)>,
    strata_agent: PathBuf,
    module_builder: PathBuf,
    sources: PathBuf,
    shared_library: PathBuf,
    static_library: PathBuf,
}

impl Contents {
    fn build(paths: &Paths, purpose: Purpose) -> Result<Self, PackagingError> {
        let [shared_library, static_library] = binaries::build_c_library(paths)?;
        let strata = binaries::build(paths, purpose)?.strata;
        Ok(Self {
            shared_library,
            static_library,
            manual: manual(&strata, &paths.builds().join("manual"))?,
            strata,
            strata_agent: binaries::build_agent(paths, purpose)?,
            module_builder: binaries::build_module_builder(paths, purpose)?,
            sources: kmod::sources(paths)?,
        })
    }
}

/// The manual pages that `strata` writes, by way of the folder `scratch`.
fn manual(strata: &Path, scratch: &Path) -> Result<Vec<(String, Vec<u8>)>, PackagingError> {
    let error = |path: &Path| {
        let path = path.to_path_buf();
        |source| PackagingError::File { path, source }
    };
    let _ = fs::remove_dir_all(scratch);
    fs::create_dir_all(scratch).map_err(error(scratch))?;
    process::capture(Command::new(strata).arg("manual").arg(scratch))?;
    let pages = fs::read_dir(scratch).map_err(error(scratch))?;
    pages
        .map(|page| {
            let path = page.map_err(error(scratch))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, fs::read(&path).map_err(error(&path))?))
        })
        .collect()
}

/// Files of the source tree that are filled in.
struct Texts {
    packaging: PathBuf,
    copyright: String,
}

impl Texts {
    fn read(paths: &Paths) -> Result<Self, PackagingError> {
        let packaging = paths.workspace().join("guest-agent/packaging");
        let copyright = read(&packaging.join("copyright"))?;
        Ok(Self { packaging, copyright })
    }

    /// A file of the packaging folder, with the version filled in.
    fn filled(&self, name: &str) -> Result<String, PackagingError> {
        Ok(read(&self.packaging.join(name))?.replace("@VERSION@", MODULE_VERSION))
    }
}

fn read(path: &Path) -> Result<String, PackagingError> {
    fs::read_to_string(path).map_err(|source| PackagingError::File { path: path.to_path_buf(), source })
}

/// For whoever runs virtual machines and reads traces.
fn host<'a>(contents: &Contents, texts: &Texts, paths: &Paths, staging: &Path) -> Result<Package<'a>, PackagingError> {
    let control = Control {
        name: "strata",
        architecture: "amd64",
        section: "utils",
        relations: &[
            ("Recommends", "strata-query"),
            ("Suggests", "babeltrace2, linux-headers-amd64, make, gcc, binutils, pahole"),
            HOMEPAGE,
        ],
        summary: "traces every layer of a virtual machine on one clock",
        description: "A KVM virtual machine monitor that records the host's kernel, itself, the guest's kernel and the \
                      guest's applications, shares lockless rings with the guest through memory, and merges everything \
                      into one timeline in the Common Trace Format. This package holds the command strata and the \
                      sources of the guest's kernel module, for `strata agent build`.",
    };
    let mut package = Package::begin(staging, control)?;
    package.stripped("/usr/bin/strata", 0o755, &contents.strata)?;
    for (name, page) in &contents.manual {
        package.manual_page(name, page)?;
    }
    for (shell, path) in COMPLETIONS {
        let text = process::capture(Command::new(&contents.strata).args(["completions", shell]))?;
        package.bytes(path, 0o644, text.as_bytes())?;
    }
    package.folder(strata_kmod_build::INSTALLED, &contents.sources)?;
    let packaging = paths.workspace().join("vmm/packaging");
    for unit in UNITS {
        package.file(&format!("/usr/lib/systemd/system/{unit}"), 0o644, &packaging.join(unit))?;
    }
    for script in HOST_SCRIPTS {
        package.script(script, 0o755, &read(&packaging.join(format!("strata.{script}")))?);
    }
    package.folder("/usr/share/doc/strata/docs", &paths.workspace().join("docs"))?;
    package.file("/usr/share/doc/strata/README.md", 0o644, &paths.workspace().join("README.md"))?;
    package.override_lintian(texts.filled("strata.lintian-overrides")?);
    Ok(package)
}

/// For whoever asks recordings in SQL.
fn query<'a>(program: &Path, staging: &Path) -> Result<Package<'a>, PackagingError> {
    let control = Control {
        name: "strata-query",
        architecture: "amd64",
        section: "utils",
        relations: &[("Enhances", "strata"), HOMEPAGE],
        summary: "recordings of strata as Parquet, and SQL over them",
        description: "For strata, the virtual machine monitor that traces every layer of a virtual machine: the program \
                      that writes recordings as tables in Parquet and answers questions about them in SQL, for `strata \
                      query` and `strata export --format parquet`.",
    };
    let mut package = Package::begin(staging, control)?;
    package.stripped("/usr/bin/strata-query", 0o755, program)?;
    package.override_lintian("strata-query: shared-library-lacks-prerequisites [usr/bin/strata-query]\n".to_owned());
    Ok(package)
}

/// For guests: the agent's user-level part.
fn agent<'a>(contents: &Contents, texts: &Texts, paths: &Paths, staging: &Path) -> Result<Package<'a>, PackagingError> {
    let control = Control {
        name: "strata-agent",
        architecture: "amd64",
        section: "utils",
        relations: &[
            ("Depends", "systemd | systemd-standalone-sysusers | systemd-sysusers, kmod"),
            ("Recommends", concat!("strata-dkms (= ", env!("CARGO_PKG_VERSION"), "-1)")),
            HOMEPAGE,
        ],
        summary: "lets the host's strata trace this virtual machine",
        description: "For guests of strata, the virtual machine monitor that traces every layer of a virtual machine. This \
                      package loads the kernel module when the machine starts, opens its device to the members of the \
                      group strata, and holds the command strata-agent, which says what this machine is connected to. \
                      On other hypervisors it has no effect.",
    };
    let mut package = Package::begin(staging, control)?;
    package.stripped("/usr/bin/strata-agent", 0o755, &contents.strata_agent)?;
    for (path, name) in [
        ("/usr/lib/systemd/system/strata-agent.service", "strata-agent.service"),
        ("/usr/lib/sysusers.d/strata.conf", "strata.sysusers"),
        ("/usr/lib/udev/rules.d/99-strata.rules", "99-strata.rules"),
    ] {
        package.bytes(path, 0o644, texts.filled(name)?.as_bytes())?;
    }
    package.override_lintian(texts.filled("strata-agent.lintian-overrides")?);
    package.manual_page("strata-agent.8", texts.filled("strata-agent.8")?.as_bytes())?;
    for script in ["postinst", "prerm", "postrm"] {
        package.script(script, 0o755, &texts.filled(&format!("strata-agent.{script}"))?);
    }
    package.file("/usr/share/doc/strata-agent/install.md", 0o644, &paths.workspace().join("docs/install.md"))?;
    Ok(package)
}

/// For guests: the kernel module, built where it is installed.
fn module<'a>(contents: &Contents, texts: &Texts, staging: &Path) -> Result<Package<'a>, PackagingError> {
    let control = Control {
        name: "strata-dkms",
        architecture: "amd64",
        section: "kernel",
        relations: &[
            ("Depends", "dkms (>= 3), make, binutils"),
            ("Recommends", "linux-headers-amd64 | linux-headers-cloud-amd64 | linux-headers-generic, pahole"),
            HOMEPAGE,
        ],
        summary: "kernel module of the strata agent (DKMS)",
        description: "For guests of strata, the virtual machine monitor that traces every layer of a virtual machine: the \
                      kernel module that records the kernel's events into the memory that the host shares. It is built \
                      for each kernel that is installed, by DKMS, from C sources and a ready-made object.",
    };
    let mut package = Package::begin(staging, control)?;
    let folder = format!("/usr/src/strata-{MODULE_VERSION}");
    package.folder(&folder, &contents.sources)?;
    package.bytes(&format!("{folder}/dkms.conf"), 0o644, texts.filled("dkms.conf")?.as_bytes())?;
    package.stripped(MODULE_BUILDER, 0o755, &contents.module_builder)?;
    package.override_lintian(texts.filled("strata-dkms.lintian-overrides")?);
    for script in ["postinst", "prerm"] {
        package.script(script, 0o755, &texts.filled(&format!("strata-dkms.{script}"))?);
    }
    Ok(package)
}

/// For hosts: the module for kernels of Debian, built.
fn ready_made<'a>(modules: &[(String, PathBuf)], staging: &Path) -> Result<Package<'a>, PackagingError> {
    let control = Control {
        name: "strata-modules",
        architecture: "amd64",
        section: "kernel",
        relations: &[("Enhances", "strata"), HOMEPAGE],
        summary: "kernel modules of the strata agent for Debian's kernels",
        description: "For hosts that run strata, the virtual machine monitor that traces every layer of a virtual \
                      machine: the kernel module that records the events of a guest's kernel, built for kernels of \
                      Debian. `strata run --agent auto` takes the one that belongs to the guest's kernel.",
    };
    let mut package = Package::begin(staging, control)?;
    for (release, module) in modules {
        package.file(&format!("{READY_MADE}/{release}/strata.ko"), 0o644, module)?;
    }
    Ok(package)
}

/// For applications in guests: the shared library.
fn library<'a>(contents: &Contents, staging: &Path) -> Result<Package<'a>, PackagingError> {
    let control = Control {
        name: "libstrata1",
        architecture: "amd64",
        section: "libs",
        relations: &[("Depends", "libc6 (>= 2.36), libgcc-s1"), ("Multi-Arch", "same"), HOMEPAGE],
        summary: "recording events from applications that strata traces",
        description: "For guests of strata, the virtual machine monitor that traces every layer of a virtual machine: the \
                      library by which applications record events of their own, at nanoseconds each. Elsewhere, recording \
                      does nothing.",
    };
    let mut package = Package::begin(staging, control)?;
    package.stripped(&format!("{LIBRARIES}/{SONAME}"), 0o644, &contents.shared_library)?;
    package.script("triggers", 0o644, "activate-noawait ldconfig\n");
    package.script("shlibs", 0o644, "libstrata 1 libstrata1\n");
    Ok(package)
}

/// For those who write such applications.
fn development<'a>(contents: &Contents, c_api: &Path, staging: &Path) -> Result<Package<'a>, PackagingError> {
    let control = Control {
        name: "libstrata-dev",
        architecture: "amd64",
        section: "libdevel",
        relations: &[
            ("Depends", concat!("libstrata1 (= ", env!("CARGO_PKG_VERSION"), "-1)")),
            ("Multi-Arch", "same"),
            HOMEPAGE,
        ],
        summary: "recording events from applications that strata traces (development files)",
        description: "For guests of strata, the virtual machine monitor that traces every layer of a virtual machine: the \
                      header for C and C++, the static library, and what pkg-config needs.",
    };
    let mut package = Package::begin(staging, control)?;
    package.file("/usr/include/strata.h", 0o644, &c_api.join("include/strata.h"))?;
    package.file(&format!("{LIBRARIES}/pkgconfig/strata.pc"), 0o644, &c_api.join("strata.pc"))?;
    package.stripped(&format!("{LIBRARIES}/libstrata.a"), 0o644, &contents.static_library)?;
    package.link(&format!("{LIBRARIES}/libstrata.so"), SONAME)?;
    Ok(package)
}

/// For those who write them in Python.
fn python<'a>(c_api: &Path, staging: &Path) -> Result<Package<'a>, PackagingError> {
    let control = Control {
        name: "python3-strata",
        architecture: "all",
        section: "python",
        relations: &[("Depends", concat!("python3, libstrata1 (= ", env!("CARGO_PKG_VERSION"), "-1)")), HOMEPAGE],
        summary: "recording events from Python programs that strata traces",
        description: "For guests of strata, the virtual machine monitor that traces every layer of a virtual machine: the \
                      module by which Python programs record events of their own. Elsewhere, recording does nothing.",
    };
    let mut package = Package::begin(staging, control)?;
    package.file("/usr/lib/python3/dist-packages/strata.py", 0o644, &c_api.join("python/strata.py"))?;
    Ok(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dkms_gets_the_version_and_the_program_that_the_package_holds() {
        let texts = Texts::read(&Paths::of_workspace()).unwrap();

        let configuration = texts.filled("dkms.conf").unwrap();

        assert!(configuration.contains(&format!("PACKAGE_VERSION=\"{MODULE_VERSION}\"")), "{configuration}");
        assert!(configuration.contains(MODULE_BUILDER) && !configuration.contains('@'), "{configuration}");
    }

    #[test]
    fn recorder_gets_the_domain_as_its_unit_is_called() {
        let folder = Paths::of_workspace().workspace().join("vmm/packaging");

        let unit = read(&folder.join("strata-recorder@.service")).unwrap();

        // %I has a / in place of each dash.
        assert!(unit.contains(" --libvirt %i ") && !unit.contains("%I"), "{unit}");
    }

    #[test]
    fn recorder_may_see_the_kernels_symbols() {
        let folder = Paths::of_workspace().workspace().join("vmm/packaging");

        let unit = read(&folder.join("strata-recorder@.service")).unwrap();

        // Takes CAP_SYSLOG away.
        assert!(!unit.lines().any(|line| line.starts_with("ProtectKernelLogs=")), "{unit}");
    }

    /// What the script of an RPM that runs `when` has systemctl do. rpm tells it how many versions of the package are
    /// `left` behind the change.
    fn asked_of_systemctl(fields: &rpm::Fields<'_>, when: &str, left: &str) -> String {
        let (_, script) = fields.scripts.iter().find(|(name, _)| *name == when).unwrap();
        // No other program is found.
        let script = format!("PATH=\nexec 3>&1\nsystemctl() {{ echo \"$*\" >&3; }}\n{script}");
        process::capture(Command::new("/bin/sh").args(["-c", &script, "sh", left])).unwrap()
    }

    #[test]
    fn upgrade_of_the_agents_rpm_leaves_what_is_enabled() {
        let asked = ["1", "2"].map(|left| asked_of_systemctl(&AGENT_RPM, "post", left));
        let at_removal = ["0", "1"].map(|left| asked_of_systemctl(&AGENT_RPM, "preun", left));

        assert_eq!(asked, ["preset strata-agent.service\n", ""]);
        assert_eq!(at_removal, ["disable --now strata-agent.service\n", ""]);
    }

    #[test]
    fn removal_of_the_hosts_rpm_stops_and_disables_its_units() {
        let asked = ["0", "1"].map(|left| asked_of_systemctl(&HOST_RPM, "preun", left));

        let stop = "stop strata-metrics.service strata-recorder@*.service";
        let disable = "disable strata-metrics.service strata-recorder@.service";
        assert_eq!(asked, [format!("{stop}\n{disable}\n"), String::new()]);
    }

    #[test]
    fn rpms_with_parts_of_the_module_name_its_licence() {
        let licenses = [HOST_RPM, AGENT_RPM, MODULES_RPM, QUERY_RPM].map(|fields| fields.license);

        let free = "Apache-2.0 OR MIT";
        assert_eq!(licenses, ["(Apache-2.0 OR MIT) AND GPL-2.0-only", free, "GPL-2.0-only", free]);
    }

    #[test]
    fn scripts_of_the_hosts_package_are_shell() {
        let folder = Paths::of_workspace().workspace().join("vmm/packaging");

        for name in HOST_SCRIPTS {
            let script = read(&folder.join(format!("strata.{name}"))).unwrap();
            process::capture(Command::new("sh").args(["-n", "-c", &script])).unwrap();
        }
    }

    #[test]
    fn scripts_name_the_version_and_are_shell() {
        let texts = Texts::read(&Paths::of_workspace()).unwrap();
        let names = ["strata-agent.postinst", "strata-agent.prerm", "strata-agent.postrm", "strata-dkms.postinst"];

        for name in names.into_iter().chain(["strata-dkms.prerm"]) {
            let script = texts.filled(name).unwrap();
            assert!(!script.contains('@'), "{name}");
            let mut shell = std::process::Command::new("sh");
            crate::process::capture(shell.args(["-n", "-c", &script])).unwrap();
        }
    }
}
