use super::*;
use proptest::prelude::*;

/// A page built record by record.
struct PageBuilder {
    time: u64,
    flags: u64,
    data: Vec<u8>,
    tail: Vec<u8>,
}

impl PageBuilder {
    fn new(time: u64) -> Self {
        Self { time, flags: 0, data: Vec::new(), tail: Vec::new() }
    }

    fn word(mut self, word: u32) -> Self {
        self.data.extend(word.to_le_bytes());
        self
    }

    fn record(self, type_len: u32, delta: u32) -> Self {
        self.word(type_len | (delta << 5))
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.data.extend(bytes);
        self
    }

    fn flags(mut self, flags: u64) -> Self {
        self.flags = flags;
        self
    }

    fn tail(mut self, bytes: &[u8]) -> Self {
        self.tail.extend(bytes);
        self
    }

    /// The page with `room` bytes behind the header.
    fn build(self, room: usize) -> Vec<u8> {
        let committed = u64::try_from(self.data.len()).unwrap();
        let mut page = self.time.to_le_bytes().to_vec();
        page.extend((committed | self.flags).to_le_bytes());
        page.extend(self.data);
        page.extend(self.tail);
        page.resize((HEADER_BYTES + room).max(page.len()), 0);
        page
    }
}

type Decoded = Vec<Result<(u64, Vec<u8>), Malformed>>;

fn decode(page: &[u8]) -> Decoded {
    Page::parse(page).unwrap().events().map(|event| event.map(|event| (event.time, event.data.to_vec()))).collect()
}

#[test]
fn events_with_short_lengths_add_their_deltas_to_the_page_time() {
    let page = PageBuilder::new(1000).record(1, 0).bytes(b"aaaa").record(2, 7).bytes(b"bbbbbbbb").build(4080);

    let events = decode(&page);

    assert_eq!(events, [Ok((1000, b"aaaa".to_vec())), Ok((1007, b"bbbbbbbb".to_vec()))]);
}

#[test]
fn longest_short_event_is_112_bytes() {
    let page = PageBuilder::new(5).record(28, 1).bytes(&[9; 112]).build(4080);

    assert_eq!(decode(&page), [Ok((6, vec![9; 112]))]);
}

#[test]
fn event_with_its_length_in_a_word_excludes_that_word() {
    let page = PageBuilder::new(10).record(0, 3).word(4 + 120).bytes(&[7; 120]).record(1, 1).bytes(b"next").build(4080);

    assert_eq!(decode(&page), [Ok((13, vec![7; 120])), Ok((14, b"next".to_vec()))]);
}

#[test]
fn long_event_of_unaligned_length_is_followed_at_the_next_word() {
    let page = PageBuilder::new(0).record(0, 0).word(4 + 5).bytes(b"hello\0\0\0").record(1, 2).bytes(b"next").build(64);

    assert_eq!(decode(&page), [Ok((0, b"hello".to_vec())), Ok((2, b"next".to_vec()))]);
}

#[test]
fn time_extend_adds_its_59_bit_delta() {
    let page = PageBuilder::new(100).record(TYPE_TIME_EXTEND, 5).word(3).record(1, 0).bytes(b"late").build(64);

    assert_eq!(decode(&page), [Ok((100 + (3 << 27) + 5, b"late".to_vec()))]);
}

#[test]
fn absolute_time_stamp_replaces_the_time_and_keeps_its_upper_bits() {
    let before = (0b10110 << 59) | 1_000_000;
    let page = PageBuilder::new(before).record(31, 4).word(1).record(1, 2).bytes(b"nest").build(64);

    assert_eq!(decode(&page), [Ok(((0b10110 << 59) | ((1 << 27) + 6), b"nest".to_vec()))]);
}

#[test]
fn absolute_time_stamp_behind_a_wrap_of_its_59_bits_carries_into_the_upper_bits() {
    let before = (1 << 59) - 10;
    let page = PageBuilder::new(before).record(31, 20).word(0).record(1, 0).bytes(b"wrap").build(64);

    assert_eq!(decode(&page), [Ok(((1 << 59) + 20, b"wrap".to_vec()))]);
}

#[test]
fn padding_with_delta_zero_ends_the_page() {
    let page =
        PageBuilder::new(0).record(1, 1).bytes(b"only").record(TYPE_PADDING, 0).record(1, 1).bytes(b"junk").build(64);

    assert_eq!(decode(&page), [Ok((1, b"only".to_vec()))]);
}

#[test]
fn pad_at_the_end_of_a_full_page_is_skipped() {
    let page =
        PageBuilder::new(0).record(1, 1).bytes(b"only").record(TYPE_PADDING, 1).word(12).bytes(&[0xaa; 8]).build(24);

    assert_eq!(decode(&page), [Ok((1, b"only".to_vec()))]);
}

#[test]
fn discarded_event_still_moves_the_time() {
    let page =
        PageBuilder::new(0).record(TYPE_PADDING, 50).word(8).bytes(b"gone").record(1, 5).bytes(b"here").build(64);

    assert_eq!(decode(&page), [Ok((55, b"here".to_vec()))]);
}

#[test]
fn discarded_event_whose_delta_was_zero_does_not_move_the_time() {
    let page = PageBuilder::new(0).record(TYPE_PADDING, 1).word(8).bytes(b"gone").record(1, 5).bytes(b"here").build(64);

    assert_eq!(decode(&page), [Ok((5, b"here".to_vec()))]);
}

#[test]
fn count_of_missed_events_is_read_from_behind_the_data() {
    let page = PageBuilder::new(0)
        .record(1, 0)
        .bytes(b"data")
        .flags(MISSED_EVENTS | MISSED_STORED)
        .tail(&1234_u64.to_le_bytes())
        .build(64);

    let parsed = Page::parse(&page).unwrap();

    assert_eq!(parsed.missed(), Missed::Count(1234));
    assert_eq!(parsed.data_bytes(), 8);
    assert_eq!(parsed.events().count(), 1);
}

#[test]
fn missed_events_without_a_count_are_unknown() {
    let page = PageBuilder::new(0).flags(MISSED_EVENTS).build(64);

    assert_eq!(Page::parse(&page).unwrap().missed(), Missed::Unknown);
}

#[test]
fn missed_count_that_lies_outside_of_the_page_is_unknown() {
    let page = PageBuilder::new(0).record(1, 0).bytes(b"full").flags(MISSED_EVENTS | MISSED_STORED).build(8);

    assert_eq!(Page::parse(&page).unwrap().missed(), Missed::Unknown);
}

#[test]
fn missed_count_that_is_negative_is_unknown() {
    let page = PageBuilder::new(0).flags(MISSED_EVENTS | MISSED_STORED).tail(&(-1_i64).to_le_bytes()).build(64);

    assert_eq!(Page::parse(&page).unwrap().missed(), Missed::Unknown);
}

#[test]
fn event_dated_while_it_was_interrupted_has_the_time_of_the_event_before_it() {
    // Three nested events: the outer one reserved its place first, was interrupted before it was dated, and so carries
    // delta 0; the inner one has an absolute time, and what follows counts from there.
    let page = PageBuilder::new(1000)
        .record(1, 7)
        .bytes(b"frst")
        .record(1, 0)
        .bytes(b"outr")
        .record(31, 1020)
        .word(0)
        .record(1, 0)
        .bytes(b"innr")
        .record(1, 3)
        .bytes(b"next")
        .build(64);

    let times: Vec<u64> = decode(&page).into_iter().map(|event| event.unwrap().0).collect();

    assert_eq!(times, [1007, 1007, 1020, 1023]);
}

#[test]
fn page_without_flags_missed_nothing() {
    let page = PageBuilder::new(0).build(64);

    assert_eq!(Page::parse(&page).unwrap().missed(), Missed::None);
}

#[test]
fn page_shorter_than_its_header_is_refused() {
    assert_eq!(Page::parse(&[0; 15]).unwrap_err(), PageError::TooShort { len: 15 });
}

#[test]
fn commit_beyond_the_page_is_refused() {
    let mut page = PageBuilder::new(0).build(64);
    page[8..16].copy_from_slice(&65_u64.to_le_bytes());

    assert_eq!(Page::parse(&page).unwrap_err(), PageError::CommitBeyondEnd { committed: 65, room: 64 });
}

#[test]
fn event_that_crosses_the_commit_is_malformed_and_ends_the_page() {
    let page = PageBuilder::new(0).record(1, 0).bytes(b"good").record(3, 0).bytes(b"cut").build(64);

    assert_eq!(decode(&page), [Ok((0, b"good".to_vec())), Err(Malformed { offset: 8 })]);
}

#[test]
fn long_event_shorter_than_its_own_length_word_is_malformed() {
    let page = PageBuilder::new(0).record(0, 0).word(3).build(64);

    assert_eq!(decode(&page), [Err(Malformed { offset: 0 })]);
}

proptest! {
    #[test]
    fn any_bytes_decode_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        let events = Page::parse(&bytes).map_or(0, |page| page.events().count());

        prop_assert!(events <= bytes.len() / 4);
    }

    #[test]
    fn any_records_behind_a_valid_header_decode_within_bounds(
        words in proptest::collection::vec(prop_oneof![any::<u32>(), 0_u32..64, (29_u32..32).prop_map(|kind| kind | 64)], 0..1020),
        time in any::<u64>(),
    ) {
        let page = words.iter().fold(PageBuilder::new(time), |page, word| page.word(*word)).build(0);
        let parsed = Page::parse(&page).unwrap();

        let bytes: usize = parsed.events().map(|event| event.map_or(0, |event| event.data.len() + 4)).sum();

        prop_assert!(bytes <= parsed.data_bytes());
    }

    #[test]
    fn generated_events_come_back_with_their_times(
        start in any::<u64>(),
        events in proptest::collection::vec((0_u32..1 << 27, 1_u32..29), 0..30),
    ) {
        let mut expected: Decoded = Vec::new();
        let mut page = PageBuilder::new(start);
        let mut time = start;
        for (delta, words) in events {
            let data = vec![u8::try_from(words).unwrap(); usize::try_from(words).unwrap() * 4];
            time = time.wrapping_add(u64::from(delta));
            page = page.record(words, delta).bytes(&data);
            expected.push(Ok((time, data)));
        }

        prop_assert_eq!(decode(&page.build(4080)), expected);
    }
}

proptest! {
    #[test]
    fn occupied_part_says_what_the_whole_page_says(
        time: u64,
        committed in 0..80_u64,
        flags in 0..4_u64,
        rest in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let page = [&time.to_le_bytes()[..], &(committed | flags << 30).to_le_bytes(), &rest].concat();
        let reported = |page: &[u8]| {
            let page = Page::parse(page)?;
            Ok::<_, PageError>((page.time(), page.missed(), page.data.to_vec()))
        };

        prop_assert_eq!(reported(&page[..occupied(&page)]), reported(&page));
    }
}
