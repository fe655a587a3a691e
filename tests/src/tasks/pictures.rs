//! `cargo xtask pictures`: takes the documents' pictures anew, of the shipped recording.

use crate::fetch::browser::Browser;
use crate::fetch::perfetto_viewer::{self, Server};
use crate::paths::Paths;
use crate::process;
use crate::progress;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The recording that all pictures show.
const RECORDING: &str = "docs/example.strata";
const PAGE_LOADED: &str = "document.documentElement?.dataset.loaded === 'yes'";
/// The page draws what is in sight once it has unpacked it.
const REST: &str = "new Promise((done) => setTimeout(done, 1000))";
/// Perfetto's viewer can say when it has drawn what it was given.
const PERFETTO_STARTED: &str = "!!window.waitForPerfettoIdle";
const PERFETTO_DRAWN: &str = "waitForPerfettoIdle(1000)";
/// Opens the group of disk requests.
const PERFETTO_OPENS: &str = "app.commands.runCommand('dev.perfetto.ExpandTracksByRegex', '^vm0: disk requests$')";

/// A picture of the page.
struct OfPage {
    /// The file, in the documents' folder.
    file: &'static str,
    /// Pixels.
    size: (u32, u32),
    /// What the page's address says behind `#`.
    view: &'static str,
    dark: bool,
    /// A script, for what the address does not say.
    then: &'static str,
}

const OF_PAGE: [OfPage; 5] = [
    OfPage {
        file: "page-timeline.png",
        size: (1400, 860),
        view: "from=0.04&until=0.07&row=vm0/vcpu/vCPU 1",
        dark: false,
        then: "",
    },
    OfPage {
        file: "page-report.png",
        size: (1400, 860),
        view: "tab=wakeups",
        dark: true,
        then: "const times = document.querySelector('button.distribution'); times.focus(); \
               times.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft' }))",
    },
    OfPage { file: "guide-timeline.png", size: (1280, 760), view: "", dark: false, then: "" },
    OfPage {
        file: "guide-late.png",
        size: (1280, 760),
        view: "from=0.1785&until=0.2085&row=vm0/task/dd%2F145",
        dark: false,
        then: "selectSliceAt(selection.row, 2.02e8)",
    },
    OfPage {
        file: "guide-request.png",
        size: (1280, 760),
        view: "from=0.1815&until=0.2055&row=vm0/disk/disk requests",
        dark: false,
        then: "selectSliceAt(selection.row, 1.9e8)",
    },
];

/// The picture of Perfetto's viewer, and what is in sight: ns of the trace's clock.
const OF_PERFETTO: (&str, (u32, u32), (u64, u64)) = ("guide-perfetto.png", (1280, 760), (178_500_000, 208_500_000));

/// Takes all pictures.
///
/// # Errors
///
/// When `strata` cannot be built, the browser or the viewer cannot be had, or a page does not load.
pub fn take(paths: &Paths) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let documents = paths.workspace().join("docs");
    progress::step("pictures of the page", || of_page(paths, folder.path(), &documents))?;
    progress::step("picture of Perfetto's viewer", || of_perfetto(paths, folder.path(), &documents))
}

fn strata(paths: &Paths, arguments: &[&str], out: &Path) -> anyhow::Result<()> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths.workspace()).args(["run", "--quiet", "-p", "vmm", "--bin", "strata", "--"]);
    process::capture(cargo.args(arguments).arg(out))?;
    Ok(())
}

fn of_page(paths: &Paths, folder: &Path, documents: &Path) -> anyhow::Result<()> {
    let page = folder.join("page.html");
    strata(paths, &["report", RECORDING, "--html"], &page)?;
    for picture in OF_PAGE {
        let mut browser = Browser::start(paths, picture.size)?;
        browser.prefer_dark(picture.dark)?;
        browser.visit(&format!("file://{}#{}", page.display(), picture.view), PAGE_LOADED)?;
        browser.evaluate(picture.then)?;
        browser.evaluate(REST)?;
        fs::write(documents.join(picture.file), browser.picture()?)?;
    }
    Ok(())
}

fn of_perfetto(paths: &Paths, folder: &Path, documents: &Path) -> anyhow::Result<()> {
    let viewer = perfetto_viewer::fetch(paths)?;
    // One server for both: the viewer fetches traces from where it comes from.
    process::capture(Command::new("cp").arg("-r").arg(viewer).arg(folder.join("viewer")))?;
    strata(paths, &["export", RECORDING, "--format", "perfetto", "-o"], &folder.join("viewer/trace.pftrace"))?;
    let server = Server::start(&folder.join("viewer"))?;
    let (file, size, (begin, end)) = OF_PERFETTO;
    let mut browser = Browser::start(paths, size)?;
    let address = &server.address;
    let view = format!("url={address}/trace.pftrace&hideSidebar=true&visStart={begin}&visEnd={end}");
    browser.visit(&format!("{address}/index.html#!/?{view}"), PERFETTO_STARTED)?;
    for script in [PERFETTO_DRAWN, PERFETTO_OPENS, PERFETTO_DRAWN] {
        browser.evaluate(script)?;
    }
    fs::write(documents.join(file), browser.picture()?)?;
    Ok(())
}
