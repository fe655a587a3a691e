//! A value in a row.

use crate::parquet::integer;
use std::borrow::Cow;
use strata_recording::schema::Elements;

/// A value in a row.
#[derive(Clone, Copy, Debug)]
pub(in crate::parquet) enum Cell<'a> {
    Null,
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    Text(&'a str),
    /// Text; what of it is not UTF-8 is replaced.
    Bytes(&'a [u8]),
    Flag(bool),
    List(Elements<'a>),
}

impl From<u32> for Cell<'_> {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<i32> for Cell<'_> {
    fn from(number: i32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<i64> for Cell<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<u64> for Cell<'_> {
    fn from(number: u64) -> Self {
        Self::Integer(integer(number))
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a, V: Into<Cell<'a>>> From<Option<V>> for Cell<'a> {
    fn from(value: Option<V>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// `bytes` as text; what of them is not UTF-8 is replaced.
pub(in crate::parquet) fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    // Faster where there is nothing to replace.
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}
