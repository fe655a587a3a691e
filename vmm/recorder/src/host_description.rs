//! What a recording says of the machine that recorded.

use std::fs;
use strata_recording::manifest::Host;

/// This machine, whose KVM is of the kind `kvm`: `hardware` or `emulating`.
#[must_use]
pub fn describe_host(kvm: &str) -> Host {
    let system = rustix::system::uname();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Host {
        hostname: system.nodename().to_string_lossy().into(),
        kernel: system.release().to_string_lossy().into(),
        cpu: model.map(|(_, model)| model.into()).unwrap_or_default(),
        kvm: kvm.into(),
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into(),
    }
}
