use super::chunk::Chunk;
use super::*;
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::SchemaDescriptor;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use bytes::Bytes;
use shared_ring::event::{EventDescription, FieldDescription, FieldType, Integer};
use strata_recording::schema::Schema;

/// A file of one column of this kind, of two row groups with the values that `chunk` makes each.
fn file_of(kind: Kind, growing: &[usize], same: &[usize], chunk: impl Fn() -> Chunk) -> Bytes {
    let rows = type_of_rows(&[Described { name: "it".into(), kind }]).unwrap();
    let properties = chunk::properties(&SchemaDescriptor::new(Arc::clone(&rows)), growing, same).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), rows, properties.into()).unwrap();
    for _ in 0..2 {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        chunk().write(column.untyped()).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    Bytes::from(writer.into_inner().unwrap())
}

/// The same, as `parquet` reads it.
fn read_back(kind: Kind, grows: bool, chunk: impl Fn() -> Chunk) -> Vec<RecordBatch> {
    let file = file_of(kind, if grows { &[0] } else { &[] }, &[], chunk);
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().with_batch_size(1 << 20);
    reader.build().unwrap().map(Result::unwrap).collect()
}

fn column_of<'c>(kind: Kind, cells: impl IntoIterator<Item = Cell<'c>>) -> Column {
    let mut column = Column::new(kind);
    cells.into_iter().for_each(|cell| column.push(cell));
    column
}

/// The same of `cells`.
fn read_cells_back(kind: Kind, grows: bool, cells: &[Cell<'_>]) -> Vec<RecordBatch> {
    read_back(kind, grows, || Chunk::Values(column_of(kind, cells.iter().copied())))
}

/// Keys, and a column of the values that they stand for: each fourth key stands for a null.
fn read_keys_back<'c>(kind: Kind, value: impl Fn(u32) -> Cell<'c>) -> (Vec<u32>, RecordBatch) {
    let value = |key| if key % 4 == 3 { Cell::Null } else { value(key) };
    let keys: Vec<u32> = scattered(20_000).map(|number| ((number >> 33).rem_euclid(40)).try_into().unwrap()).collect();
    let shared = Arc::new(keys.clone());

    let read = read_back(kind, false, || Chunk::Keyed(column_of(kind, (0..40).map(value)), Arc::clone(&shared)));

    (keys, read.into_iter().next().unwrap().slice(0, 20_000))
}

/// Checks that integers are read as they were written.
fn check_integers(numbers: &[Option<i64>], grows: bool) {
    let cells: Vec<Cell<'_>> = numbers.iter().map(|&number| number.into()).collect();

    let read = read_cells_back(Kind::Integer, grows, &cells);

    let read = read.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().iter());
    assert!(read.eq(numbers.iter().chain(numbers).copied()));
}

/// Numbers that follow from nothing.
fn scattered(count: usize) -> impl Iterator<Item = i64> {
    std::iter::successors(Some(1_i64), |last| Some(last.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99)))
        .take(count)
}

#[test]
fn few_numbers_with_nulls_are_read_as_they_were_written() {
    let numbers = scattered(3500).map(|number| (number % 3 != 0).then_some((number >> 40) % 17));

    check_integers(&numbers.collect::<Vec<_>>(), false);
}

#[test]
fn numbers_for_which_a_dictionary_has_no_room_are_read_as_they_were_written() {
    let close = (0..9000).map(|number| Some(1_000_000 + number * 8));

    check_integers(&scattered(9000).map(Some).collect::<Vec<_>>(), false);
    check_integers(&close.collect::<Vec<_>>(), false);
}

#[test]
fn moments_are_read_as_they_were_written() {
    let grown = scattered(5000).scan(-7, |at, step| {
        *at += step.rem_euclid(100_000);
        Some(Some(*at))
    });
    let extremes = [Some(i64::MIN), Some(i64::MAX), Some(0), None, Some(-1)];

    check_integers(&grown.collect::<Vec<_>>(), true);
    check_integers(&extremes, true);
    check_integers(&[None; 20], true);
}

#[test]
fn runs_beside_single_values_are_read_as_they_were_written() {
    let lengths = [1, 9, 3, 8, 7, 100, 2, 17, 1, 1, 64, 5];
    let runs = (0..).zip(lengths).cycle().take(600).flat_map(|(value, length)| std::iter::repeat_n(value, length));

    check_integers(&runs.map(Some).collect::<Vec<_>>(), false);
}

#[test]
fn texts_are_read_as_they_were_written_whether_they_are_many_or_few() {
    let few: Vec<String> = scattered(3000).map(|number| format!("task-{}", number.rem_euclid(9))).collect();
    let many: Vec<String> = scattered(12_000).map(|number| number.to_string()).collect();

    for texts in [few, many] {
        let texts = || texts.iter().enumerate().map(|(at, text)| (at % 5 != 0).then_some(text.as_str()));
        let read = read_cells_back(Kind::Text, false, &texts().map(Cell::from).collect::<Vec<_>>());

        let read = read.iter().flat_map(|batch| batch.column(0).as_string::<i32>().iter());
        assert!(read.eq(texts().chain(texts())));
    }
}

#[test]
fn flags_and_addresses_are_read_as_they_were_written() {
    let flags = [Some(true), None, Some(false), Some(true)];
    let addresses = [u64::MAX, 0, 0xffff_8880_0000_1000];

    let read = read_cells_back(Kind::Flag, false, &flags.map(|flag| flag.map_or(Cell::Null, Cell::Flag)));
    let read_addresses = read_cells_back(Kind::Unsigned, false, &addresses.map(Cell::Unsigned));

    let read_addresses = read_addresses[0].column(0).as_primitive::<UInt64Type>().values().iter().copied();
    assert!(read[0].column(0).as_boolean().iter().eq(flags.into_iter().chain(flags)));
    assert!(read_addresses.eq(addresses.into_iter().chain(addresses)));
}

#[test]
fn text_that_is_no_utf_8_and_a_cell_of_another_kind_are_text_and_null() {
    let read = read_cells_back(Kind::Text, false, &[Cell::Bytes(b"a\xffb"), Cell::Integer(1)]);

    let column = read[0].column(0).as_string::<i32>();
    assert_eq!((column.value(0), column.is_null(1)), ("a\u{fffd}b", true));
}

#[test]
fn values_with_keys_are_read_as_they_were_written() {
    let names: Vec<String> = (0..40).map(|key| format!("task-{}", key / 2)).collect();

    let (keys, numbers) = read_keys_back(Kind::Integer, |key| Cell::Integer(i64::from(key) - 20));
    let (_, texts) = read_keys_back(Kind::Text, |key| Cell::Text(&names[key as usize]));

    let known = |key: u32| key % 4 != 3;
    let expected = keys.iter().map(|&key| known(key).then_some(i64::from(key) - 20));
    assert!(numbers.column(0).as_primitive::<Int64Type>().iter().eq(expected));
    let expected = keys.iter().map(|&key| known(key).then_some(names[key as usize].as_str()));
    assert!(texts.column(0).as_string::<i32>().iter().eq(expected));
}

#[test]
fn reordered_numbers_keep_their_nulls() {
    let mut column = column_of(Kind::Integer, [Some(1), None, Some(3), Some(4)].map(Cell::from));

    column.reorder(&[3, 1, 2, 0]);

    assert_eq!(column, column_of(Kind::Integer, [Some(4), None, Some(3), Some(1)].map(Cell::from)));
}

#[test]
fn text_of_all_rows_is_written_once_and_read_in_each() {
    let read = read_back(Kind::Text, false, || Chunk::Same("it".into(), 10_000));

    let read = read.iter().flat_map(|batch| batch.column(0).as_string::<i32>().iter());
    assert!(read.eq(std::iter::repeat_n(Some("it"), 20_000)));
}

/// An event type whose field is a list.
fn schema_of_list(of: Integer) -> Schema {
    let field = FieldDescription { name: "list".into(), ty: FieldType::Sequence(of), hex: false };
    Schema::new(EventDescription { id: 7, class: 0, name: "a:b".into(), fields: vec![field] })
}

/// The list in a payload; a null where there is none.
fn list_in<'p>(schema: &'p Schema, payload: &'p [u8]) -> Cell<'p> {
    match schema.fields(payload).next() {
        Some((_, Value::Array(elements))) => Cell::List(elements),
        _ => Cell::Null,
    }
}

#[test]
fn lists_are_read_as_they_were_written() {
    let schema = schema_of_list(Integer::U16);
    let lists: Vec<Option<Vec<u16>>> =
        (0..20_000).map(|number| (number % 5 != 4).then(|| (0..number % 4).collect())).collect();
    let payload = |list: &Vec<u16>| {
        let length = u16::try_from(list.len()).unwrap();
        [length].iter().chain(list).flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>()
    };
    let payloads: Vec<Vec<u8>> = lists.iter().map(|list| list.as_ref().map(payload).unwrap_or_default()).collect();
    let cells: Vec<Cell<'_>> = payloads.iter().map(|payload| list_in(&schema, payload)).collect();

    let read = read_cells_back(Kind::Integers, false, &cells);

    let numbers = |list: ArrayRef| list.as_primitive::<Int64Type>().values().to_vec();
    let read = read.iter().flat_map(|batch| batch.column(0).as_list::<i32>().iter()).map(|list| list.map(numbers));
    let expected = || lists.iter().map(|list| list.as_ref().map(|list| list.iter().copied().map(i64::from).collect()));
    assert!(read.eq(expected().chain(expected())));
}

#[test]
fn files_tell_least_and_greatest_of_what_grows_and_of_what_is_the_same_and_nothing_of_others() {
    let numbers: Vec<Cell<'_>> = [Some(3), None, Some(20)].map(Cell::from).to_vec();
    let column = || Chunk::Values(column_of(Kind::Integer, numbers.iter().copied()));
    let statistics = |file: Bytes| {
        let reader = SerializedFileReader::new(file).unwrap();
        let reported = reader.metadata().row_group(1).column(0).statistics().cloned();
        reported.map(|reported| {
            (
                reported.min_bytes_opt().map(<[u8]>::to_vec),
                reported.max_bytes_opt().map(<[u8]>::to_vec),
                reported.null_count_opt(),
            )
        })
    };

    let grown = statistics(file_of(Kind::Integer, &[0], &[], column));
    let same = statistics(file_of(Kind::Text, &[], &[0], || Chunk::Same("it".into(), 9000)));
    let other = statistics(file_of(Kind::Integer, &[], &[], column));

    let bytes = |number: i64| Some(number.to_le_bytes().to_vec());
    assert_eq!(grown, Some((bytes(3), bytes(20), Some(1))));
    assert_eq!(same, Some((Some(b"it".to_vec()), Some(b"it".to_vec()), Some(0))));
    assert_eq!(other, None);
}

/// The texts of the values of a column of `cells`.
fn texts_of(kind: Kind, cells: &[Cell<'_>]) -> Vec<Option<String>> {
    let (levels, texts) = column_of(kind, cells.iter().copied()).into_texts();
    let text = |text: ::parquet::data_type::ByteArray| text.as_utf8().unwrap().to_string();
    levels.with_nulls(texts.into_values().map(text)).collect()
}

#[test]
fn values_as_texts_are_numbers_and_lists_of_json() {
    let schema = schema_of_list(Integer::U64);
    let payload = |list: &[u64]| {
        let elements = list.iter().flat_map(|element| element.to_le_bytes());
        u16::try_from(list.len()).unwrap().to_le_bytes().into_iter().chain(elements).collect::<Vec<u8>>()
    };
    let payloads = [payload(&[]), payload(&[1]), payload(&[u64::MAX, 0]), Vec::new()];
    let lists = payloads.each_ref().map(|payload| list_in(&schema, payload));

    let integers = texts_of(Kind::Integer, &[Cell::Integer(-7), Cell::Null, Cell::Integer(i64::MIN)]);
    let unsigned = texts_of(Kind::Unsigned, &[Cell::Unsigned(u64::MAX)]);
    let (signed_lists, lists) = (texts_of(Kind::Integers, &lists), texts_of(Kind::Unsigneds, &lists));

    let some = |texts: &[&str]| texts.iter().map(|text| Some((*text).to_string())).collect::<Vec<_>>();
    assert_eq!(integers, [some(&["-7"]), vec![None], some(&["-9223372036854775808"])].concat());
    assert_eq!(unsigned, some(&["18446744073709551615"]));
    assert_eq!(lists, [some(&["[]", "[1]", "[18446744073709551615,0]"]), vec![None]].concat());
    assert_eq!(signed_lists, [some(&["[]", "[1]", "[null,0]"]), vec![None]].concat());
}
