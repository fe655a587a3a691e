//! The situations that are explored.

use crate::world::Activity::{ClaimAll, Consume, Record};
use crate::world::Scenario;

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
