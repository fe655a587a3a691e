//! The kernel's own description of its types (BTF): where the members of its structures lie.
//!
//! Pure: bytes in, offsets out. Reference: `Documentation/bpf/btf.rst` of the Linux kernel.

use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
/// Bytes that every type begins with.
const TYPE_BYTES: usize = 12;
/// Anonymous structures inside anonymous structures that are looked into.
const MAX_DEPTH: u32 = 8;

const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;

/// Why a description of types cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// It does not begin as one, or ends early.
    #[error("the description of the kernel's types (BTF) is damaged")]
    Damaged,
    /// It has something that this reader does not know.
    #[error("the description of the kernel's types (BTF) has types of the unknown kind {0}")]
    Kind(u32),
}

/// Where a member lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Bits from the start of the structure.
    pub bits: u32,
    /// Its type.
    ty: u32,
}

impl Member {
    /// Bytes from the start of the structure.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.bits / 8
    }
}

/// Types of a kernel.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins among `types`; the first has the id 1.
    places: Vec<usize>,
    /// Structures by name.
    structures: HashMap<&'a [u8], u32>,
}

impl<'a> Btf<'a> {
    /// Reads the section `.BTF`.
    ///
    /// # Errors
    /// It is damaged, or newer than this reader.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        let word = |at: usize| read_u32(bytes, at).ok_or(BtfError::Damaged);
        if bytes.get(..2) != Some(&MAGIC.to_le_bytes()) {
            return Err(BtfError::Damaged);
        }
        let part = |offset: u32, length: u32, header: u32| {
            let start = usize::try_from(u64::from(header) + u64::from(offset)).ok()?;
            bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)
        };
        let header = word(4)?;
        let types = part(word(8)?, word(12)?, header).ok_or(BtfError::Damaged)?;
        let strings = part(word(16)?, word(20)?, header).ok_or(BtfError::Damaged)?;
        let mut btf = Self { types, strings, places: Vec::new(), structures: HashMap::new() };
        btf.index()?;
        Ok(btf)
    }

    fn index(&mut self) -> Result<(), BtfError> {
        let mut place = 0;
        while place < self.types.len() {
            let (kind, count) = self.kind_at(place).ok_or(BtfError::Damaged)?;
            let behind = match kind {
                1 | 14 | 17 => 4,
                2 | 7..=12 | 16 | 18 => 0,
                3 => 12,
                STRUCT | UNION | 15 | 19 => 12 * count,
                ENUM | 13 => 8 * count,
                other => return Err(BtfError::Kind(other)),
            };
            self.places.push(place);
            if kind == STRUCT
                && let Some(name) = self.name_at(place)
                && !name.is_empty()
            {
                let id = u32::try_from(self.places.len()).map_err(|_| BtfError::Damaged)?;
                self.structures.entry(name).or_insert(id);
            }
            place += TYPE_BYTES + behind;
        }
        Ok(())
    }

    /// Kind of the type at `place`, and how many members it has.
    fn kind_at(&self, place: usize) -> Option<(u32, usize)> {
        let info = read_u32(self.types, place + 4)?;
        Some((info >> 24 & 0x1f, usize::try_from(info & 0xffff).ok()?))
    }

    fn name_at(&self, place: usize) -> Option<&'a [u8]> {
        let start = usize::try_from(read_u32(self.types, place)?).ok()?;
        let name = self.strings.get(start..)?;
        Some(&name[..name.iter().position(|byte| *byte == 0)?])
    }

    fn place(&self, id: u32) -> Option<usize> {
        self.places.get(usize::try_from(id).ok()?.checked_sub(1)?).copied()
    }

    /// Size of the structure `name`, bytes.
    #[must_use]
    pub fn size(&self, name: &str) -> Option<u32> {
        let place = self.place(*self.structures.get(name.as_bytes())?)?;
        read_u32(self.types, place + 8)
    }

    /// Where a member of the structure `name` lies, also one of an anonymous part; `path` names it, and members of it.
    #[must_use]
    pub fn member(&self, name: &str, path: &[&str]) -> Option<Member> {
        let mut found = Member { bits: 0, ty: *self.structures.get(name.as_bytes())? };
        for part in path {
            let inner = self.member_of(found.ty, part.as_bytes(), MAX_DEPTH)?;
            found = Member { bits: found.bits.checked_add(inner.bits)?, ty: inner.ty };
        }
        Some(found)
    }

    fn member_of(&self, id: u32, name: &[u8], depth: u32) -> Option<Member> {
        let place = self.place(id)?;
        let (STRUCT | UNION, count) = self.kind_at(place)? else { return None };
        let has_bit_fields = read_u32(self.types, place + 4)? >> 31 != 0;
        for index in 0..count {
            let at = place + TYPE_BYTES + 12 * index;
            let ty = read_u32(self.types, at + 4)?;
            let offset = read_u32(self.types, at + 8)?;
            let bits = if has_bit_fields { offset & 0xff_ffff } else { offset };
            let known = self.name_at(at)?;
            if known == name {
                return Some(Member { bits, ty });
            }
            if known.is_empty()
                && depth > 0
                && let Some(inner) = self.member_of(ty, name, depth - 1)
            {
                return Some(Member { bits: bits.checked_add(inner.bits)?, ty: inner.ty });
            }
        }
        None
    }

    /// The value of the enumerator `name`.
    #[must_use]
    pub fn enumerator(&self, name: &str) -> Option<u32> {
        self.places.iter().find_map(|&place| {
            let (ENUM, count) = self.kind_at(place)? else { return None };
            let mut all = (0..count).map(|index| place + TYPE_BYTES + 8 * index);
            let at = all.find(|&at| self.name_at(at) == Some(name.as_bytes()))?;
            read_u32(self.types, at + 4)
        })
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct outer { int first; union { int second; }; }`, `enum { VALUE = 16 }`.
    fn section() -> Vec<u8> {
        let strings = b"\0outer\0first\0second\0VALUE\0int\0";
        let types: [u32; 26] = [
            26,
            1 << 24,
            4,
            0x20, // 1: int
            0,
            5 << 24 | 1,
            4,
            13,
            1,
            0, // 2: the union
            1,
            4 << 24 | 2,
            8,
            7,
            1,
            0,
            0,
            2,
            32, // 3: outer
            0,
            6 << 24 | 1,
            4,
            20,
            16, // 4: the enumeration
            0,
            2 << 24, // 5: a pointer, its last word below
        ];
        let mut types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        types.extend(1_u32.to_le_bytes());
        let header = [24, 0, types.len(), types.len(), strings.len()].map(|word| u32::try_from(word).unwrap());
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        bytes.extend(header.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn members_are_found_in_anonymous_parts_too() {
        let bytes = section();
        let btf = Btf::parse(&bytes).unwrap();

        assert_eq!(btf.member("outer", &["second"]).map(Member::bytes), Some(4));
        assert_eq!(btf.member("outer", &["first"]).map(Member::bytes), Some(0));
        assert_eq!(btf.member("outer", &["third"]), None);
        assert_eq!((btf.size("outer"), btf.size("inner")), (Some(8), None));
        assert_eq!((btf.enumerator("VALUE"), btf.enumerator("OTHER")), (Some(16), None));
    }

    #[test]
    fn what_ends_early_is_damaged() {
        let bytes = section();

        assert_eq!(Btf::parse(&bytes[..bytes.len() - 1]).unwrap_err(), BtfError::Damaged);
        assert_eq!(Btf::parse(b"ELF").unwrap_err(), BtfError::Damaged);
    }

    #[test]
    fn unknown_kind_is_named() {
        let mut bytes = section();
        bytes[24 + 7] = 30;

        assert_eq!(Btf::parse(&bytes).unwrap_err(), BtfError::Kind(30));
    }
}
