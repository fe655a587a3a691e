//! What is counted: by the kernel of a CPU's trace buffer, and by the reader of all of them.

use std::ops::Add;

/// Contents of `per_cpu/cpuN/stats`. A count that the kernel does not give is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStats {
    /// Events that are in the buffer now.
    pub entries: u64,
    /// Events that were overwritten before they were read.
    pub overrun: u64,
    /// Events that were lost because an interrupt filled the whole buffer while an event was being written.
    pub commit_overrun: u64,
    /// Events that were dropped because the buffer was full; only when overwriting is off.
    pub dropped: u64,
    /// Events that were read.
    pub read: u64,
}

impl CpuStats {
    /// Events that nobody will ever read.
    pub fn lost(&self) -> u64 {
        self.overrun.saturating_add(self.commit_overrun).saturating_add(self.dropped)
    }
}

/// What has been read so far, all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Pages read.
    pub pages: u64,
    /// Bytes of records in them.
    pub bytes: u64,
    /// Records handed on.
    pub records: u64,
    /// Events that pages reported as lost before them, as far as their number was given.
    pub lost: u64,
    /// Pages that reported a loss without a number.
    pub lost_unknown: u64,
    /// Pages that could not be decoded, or not to their end. Each was also handed on as a loss of unknown extent.
    pub malformed_pages: u64,
    /// Records whose time was before that of the record before them and was raised to it.
    pub times_raised: u64,
}

impl Add for ReaderStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            pages: self.pages + other.pages,
            bytes: self.bytes + other.bytes,
            records: self.records + other.records,
            lost: self.lost.saturating_add(other.lost),
            lost_unknown: self.lost_unknown + other.lost_unknown,
            malformed_pages: self.malformed_pages + other.malformed_pages,
            times_raised: self.times_raised + other.times_raised,
        }
    }
}

/// Parses the contents of a `stats` file.
pub fn parse_stats(text: &str) -> CpuStats {
    let count = |name: &str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name)
            .and_then(|(_, value)| value.trim().parse().ok())
            .unwrap_or(0)
    };
    CpuStats {
        entries: count("entries"),
        overrun: count("overrun"),
        commit_overrun: count("commit overrun"),
        dropped: count("dropped events"),
        read: count("read events"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_distinguished_by_their_full_names() {
        let stats = parse_stats(
            "entries: 3\noverrun: 5\ncommit overrun: 7\nbytes: 64\noldest event ts:     0.000000\n\
             now ts:   615.570896\ndropped events: 11\nread events: 13\n",
        );

        assert_eq!(stats, CpuStats { entries: 3, overrun: 5, commit_overrun: 7, dropped: 11, read: 13 });
        assert_eq!(stats.lost(), 23);
    }

    #[test]
    fn missing_counts_are_zero() {
        assert_eq!(parse_stats("overrun: many\n"), CpuStats::default());
    }
}
