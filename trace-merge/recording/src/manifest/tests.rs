use super::*;
use crate::test_trace::{clock, manifest};
use std::fs;
use tempfile::TempDir;

fn layer(path: &str) -> Layer {
    Layer {
        kind: LayerKind::Vmm,
        vm: Some("vm0".into()),
        host: None,
        path: path.into(),
        uuid: Uuid::from_bytes([2; 16]),
        packet_size: 4096,
        process: None,
        events: Vec::new(),
        flag_names: Vec::new(),
        limit: None,
        ended: None,
        another_kernel: false,
        streams: Vec::new(),
    }
}

fn load_error(text: &str) -> String {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join(MANIFEST_FILE), text).unwrap();
    Manifest::load(dir.path()).unwrap_err().to_string()
}

fn load_error_of(manifest: &Manifest) -> String {
    load_error(&serde_json::to_string(manifest).unwrap())
}

#[test]
fn saved_manifest_is_loaded_unchanged_and_alone() {
    let dir = TempDir::new().unwrap();
    let saved = Manifest { layers: vec![layer("vm0/vmm")], outcome: Some("power-off".into()), ..manifest() };

    manifest().save(dir.path()).unwrap();
    saved.save(dir.path()).unwrap();

    assert_eq!(Manifest::load(dir.path()).unwrap(), saved);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn manifest_that_nobody_would_read_is_not_written() {
    let dir = TempDir::new().unwrap();
    let missing = Missing { layer: LayerKind::Vmm, reason: "x".repeat(4000), fix: String::new() };
    let large = Manifest { missing: vec![missing], ..manifest() };

    manifest().save(dir.path()).unwrap();
    let error = large.save_within(dir.path(), 4000).unwrap_err();

    assert!(error.to_string().contains("more than are read"), "{error}");
    assert_eq!(Manifest::load(dir.path()).unwrap(), manifest());
}

#[test]
fn folder_that_is_no_recording_is_named() {
    let dir = TempDir::new().unwrap();

    let absent = Manifest::load(&dir.path().join("absent")).unwrap_err().to_string();
    let empty = Manifest::load(dir.path()).unwrap_err().to_string();

    assert!(absent.contains("absent: no such trace"), "{absent}");
    assert!(empty.contains("not a trace folder (no session.json)"), "{empty}");
}

#[test]
fn truncated_manifest_is_called_damaged() {
    let text = serde_json::to_string(&manifest()).unwrap();

    assert!(load_error(&text[..text.len() / 2]).contains("session.json: damaged or truncated"));
    assert!(load_error("").contains("session.json: damaged or truncated"));
}

#[test]
fn newer_format_is_refused_whatever_else_it_holds() {
    let error = load_error(r#"{"format": 2, "layers": "elsewhere"}"#);

    assert!(error.contains("format 2 is newer than this strata reads (1)"), "{error}");
}

#[test]
fn path_that_leaves_the_folder_is_refused() {
    for path in ["../other", "/etc", "vm0/../..", ""] {
        let error = load_error_of(&Manifest { layers: vec![layer(path)], ..manifest() });
        assert!(error.contains("leads out of the trace folder"), "{path}: {error}");
    }
}

#[test]
fn stream_file_that_leaves_its_layer_is_refused() {
    let layer = Layer { streams: vec![stream("a/b", 0)], ..layer("vm0/vmm") };

    assert!(load_error_of(&Manifest { layers: vec![layer], ..manifest() }).contains("leads out of its folder"));
}

fn stream(file: &str, cpu_id: u32) -> StreamDescription {
    StreamDescription { file: file.into(), cpu_id, ..StreamDescription::default() }
}

#[test]
fn layers_of_a_guest_end_where_its_crash_kernel_takes_over() {
    let looked = |until| StreamDescription { complete_until: until, ..stream("stream_0", 0) };
    let of = |kind, ended| Layer { kind, ended, streams: vec![looked(None), looked(Some(90))], ..layer("vm0/a") };
    let known = |mut layer: Layer| {
        Layer::note_crash_kernel(std::slice::from_mut(&mut layer), Some(50));
        (layer.another_kernel, layer.ended, [0, 1].map(|stream| layer.streams[stream].complete_until))
    };

    assert_eq!(known(of(LayerKind::GuestKernel, None)), (true, Some(false), [Some(50); 2]));
    assert_eq!(known(of(LayerKind::GuestUser, None)), (true, Some(false), [Some(50); 2]));
    assert_eq!(known(of(LayerKind::GuestUser, Some(true))), (false, Some(true), [None, Some(90)]));
    assert_eq!(known(of(LayerKind::Vmm, None)), (false, None, [None, Some(90)]));
}

#[test]
fn manifest_that_contradicts_itself_is_refused() {
    let error = |layers: Vec<Layer>| load_error_of(&Manifest { layers, ..manifest() });
    let streams = |streams: [StreamDescription; 2]| Layer { streams: streams.into(), ..layer("vm0/vmm") };
    let vm = manifest().vms[0].clone();
    let twice = load_error_of(&Manifest { vms: vec![vm.clone(), vm], ..manifest() });

    assert!(twice.contains("VM \"vm0\" is listed twice"), "{twice}");
    let same_path = error(vec![layer("vm0/vmm"), layer("a"), layer("vm0/vmm")]);
    assert!(same_path.contains("layer \"vm0/vmm\" is listed twice"), "{same_path}");
    let inside = error(vec![layer("vm0/vmm/guest"), layer("vm0/vmm-2"), layer("vm0/vmm")]);
    assert!(inside.contains("layer \"vm0/vmm/guest\" lies inside layer \"vm0/vmm\""), "{inside}");
    let same_file = error(vec![streams([stream("stream_0", 0), stream("stream_0", 1)])]);
    assert!(same_file.contains("stream file \"stream_0\" of layer \"vm0/vmm\" is listed twice"), "{same_file}");
    let same_cpu = error(vec![streams([stream("stream_0", 0), stream("stream_1", 0)])]);
    assert!(same_cpu.contains("layer \"vm0/vmm\" has two streams of thread 0"), "{same_cpu}");
    let nobodys = error(vec![Layer { vm: None, ..layer("vm0/vmm") }]);
    assert!(nobodys.contains("layer \"vm0/vmm\" belongs to no VM, but is a vmm layer"), "{nobodys}");
}

#[test]
fn manifest_that_is_not_a_regular_file_is_refused() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join(MANIFEST_FILE)).unwrap();

    let error = Manifest::load(dir.path()).unwrap_err();

    assert!(error.to_string().contains("session.json: cannot be read"), "{error}");
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "is not a regular file");
}

#[test]
fn impossible_numbers_are_refused() {
    let stopped = Manifest { clock: Clock { frequency_hz: 0, ..clock() }, ..manifest() };
    let tiny = Manifest { layers: vec![Layer { packet_size: 100, ..layer("vm0/vmm") }], ..manifest() };

    assert!(load_error_of(&stopped).contains("impossible frequency of 0 Hz"));
    assert!(load_error_of(&tiny).contains("impossible packet size of 100 bytes"));
}

#[test]
fn unwritable_folder_is_named() {
    let error = manifest().save(Path::new("/proc/self")).unwrap_err().to_string();

    assert!(error.contains("/proc/self/session.json: cannot be written"), "{error}");
}

#[test]
fn vm_names_are_plain_file_names() {
    assert!(is_vm_name("vm0") && is_vm_name("db-1.test"));
    assert!(!is_vm_name("") && !is_vm_name("..") && !is_vm_name("a/b") && !is_vm_name("a b"));
}

#[test]
fn preemptible_rt_kernel_is_known_by_its_release() {
    let rt = |kernel: &str| {
        let guest = Guest { kernel: kernel.into(), agent_abi: 1, processes_refused: 0, processes_over_quota: 0 };
        guest.is_preemptible_rt()
    };

    let kernels = ["6.1.0-56-rt-amd64", "6.8.1-1015-realtime", "6.6.30-rt30", "6.1.0-56-cloud-amd64", "6.1-start"];

    assert_eq!(kernels.map(rt), [true, true, true, false, false]);
}

#[test]
fn processes_without_a_slot_are_missing_with_their_number() {
    let guest = |refused, over_quota| Guest {
        kernel: "6.1".into(),
        agent_abi: 1,
        processes_refused: refused,
        processes_over_quota: over_quota,
    };

    let missing = guest(3, 2).missing_processes().unwrap();

    assert_eq!(guest(0, 0).missing_processes(), None);
    assert!(missing.reason.contains("3 processes found no free process slot; 2 processes had a user"));
}
