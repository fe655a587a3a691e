use super::*;
use crate::files::reserve::Reserve;
use crate::test_trace::manifest;
use shared_ring::event::{FieldDescription, FieldType};
use shared_ring::layout::{PACKET_IN_GAP, PacketHeader};
use shared_ring::packet::{Records, read_header};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

fn event(id: u16, fields: &[&str]) -> EventDescription {
    let field = |name: &&str| FieldDescription { name: (*name).into(), ty: FieldType::U32, hex: false };
    EventDescription { id, class: 0, name: format!("test:event{id}"), fields: fields.iter().map(field).collect() }
}

fn new_layer(kind: LayerKind) -> NewLayer {
    let process = (kind == LayerKind::GuestUser).then(|| Process { pid: 42, comm: "app".into() });
    let vm = (kind != LayerKind::HostKernel).then(|| "vm0".into());
    NewLayer { kind, vm, process, packet_size: 4096 }
}

fn create(dir: &TempDir, kind: LayerKind) -> LayerWriter {
    LayerWriter::create(dir.path(), &manifest(), new_layer(kind)).unwrap()
}

/// The headers of the packets of the host's CPU 0.
fn headers_of_host_cpu(dir: &TempDir) -> Vec<PacketHeader> {
    let bytes = fs::read(dir.path().join("host-kernel/stream_0")).unwrap();
    bytes.chunks(4096).map(|packet| read_header(packet).unwrap()).collect()
}

#[test]
fn layers_lie_where_readers_look() {
    let dir = TempDir::new().unwrap();

    let paths = LayerKind::ALL.map(|kind| create(&dir, kind).layer().path);

    assert_eq!(paths, ["host-kernel", "vm0/vmm", "vm0/guest-kernel", "vm0/guest-user/42"]);
    assert!(paths.iter().all(|path| dir.path().join(path).join("metadata").is_file()));
}

#[test]
fn reused_process_id_gets_its_own_folder() {
    let dir = TempDir::new().unwrap();

    let paths = [(); 3].map(|()| create(&dir, LayerKind::GuestUser).layer().path);

    assert_eq!(paths, ["vm0/guest-user/42", "vm0/guest-user/42-2", "vm0/guest-user/42-3"]);
}

#[test]
fn existing_layer_is_not_written_over() {
    let dir = TempDir::new().unwrap();
    create(&dir, LayerKind::Vmm);

    let error = LayerWriter::create(dir.path(), &manifest(), new_layer(LayerKind::Vmm)).unwrap_err();

    assert!(error.to_string().contains("vm0/vmm: cannot be created"), "{error}");
}

#[test]
fn impossible_layers_are_refused() {
    let dir = TempDir::new().unwrap();
    let create = |layer| LayerWriter::create(dir.path(), &manifest(), layer).unwrap_err().to_string();
    let layer = new_layer(LayerKind::Vmm);

    assert!(create(NewLayer { vm: Some("../x".into()), ..layer.clone() }).contains("is not a VM name"));
    assert!(create(NewLayer { vm: None, ..layer.clone() }).contains("needs a VM"));
    assert!(create(NewLayer { packet_size: 100, ..layer }).contains("packets of 100 bytes"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn event_types_that_would_spoil_the_metadata_are_refused_alone() {
    let dir = TempDir::new().unwrap();
    let mut layer = create(&dir, LayerKind::Vmm);

    let error = layer.add_events(&[event(1, &["a", "a"]), event(2, &["a"])]).unwrap_err();

    assert!(error.to_string().contains("two fields have the same name"), "{error}");
    assert!(layer.event(1).is_none() && layer.event(2).is_some());
    let refused = [event(0, &[]), event(0xffff, &[]), event(3, &["a b"]), event(3, &["1a"]), event(2, &[])];
    assert!(refused.iter().all(|event| layer.add_events(std::slice::from_ref(event)).is_err()));
    assert_eq!(layer.add_events(&[event(2, &["a"])]).unwrap(), 0);
}

#[test]
fn records_fill_packets_in_sequence() {
    let dir = TempDir::new().unwrap();
    let mut layer = create(&dir, LayerKind::HostKernel);
    layer.add_events(&[event(1, &["a"])]).unwrap();

    for time in 0..600_u32 {
        layer.record(3, u64::from(time), 1, &time.to_le_bytes()).unwrap();
    }
    layer.add_lost(3, 5);
    layer.flush().unwrap();

    let bytes = fs::read(dir.path().join("host-kernel/stream_3")).unwrap();
    let packets: Vec<&[u8]> = bytes.chunks(4096).collect();
    let headers: Vec<_> = packets.iter().map(|packet| read_header(packet).unwrap()).collect();
    let counts: Vec<_> = packets.iter().map(|packet| Records::new(packet, 4096, 0).count()).collect();
    assert_eq!((bytes.len(), counts), (3 * 4096, vec![248, 248, 104]));
    assert_eq!(headers.iter().map(|header| header.sequence).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(headers.iter().map(|header| header.events_discarded).collect::<Vec<_>>(), [0, 0, 5]);
    assert_eq!(layer.records(), 600);
    assert_eq!(layer.layer().streams[0].lost.full, 5);
}

#[test]
fn loss_after_the_last_packet_stands_in_an_empty_one() {
    let dir = TempDir::new().unwrap();
    let mut layer = create(&dir, LayerKind::Vmm);
    let mut ring = PacketBuilder::new(layer.uuid(), 3, 4096);
    ring.push(20, 1, &[0; 4]);
    layer.append(&ring.finish(Lost::default(), 0).unwrap()).unwrap();

    let lost = Lost { full: 6, ..Lost::default() };
    layer.set_loss(3, lost, 9, false);
    layer.flush().unwrap();
    layer.flush().unwrap();

    let bytes = fs::read(dir.path().join("vm0/vmm/stream_3")).unwrap();
    let last = read_header(&bytes[4096..]).unwrap();
    assert_eq!((bytes.len(), last.content_size), (2 * 4096, 128 * 8));
    assert_eq!((last.sequence, last.events_discarded, last.rejected_bytes, last.cpu_id), (1, 6, 9, 3));
    assert_eq!((last.time_begin, last.time_end), (20, 20));
    let stream = &layer.layer().streams[0];
    assert_eq!((stream.records, stream.lost, stream.rejected_bytes), (1, lost, 9));
}

#[test]
fn packet_that_counts_a_loss_ends_with_the_record_after_it() {
    let dir = TempDir::new().unwrap();
    let mut layer = create(&dir, LayerKind::HostKernel);

    layer.record(0, 10, 1, &[0; 4]).unwrap();
    layer.add_lost(0, 2);
    layer.record(0, 30, 1, &[0; 4]).unwrap();
    layer.flush().unwrap();

    let headers = headers_of_host_cpu(&dir);
    let times: Vec<_> = headers.iter().map(|header| (header.time_begin, header.time_end)).collect();
    assert_eq!(times, [(10, 30), (30, 30)]);
    assert_eq!(headers.iter().map(|header| header.lost_full).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn loss_at_the_beginning_of_a_gap_makes_no_packet_without_records() {
    let dir = TempDir::new().unwrap();
    let mut layer = create(&dir, LayerKind::HostKernel);

    layer.record(0, 10, 1, &[0; 4]).unwrap();
    layer.add_lost(0, 2);
    layer.begin_gap(0).unwrap();
    layer.record(0, 30, 1, &[0; 4]).unwrap();
    layer.end_gap(0, None).unwrap();
    layer.record(0, 40, 1, &[0; 4]).unwrap();
    layer.flush().unwrap();

    let headers = headers_of_host_cpu(&dir);
    let told: Vec<_> = headers.iter().map(|header| (header.time_begin, header.flags, header.lost_full)).collect();
    assert_eq!(told, [(10, 0, 2), (30, PACKET_IN_GAP, 2), (40, 0, 2)]);
}

#[test]
fn gap_before_the_first_record_is_told_by_the_counts_of_its_packet() {
    let dir = TempDir::new().unwrap();
    let mut layer = create(&dir, LayerKind::HostKernel);

    layer.add_lost(0, 2);
    layer.begin_gap(0).unwrap();
    layer.end_gap(0, None).unwrap();
    layer.record(0, 40, 1, &[0; 4]).unwrap();
    layer.flush().unwrap();

    let headers = headers_of_host_cpu(&dir);
    let told: Vec<_> = headers.iter().map(|header| (header.time_begin, header.flags, header.lost_full)).collect();
    assert_eq!(told, [(40, 0, 2)]);
}

#[test]
fn records_that_cannot_be_stored_are_counted() {
    let dir = TempDir::new().unwrap();
    let mut layer = create(&dir, LayerKind::HostKernel);

    layer.record(0, 10, 1, &[0; 8]).unwrap();
    layer.record(0, 9, 1, &[0; 8]).unwrap();
    layer.record(0, 11, 1, &[0; 5000]).unwrap();
    layer.flush().unwrap();

    let stream = &layer.layer().streams[0];
    assert_eq!((stream.records, stream.rejected_bytes, stream.lost.too_large), (1, 8, 1));
}

/// Permissions of everything in `dir`.
fn modes(dir: &Path) -> BTreeMap<PathBuf, u32> {
    let mut modes = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        modes.insert(path.clone(), fs::metadata(&path).unwrap().permissions().mode() & 0o777);
        modes.extend(Some(path).filter(|path| path.is_dir()).iter().flat_map(|path| self::modes(path)));
    }
    modes
}

#[test]
fn recording_is_as_readable_as_its_folder() {
    let [private, shared] = [0o700, 0o755].map(|mode| {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        let mut layer = LayerWriter::create(dir.path(), &manifest(), new_layer(LayerKind::Vmm)).unwrap();
        layer.add_events(&[event(1, &[])]).unwrap();
        layer.record(0, 1, 1, &[]).unwrap();
        layer.flush().unwrap();
        manifest().save(dir.path()).unwrap();
        modes(dir.path()).into_values().collect::<Vec<_>>()
    });

    // session.json, vm0, vm0/vmm, and in it metadata and a stream.
    assert_eq!(private, [0o600, 0o700, 0o700, 0o600, 0o600]);
    assert_eq!(shared, [0o644, 0o755, 0o755, 0o644, 0o644]);
}

#[test]
fn event_types_that_come_one_by_one_make_the_same_metadata() {
    let metadata = |batches: &[&[EventDescription]]| {
        let dir = TempDir::new().unwrap();
        let mut layer = LayerWriter::create(dir.path(), &manifest(), new_layer(LayerKind::Vmm)).unwrap();
        let added: usize = batches.iter().map(|events| layer.add_events(events).unwrap()).sum();
        assert_eq!(added, 2);
        let text = fs::read_to_string(dir.path().join("vm0/vmm/metadata")).unwrap();
        let uuid = Uuid::from_bytes(layer.uuid()).to_string();
        text.replace(&uuid, "uuid")
    };
    let (one, other) = (event(1, &["a"]), event(2, &["b", "c"]));

    let together = metadata(&[&[one.clone(), other.clone()]]);
    let apart = metadata(&[&[], &[one], &[other]]);

    assert!(apart.contains("test:event2"), "{apart}");
    assert_eq!(apart, together);
}

#[test]
fn journal_counts_to_the_size_of_a_recording_until_it_is_saved() {
    let dir = TempDir::new().unwrap();
    let (path, rotation) = (dir.path().join(JOURNAL_FILE), Rotation::new(MIN_ROTATED_SIZE));
    let part = MIN_ROTATED_SIZE / 4 * 3;

    rotation.reserve_journal(&path, part).unwrap();
    let beside_it = rotation.reserve_journal(&path, part);
    rotation.save(dir.path(), &mut manifest(), &mut Reserve::default()).unwrap();

    assert!(matches!(beside_it, Err(WriteError::NoRoom { .. })), "{beside_it:?}");
    rotation.reserve_journal(&path, part).unwrap();
}

#[test]
fn journal_of_a_recording_that_keeps_within_a_size_is_as_large_as_it_counts() {
    let dir = TempDir::new().unwrap();
    let rotation = Rotation::new(MIN_ROTATED_SIZE);
    let new = new_layer(LayerKind::GuestUser);
    let mut layer = LayerWriter::create_in_progress(Some(&rotation), dir.path(), &manifest(), new).unwrap();

    layer.add_events(&[event(1, &["a"])]).unwrap();
    layer.add_events(&[event(2, &["a"]), event(3, &["a"])]).unwrap();

    assert_eq!(fs::metadata(dir.path().join(JOURNAL_FILE)).unwrap().len(), rotation.journal_bytes());
}

#[test]
fn symbols_lie_beside_their_layer_and_count_to_the_size_of_a_recording() {
    let dir = TempDir::new().unwrap();
    let rotation = Rotation::new(MIN_ROTATED_SIZE);
    let new = new_layer(LayerKind::HostKernel);
    let layer = LayerWriter::create_in_progress(Some(&rotation), dir.path(), &manifest(), new).unwrap();
    // A generator of pseudo-random numbers (MMIX's): what it makes cannot be compressed.
    let next =
        |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    let noise: Vec<u8> = std::iter::successors(Some(1_u64), next)
        .take(usize::try_from(MIN_ROTATED_SIZE / 4).unwrap())
        .flat_map(|state| (u32::try_from(state >> 32).unwrap()).to_le_bytes())
        .collect();

    layer.save_kallsyms(b"ffffffff81000000 T _text\n").unwrap();
    let too_large = layer.save_kallsyms(&noise);

    assert!(dir.path().join("host-kernel.kallsyms.zst").exists());
    assert!(matches!(too_large, Err(WriteError::NoRoom { .. })), "{too_large:?}");
}

#[test]
fn symbols_that_never_fit_cost_no_record() {
    let dir = TempDir::new().unwrap();
    let rotation = Rotation::new(MIN_ROTATED_SIZE);
    let new = new_layer(LayerKind::HostKernel);
    let mut layer = LayerWriter::create_in_progress(Some(&rotation), dir.path(), &manifest(), new).unwrap();
    layer.add_events(&[event(1, &["a"])]).unwrap();
    layer.record(0, 10, 1, &[0; 8]).unwrap();
    layer.flush().unwrap();

    let refused = rotation.reserve_file(&dir.path().join("symbols"), MIN_ROTATED_SIZE);

    assert!(matches!(refused, Err(WriteError::NoRoom { .. })), "{refused:?}");
    assert!(dir.path().join("host-kernel/stream_0").exists());
}

#[test]
fn recording_that_is_written_at_once_has_no_journal() {
    let dir = TempDir::new().unwrap();
    let mut layer = create(&dir, LayerKind::Vmm);

    layer.add_events(&[event(1, &["a"])]).unwrap();

    assert!(!dir.path().join(JOURNAL_FILE).exists());
}

#[test]
fn stream_is_complete_up_to_when_nothing_of_it_waited_to_be_written() {
    let dir = TempDir::new().unwrap();
    let mut layer = create(&dir, LayerKind::HostKernel);
    layer.add_events(&[event(1, &["a"])]).unwrap();
    let reported = |layer: &LayerWriter| {
        let streams = layer.layer().streams;
        streams.iter().map(|stream| (stream.cpu_id, stream.packets, stream.complete_until)).collect::<Vec<_>>()
    };

    layer.record(0, 10, 1, &[0; 8]).unwrap();
    [0, 1].into_iter().for_each(|cpu| layer.set_complete_until(cpu, 20));
    let waits = reported(&layer);
    layer.flush().unwrap();
    layer.set_complete_until(0, 30);

    assert_eq!(waits, [(0, 0, None), (1, 0, Some(20))]);
    assert_eq!(reported(&layer), [(0, 1, Some(30)), (1, 0, Some(20))]);
}
