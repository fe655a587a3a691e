//! Every target on its committed corpus, and on inputs made of that: what the targets assert must hold for them in an
//! ordinary build too, without a fuzzer.
//!
//! Shows: Every input that a fuzz target once failed on, or that reaches a part of its own, passes.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestError, TestRunner};
use std::fs;
use std::path::{Path, PathBuf};

/// Inputs that are made for each target.
const CASES: u32 = 400;
/// Most changes that an input is away from one of the corpus.
const MAX_EDITS: usize = 12;
/// Most bytes that a change adds, takes away or repeats.
const MAX_PIECE: usize = 64;

/// A change of an input.
#[derive(Clone, Debug)]
enum Edit {
    Replace(Index, u8),
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    Truncate(Index),
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let at = |index: &Index| index.index(bytes.len() + 1);
        match self {
            Self::Replace(index, value) => {
                let at = at(index);
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = *value);
            }
            Self::Flip(index, bit) => {
                let at = at(index);
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << bit);
            }
            Self::Insert(index, piece) => {
                let at = at(index);
                bytes.splice(at..at, piece.iter().copied());
            }
            Self::Remove(index, length) => {
                let at = at(index);
                bytes.drain(at..bytes.len().min(at + length));
            }
            Self::Repeat(index, length) => {
                let at = at(index);
                bytes.extend_from_within(at..bytes.len().min(at + length));
            }
            Self::Truncate(index) => bytes.truncate(at(index)),
        }
    }
}

fn edit() -> impl Strategy<Value = Edit> {
    // numbers at the ends of their ranges break more than others
    let value = prop_oneof![Just(0), Just(1), Just(0x7f), Just(0x80), Just(0xff), any::<u8>()];
    prop_oneof![
        4 => (any::<Index>(), value).prop_map(|(index, value)| Edit::Replace(index, value)),
        4 => (any::<Index>(), 0..8_u8).prop_map(|(index, bit)| Edit::Flip(index, bit)),
        1 => (any::<Index>(), vec(any::<u8>(), 1..MAX_PIECE)).prop_map(|(index, piece)| Edit::Insert(index, piece)),
        1 => (any::<Index>(), 1..MAX_PIECE).prop_map(|(index, length)| Edit::Remove(index, length)),
        1 => (any::<Index>(), 1..MAX_PIECE).prop_map(|(index, length)| Edit::Repeat(index, length)),
        1 => any::<Index>().prop_map(Edit::Truncate),
    ]
}

/// The committed inputs of `target`, sorted by their files' names.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Gives the corpus of `target`, and inputs made of it, to its function `run`.
fn check(target: &str, run: fn(&[u8])) {
    let seeds = corpus(target);
    seeds.iter().for_each(|seed| run(seed));
    let inputs = (select(seeds), vec(edit(), 1..=MAX_EDITS)).prop_map(|(mut bytes, edits)| {
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        bytes
    });
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let found = TestRunner::new(config).run(&inputs, |bytes| {
        run(&bytes);
        Ok(())
    });
    match found {
        Ok(()) => {}
        Err(TestError::Fail(reason, bytes)) => {
            // temporary files go with the run
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("strata-{target}-input"));
            fs::write(&kept, bytes).unwrap();
            panic!("{reason}; the input is kept in {}", kept.display());
        }
        Err(error) => panic!("{error}"),
    }
}

macro_rules! targets {
    ($($target:ident),* $(,)?) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];

        $(
            #[test]
            fn $target() {
                check(stringify!($target), strata_fuzz::$target::run);
            }
        )*
    };
}

targets!(
    boot_image,
    bootable_disk,
    compressed_stream,
    consumer,
    consumer_race,
    control_answer,
    control_request,
    crash_reader,
    devices,
    event_format,
    ftrace_page,
    guest_processes,
    guest_ring,
    http_request,
    initrd,
    kernel_image,
    packed_trace,
    packet,
    qmp_reply,
    recover,
    registry,
    trace_folder,
    trigger,
    vm_description,
);

#[test]
fn every_target_is_among_them() {
    let programs = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets")).unwrap();
    let mut names: Vec<String> =
        programs.map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();

    assert_eq!(names, TARGETS);
}

#[test]
fn corpus_has_what_is_made_for_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let is_as_made = |seed: &strata_fuzz::seeds::Seed| {
        let committed = fs::read(root.join(seed.target).join(&seed.name)).unwrap_or_default();
        // mke2fs writes down when the files were made.
        if seed.target == "bootable_disk" { committed.len() == seed.bytes.len() } else { committed == seed.bytes }
    };

    let others: Vec<String> = strata_fuzz::seeds::all()
        .iter()
        .filter(|seed| !is_as_made(seed))
        .map(|seed| format!("{}/{}", seed.target, seed.name))
        .collect();

    assert!(others.is_empty(), "`cargo run -p strata-fuzz --example write_corpus` makes {}", others.join(", "));
}

#[test]
fn streams_of_the_corpus_are_decompressed() {
    let records = corpus("compressed_stream").into_iter().map(|input| strata_fuzz::compressed_stream::records(&input));

    assert_eq!(records.collect::<Vec<_>>(), [7, 7]);
}

#[test]
fn kernels_of_the_corpus_are_unpacked() {
    let unpacked =
        corpus("kernel_image").iter().filter_map(|image| strata_kmod_build::kernel_image::extract(image).ok()).count();

    assert_eq!(unpacked, 6);
}

#[test]
fn initrds_of_the_corpus_have_an_init() {
    let found = corpus("initrd").iter().filter(|initrd| strata_fuzz::initrd::init(initrd).is_ok()).count();

    assert_eq!(found, 7);
}
