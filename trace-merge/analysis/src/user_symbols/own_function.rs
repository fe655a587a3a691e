//! A function of the program itself, for tests of symbols.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

/// A function to be found by its name.
#[inline(never)]
fn function_to_be_found(number: u64) -> u64 {
    std::hint::black_box(number) + 1
}

/// This program's own file, and the offset in it of the code of [`function_to_be_found`].
#[must_use]
pub fn own_function() -> (String, u64) {
    let address = function_to_be_found as fn(u64) -> u64 as usize as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_line = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let (begin, end) = words[0].split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let inside = (number(begin)..number(end)).contains(&address);
        inside.then(|| (words[5].to_string(), address - number(begin) + number(words[2])))
    };
    maps.lines().find_map(of_line).unwrap()
}
