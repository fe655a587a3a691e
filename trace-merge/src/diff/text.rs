//! The comparison for people.

use super::{Diff, MachineDifference, NotCompared, RowDiff, Side, Value};
use crate::report::duration;
use crate::report::rows::table::{Align, Table};
use crate::report::sink::Sink;
use std::io;
use strata_recording::text::terminal::{harmless, shell_path};

/// Rows that are shown; JSON has all.
const SHOWN: usize = 30;

impl Diff {
    /// Writes it for people: what changed.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        self.a.write("A", out)?;
        self.b.write("B", out)?;
        for MachineDifference { what, a, b } in &self.machines {
            writeln!(out, "{}: {} in A, {} in B", harmless(what), harmless(a), harmless(b))?;
        }
        for NotCompared { vm, report, reason } in &self.not_compared {
            let vm = vm.as_ref().map_or_else(String::new, |vm| format!("{vm} "));
            writeln!(out, "NOT COMPARED: {}{report}: {}", harmless(&vm), harmless(reason))?;
        }
        let Self { compared, changed, .. } = self;
        if *changed == 0 {
            return writeln!(out, "\nno change in {compared} values");
        }
        writeln!(out, "\n{changed} of {compared} values changed; what costs or saves most time stands first")?;
        self.write_changes(out)?;
        let waiting = self.rows.iter().filter(|row| row.changed() && row.waits).count();
        if waiting > 0 {
            writeln!(out, "Of these rows the last {waiting} are time spent on waiting for something to do")?;
        }
        writeln!(
            out,
            "difference: from part to part of the recordings, and where it lies with 99 % probability; by chance: share of \
             wrong ones among changes as sure as this\n\nNext: strata report {} {}",
            self.rows.first().map_or("", |row| row.report),
            shell_path(&self.b.trace)
        )
    }

    fn write_changes(&self, out: &mut dyn Sink) -> io::Result<()> {
        let right = Align::Right;
        let mut table = Table::new(&[
            ("report", Align::Left),
            ("what", Align::Left),
            ("value", Align::Left),
            ("A", right),
            ("B", right),
            ("difference", right),
            ("99 %", Align::Left),
            ("by chance", right),
        ]);
        let changed: Vec<&RowDiff> = self.rows.iter().filter(|row| row.changed()).collect();
        for row in changed.iter().take(SHOWN) {
            let vm = row.vm.as_deref().unwrap_or("host");
            let mut head = [format!("{} {}", harmless(vm), row.report), harmless(&row.what)];
            for value in row.values.iter().filter(|value| value.changed) {
                table.row(std::mem::take(&mut head).into_iter().chain(value.cells()));
            }
        }
        table.write(out)?;
        match changed.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => writeln!(out, "… and {more} more rows: --json shows them"),
        }
    }
}

impl Side {
    fn write(&self, name: &str, out: &mut dyn Sink) -> io::Result<()> {
        writeln!(out, "{name}: {}, {}", harmless(&self.trace), duration(self.ns))?;
        match self.completeness.line() {
            Some(line) => writeln!(out, "{}", harmless(&line)),
            None => Ok(()),
        }
    }
}

impl Value {
    fn cells(&self) -> [String; 6] {
        let Self { value, a, b, difference, low, high, by_chance, .. } = *self;
        let shown = |number: f64| self.shown(number);
        let signed = |number: f64| format!("{}{}", if number < 0.0 { "-" } else { "+" }, shown(number.abs()));
        let name = match value {
            "per_second" => "number/s",
            "time_per_second" => "time/s",
            quantile => quantile,
        };
        let by_chance = if by_chance < 1e-6 { "< 1e-6".into() } else { format!("{by_chance:.6}") };
        let interval = format!("{} … {}", signed(low), signed(high));
        [name.into(), shown(a), shown(b), signed(difference), interval, by_chance]
    }

    fn shown(&self, number: f64) -> String {
        if self.value == "per_second" {
            return format!("{number:.1}");
        }
        // Not negative, and below 2^64 times a few.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let ns = number.round() as u64;
        duration(ns)
    }
}
