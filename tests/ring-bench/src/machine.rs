//! What the numbers were measured on.

use crate::sampling::TickRate;
use serde::Serialize;
use std::fs;
use std::process::Command;

/// The machine, as far as it bears on the results.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processor model.
    pub processor: String,
    /// Whether a hypervisor runs this machine.
    pub is_virtual: bool,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Memory, GiB.
    pub memory_gib: u64,
    /// Kernel release.
    pub kernel: String,
    /// TSC frequency, MHz.
    pub tsc_mhz: f64,
    /// The compiler that is installed.
    pub compiler: String,
    /// LTTng's version, when it was measured.
    pub lttng: Option<String>,
    /// Load average over one minute at the beginning and at the end: others' work, mostly.
    pub load: [f64; 2],
}

impl Machine {
    /// Describes this machine.
    pub fn describe(rate: TickRate, cpus: usize) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim())
        };
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib: u64 = meminfo.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let compiler = Command::new("rustc").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
        Self {
            processor: field("model name").to_owned(),
            is_virtual: field("flags").split(' ').any(|flag| flag == "hypervisor"),
            cpus,
            memory_gib: kib.div_ceil(1 << 20),
            kernel: kernel.trim().to_owned(),
            tsc_mhz: (rate.hertz() / 1e4).round() / 100.0,
            compiler: String::from_utf8_lossy(&compiler).trim().to_owned(),
            lttng: None,
            load: [load_average(), f64::NAN],
        }
    }

    /// To be called when the last sample was taken.
    pub fn finish(&mut self) {
        self.load[1] = load_average();
    }
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
}
