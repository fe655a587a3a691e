//! A browser without a window, which opens pages as a user's does: Chromium's headless shell.
//!
//! It is driven by Chromium's own protocol (DevTools) through two pipes, so that neither a port nor a driver is needed.

use crate::fetch::apt::PackageError;
use crate::fetch::tools::{self, Tool};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const CHROMIUM: Tool = Tool { program: "chromium-headless-shell", package: "chromium-headless-shell" };
/// How long a page may take to come to what is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// What ends a message.
const END: u8 = 0;

/// Why a browser did not carry out a command.
#[derive(Debug, thiserror::Error)]
pub enum BrowserError {
    /// It is missing.
    #[error(transparent)]
    Tools(#[from] PackageError),
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Its pipes, or a file, cannot be used.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It answered with an error, or with what is not an answer.
    #[error("the browser refused {call}: {answer}")]
    Refused {
        call: String,
        /// What it said.
        answer: String,
    },
    /// A script in the page failed.
    #[error("{script} failed: {message}")]
    Script {
        /// The script.
        script: String,
        /// What went wrong.
        message: String,
    },
    /// What was waited for did not come.
    #[error("{0} did not become true")]
    Patience(String),
}

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    calls: u64,
    /// What the page complained about: errors of scripts, lines on its console, what was blocked.
    complaints: Vec<String>,
    _pipes: tempfile::TempDir,
}

impl Browser {
    /// Starts one whose page is `width` by `height` pixels, and installs it if it is missing.
    ///
    /// # Errors
    ///
    /// When it cannot be installed or started.
    pub fn start(paths: &Paths, (width, height): (u32, u32)) -> Result<Self, BrowserError> {
        tools::install(paths, &[CHROMIUM])?;
        let file = |path: &Path| {
            let path = path.to_path_buf();
            move |source| BrowserError::File { path, source }
        };
        let pipes = tempfile::tempdir().map_err(file(&std::env::temp_dir()))?;
        let [to, from] = ["to", "from"].map(|name| pipes.path().join(name));
        process::capture(Command::new("mkfifo").arg(&to).arg(&from))?;
        // The browser reads from 3 and writes to 4, which the shell opens.
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(r#"exec 3<"$0" 4>"$1"; shift; exec "$@""#).arg(&to).arg(&from).arg(CHROMIUM.program);
        // As root it has no sandbox; the pages are this test's own.
        shell.args(["--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]);
        shell.arg(format!("--user-data-dir={}", pipes.path().join("profile").display())).arg("about:blank");
        let child = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|source| ProcessError::Start { program: "sh".into(), source })?;
        // Each waits for the other end: first the shell's 3, then its 4.
        let to = File::options().write(true).open(&to).map_err(file(&to))?;
        let from = BufReader::new(File::open(&from).map_err(file(&from))?);
        let mut browser = Self { child, to, from, session: None, calls: 0, complaints: Vec::new(), _pipes: pipes };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attached =
            browser.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }))?;
        browser.session = attached["sessionId"].as_str().map(Into::into);
        for domain in ["Runtime.enable", "Log.enable", "Page.enable", "Network.enable"] {
            browser.call(domain, json!({}))?;
        }
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        browser.call("Emulation.setDeviceMetricsOverride", size)?;
        Ok(browser)
    }

    /// Opens the page in the file `page`, and waits until the script `is_ready` is true.
    ///
    /// # Errors
    ///
    /// When it does not come to that.
    pub fn open(&mut self, page: &Path, is_ready: &str) -> Result<(), BrowserError> {
        self.visit(&format!("file://{}", page.display()), is_ready)
    }

    /// Opens the page at `address`, and waits until the script `is_ready` is true.
    ///
    /// # Errors
    ///
    /// When it does not come to that.
    pub fn visit(&mut self, address: &str, is_ready: &str) -> Result<(), BrowserError> {
        self.call("Page.navigate", json!({ "url": address }))?;
        self.wait(is_ready)
    }

    /// What is in sight, as a PNG.
    ///
    /// # Errors
    ///
    /// When the browser takes no picture.
    pub fn picture(&mut self) -> Result<Vec<u8>, BrowserError> {
        let call = "Page.captureScreenshot";
        let answer = self.call(call, json!({ "format": "png" }))?;
        let encoded = answer["data"].as_str().unwrap_or_default();
        let refused =
            |error: base64::DecodeError| BrowserError::Refused { call: call.into(), answer: error.to_string() };
        BASE64_STANDARD.decode(encoded).map_err(refused)
    }

    /// Waits until the script `condition` is true.
    ///
    /// # Errors
    ///
    /// When it does not become true.
    pub fn wait(&mut self, condition: &str) -> Result<(), BrowserError> {
        let begin = Instant::now();
        while self.evaluate(condition)? != Value::Bool(true) {
            if begin.elapsed() > PATIENCE {
                return Err(BrowserError::Patience(condition.into()));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// What `script` comes to in the page; promises are waited for.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub fn evaluate(&mut self, script: &str) -> Result<Value, BrowserError> {
        let parameters = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", parameters)?;
        match answer.get("exceptionDetails") {
            Some(details) => Err(BrowserError::Script { script: script.into(), message: details.to_string() }),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    /// Presses and lets go the key called `key`: a letter, or a name such as `ArrowLeft`.
    ///
    /// # Errors
    ///
    /// When the browser does not take it.
    pub fn press(&mut self, key: &str) -> Result<(), BrowserError> {
        let is_letter = key.chars().count() == 1;
        let text = if is_letter {
            json!(key)
        } else if key == "Enter" {
            json!("\r")
        } else {
            Value::Null
        };
        let mut down = json!({ "type": "keyDown", "key": key });
        if !text.is_null() {
            down["text"] = text;
        }
        self.call("Input.dispatchKeyEvent", down)?;
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyUp", "key": key }))?;
        Ok(())
    }

    /// Types `text` where the focus is.
    ///
    /// # Errors
    ///
    /// When the browser does not take it.
    pub fn type_text(&mut self, text: &str) -> Result<(), BrowserError> {
        self.call("Input.insertText", json!({ "text": text })).map(drop)
    }

    /// Clicks at a place of the page, pixels from its upper left corner.
    ///
    /// # Errors
    ///
    /// When the browser does not take it.
    pub fn click(&mut self, x: f64, y: f64) -> Result<(), BrowserError> {
        for what in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": what, "x": x, "y": y, "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event)?;
        }
        Ok(())
    }

    /// Moves the mouse to a place of the page, pixels from its upper left corner.
    ///
    /// # Errors
    ///
    /// When the browser does not take it.
    pub fn hover(&mut self, x: f64, y: f64) -> Result<(), BrowserError> {
        self.call("Input.dispatchMouseEvent", json!({ "type": "mouseMoved", "x": x, "y": y })).map(drop)
    }

    /// Makes the window `width` by `height` pixels large.
    ///
    /// # Errors
    ///
    /// When the browser refuses.
    pub fn resize(&mut self, (width, height): (u32, u32)) -> Result<(), BrowserError> {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 0, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics).map(drop)
    }

    /// Whether the user likes pages dark.
    ///
    /// # Errors
    ///
    /// When the browser does not take it.
    pub fn prefer_dark(&mut self, dark: bool) -> Result<(), BrowserError> {
        let value = if dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.call("Emulation.setEmulatedMedia", features).map(drop)
    }

    /// What the page complained about so far.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    fn call(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError> {
        let refused = |answer: String| BrowserError::Refused { call: method.into(), answer };
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(END);
        self.to.write_all(&bytes).map_err(|error| refused(error.to_string()))?;
        loop {
            let mut answer = Vec::new();
            let read = self.from.read_until(END, &mut answer).map_err(|error| refused(error.to_string()))?;
            if read == 0 {
                return Err(refused("it has ended".into()));
            }
            answer.pop();
            let mut answer: Value = serde_json::from_slice(&answer).map_err(|error| refused(error.to_string()))?;
            if answer["id"] == self.calls {
                return match answer.get("error") {
                    Some(error) => Err(refused(error.to_string())),
                    None => Ok(answer["result"].take()),
                };
            }
            self.take_event(&answer);
        }
    }

    /// Keeps what is a complaint, or a request for anything but the page itself.
    fn take_event(&mut self, event: &Value) {
        let parameters = &event["params"];
        let address = parameters["request"]["url"].as_str().unwrap_or_default();
        let is_complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded") => true,
            Some("Network.requestWillBeSent") => !address.starts_with("file:"),
            _ => false,
        };
        if is_complaint {
            self.complaints.push(parameters.to_string());
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
