//! The request for a session that is to be made while the VM runs, and what of it is refused.

use super::{MAX_NAME, SessionError};
use crate::control::protocol::LayerLimit;
use crate::layer::limit::{LayerLimits, LimitError};
use shared_ring::layout::Mode;
use shared_ring::region::Rings;
use std::path::PathBuf;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::is_vm_name;
use strata_recording::writer::MIN_ROTATED_SIZE;

/// A session that is to be made while the VM runs.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Its name.
    pub name: String,
    /// Geometry and mode of its rings.
    pub rings: Rings,
    /// Its choice of events.
    pub events: String,
    /// Folder of its recording, absolute.
    pub trace: Option<PathBuf>,
    /// Size that the recording keeps within, bytes.
    pub max_size: Option<u64>,
    /// What keeps its layer within a rate.
    pub limits: Vec<LayerLimit>,
}

impl NewSession {
    /// Checks everything that can be checked without the region, beside sessions that are called `taken`.
    ///
    /// # Errors
    /// When the name cannot be used, or the folder is missing or relative.
    pub fn check<'a>(&self, mut taken: impl Iterator<Item = &'a str>) -> Result<(), SessionError> {
        if !is_vm_name(&self.name) || self.name.len() > MAX_NAME {
            return Err(SessionError::Name(self.name.clone()));
        }
        if taken.any(|name| name == self.name) {
            return Err(SessionError::Exists(self.name.clone()));
        }
        self.limits()?;
        match &self.trace {
            None if self.rings.mode == Mode::Discard => Err(SessionError::NoFolder),
            _ if self.max_size.is_some() && self.rings.mode == Mode::FlightRecorder => Err(SessionError::BoundedBySize),
            _ if self.max_size.is_some_and(|size| size < MIN_ROTATED_SIZE) => Err(SessionError::TooSmall),
            Some(path) if !path.is_absolute() => Err(SessionError::RelativePath(path.clone())),
            _ => Ok(()),
        }
    }

    pub(super) fn limits(&self) -> Result<LayerLimits, LimitError> {
        LayerLimits::new(&self.limits, self.rings.mode, &[LayerKind::GuestKernel])
    }
}

/// The first of `free` slots (number, bytes reserved for a ring) that has room for rings of `size` bytes.
pub(super) fn choose_slot(size: usize, free: impl Iterator<Item = (usize, usize)>) -> Result<usize, SessionError> {
    let mut largest = None;
    for (slot, room) in free.filter(|&(_, room)| room > 0) {
        if size <= room {
            return Ok(slot);
        }
        largest = largest.max(Some(room));
    }
    Err(largest.map_or(SessionError::NoSlot, |room| SessionError::TooLarge { size, room }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::layout::Geometry;

    fn new(name: &str, mode: Mode, trace: Option<&str>) -> NewSession {
        let rings = Rings { geometry: Geometry::new(4096, 2).unwrap(), mode };
        NewSession {
            name: name.into(),
            rings,
            events: "guest:*".into(),
            trace: trace.map(PathBuf::from),
            max_size: None,
            limits: Vec::new(),
        }
    }

    fn refusal(session: &NewSession) -> String {
        session.check(["main", "io"].into_iter()).unwrap_err().to_string()
    }

    #[test]
    fn session_needs_a_name_of_its_own() {
        let long = "a".repeat(MAX_NAME + 1);

        assert!(refusal(&new("io", Mode::FlightRecorder, None)).contains("'io' already"));
        assert!(refusal(&new("../x", Mode::FlightRecorder, None)).contains("not a session name"));
        assert!(refusal(&new(&long, Mode::FlightRecorder, None)).contains("up to 31 letters"));
        assert!(new("net", Mode::FlightRecorder, None).check(["main"].into_iter()).is_ok());
    }

    #[test]
    fn session_in_discard_mode_needs_an_absolute_folder() {
        assert!(refusal(&new("net", Mode::Discard, None)).contains("--trace DIR"));
        assert!(refusal(&new("net", Mode::Discard, Some("here"))).contains("'here' is not an absolute path"));
        assert!(new("net", Mode::Discard, Some("/tmp/net")).check(["main"].into_iter()).is_ok());
    }

    #[test]
    fn first_slot_with_room_is_chosen() {
        assert_eq!(choose_slot(100, [(1, 0), (2, 50), (3, 100)].into_iter()).unwrap(), 3);
    }

    #[test]
    fn rings_that_fit_no_free_slot_are_refused_with_the_room_that_there_is() {
        let error = choose_slot(100, [(1, 50), (2, 80)].into_iter()).unwrap_err();

        assert!(matches!(error, SessionError::TooLarge { size: 100, room: 80 }), "{error}");
    }

    #[test]
    fn session_without_a_free_slot_is_refused() {
        assert!(matches!(choose_slot(1, [(3, 0)].into_iter()), Err(SessionError::NoSlot)));
    }
}
