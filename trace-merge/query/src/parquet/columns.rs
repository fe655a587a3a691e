//! A column of a row group in the making.
//!
//! Values are kept as they are for a page, then encoded; pages are kept until the row group ends, because the dictionary
//! that they share comes before them.

pub(super) mod cell;
pub(super) mod dictionaries;
mod encoding;

use crate::tables::{Column as Described, Kind};
use cell::{Cell, text_of};
use dictionaries::{Levels, MOST_NUMBERS, Numbers, Texts, put_text};
use encoding::{put_differences, put_flags, put_hybrid, put_plain, put_varint, width_of};
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;
use parquet::schema::types::{ColumnDescPtr, Type, TypePtr};
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use strata_recording::schema::{Elements, Value};
use zstd::bulk::Compressor;

/// Bytes of a dictionary of texts after which pages to come have none.
const MOST_TEXT: usize = 1 << 18;
/// Level of compression: what is left when values are encoded hardly gets smaller with a higher one.
const LEVEL: i32 = 1;
/// Pages that are not compressed after one that got hardly smaller.
const PASSED_OVER: u32 = 7;
/// Bytes below which nothing is compressed: to begin takes zstd some 50,000 instructions.
const LEAST_COMPRESSED: usize = 256;
/// Numbers of a page by which is told how the others are encoded.
const TRIED: usize = 1024;
/// The kinds of pages, as the format numbers them.
const DICTIONARY_PAGE: i64 = 2;
const DATA_PAGE: i64 = 3;

thread_local! {
    static COMPRESSOR: RefCell<Option<(Compressor<'static>, Vec<u8>)>> = const { RefCell::new(None) };
}

/// The type of a column in a file.
///
/// # Errors
/// When the library knows of no such type.
pub(super) fn type_of(column: &Described) -> Result<Type, ParquetError> {
    let number = |name: &str, logical| {
        let number = Type::primitive_type_builder(name, Physical::INT64).with_repetition(Repetition::OPTIONAL);
        number.with_logical_type(logical).build()
    };
    let unsigned = Some(LogicalType::integer(64, false));
    let list = |element: Type| {
        let elements = Type::group_type_builder("list").with_repetition(Repetition::REPEATED);
        let elements = elements.with_fields(vec![Arc::new(element)]).build()?;
        let list = Type::group_type_builder(&column.name).with_repetition(Repetition::OPTIONAL);
        list.with_logical_type(Some(LogicalType::List)).with_fields(vec![Arc::new(elements)]).build()
    };
    match column.kind {
        Kind::Integer => number(&column.name, None),
        Kind::Unsigned => number(&column.name, unsigned),
        Kind::Moment => number(&column.name, Some(LogicalType::timestamp(true, TimeUnit::NANOS))),
        Kind::Flag => {
            let flag = Type::primitive_type_builder(&column.name, Physical::BOOLEAN);
            flag.with_repetition(Repetition::OPTIONAL).build()
        }
        Kind::Text => {
            let text = Type::primitive_type_builder(&column.name, Physical::BYTE_ARRAY);
            text.with_repetition(Repetition::OPTIONAL).with_logical_type(Some(LogicalType::String)).build()
        }
        Kind::Integers => list(number("item", None)?),
        Kind::Unsigneds => list(number("item", unsigned)?),
    }
}

/// The type of the rows of a table with these `columns`.
///
/// # Errors
/// When the library knows of no such type.
pub(super) fn type_of_rows(columns: &[Described]) -> Result<TypePtr, ParquetError> {
    let fields = columns.iter().map(|column| type_of(column).map(Arc::new)).collect::<Result<_, _>>()?;
    Ok(Arc::new(Type::group_type_builder("arrow_schema").with_fields(fields).build()?))
}

/// How pages to come are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As places in the dictionary.
    Dictionary,
    /// As differences.
    Differences,
    /// As they are.
    Plain,
}

impl Way {
    const fn encoding(self) -> Encoding {
        match self {
            Self::Dictionary => Encoding::RLE_DICTIONARY,
            Self::Differences => Encoding::DELTA_BINARY_PACKED,
            Self::Plain => Encoding::PLAIN,
        }
    }

    /// As the format numbers it.
    const fn number(self) -> i64 {
        match self {
            Self::Dictionary => 8,
            Self::Differences => 5,
            Self::Plain => 0,
        }
    }
}

/// What is made of a column in a row group: the bytes of its pages, and what a file says of them.
pub(super) type Chunk = (Vec<u8>, ColumnCloseResult);

/// How a column gets its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// One by one.
    Singly,
    /// The same, and they are moments, which grow: least and greatest are told.
    Growing,
    /// As places in its dictionary.
    ByPlaces,
}

/// A column that is filled.
#[derive(Debug)]
pub(super) struct Column {
    kind: Kind,
    described: ColumnDescPtr,
    filled: Filled,
    /// Of the page.
    rows: usize,
    levels: Levels,
    repetitions: Levels,
    numbers: Vec<i64>,
    /// Places of texts in the dictionary.
    places: Vec<u32>,
    /// Texts as they are.
    plain: Vec<u8>,
    /// Of the row group.
    way: Way,
    known_numbers: Numbers,
    known_texts: Texts,
    pages: Vec<u8>,
    uncompressed: usize,
    all_rows: usize,
    values: usize,
    nulls: usize,
    encodings: Vec<Encoding>,
    passes_over: u32,
    /// Whether anything of the row group is compressed.
    is_compressed: bool,
    least: Option<(i64, i64)>,
    encoded: Vec<u8>,
}

impl Column {
    /// Without values.
    pub(super) fn new(kind: Kind, described: ColumnDescPtr, filled: Filled) -> Self {
        Self {
            kind,
            described,
            filled,
            rows: 0,
            levels: Levels::default(),
            repetitions: Levels::default(),
            numbers: Vec::new(),
            places: Vec::new(),
            plain: Vec::new(),
            way: Self::first_way(kind, filled),
            known_numbers: Numbers::default(),
            known_texts: Texts::default(),
            pages: Vec::new(),
            uncompressed: 0,
            all_rows: 0,
            values: 0,
            nulls: 0,
            encodings: Vec::new(),
            passes_over: 0,
            is_compressed: false,
            least: None,
            encoded: Vec::new(),
        }
    }

    const fn first_way(kind: Kind, filled: Filled) -> Way {
        match (kind, filled) {
            (Kind::Flag, _) => Way::Plain,
            (Kind::Integer, Filled::Growing) => Way::Differences,
            _ => Way::Dictionary,
        }
    }

    const fn is_list(&self) -> bool {
        matches!(self.kind, Kind::Integers | Kind::Unsigneds)
    }

    /// Bytes that are kept.
    pub(super) fn kept(&self) -> usize {
        let raw = self.numbers.len() * size_of::<i64>() + self.places.len() * size_of::<u32>() + self.plain.len();
        raw + self.pages.len() + 3 * self.known_texts.bytes.len() + 2 * size_of_val(&*self.known_numbers.values)
    }

    /// Adds `cell`, and a null where it is of another kind; how many bytes it takes beside its place.
    #[inline]
    pub(super) fn push(&mut self, cell: Cell<'_>) -> usize {
        match (self.kind, cell) {
            (Kind::Integer | Kind::Moment, Cell::Integer(number)) => self.push_number(number),
            (Kind::Integer, Cell::Unsigned(number)) => match i64::try_from(number) {
                Ok(number) => self.push_number(number),
                Err(_) => self.push_null(),
            },
            (Kind::Unsigned, Cell::Unsigned(number)) => self.push_number(number.cast_signed()),
            (Kind::Flag, Cell::Flag(flag)) => self.push_number(flag.into()),
            (Kind::Text, Cell::Text(text)) => return self.push_text(text.as_bytes()),
            (Kind::Text, Cell::Bytes(text)) => return self.push_bytes(text),
            (Kind::Integers | Kind::Unsigneds, Cell::List(elements)) => return self.push_list(elements),
            _ => self.push_null(),
        }
        0
    }

    #[inline]
    pub(super) fn push_number(&mut self, number: i64) {
        self.rows += 1;
        self.levels.push(1);
        self.numbers.push(number);
    }

    #[inline]
    pub(super) fn push_null(&mut self) {
        self.rows += 1;
        self.levels.push(0);
        if self.is_list() {
            self.repetitions.push(0);
        }
    }

    #[inline(never)]
    fn push_text(&mut self, text: &[u8]) -> usize {
        self.rows += 1;
        self.levels.push(1);
        if self.way == Way::Dictionary {
            self.places.push(self.known_texts.place(text));
        } else {
            put_text(text, &mut self.plain);
        }
        text.len()
    }

    /// Adds the same text `count` times.
    pub(super) fn push_same(&mut self, text: &str, count: usize) {
        self.rows += count;
        self.levels.push_all(1, count);
        let place = self.known_texts.place(text.as_bytes());
        self.places.resize(self.places.len() + count, place);
    }

    /// Adds a number for each of `bits`, which has its sign where the column's have one; a null where there is none.
    pub(super) fn push_bits(&mut self, bits: impl Iterator<Item = Option<u64>> + Clone) {
        let (before, mut count) = (self.numbers.len(), 0);
        self.numbers.extend(bits.clone().inspect(|_| count += 1).flatten().map(u64::cast_signed));
        if self.numbers.len() - before == count {
            self.rows += count;
            self.levels.push_all(1, count);
            return;
        }
        self.numbers.truncate(before);
        for number in bits {
            match number {
                Some(number) => self.push_number(number.cast_signed()),
                None => self.push_null(),
            }
        }
    }

    /// Where the value of `cell` is in the dictionary, for [`Self::push_places`]; `None` for a null. Flags and lists have
    /// none.
    pub(super) fn place(&mut self, cell: Cell<'_>) -> Option<u32> {
        let number = match (self.kind, cell) {
            (Kind::Integer | Kind::Moment, Cell::Integer(number)) => number,
            (Kind::Integer, Cell::Unsigned(number)) => i64::try_from(number).ok()?,
            (Kind::Unsigned, Cell::Unsigned(number)) => number.cast_signed(),
            (Kind::Text, Cell::Text(text)) => return Some(self.known_texts.place(text.as_bytes())),
            (Kind::Text, Cell::Bytes(text)) => return Some(self.known_texts.place(text_of(text).as_bytes())),
            _ => return None,
        };
        Some(self.known_numbers.place(number))
    }

    /// Adds a value for each of `keys`: that which lies at this key's place of `places`, as [`Self::place`] told them. The
    /// column has no values of another origin.
    pub(super) fn push_places(&mut self, keys: &[u32], places: &[Option<u32>]) {
        self.rows += keys.len();
        let place = |&key: &u32| places.get(key as usize).copied().flatten();
        if places.iter().all(Option::is_some) {
            self.levels.push_all(1, keys.len());
            self.places.extend(keys.iter().map(|key| place(key).unwrap_or(0)));
        } else if places.iter().all(Option::is_none) {
            self.levels.push_all(0, keys.len());
        } else {
            for place in keys.iter().map(place) {
                self.levels.push(place.is_some().into());
                self.places.extend(place);
            }
        }
    }

    /// Puts the values of the page, which are numbers, into the order `order`: it names each row once. What `room` holds is
    /// not looked at.
    pub(super) fn reorder(&mut self, order: &[u32], room: &mut Vec<i64>) {
        if self.levels.each.is_empty() {
            if self.levels.level == 1 {
                put_in_order(order, &mut self.numbers, room);
            }
            return;
        }
        let mut numbers = self.numbers.drain(..);
        let by_row: Vec<Option<i64>> =
            self.levels.each.drain(..).map(|level| (level == 1).then(|| numbers.next()).flatten()).collect();
        drop(numbers);
        self.levels = Levels::default();
        for &row in order {
            let number = by_row.get(row as usize).copied().flatten();
            self.levels.push(number.is_some().into());
            self.numbers.extend(number);
        }
    }

    #[inline(never)]
    fn push_bytes(&mut self, text: &[u8]) -> usize {
        self.push_text(text_of(text).as_bytes())
    }

    #[inline(never)]
    fn push_list(&mut self, elements: Elements<'_>) -> usize {
        let length = elements.len();
        self.rows += 1;
        if length == 0 {
            self.levels.push(1);
            self.repetitions.push(0);
        }
        for (place, element) in elements.iter().enumerate() {
            self.repetitions.push((place > 0).into());
            let number = match (self.kind, element) {
                (Kind::Unsigneds, Value::Unsigned(number)) => Some(number.cast_signed()),
                (Kind::Unsigneds, Value::Signed(number)) => u64::try_from(number).ok().map(u64::cast_signed),
                (_, Value::Signed(number)) => Some(number),
                (_, Value::Unsigned(number)) => i64::try_from(number).ok(),
                (_, Value::Text(_) | Value::Array(_)) => None,
            };
            self.levels.push(if number.is_some() { 3 } else { 2 });
            self.numbers.extend(number);
        }
        length * size_of::<i64>()
    }

    /// Makes a page of what was added since the last one.
    ///
    /// # Errors
    /// When it cannot be compressed.
    pub(super) fn end_page(&mut self) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let way = self.encode();
        if !self.encodings.contains(&way.encoding()) {
            self.encodings.push(way.encoding());
        }
        if self.filled == Filled::Growing || self.kind == Kind::Moment {
            let least_and_most = |so_far: Option<(i64, i64)>, &number: &i64| {
                so_far.map_or(Some((number, number)), |(least, most)| Some((least.min(number), most.max(number))))
            };
            self.least = self.numbers.iter().fold(self.least, least_and_most);
        }
        let count = self.levels.count;
        let present = match way {
            Way::Dictionary => self.places.len(),
            _ if self.kind == Kind::Text => self.plain_texts(),
            _ => self.numbers.len(),
        };
        let mut levels = Vec::new();
        let mut repetitions = 0;
        if self.is_list() {
            self.repetitions.put(1, &mut levels);
            repetitions = levels.len();
        }
        self.levels.put(if self.is_list() { 2 } else { 1 }, &mut levels);
        let definitions = levels.len() - repetitions;
        let nulls = count - present;
        let (rows, encoding) = (self.rows as i64, way.number());
        self.put_page(DATA_PAGE, &levels, |out, is_compressed| {
            // The head of a data page, version 2: values, nulls, rows, encoding, bytes of levels, whether compressed.
            out.push(0x5c);
            let numbers = [count as i64, nulls as i64, rows, encoding, definitions as i64, repetitions as i64];
            put_fields(&numbers, out);
            out.push(if is_compressed { 0x11 } else { 0x12 });
            out.push(0);
        })?;
        self.all_rows += self.rows;
        self.values += count;
        self.nulls += nulls;
        self.rows = 0;
        self.numbers.clear();
        self.places.clear();
        self.plain.clear();
        if self.kind == Kind::Text && self.way == Way::Dictionary && self.filled != Filled::ByPlaces {
            let entries = self.known_texts.places.len();
            if self.known_texts.bytes.len() > MOST_TEXT || (entries > MOST_NUMBERS && entries > self.values / 2) {
                self.way = Way::Plain;
                self.passes_over = 0;
            }
        }
        Ok(())
    }

    /// Texts of the page that are no nulls, where they are as they are.
    fn plain_texts(&self) -> usize {
        if self.levels.each.is_empty() {
            return if self.levels.level == 1 { self.levels.count } else { 0 };
        }
        self.levels.each.iter().filter(|&&level| level == 1).count()
    }

    /// Encodes the values of the page into [`Self::encoded`].
    fn encode(&mut self) -> Way {
        self.encoded.clear();
        if self.kind == Kind::Text && self.way == Way::Plain {
            self.encoded.extend_from_slice(&self.plain);
            return Way::Plain;
        }
        if self.kind == Kind::Text || self.filled == Filled::ByPlaces {
            return self.encode_places();
        }
        if self.numbers.is_empty() {
            return Way::Plain;
        }
        if self.way == Way::Dictionary {
            if self.known_numbers.places(&self.numbers, &mut self.places).is_some() {
                return self.encode_places();
            }
            self.way = self.smaller_way();
            self.passes_over = 0;
        }
        match self.way {
            Way::Differences => put_differences(&self.numbers, &mut self.encoded),
            Way::Plain if self.kind == Kind::Flag => put_flags(&self.numbers, &mut self.encoded),
            Way::Plain | Way::Dictionary => put_plain(&self.numbers, &mut self.encoded),
        }
        self.way
    }

    /// Entries of the dictionary.
    fn entries(&self) -> usize {
        if self.kind == Kind::Text { self.known_texts.places.len() } else { self.known_numbers.values.len() }
    }

    fn encode_places(&mut self) -> Way {
        if self.places.is_empty() {
            return Way::Plain;
        }
        let width = width_of((self.entries() as u64).saturating_sub(1));
        self.encoded.push(width.to_le_bytes()[0]);
        put_hybrid(&self.places, width, &mut self.encoded);
        Way::Dictionary
    }

    /// How numbers without a dictionary take less: what is close to those before are differences.
    fn smaller_way(&self) -> Way {
        let (mut differences, mut plain) = (Vec::new(), Vec::new());
        let tried = self.numbers.get(..TRIED).unwrap_or(&self.numbers);
        put_differences(tried, &mut differences);
        put_plain(tried, &mut plain);
        let size = |bytes: &[u8]| compress(bytes, <[u8]>::len).map_or(bytes.len(), |smaller| smaller.min(bytes.len()));
        if size(&plain) < size(&differences) { Way::Plain } else { Way::Differences }
    }

    /// Appends a page of what is encoded; `rest` adds what the head of its kind has.
    fn put_page(&mut self, kind: i64, levels: &[u8], rest: impl Fn(&mut Vec<u8>, bool)) -> io::Result<()> {
        let before = self.pages.len();
        let Self { pages, encoded, .. } = self;
        let mut put = |data: &[u8], is_compressed| {
            // The page's kind, its bytes uncompressed and compressed, and the head of its kind.
            let sizes = [kind, (levels.len() + encoded.len()) as i64, (levels.len() + data.len()) as i64];
            put_fields(&sizes, pages);
            rest(pages, is_compressed);
            pages.push(0);
            let head = pages.len() - before;
            pages.extend_from_slice(levels);
            pages.extend_from_slice(data);
            head
        };
        let is_smaller = |data: &[u8]| data.len() + data.len() / 16 < encoded.len();
        let head = if kind == DICTIONARY_PAGE {
            // It has no flag of its own: it is compressed where the column is.
            if self.is_compressed { compress(encoded, |data| put(data, true))? } else { put(encoded, false) }
        } else if self.passes_over > 0 {
            self.passes_over -= 1;
            put(encoded, false)
        } else if encoded.len() < LEAST_COMPRESSED {
            put(encoded, false)
        } else if let Some(head) = compress(encoded, |data| is_smaller(data).then(|| put(data, true)))? {
            self.is_compressed = true;
            head
        } else {
            self.passes_over = PASSED_OVER;
            put(encoded, false)
        };
        self.uncompressed += head + levels.len() + self.encoded.len();
        Ok(())
    }

    /// What the row group has of the column; it begins anew.
    ///
    /// # Errors
    /// When a page cannot be compressed.
    pub(super) fn end_row_group(&mut self) -> io::Result<Chunk> {
        self.end_page()?;
        let data = std::mem::take(&mut self.pages);
        let entries = self.entries();
        if self.encodings.contains(&Encoding::RLE_DICTIONARY) {
            self.encoded.clear();
            if self.kind == Kind::Text {
                self.encoded.append(&mut self.known_texts.bytes);
            } else {
                put_plain(&self.known_numbers.values, &mut self.encoded);
            }
            self.is_compressed |= self.encoded.len() >= LEAST_COMPRESSED;
            self.put_page(DICTIONARY_PAGE, &[], |out, _| {
                // The head of a dictionary page: values, encoding.
                out.push(0x4c);
                put_fields(&[entries as i64, Way::Plain.number()], out);
                out.push(0);
            })?;
        }
        let mut bytes = std::mem::take(&mut self.pages);
        let dictionary = bytes.len() as i64;
        bytes.extend_from_slice(&data);
        self.encodings.push(Encoding::RLE);
        let compression = match self.is_compressed {
            true => Compression::ZSTD(ZstdLevel::try_new(LEVEL).map_err(io::Error::other)?),
            false => Compression::UNCOMPRESSED,
        };
        let builder = ColumnChunkMetaData::builder(Arc::clone(&self.described))
            .set_compression(compression)
            .set_encodings(std::mem::take(&mut self.encodings))
            .set_num_values(self.values as i64)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(self.uncompressed as i64)
            .set_data_page_offset(dictionary)
            .set_dictionary_page_offset((dictionary > 0).then_some(0));
        let nulls = Some(self.nulls as u64);
        let only = self.known_texts.last.as_ref().filter(|_| entries == 1 && self.nulls == 0);
        let builder = match (self.least, only) {
            (Some((least, most)), _) => {
                builder.set_statistics(Statistics::int64(Some(least), Some(most), None, nulls, false))
            }
            (None, Some((text, _))) => {
                let text = ByteArray::from(text.to_vec());
                builder.set_statistics(Statistics::byte_array(Some(text.clone()), Some(text), None, nulls, false))
            }
            _ => builder,
        };
        let metadata = builder.build().map_err(io::Error::other)?;
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: self.all_rows as u64,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        *self = Self {
            levels: std::mem::take(&mut self.levels),
            repetitions: std::mem::take(&mut self.repetitions),
            numbers: std::mem::take(&mut self.numbers),
            places: std::mem::take(&mut self.places),
            plain: std::mem::take(&mut self.plain),
            encoded: std::mem::take(&mut self.encoded),
            ..Self::new(self.kind, Arc::clone(&self.described), self.filled)
        };
        Ok((bytes, close))
    }
}

/// Appends integers as the fields of a structure, from the first one on (Thrift's compact protocol).
fn put_fields(numbers: &[i64], out: &mut Vec<u8>) {
    for number in numbers {
        out.push(0x15);
        put_varint(((number << 1) ^ (number >> 63)).cast_unsigned(), out);
    }
}

/// Compresses `bytes` into the room that the thread keeps for that, and hands them to `take`.
fn compress<R>(bytes: &[u8], take: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
    COMPRESSOR.with_borrow_mut(|kept| {
        let (compressor, room) = match kept {
            Some(kept) => kept,
            None => kept.insert((Compressor::new(LEVEL)?, Vec::new())),
        };
        room.clear();
        room.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        compressor.compress_to_buffer(bytes, room)?;
        Ok(take(room))
    })
}

/// Puts `values` into the order `order`. What `room` holds is not looked at: it is kept so that it need not be asked for.
pub(super) fn put_in_order<V: Copy>(order: &[u32], values: &mut Vec<V>, room: &mut Vec<V>) {
    room.clear();
    room.extend(order.iter().filter_map(|&place| values.get(place as usize).copied()));
    std::mem::swap(values, room);
}

#[cfg(test)]
mod tests;
