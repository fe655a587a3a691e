//! The kernel's own counts of a CPU's trace buffer.

/// Contents of `per_cpu/cpuN/stats`. A count that the kernel does not give is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    fn counts_are_told_apart_by_their_full_names() {
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
