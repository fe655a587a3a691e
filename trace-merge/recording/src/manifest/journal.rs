//! The journal, `session.journal`: event types that came since `session.json` was saved. A recorder that is killed has
//! written records of them, of processes that had just begun, too.
//!
//! Each line is a layer as `session.json` describes it, as JSON: without streams, and with the new event types alone. A
//! line is appended before the first record that needs it. Saving `session.json`, which then says all that the journal
//! says, removes the journal. A half-written line is the last one, and no record needs it yet.

use super::{Layer, Manifest};
use crate::files::{Files, JOURNAL_FILE};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

/// The line that says of `layer` what it describes.
pub(crate) fn line(layer: &Layer) -> Vec<u8> {
    // What `session.json` is made of can be written as JSON.
    let mut line = serde_json::to_vec(layer).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Removes the journal beside `session.json`, `path`, which says all that it says. One that stays says nothing new.
pub(super) fn remove_beside(path: &Path) {
    let _ = fs::remove_file(path.with_file_name(JOURNAL_FILE));
}

/// The lines of the journal among `files`; empty when there is none. A recorder may remove it: it is read before
/// `session.json`.
pub(super) fn read(files: &Files) -> Vec<u8> {
    files.read(JOURNAL_FILE).unwrap_or_default()
}

/// `manifest` with what the lines `journal` say beyond it. Lines that are damaged, and a journal that contradicts the
/// manifest, are passed over.
pub(super) fn complete(manifest: Manifest, journal: &[u8]) -> Manifest {
    let mut completed = manifest.clone();
    let known = |(index, layer): (usize, &Layer)| {
        let ids: HashSet<u16> = layer.events.iter().map(|event| event.id).collect();
        (layer.path.clone(), (index, ids))
    };
    let mut layers: HashMap<String, (usize, HashSet<u16>)> = manifest.layers.iter().enumerate().map(known).collect();
    for line in journal.split(|&byte| byte == b'\n') {
        let Ok(mut written) = serde_json::from_slice::<Layer>(line) else { continue };
        written.streams.clear();
        let (index, ids) = layers.entry(written.path.clone()).or_insert_with(|| {
            completed.layers.push(Layer { events: Vec::new(), ..written.clone() });
            (completed.layers.len() - 1, HashSet::new())
        });
        let layer = &mut completed.layers[*index];
        if layer.uuid == written.uuid {
            layer.events.extend(written.events.into_iter().filter(|event| ids.insert(event.id)));
        }
    }
    if completed.problem().is_none() { completed } else { manifest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerKind;
    use crate::manifest::Process;
    use crate::reader::{Damage, Trace};
    use crate::test_trace::event;
    use crate::test_trace::manifest;
    use crate::writer::{LayerWriter, NewLayer};
    use tempfile::TempDir;

    fn process(dir: &TempDir, pid: u32) -> LayerWriter {
        let process = Some(Process { pid, comm: "app".into() });
        let new = NewLayer { kind: LayerKind::GuestUser, vm: Some("vm0".into()), process, packet_size: 4096 };
        LayerWriter::create_in_progress(None, dir.path(), &manifest(), new).unwrap()
    }

    /// Saves what is known of `layers`, as a recorder does meanwhile.
    fn save(dir: &TempDir, layers: &[&LayerWriter]) {
        let layers = layers.iter().map(|layer| layer.layer()).collect();
        Manifest { layers, outcome: None, ..manifest() }.save(dir.path()).unwrap();
    }

    fn record(layer: &mut LayerWriter, id: u16) {
        layer.add_events(&[event(id, &format!("app:event{id}"), &["number"])]).unwrap();
        layer.record(0, 1000 + u64::from(id), id, &[0; 4]).unwrap();
        layer.flush().unwrap();
    }

    /// The process, the names of the events and the damage of each layer.
    fn read(dir: &TempDir) -> Vec<(u32, Vec<String>, Damage)> {
        let trace = Trace::open(dir.path()).unwrap();
        let layers = trace.layers().iter().map(|layer| {
            let mut records = layer.records(&layer.streams[0]);
            let names = records.by_ref().map(|record| record.schema.name().to_owned()).collect();
            (layer.description.process.as_ref().unwrap().pid, names, records.damage())
        });
        layers.collect()
    }

    fn journal(dir: &TempDir) -> String {
        fs::read_to_string(dir.path().join(JOURNAL_FILE)).unwrap_or_default()
    }

    #[test]
    fn records_of_event_types_and_layers_since_the_last_save_are_read() {
        let dir = TempDir::new().unwrap();
        let mut known = process(&dir, 1);
        save(&dir, &[&known]);
        record(&mut known, 1);
        record(&mut known, 2);
        record(&mut process(&dir, 2), 7);

        let read = read(&dir);

        let of_first = vec!["app:event1".to_owned(), "app:event2".to_owned()];
        assert_eq!(read, [(1, of_first, Damage::default()), (2, vec!["app:event7".into()], Damage::default())]);
    }

    #[test]
    fn save_takes_the_place_of_the_journal() {
        let dir = TempDir::new().unwrap();
        let mut layer = process(&dir, 1);
        record(&mut layer, 1);
        let before = journal(&dir);

        save(&dir, &[&layer]);

        assert!(before.contains("app:event1"), "{before}");
        assert!(!dir.path().join(JOURNAL_FILE).exists());
    }

    #[test]
    fn journal_that_stayed_says_nothing_twice_and_nothing_of_a_complete_recording() {
        let dir = TempDir::new().unwrap();
        let mut layer = process(&dir, 1);
        record(&mut layer, 1);
        let stayed = journal(&dir);
        save(&dir, &[&layer]);
        fs::write(dir.path().join(JOURNAL_FILE), format!("{stayed}{stayed}")).unwrap();
        let running = Manifest::load(dir.path()).unwrap();
        let complete = Manifest { layers: Vec::new(), outcome: Some("stopped".into()), ..manifest() };

        complete.save(dir.path()).unwrap();
        fs::write(dir.path().join(JOURNAL_FILE), stayed).unwrap();

        assert_eq!(running.layers, [layer.layer()]);
        assert_eq!(Manifest::load(dir.path()).unwrap(), complete);
    }

    #[test]
    fn lines_that_are_damaged_or_contradict_are_passed_over() {
        let dir = TempDir::new().unwrap();
        let mut layer = process(&dir, 1);
        save(&dir, &[&layer]);
        record(&mut layer, 1);
        let good = journal(&dir);
        let other: Layer = serde_json::from_str(&good).unwrap();
        let other = Layer { uuid: uuid::Uuid::nil(), events: vec![event(9, "app:other", &[])], ..other };
        let other = String::from_utf8(line(&other)).unwrap();

        let lines = format!("{}\n\u{0}{other}{good}{}", &good[..20], &good[..good.len() / 2]);
        fs::write(dir.path().join(JOURNAL_FILE), &lines).unwrap();
        let read = read(&dir);
        let outside = good.replace("vm0/guest-user/1", "../1");
        fs::write(dir.path().join(JOURNAL_FILE), format!("{outside}{good}")).unwrap();
        let contradicted = Manifest::load(dir.path()).unwrap();

        assert_eq!(read, [(1, vec!["app:event1".to_owned()], Damage::default())]);
        assert!(contradicted.layers[0].events.is_empty());
    }
}
