//! The example of two processes that share a region does what it says.
//!
//! Shows: One process records into a region, another drains it.

use std::process::Command;

/// A line `TIME ns: example:step number=N square=M`, taken apart.
fn parse(line: &str) -> Option<(u64, u64, u64)> {
    let (time, rest) = line.split_once(" ns: example:step number=")?;
    let (number, square) = rest.split_once(" square=")?;
    Some((time.parse().ok()?, number.parse().ok()?, square.parse().ok()?))
}

#[test]
fn every_record_of_the_other_process_is_printed_in_order_and_none_is_lost() {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["run", "--quiet", "--example", "two_processes"]);

    let output = command.output().unwrap();

    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{errors}");
    let lines: Vec<_> = text.lines().collect();
    let records: Vec<_> = lines.iter().filter_map(|line| parse(line)).collect();
    let values: Vec<_> = records.iter().map(|&(_, number, square)| (number, square)).collect();
    assert_eq!(values, (0..500).map(|number| (number, number * number)).collect::<Vec<_>>());
    assert!(records.is_sorted_by_key(|&(time, ..)| time));
    assert_eq!((lines.len(), lines.last()), (501, Some(&"500 records, 0 lost, 0 bytes rejected")));
}
