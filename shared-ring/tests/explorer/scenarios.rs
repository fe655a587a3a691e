//! The situations that are explored.

use crate::world::Activity::{
    ClaimAll, Consume, Die, Discard, ForceSwitch, Record, Repair, RequestFlush, Snapshot, Timer,
};
use crate::world::Scenario;
use shared_ring::layout::Mode;

/// Nothing was recorded yet.
pub fn first() -> Scenario {
    Scenario { task: vec![Record(40); 2], interrupts: vec![Record(8), Consume], ..Scenario::default() }
}

/// The task's record does not fit any more; a small one still would.
pub fn switch() -> Scenario {
    Scenario {
        before: vec![Record(40); 2],
        task: vec![Record(40); 2],
        interrupts: vec![Record(8), Consume],
        ..Scenario::default()
    }
}

/// The task's record is the last that fits, to the byte.
pub fn exact_fill() -> Scenario {
    Scenario {
        before: vec![Record(56)],
        task: vec![Record(56), Record(24)],
        interrupts: vec![Record(8), Consume],
        ..Scenario::default()
    }
}

/// One record takes all that a sub-buffer holds, so that it opens and closes it.
pub fn alone() -> Scenario {
    Scenario {
        before: vec![Record(8)],
        task: vec![Record(96), Record(40)],
        interrupts: vec![Record(96), Consume],
        ..Scenario::default()
    }
}

/// There is room for one more small record; the rest is lost unless the consumer comes.
pub fn full() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(96)],
        task: vec![Record(24), Record(24)],
        interrupts: vec![Record(8), Consume],
        ..Scenario::default()
    }
}

/// While the task closes its sub-buffer and opens the last free one, interrupts fill that and lose records behind it.
pub fn loss_behind() -> Scenario {
    Scenario {
        before: vec![Record(40), Record(8)],
        task: vec![Record(72), Record(24)],
        interrupts: vec![Record(64), Consume],
        ..Scenario::default()
    }
}

/// Interrupts fill whole sub-buffers: two of them lap a record that is reserved and not committed.
pub fn wrap() -> Scenario {
    Scenario { task: vec![Record(40), Record(40)], interrupts: vec![Record(96), Consume], ..Scenario::default() }
}

/// Records that no sub-buffer can hold, from every context.
pub fn too_large() -> Scenario {
    Scenario { task: vec![Record(104), Record(40)], interrupts: vec![Record(104), Record(8)], ..Scenario::default() }
}

/// The ring is reused: everything before was delivered once.
pub fn laps() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(96), Consume, Consume, Record(96), Record(40)],
        task: vec![Record(40), Record(40)],
        interrupts: vec![Record(40), Consume],
        ..Scenario::default()
    }
}

/// More sub-buffers than contexts.
pub fn four() -> Scenario {
    Scenario {
        sub_buffers: 4,
        before: vec![Record(96); 2],
        task: vec![Record(40); 3],
        interrupts: vec![Record(96), Consume],
        ..Scenario::default()
    }
}

/// The consumer's own steps, with records between them.
pub fn consumer_interrupted() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(96), Record(96)],
        task: vec![Consume, Record(40), Consume],
        interrupts: vec![Record(40), Record(96)],
        ..Scenario::default()
    }
}

/// A quarter of 2^32 ticks passes between two readings of the clock: the fifth reading is exactly 2^32 after the first.
pub fn far_apart() -> Scenario {
    Scenario {
        sub_buffer_size: 512,
        task: vec![Record(8); 5],
        interrupts: vec![Record(8)],
        most_interrupts: 2,
        tick: 1 << 30,
        ..Scenario::default()
    }
}

/// Records are given up at any step, by the task and by what interrupts it.
pub fn discard() -> Scenario {
    Scenario {
        before: vec![Record(8)],
        task: vec![Discard(40), Record(40), Record(40)],
        interrupts: vec![Record(8), Discard(8), Consume],
        most_interrupts: 2,
        ..Scenario::default()
    }
}

/// A record that carries its full time is given up: times are a quarter of 2^32 ticks apart.
pub fn discard_far_apart() -> Scenario {
    Scenario {
        sub_buffer_size: 512,
        task: vec![Record(8), Record(8), Record(8), Record(8), Discard(8), Record(8)],
        interrupts: vec![Discard(8)],
        most_interrupts: 1,
        tick: 1 << 30,
        ..Scenario::default()
    }
}

/// Everything may stop at any step of records that are given up.
pub fn discard_crash() -> Scenario {
    Scenario {
        before: vec![Record(8)],
        task: vec![Discard(24), Record(24)],
        interrupts: vec![Discard(8), Record(8)],
        most_interrupts: 2,
        crashes: true,
        ..Scenario::default()
    }
}

/// The same in a flight recorder, with snapshots.
pub fn recorder_discard() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(8)],
        task: vec![Discard(40), Record(40)],
        interrupts: vec![Record(8), Discard(8), Snapshot],
        most_interrupts: 2,
        ..flight_recorder()
    }
}

/// Everything may stop at any step.
pub fn crash() -> Scenario {
    Scenario {
        before: vec![Record(40)],
        task: vec![Record(40), Record(40)],
        interrupts: vec![Record(24)],
        most_interrupts: 2,
        crashes: true,
        ..Scenario::default()
    }
}

/// Everything may stop at any step of a ring that was used before: what a hole holds must not look like a record.
pub fn crash_reused() -> Scenario {
    Scenario {
        before: vec![Record(40), Record(40), Record(96), Consume, Consume],
        task: vec![Record(40), Record(40)],
        interrupts: vec![Record(40)],
        most_interrupts: 2,
        crashes: true,
        ..Scenario::default()
    }
}

/// The guest lies about how much of its sub-buffers is in use.
pub fn hostile() -> Scenario {
    Scenario {
        before: vec![Record(40); 2],
        task: vec![Record(40), Consume],
        interrupts: vec![ClaimAll, Record(8)],
        most_interrupts: 2,
        ..Scenario::default()
    }
}

fn flight_recorder() -> Scenario {
    Scenario { mode: Mode::FlightRecorder, ..Scenario::default() }
}

/// The flight recorder's first lap.
pub fn recorder_first() -> Scenario {
    Scenario { task: vec![Record(40); 2], interrupts: vec![Record(8), Consume], ..flight_recorder() }
}

/// Records that take a sub-buffer each lap an interrupted one, with the consumer reading what they overwrite.
pub fn recorder_laps() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(96), Record(8)],
        task: vec![Record(40), Record(96)],
        interrupts: vec![Record(96), Consume],
        ..flight_recorder()
    }
}

/// More sub-buffers than contexts: a nested record can push the reader in the middle of a push.
pub fn recorder_four() -> Scenario {
    Scenario {
        sub_buffers: 4,
        before: vec![Record(96); 5],
        task: vec![Record(96)],
        interrupts: vec![Record(96), Consume],
        ..flight_recorder()
    }
}

/// Small records, so that sub-buffers are completed by contexts that did not open them.
pub fn recorder_switch() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(96), Record(40), Record(40)],
        task: vec![Record(40), Record(40)],
        interrupts: vec![Record(8), Record(56), Consume],
        most_interrupts: 2,
        ..flight_recorder()
    }
}

/// Records that stay inside a sub-buffer whose opener has not entered it yet, while the consumer takes what it held.
pub fn recorder_entered() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(96), Record(96)],
        task: vec![Record(40), Record(8)],
        interrupts: vec![Record(8), Consume],
        ..flight_recorder()
    }
}

/// The consumer's own steps: the writer enters, laps and leaves what it is about to exchange, has exchanged, gives back.
pub fn recorder_consumer_interrupted() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(96), Record(96)],
        task: vec![Consume, Record(96), Consume],
        interrupts: vec![Record(96), Record(40)],
        ..flight_recorder()
    }
}

/// A snapshot while records are written, and a second one after it.
pub fn recorder_snapshot() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(40)],
        task: vec![Snapshot, Record(40), Snapshot],
        interrupts: vec![Record(40), Record(96)],
        most_interrupts: 2,
        ..flight_recorder()
    }
}

/// Snapshots at every step of the records that they read.
pub fn recorder_snapshot_nested() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(40)],
        task: vec![Record(40), Record(96)],
        interrupts: vec![Record(40), Snapshot],
        ..flight_recorder()
    }
}

/// Everything stops at any step, the consumer's included.
pub fn recorder_crash() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(96), Record(40)],
        task: vec![Record(40), Record(40)],
        interrupts: vec![Record(24), Consume],
        most_interrupts: 2,
        crashes: true,
        ..flight_recorder()
    }
}

/// Everything may stop while records nest in each other, behind which the last lap's records of the same sizes lie.
pub fn recorder_crash_behind_hole() -> Scenario {
    let lap = [Record(312), Record(8), Record(8), Record(8), Record(8)];
    Scenario {
        sub_buffer_size: 512,
        before: [&lap[..], &lap, &lap[..1]].concat(),
        task: vec![Record(8)],
        interrupts: vec![Record(8)],
        crashes: true,
        ..flight_recorder()
    }
}

/// A timer closes sub-buffers under records of the context that it interrupts.
pub fn force_switch() -> Scenario {
    Scenario {
        before: vec![Record(8)],
        task: vec![Record(40), ForceSwitch, Record(40)],
        interrupts: vec![ForceSwitch, Record(8), Consume],
        most_interrupts: 2,
        ..Scenario::default()
    }
}

/// The same in a flight recorder.
pub fn recorder_force_switch() -> Scenario {
    Scenario { mode: Mode::FlightRecorder, ..force_switch() }
}

/// The host asks for what there is, at any step; the timer comes at any step.
pub fn flush_request() -> Scenario {
    Scenario {
        before: vec![Record(40)],
        task: vec![RequestFlush, Record(40), Timer, Record(40)],
        interrupts: vec![RequestFlush, Timer, Record(8)],
        ..Scenario::default()
    }
}

/// A context dies at any step of a record in the middle of a sub-buffer, and the ring goes on for more than a lap.
pub fn repair() -> Scenario {
    Scenario {
        before: vec![Record(8)],
        task: vec![Die(24), Repair],
        after: vec![Record(96), Consume, Record(96), Consume, Record(96)],
        interrupts: vec![Record(8), Consume],
        most_interrupts: 2,
        ..Scenario::default()
    }
}

/// The record of the context that dies does not fit any more.
pub fn repair_switch() -> Scenario {
    Scenario { before: vec![Record(40); 2], ..repair() }
}

/// It is the last one that fits, to the byte.
pub fn repair_exact_fill() -> Scenario {
    Scenario { before: vec![Record(56)], task: vec![Die(56), Repair], ..repair() }
}

/// It takes a sub-buffer alone, so that the context that dies leaves one and opens one.
pub fn repair_alone() -> Scenario {
    Scenario { before: vec![Record(40)], task: vec![Die(96), Repair], ..repair() }
}

/// The repair comes when the ring has come around, and records are lost.
pub fn repair_late() -> Scenario {
    Scenario {
        task: vec![Die(24), Record(96), Record(96), Repair],
        after: vec![Consume, Record(96), Consume, Record(40)],
        interrupts: vec![Record(40)],
        ..repair()
    }
}

/// The same in a flight recorder, whose record goes over what is oldest.
pub fn recorder_repair() -> Scenario {
    Scenario {
        mode: Mode::FlightRecorder,
        before: vec![Record(96), Record(96), Record(8)],
        after: vec![Record(96), Record(96), Record(40)],
        interrupts: vec![Record(8), Snapshot],
        ..repair()
    }
}

/// A flight recorder's record does not fit any more.
pub fn recorder_repair_switch() -> Scenario {
    Scenario { before: vec![Record(96), Record(40), Record(40)], ..recorder_repair() }
}

/// A flight recorder's record fits to the byte.
pub fn recorder_repair_exact_fill() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(96), Record(96), Record(56)],
        task: vec![Die(56), Repair],
        ..recorder_repair()
    }
}

/// A flight recorder that came around to the hole before the repair.
pub fn recorder_repair_late() -> Scenario {
    Scenario { task: vec![Die(24), Record(96), Record(96), Repair], interrupts: vec![Record(40)], ..recorder_repair() }
}

/// Four sub-buffers, so that the hole is in neither the youngest nor the oldest one.
pub fn recorder_repair_four() -> Scenario {
    Scenario {
        sub_buffers: 4,
        before: vec![Record(96); 5],
        task: vec![Die(24), Record(96), Record(96), Repair],
        after: vec![Record(96), Record(96), Record(96), Record(40)],
        interrupts: vec![Record(40), Snapshot],
        most_interrupts: 1,
        ..recorder_repair()
    }
}

/// A context dies, and is repaired, between the steps of a flight recorder's consumer.
pub fn recorder_repair_beside_consumer() -> Scenario {
    Scenario {
        before: vec![Record(96), Record(96), Record(96)],
        task: vec![Consume, Repair],
        interrupts: vec![Die(96), Repair],
        ..recorder_repair()
    }
}
