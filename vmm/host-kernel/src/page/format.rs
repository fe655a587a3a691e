//! Checks that the kernel's ring-buffer pages have the form that [`crate::page`] decodes.

use super::HEADER_BYTES;
use crate::schema::format_file::Field;

/// Largest sub-buffer that is believed; the kernel allows up to 64 KiB today.
const MAX_DATA_BYTES: usize = 1 << 24;

/// Checks the contents of `events/header_page` and returns the size of a whole page in bytes, header included.
/// The error says what is different.
pub(crate) fn page_bytes(header_page: &str) -> Result<usize, String> {
    let fields: Vec<Field> = header_page.lines().filter_map(Field::parse).collect();
    let field = |name: &str| {
        let field = fields.iter().find(|field| field.name == name);
        let place = field.and_then(|field| Some((field.offset.try_into().ok()?, field.size.try_into().ok()?)));
        place.ok_or_else(|| format!("the page header has no `{name}`"))
    };
    expect("timestamp", field("timestamp")?, (0, 8))?;
    expect("commit", field("commit")?, (8, 8))?;
    let (offset, size) = field("data")?;
    if offset != HEADER_BYTES {
        return Err(format!("the data of a page starts at byte {offset}"));
    }
    if size == 0 || size > MAX_DATA_BYTES {
        return Err(format!("a page holds {size} bytes of data"));
    }
    Ok(HEADER_BYTES + size)
}

fn expect(name: &str, found: (usize, usize), expected: (usize, usize)) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let (offset, size) = found;
    Err(format!("the page header has a `{name}` of {size} bytes at byte {offset}"))
}

/// Checks the contents of `events/header_event`. The error says what is missing.
pub(crate) fn check_record_header(header_event: &str) -> Result<(), String> {
    const EXPECTED: [&str; 7] = [
        "type_len:5bits",
        "time_delta:27bits",
        "array:32bits",
        "padding:type==29",
        "time_extend:type==30",
        "time_stamp:type==31",
        "datamaxtype_len==28",
    ];
    let compact: Vec<String> = header_event.lines().map(|line| line.split_whitespace().collect()).collect();
    EXPECTED
        .iter()
        .find(|expected| !compact.iter().any(|line| line == *expected))
        .map_or(Ok(()), |missing| Err(format!("the record header is not described by `{missing}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_PAGE: &str = "\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;
";
    const HEADER_EVENT: &str = "# compressed entry header
\ttype_len    :    5 bits
\ttime_delta  :   27 bits
\tarray       :   32 bits

\tpadding     : type == 29
\ttime_extend : type == 30
\ttime_stamp : type == 31
\tdata max type_len  == 28
";

    #[test]
    fn page_of_a_64_bit_kernel_is_4096_bytes() {
        assert_eq!(page_bytes(HEADER_PAGE), Ok(4096));
    }

    #[test]
    fn commit_word_of_a_32_bit_kernel_is_refused() {
        let header = HEADER_PAGE.replace("commit;\toffset:8;\tsize:8", "commit;\toffset:8;\tsize:4");

        assert_eq!(page_bytes(&header).unwrap_err(), "the page header has a `commit` of 4 bytes at byte 8");
    }

    #[test]
    fn page_without_data_is_refused() {
        assert_eq!(page_bytes(&HEADER_PAGE.replace("data", "other")).unwrap_err(), "the page header has no `data`");
    }

    #[test]
    fn record_header_is_recognised() {
        assert_eq!(check_record_header(HEADER_EVENT), Ok(()));
    }

    #[test]
    fn other_type_numbers_are_refused() {
        let header = HEADER_EVENT.replace("type == 31", "type == 32");

        assert_eq!(
            check_record_header(&header).unwrap_err(),
            "the record header is not described by `time_stamp:type==31`"
        );
    }
}
