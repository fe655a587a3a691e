//! `strata region`: trace regions for guests of other VMMs.

use crate::cli::RegionCommand;
use crate::run::foreign_region;
use serde_json::json;
use std::path::Path;
use strata_recorder::region::region_file::{self, RegionFileError};
use strata_recording::text::terminal::{shell_option, shell_word};

/// Where libvirt looks for the memory of such a device.
const LIBVIRT_FOLDER: &str = "/dev/shm";

/// Does what `command` says; returns what to tell the user.
///
/// # Errors
/// The file cannot be made.
pub fn run(command: &RegionCommand) -> Result<String, RegionFileError> {
    let RegionCommand::Create(args) = command;
    let path =
        std::path::absolute(&args.file).map_err(|source| RegionFileError::Io { path: args.file.clone(), source })?;
    let rings = (args.sub_buffer_size, args.sub_buffers);
    let shape = foreign_region(args.cpus, args.process_slots, args.mode.into(), rings);
    let size = region_file::create(&path, shape, args.size)?;
    Ok(instructions(&path, size))
}

/// How a VM gets the region of `size` bytes, a power of two, in `path`.
fn instructions(path: &Path, size: u64) -> String {
    let mebibytes = size >> 20;
    let shown = path.display();
    // QEMU takes a comma for the next option's beginning, unless there are two.
    let option = shell_word(path.to_string_lossy().replace(',', ",,"));
    let libvirt = match path.strip_prefix(LIBVIRT_FOLDER).ok().and_then(Path::to_str).filter(|name| is_plain(name)) {
        Some(name) => format!(
            "libvirt, inside <devices> (the file must be its QEMU's user's: chown libvirt-qemu {shown}, say):\n  \
             <shmem name='{name}'>\n    <model type='ivshmem-plain'/>\n    <size unit='M'>{mebibytes}</size>\n  </shmem>\n"
        ),
        None => format!("libvirt: only files in {LIBVIRT_FOLDER} with a plain name\n"),
    };
    let cloud_hypervisor = if path.to_str().is_some_and(|path| path.split('/').skip(1).all(is_plain)) {
        format!("Cloud Hypervisor:\n  --pmem file={shown},size={mebibytes}M\n")
    } else {
        "Cloud Hypervisor: only files with plain names\n".into()
    };
    let firecracker = json!([{
        "id": "strata", "path_on_host": path.to_string_lossy(), "root_device": false, "read_only": false
    }]);
    let memory = format!("-object memory-backend-file,id=strata,share=on,mem-path={option},size={mebibytes}M");
    format!(
        "{shown}: a trace region of {mebibytes} MiB\n\n\
         QEMU:\n  {memory} -device ivshmem-plain,memdev=strata\n\
         QEMU, as persistent memory, with -m SIZE,slots=1,maxmem=SIZE+{mebibytes}M (their sum) or more:\n  \
         {memory} -device virtio-pmem-pci,memdev=strata\n\n\
         {libvirt}\n\
         {cloud_hypervisor}\n\
         Firecracker, from 1.14 on, in its configuration:\n  \"pmem\": {firecracker}\n\n\
         then: strata attach PID {} --trace DIR\n",
        shell_option("--region", path)
    )
}

/// Whether the name of a file means nothing else to whoever reads it.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|character| character.is_ascii_alphanumeric() || "._-".contains(character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitors_get_the_file_and_its_size() {
        let text = instructions(Path::new("/dev/shm/web"), 64 << 20);

        for part in [
            "-object memory-backend-file,id=strata,share=on,mem-path=/dev/shm/web,size=64M -device ivshmem-plain,memdev=strata",
            "<shmem name='web'>",
            "<size unit='M'>64</size>",
            "-object memory-backend-file,id=strata,share=on,mem-path=/dev/shm/web,size=64M -device virtio-pmem-pci,memdev=strata",
            "--pmem file=/dev/shm/web,size=64M",
            r#""pmem": [{"id":"strata","path_on_host":"/dev/shm/web","read_only":false,"root_device":false}]"#,
            "strata attach PID --region /dev/shm/web",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn names_that_mean_something_else_to_a_monitor_are_written_differently() {
        let elsewhere = instructions(Path::new("/mnt/a,b"), 1 << 20);
        let odd = instructions(Path::new("/dev/shm/a'b\""), 1 << 20);
        let to_shell = instructions(Path::new("/mnt/a b;"), 1 << 20);

        assert!(elsewhere.contains("mem-path=/mnt/a,,b,size=1M") && elsewhere.contains("only files in /dev/shm"));
        assert!(odd.contains("only files in /dev/shm") && !odd.contains("<shmem"));
        assert!(
            to_shell.contains("mem-path='/mnt/a b;',size=1M") && to_shell.contains("PID --region '/mnt/a b;' --trace")
        );
        assert!(elsewhere.contains("only files with plain names") && !elsewhere.contains("--pmem"));
        assert!(odd.contains(r#""path_on_host":"/dev/shm/a'b\"""#), "{odd}");
    }
}
