//! The events of a module's file: what the module will write to the registry once it is loaded, known before that.

use crate::catalog::{EventFacts, FieldDescriptor, descriptor, encode};
use object::elf::R_X86_64_64;
use object::{Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionIndex};
use shared_ring::event::EventDescription;
use shared_ring::registry::{MAX_ENTRY, parse};
use std::collections::BTreeMap;
use std::string::{String, ToString};
use std::vec::Vec;
use thiserror::Error;

/// The section of descriptors.
const EVENTS: &str = "strata_events";
/// The section that names the events that the kernel has and the module lacks: lines of event, tab and reason.
const MISSING: &str = ".init.strata_missing";
/// Most fields that a descriptor may announce: a bound on what a damaged file makes us read.
const MAX_FIELDS: u32 = 4096;

/// Why a module's events cannot be read.
#[derive(Debug, Error)]
pub enum ModuleFileError {
    /// The file is not an object file.
    #[error("it is not a kernel module")]
    Object(#[from] object::Error),
    /// The module has no section of descriptors.
    #[error("it is not strata's kernel module, or one of another version")]
    NoEvents,
    /// A descriptor points nowhere, or contradicts itself.
    #[error("the description of its event number {index} is damaged")]
    Damaged {
        /// Number of the event.
        index: usize,
    },
    /// An event has a field of a type that no trace can hold.
    #[error("its event {0} cannot be described")]
    Undescribable(String),
}

/// An event that the kernel has and the module does not record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingEvent {
    /// Name, `group:event`; the group may be `?` where no header tells it.
    pub name: String,
    /// Why it is left out.
    pub reason: String,
}

/// A field as the kernel declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDeclaration {
    /// Name of the field.
    pub name: String,
    /// C type, without the brackets of an array.
    pub c_type: String,
    /// Bytes of an element.
    pub element_size: u32,
    /// Elements of a fixed array or bytes of a structure, else 0.
    pub count: u32,
    /// [`INTEGER`](crate::catalog::INTEGER), [`ARRAY`](crate::catalog::ARRAY), [`DYNAMIC`](crate::catalog::DYNAMIC) or
    /// [`OPAQUE`](crate::catalog::OPAQUE).
    pub kind: u8,
    /// Whether elements are signed.
    pub signed: bool,
}

/// What a module's file says about its events.
#[derive(Clone, Debug, Default)]
pub struct ModuleEvents {
    /// The event types, as the module will register them.
    pub events: Vec<EventDescription>,
    /// For each of them, the fields as the kernel declares them.
    pub declarations: Vec<Vec<FieldDeclaration>>,
    /// Events that the kernel has and the module does not record.
    pub missing: Vec<MissingEvent>,
}

impl ModuleEvents {
    /// The events of the module with the content `file`.
    ///
    /// # Errors
    /// When it is not a module of ours, or damaged.
    pub fn read(file: &[u8]) -> Result<Self, ModuleFileError> {
        let image = Image::new(file)?;
        let section = image.file.section_by_name(EVENTS).ok_or(ModuleFileError::NoEvents)?;
        let size = section.size();
        let count = usize::try_from(size).unwrap_or(0) / descriptor::EVENT_SIZE;
        let mut module = Self::default();
        let mut entry = [0; MAX_ENTRY];
        for index in 0..count {
            let at = Place { section: section.index(), offset: (index * descriptor::EVENT_SIZE) as u64 };
            let damaged = || ModuleFileError::Damaged { index };
            let (event, fields) = image.event(at).ok_or_else(damaged)?;
            let name = std::format!("{}:{}", event.system, event.name);
            let size = encode(index, &event, fields.iter().copied(), &mut entry);
            let size = size.ok_or_else(|| ModuleFileError::Undescribable(name.clone()))?;
            let parsed = parse(&entry[..size], &mut module.events);
            parsed.map_err(|_| ModuleFileError::Undescribable(name))?;
            module.declarations.push(fields.iter().map(declaration).collect());
        }
        if let Some(missing) = image.file.section_by_name(MISSING) {
            let text = missing.data()?.split(|&byte| byte == 0).next().unwrap_or_default();
            module.missing = String::from_utf8_lossy(text).lines().filter_map(parse_missing).collect();
        }
        Ok(module)
    }
}

fn declaration(field: &FieldDescriptor<'_>) -> FieldDeclaration {
    FieldDeclaration {
        name: field.name.into(),
        c_type: field.c_type.into(),
        element_size: field.size,
        count: field.count,
        kind: field.kind,
        signed: field.signed,
    }
}

fn parse_missing(line: &str) -> Option<MissingEvent> {
    let (name, reason) = line.split_once('\t')?;
    Some(MissingEvent { name: name.to_string(), reason: reason.to_string() })
}

/// A byte of the file's image.
#[derive(Clone, Copy)]
struct Place {
    section: SectionIndex,
    offset: u64,
}

impl Place {
    const fn plus(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes as u64, ..self }
    }
}

/// A relocatable object: its bytes, and what its pointers will point to.
struct Image<'a> {
    file: object::File<'a>,
    /// Targets of pointers by section and offset.
    pointers: BTreeMap<(usize, u64), Place>,
}

impl<'a> Image<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, ModuleFileError> {
        let file = object::File::parse(bytes)?;
        let mut pointers = BTreeMap::new();
        for section in file.sections() {
            for (offset, relocation) in section.relocations() {
                let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
                if relocation.flags() != (RelocationFlags::Elf { r_type: R_X86_64_64 }) {
                    continue;
                }
                let symbol = file.symbol_by_index(symbol)?;
                if let Some(target) = symbol.section_index() {
                    let to = symbol.address().wrapping_add_signed(relocation.addend());
                    pointers.insert((section.index().0, offset), Place { section: target, offset: to });
                }
            }
        }
        Ok(Self { file, pointers })
    }

    fn event(&self, at: Place) -> Option<(EventFacts<'a>, Vec<FieldDescriptor<'a>>)> {
        let event = EventFacts {
            system: self.text(at.plus(descriptor::EVENT_SYSTEM))?,
            name: self.text(at.plus(descriptor::EVENT_NAME))?,
            print: self.string(at.plus(descriptor::EVENT_PRINT))?,
            class: self.byte(at.plus(descriptor::EVENT_CLASS))?,
        };
        let count = self.number(at.plus(descriptor::EVENT_FIELD_COUNT))?;
        if count > MAX_FIELDS {
            return None;
        }
        let first = self.target(at.plus(descriptor::EVENT_FIELDS));
        let fields = (0..count).map(|index| self.field(first?.plus(index as usize * descriptor::FIELD_SIZE)));
        Some((event, fields.collect::<Option<_>>()?))
    }

    fn field(&self, at: Place) -> Option<FieldDescriptor<'a>> {
        Some(FieldDescriptor {
            name: self.text(at.plus(descriptor::FIELD_NAME))?,
            c_type: self.text(at.plus(descriptor::FIELD_TYPE))?,
            size: self.number(at.plus(descriptor::FIELD_ELEMENT_SIZE))?,
            count: self.number(at.plus(descriptor::FIELD_COUNT))?,
            kind: self.byte(at.plus(descriptor::FIELD_KIND))?,
            signed: self.byte(at.plus(descriptor::FIELD_SIGNED))? != 0,
            text: self.byte(at.plus(descriptor::FIELD_TEXT))? != 0,
        })
    }

    fn target(&self, pointer: Place) -> Option<Place> {
        self.pointers.get(&(pointer.section.0, pointer.offset)).copied()
    }

    fn rest(&self, at: Place) -> Option<&'a [u8]> {
        let data = self.file.section_by_index(at.section).ok()?.data().ok()?;
        data.get(usize::try_from(at.offset).ok()?..)
    }

    fn byte(&self, at: Place) -> Option<u8> {
        self.rest(at)?.first().copied()
    }

    fn number(&self, at: Place) -> Option<u32> {
        self.rest(at)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// The string that the pointer at `pointer` points to.
    fn string(&self, pointer: Place) -> Option<&'a [u8]> {
        let rest = self.rest(self.target(pointer)?)?;
        rest.get(..rest.iter().position(|&byte| byte == 0)?)
    }

    fn text(&self, pointer: Place) -> Option<&'a str> {
        std::str::from_utf8(self.string(pointer)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_no_module_is_refused() {
        assert!(matches!(ModuleEvents::read(b"text"), Err(ModuleFileError::Object(_))));
    }

    #[test]
    fn missing_events_are_lines_of_name_and_reason() {
        let missing = parse_missing("sched:x\tits header does not compile").unwrap();

        assert_eq!((missing.name.as_str(), missing.reason.as_str()), ("sched:x", "its header does not compile"));
        assert_eq!(parse_missing("no tab"), None);
    }
}
