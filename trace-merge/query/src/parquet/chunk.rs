//! A column of a file in dictionary encoding, made of numbers of values. What this writes itself is the part of the
//! format in which the library looks at the value of each row again: pages of numbers (RLE and bit-packing) and of the
//! values.
//! <https://parquet.apache.org/docs/file-format/data-pages/encodings/>

use super::words::{Dictionary, NULL, Words};
use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::writer::{SerializedPageWriter, SerializedRowGroupWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use std::io::Write;
use zstd::bulk::Compressor;

/// Rows of a page.
const PAGE_ROWS: usize = 1 << 15;
/// Bytes of a page of values that stand there themselves, about.
const PAGE_BYTES: usize = 1 << 20;
/// Bytes of a dictionary, about: what is new then stands there itself.
const DICTIONARY_BYTES: usize = 1 << 20;
/// Bytes of a length.
const LENGTH: usize = size_of::<u32>();

/// A column of a row group in the making.
pub(super) struct Chunk {
    descriptor: ColumnDescPtr,
    is_text: bool,
    dictionary: Dictionary,
    /// Whether it is full.
    is_full: bool,
    /// Rows of the page in the making: numbers in the dictionary, or 0 for what stands in `plain`, or [`NULL`].
    numbers: Vec<u32>,
    /// The values themselves, once the dictionary is full.
    plain: Vec<u8>,
    /// By number in a batch: that in the dictionary.
    known: Vec<u32>,
    pages: TrackedWrite<Vec<u8>>,
    uncompressed: usize,
    rows: u64,
}

impl Chunk {
    pub(super) fn new(descriptor: ColumnDescPtr) -> Self {
        Self {
            is_text: descriptor.physical_type() == Type::BYTE_ARRAY,
            descriptor,
            dictionary: Dictionary::default(),
            is_full: false,
            numbers: Vec::new(),
            plain: Vec::new(),
            known: Vec::new(),
            pages: TrackedWrite::new(Vec::new()),
            uncompressed: 0,
            rows: 0,
        }
    }

    /// Bytes that it keeps.
    pub(super) fn memory(&self) -> usize {
        let numbers = (self.numbers.capacity() + self.known.capacity()) * size_of::<u32>();
        self.dictionary.memory() + numbers + self.plain.capacity() + self.pages.bytes_written()
    }

    /// Adds the rows of a batch.
    pub(super) fn write(&mut self, words: &Words, compressor: &mut Compressor<'_>) -> Result<(), ParquetError> {
        if !self.is_full && (words.each || self.dictionary.values().size() + words.values.size() > DICTIONARY_BYTES) {
            self.finish_page(compressor)?;
            self.is_full = true;
        }
        if self.is_full {
            for &number in &words.numbers {
                if number == NULL {
                    self.numbers.push(NULL);
                } else {
                    self.numbers.push(0);
                    put(&mut self.plain, words.values.get(number), self.is_text);
                }
            }
        } else {
            self.known.clear();
            self.known.extend(words.values.iter().map(|value| self.dictionary.number(value)));
            let known = &self.known;
            let number = |&number: &u32| known.get(number as usize).copied().unwrap_or(NULL);
            self.numbers.extend(words.numbers.iter().map(number));
        }
        if self.numbers.len() >= PAGE_ROWS || self.plain.len() >= PAGE_BYTES {
            self.finish_page(compressor)?;
        }
        Ok(())
    }

    fn finish_page(&mut self, compressor: &mut Compressor<'_>) -> Result<(), ParquetError> {
        if self.numbers.is_empty() {
            return Ok(());
        }
        let rows = self.numbers.len();
        let mut bytes = vec![0; LENGTH];
        hybrid(self.numbers.iter().map(|&number| u32::from(number != NULL)), 1, &mut bytes);
        let levels = u32::try_from(bytes.len() - LENGTH).map_err(|_| too_large())?;
        bytes[..LENGTH].copy_from_slice(&levels.to_le_bytes());
        self.numbers.retain(|&number| number != NULL);
        // A column of nulls has no dictionary that its pages could use.
        let encoding = if self.is_full || self.numbers.is_empty() {
            bytes.append(&mut self.plain);
            Encoding::PLAIN
        } else {
            let width = width(self.dictionary.values().len());
            bytes.push(width);
            hybrid(self.numbers.iter().copied(), width, &mut bytes);
            Encoding::RLE_DICTIONARY
        };
        self.rows += rows as u64;
        self.numbers.clear();
        let page = Page::DataPage {
            buf: compressor.compress(&bytes)?.into(),
            num_values: u32::try_from(rows).map_err(|_| too_large())?,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let page = CompressedPage::new(page, bytes.len());
        self.uncompressed += SerializedPageWriter::new(&mut self.pages).write_page(page)?.uncompressed_size;
        Ok(())
    }

    /// The dictionary as a page; none where nothing uses it.
    fn dictionary_page(&mut self, compressor: &mut Compressor<'_>) -> Result<Vec<u8>, ParquetError> {
        let values = self.dictionary.values();
        if values.len() == 0 {
            return Ok(Vec::new());
        }
        let mut bytes = Vec::with_capacity(values.size() + values.len() * LENGTH);
        values.iter().for_each(|value| put(&mut bytes, value, self.is_text));
        let page = Page::DictionaryPage {
            buf: compressor.compress(&bytes)?.into(),
            num_values: u32::try_from(values.len()).map_err(|_| too_large())?,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        let mut written = TrackedWrite::new(Vec::new());
        let page = CompressedPage::new(page, bytes.len());
        self.uncompressed += SerializedPageWriter::new(&mut written).write_page(page)?.uncompressed_size;
        written.into_inner()
    }

    /// Puts the column into `group`, as its next one.
    pub(super) fn append_to<W: Write + Send>(
        mut self,
        group: &mut SerializedRowGroupWriter<'_, W>,
        compressor: &mut Compressor<'_>,
    ) -> Result<(), ParquetError> {
        self.finish_page(compressor)?;
        let mut bytes = self.dictionary_page(compressor)?;
        let dictionary = i64::try_from(bytes.len()).map_err(|_| too_large())?;
        bytes.append(&mut self.pages.into_inner()?);
        let length = |length: usize| i64::try_from(length).map_err(|_| too_large());
        let metadata = ColumnChunkMetaData::builder(self.descriptor)
            .set_encodings(vec![Encoding::RLE, Encoding::RLE_DICTIONARY, Encoding::PLAIN])
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_num_values(length(usize::try_from(self.rows).map_err(|_| too_large())?)?)
            .set_total_compressed_size(length(bytes.len())?)
            .set_total_uncompressed_size(length(self.uncompressed)?)
            .set_dictionary_page_offset((dictionary > 0).then_some(0))
            .set_data_page_offset(dictionary)
            .build()?;
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: self.rows,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        group.append_column(&Bytes::from(bytes), close)
    }
}

/// Adds `value` in plain encoding.
#[inline]
fn put(plain: &mut Vec<u8>, value: &[u8], is_text: bool) {
    if is_text {
        // What has more bytes than 32 bits count is in no batch.
        plain.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes());
    }
    plain.extend_from_slice(value);
}

/// Bits of a number below `count`.
fn width(count: usize) -> u8 {
    let bits = usize::BITS - count.saturating_sub(1).leading_zeros();
    u8::try_from(bits).unwrap_or(u8::MAX)
}

fn too_large() -> ParquetError {
    ParquetError::General("a column is too large".into())
}

/// Writes `numbers` of `width` bits, 32 at most, as runs of the same number and groups of eight that are packed.
fn hybrid(numbers: impl Iterator<Item = u32>, width: u8, out: &mut Vec<u8>) {
    let mut hybrid = Hybrid { width, number: 0, repeated: 0, group: [0; GROUP], filled: 0, groups: 0, header: 0, out };
    numbers.for_each(|number| hybrid.push(number));
    hybrid.finish();
}

/// Numbers of a packed group; fewer that are the same are no run.
const GROUP: usize = 8;
/// Groups behind a header, at most: it then has one byte.
const GROUPS: u8 = 63;

struct Hybrid<'o> {
    width: u8,
    /// The last number, and how often it came since the last group was packed.
    number: u32,
    repeated: usize,
    group: [u32; GROUP],
    filled: usize,
    /// Packed groups behind the header that stands at `header`.
    groups: u8,
    header: usize,
    out: &'o mut Vec<u8>,
}

impl Hybrid<'_> {
    #[inline]
    fn push(&mut self, number: u32) {
        if self.number == number {
            self.repeated += 1;
            if self.repeated > GROUP {
                return;
            }
        } else {
            if self.repeated >= GROUP {
                self.finish_run();
            }
            (self.number, self.repeated) = (number, 1);
        }
        self.group[self.filled] = number;
        self.filled += 1;
        if self.filled == GROUP {
            self.filled = 0;
            // A group of one number is the begin of a run.
            if self.repeated < GROUP {
                self.pack();
            }
        }
    }

    fn finish_run(&mut self) {
        let mut header = self.repeated << 1;
        while header > 0x7f {
            self.out.push(header.to_le_bytes()[0] | 0x80);
            header >>= 7;
        }
        self.out.push(header.to_le_bytes()[0]);
        let bytes = usize::from(self.width.div_ceil(8));
        self.out.extend_from_slice(&self.number.to_le_bytes()[..bytes]);
        (self.repeated, self.groups) = (0, 0);
    }

    fn pack(&mut self) {
        if self.groups == 0 || self.groups == GROUPS {
            (self.header, self.groups) = (self.out.len(), 0);
            self.out.push(0);
        }
        self.groups += 1;
        self.out[self.header] = self.groups << 1 | 1;
        let (mut bits, mut count) = (0_u64, 0);
        for number in self.group {
            bits |= u64::from(number) << count;
            count += u32::from(self.width);
            while count >= 8 {
                self.out.push(bits.to_le_bytes()[0]);
                bits >>= 8;
                count -= 8;
            }
        }
        self.repeated = 0;
    }

    fn finish(mut self) {
        if self.repeated >= GROUP || (self.filled > 0 && self.repeated == self.filled) {
            self.finish_run();
        } else if self.filled > 0 {
            self.group[self.filled..].fill(0);
            self.pack();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads what [`hybrid`] writes, as the format has it.
    fn read(mut bytes: &[u8], width: u8, count: usize) -> Vec<u32> {
        let mut numbers = Vec::new();
        while numbers.len() < count {
            let mut header = 0;
            for place in 0.. {
                let byte = bytes[0];
                bytes = &bytes[1..];
                header |= usize::from(byte & 0x7f) << (7 * place);
                if byte < 0x80 {
                    break;
                }
            }
            let length =
                if header & 1 == 0 { usize::from(width.div_ceil(8)) } else { (header >> 1) * usize::from(width) };
            let (body, rest) = bytes.split_at(length);
            bytes = rest;
            let bit = |at: usize| u32::from(body[at / 8] >> (at % 8) & 1);
            let number = |at: usize| -> u32 {
                (0..usize::from(width)).map(|place| bit(at * usize::from(width) + place) << place).sum()
            };
            if header & 1 == 0 {
                numbers.extend(std::iter::repeat_n(number(0), header >> 1));
            } else {
                numbers.extend((0..(header >> 1) * GROUP).map(number));
            }
        }
        assert!(bytes.is_empty() && numbers[count..].iter().all(|&number| number == 0));
        numbers.truncate(count);
        numbers
    }

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let runs = [1, 7, 8, 9, 300, 3, 1, 1, 16, 5, 1000, 2];
        let cases = (0..=12_u32).map(|last| {
            let run = |(place, &length): (u32, &usize)| std::iter::repeat_n(place * 11 % 12, length);
            (0..).zip(&runs[..last as usize]).flat_map(run).chain((0..last * 97).map(|number| number % 11)).collect()
        });
        for numbers in cases.collect::<Vec<Vec<u32>>>() {
            for width in [4, 9, 32] {
                let mut bytes = Vec::new();
                hybrid(numbers.iter().copied(), width, &mut bytes);
                assert_eq!(read(&bytes, width, numbers.len()), numbers, "{width}");
            }
        }
    }

    #[test]
    fn one_number_takes_no_bits() {
        let mut bytes = Vec::new();

        hybrid(std::iter::repeat_n(0, 1000), width(1), &mut bytes);

        assert_eq!(bytes, [0xd0, 0x0f]);
        assert_eq!([2, 3, 4, 5, 256, 257].map(width), [1, 2, 2, 3, 8, 9]);
    }
}
