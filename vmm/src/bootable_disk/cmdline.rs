//! The kernel command line of a guest that boots from its first disk.

/// The first virtio block device, as Linux names it.
const DEVICE: &str = "/dev/vda";
/// The console that strata has.
const CONSOLE: &str = "console=ttyS0";

/// `cmdline` with the root on the first disk, on `partition` of it if there is one, and with a console; what it names
/// itself of both stays as it is. What follows `--` stays last, for the guest's init.
#[must_use]
pub fn with_root(cmdline: &str, partition: Option<u32>, read_only: bool) -> String {
    let words: Vec<&str> = cmdline.split_ascii_whitespace().collect();
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let (kernel, init) = words.split_at(end);
    let names = |what: &str| kernel.iter().any(|word| word.starts_with(what));
    let mut ours = Vec::new();
    if !names("console=") {
        ours.push(CONSOLE.to_owned());
    }
    if !names("root=") {
        let number = partition.map(|number| number.to_string()).unwrap_or_default();
        ours.push(format!("root={DEVICE}{number}"));
        if !kernel.iter().any(|word| ["ro", "rw"].contains(word)) {
            ours.push(if read_only { "ro" } else { "rw" }.to_owned());
        }
    }
    let all: Vec<&str> =
        kernel.iter().copied().chain(ours.iter().map(String::as_str)).chain(init.iter().copied()).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_console_are_added_where_none_is_named() {
        assert_eq!(with_root("console=ttyS0 panic=-1", None, false), "console=ttyS0 panic=-1 root=/dev/vda rw");
        assert_eq!(with_root("quiet", Some(1), true), "quiet console=ttyS0 root=/dev/vda1 ro");
    }

    #[test]
    fn what_is_named_stays() {
        assert_eq!(with_root("root=LABEL=x console=hvc0", Some(1), false), "root=LABEL=x console=hvc0");
        assert_eq!(with_root("ro console=ttyS0", None, false), "ro console=ttyS0 root=/dev/vda");
    }

    #[test]
    fn words_for_init_stay_last() {
        assert_eq!(
            with_root("console=ttyS0 -- root=x single", None, false),
            "console=ttyS0 root=/dev/vda rw -- root=x single"
        );
    }
}
