//! The event types of the places in a program that record.

use crate::fields::Fields;
use guest_agent::{FieldType, MAX_NAME, RuntimeEventType};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};
use tracing_core::Metadata;
use tracing_core::callsite::Identifier;

/// How long a thread waits for the table of all threads, whose holder may be off its CPU: a child made by `fork` may
/// find it locked by a thread that it lacks.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// What happens to a span, as the end of its event's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// An event, not a span.
    Event,
    New,
    Record,
    Enter,
    Exit,
    Close,
}

impl Step {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Event => "",
            Self::New => "-new",
            Self::Record => "-record",
            Self::Enter => "-enter",
            Self::Exit => "-exit",
            Self::Close => "-close",
        }
    }
}

/// Names and types of a record's fields, with the event type for them. `tracing` keeps the names for ever.
type Described = (Vec<(&'static str, FieldType)>, Option<&'static RuntimeEventType>);

/// Event types by place, step and fields; `None` for those that cannot be described.
#[derive(Debug, Default)]
pub(crate) struct Types {
    of_places: HashMap<(Identifier, Step), Vec<Described>>,
}

/// Those of all threads, so that each is made once.
static ALL: Mutex<Option<Types>> = Mutex::new(None);
/// Whether somebody has waited for the table in vain: nobody does so again.
static IS_LOST: AtomicBool = AtomicBool::new(false);

impl Types {
    /// The type of a record with `fields`, from the calling thread's own table if it has been there before. `None` when
    /// it cannot be described, or the table cannot be had now.
    pub(crate) fn of_thread(
        metadata: &'static Metadata<'static>,
        step: Step,
        fields: &Fields,
    ) -> Option<&'static RuntimeEventType> {
        thread_local! {
            static OWN: RefCell<Types> = RefCell::default();
        }
        let key = (metadata.callsite(), step);
        let known = OWN.try_with(|own| own.try_borrow().ok()?.find(&key, fields)).ok().flatten();
        if let Some(known) = known {
            return known;
        }
        let made = Self::of_all(metadata, key.clone(), fields)?;
        // The thread may be ending.
        let _ = OWN.try_with(|own| {
            if let Ok(mut own) = own.try_borrow_mut() {
                own.add(key, fields, made);
            }
        });
        made
    }

    fn of_all(
        metadata: &'static Metadata<'static>,
        key: (Identifier, Step),
        fields: &Fields,
    ) -> Option<Option<&'static RuntimeEventType>> {
        let mut all = Self::lock_all()?;
        let all = all.get_or_insert_default();
        if let Some(known) = all.find(&key, fields) {
            return Some(known);
        }
        let described: Vec<_> = fields.described().iter().map(|&(name, ty)| (name, ty, false)).collect();
        let made = RuntimeEventType::new(&name(metadata, key.1), &described);
        all.add(key, fields, made);
        Some(made)
    }

    fn lock_all() -> Option<MutexGuard<'static, Option<Self>>> {
        let began = Instant::now();
        loop {
            match ALL.try_lock() {
                Ok(all) => return Some(all),
                Err(TryLockError::Poisoned(all)) => return Some(all.into_inner()),
                Err(TryLockError::WouldBlock) if IS_LOST.load(Ordering::Relaxed) => return None,
                Err(TryLockError::WouldBlock) if began.elapsed() > PATIENCE => {
                    IS_LOST.store(true, Ordering::Relaxed);
                    return None;
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            }
        }
    }

    fn find(&self, key: &(Identifier, Step), fields: &Fields) -> Option<Option<&'static RuntimeEventType>> {
        let of_place = self.of_places.get(key)?;
        of_place.iter().find(|(described, _)| described == fields.described()).map(|(_, made)| *made)
    }

    fn add(&mut self, key: (Identifier, Step), fields: &Fields, made: Option<&'static RuntimeEventType>) {
        self.of_places.entry(key).or_default().push((fields.described().to_vec(), made));
    }
}

/// `module.path:name-step`. An event that was given no name has one of `tracing`'s with its place in words.
fn name(metadata: &Metadata<'_>, step: Step) -> String {
    let group = metadata.target().replace("::", ".");
    let file = metadata.file().and_then(|file| Path::new(file).file_name()).map(|file| file.to_string_lossy());
    match (step, file, metadata.line()) {
        (Step::Event, Some(file), Some(line)) if metadata.name().starts_with("event ") => {
            joined(&group, &file, &format!("-{line}"))
        }
        _ => joined(&group, metadata.name(), step.suffix()),
    }
}

/// `group:name` and `end`. What is too long for a trace loses the end of the group, then that of the name: other places
/// and steps have another `end`.
fn joined(group: &str, name: &str, end: &str) -> String {
    let cut = |text: &str, room: usize| text.chars().take(room).collect::<String>();
    let room = MAX_NAME - 1 - end.len();
    let name = cut(name, room);
    let group = cut(group, room - name.chars().count());
    format!("{group}:{name}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_too_long_keep_their_ends() {
        let long = "\u{fc}".repeat(MAX_NAME);

        let of_group = joined(&long, "order", "-enter");
        let of_name = joined("shop.till", &long, "-enter");

        assert!(of_group.starts_with('\u{fc}') && of_group.ends_with("\u{fc}:order-enter"), "{of_group}");
        assert!(of_name.ends_with("\u{fc}-enter"), "{of_name}");
        assert_eq!([of_group, of_name].map(|name| name.chars().count()), [MAX_NAME; 2]);
        assert_eq!(joined("shop.till", "till.rs", "-9"), "shop.till:till.rs-9");
    }
}
