//! Structures of the kernel's private headers, from its BTF, as C that compiles without those headers.
//!
//! `pahole` prints a structure with the offset of each member. What comes out here has the same members at the same
//! offsets, but for those whose types are private in turn: they and unions are padding.

use crate::kernel_image::{self, KernelError};
use object::{Object, ObjectSection};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Public structures that may stand as members, since trace headers look into them.
const PUBLIC: [&str; 5] = ["inode", "list_head", "rb_node", "backing_dev_info", "timerqueue_node"];

/// Public structures by whose sizes headers are compared with BTF, and the headers that define them.
const COMPARED: [(&str, &str); 7] = [
    ("task_struct", "linux/sched.h"),
    ("mm_struct", "linux/mm_types.h"),
    ("inode", "linux/fs.h"),
    ("super_block", "linux/fs.h"),
    ("sk_buff", "linux/skbuff.h"),
    ("net_device", "linux/netdevice.h"),
    ("module", "linux/module.h"),
];

/// Why BTF cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file has no BTF.
    #[error("{} holds no BTF: name a kernel (vmlinuz or its ELF file), or /sys/kernel/btf/vmlinux", .0.display())]
    NoBtf(PathBuf),
    /// The file is a kernel or another ELF file, without BTF.
    #[error(
        "{} has no section .BTF: it was built without CONFIG_DEBUG_INFO_BTF, or stripped; name the kernel as its \
         distribution packs it, or /sys/kernel/btf/vmlinux of a machine that runs it",
        .0.display()
    )]
    NoSection(PathBuf),
    /// The kernel does not come out of its image.
    #[error("cannot unpack {}", path.display())]
    Image {
        path: PathBuf,
        #[source]
        source: KernelError,
    },
    /// The BTF is damaged.
    #[error("the BTF in {} is damaged", .0.display())]
    Damaged(PathBuf),
    /// `pahole` could not be started.
    #[error("cannot start pahole: install the package dwarves")]
    Pahole(#[source] io::Error),
}

/// The BTF of a kernel.
#[derive(Clone, Debug)]
pub struct Btf {
    file: PathBuf,
    tracepoints: BTreeSet<String>,
    enumerators: BTreeMap<String, i32>,
    /// Sizes of structures, bytes.
    sizes: BTreeMap<String, u32>,
}

/// First two bytes of BTF.
const BTF_MAGIC: [u8; 2] = [0x9f, 0xeb];

impl Btf {
    /// The BTF in `source`, a raw BTF file, an ELF file with a `.BTF` section, or a kernel's image with such a file inside;
    /// kept as the file `copy`.
    ///
    /// # Errors
    /// When there is none, it is damaged, or a file cannot be used.
    pub fn open(source: &Path, copy: &Path) -> Result<Self, BtfError> {
        let error = |path: &Path| {
            let path = path.to_path_buf();
            move |source| BtfError::File { path, source }
        };
        let bytes = fs::read(source).map_err(error(source))?;
        let bytes = match kernel_image::extract(&bytes) {
            Ok(kernel) => kernel,
            // it is looked at itself
            Err(KernelError::NotABzImage(_)) => bytes,
            Err(error) => return Err(BtfError::Image { path: source.to_path_buf(), source: error }),
        };
        let raw = if bytes.starts_with(&BTF_MAGIC) { Some(bytes.as_slice()) } else { section(&bytes) };
        let without = || if bytes.starts_with(b"\x7fELF") { BtfError::NoSection } else { BtfError::NoBtf };
        let raw = raw.ok_or_else(|| without()(source.to_path_buf()))?;
        let names = names(raw).ok_or_else(|| BtfError::Damaged(source.to_path_buf()))?;
        fs::write(copy, raw).map_err(error(copy))?;
        Ok(Self { file: copy.to_path_buf(), ..names })
    }

    /// The value of the enumerator `name`.
    #[must_use]
    pub fn enumerator(&self, name: &str) -> Option<i32> {
        self.enumerators.get(name).copied()
    }

    /// The names of the kernel's tracepoints.
    #[must_use]
    pub const fn tracepoints(&self) -> &BTreeSet<String> {
        &self.tracepoints
    }

    /// A C file that compiles where the headers have structures of the same sizes, so that both are one kernel's.
    #[must_use]
    pub fn comparison(&self) -> String {
        let mut text = String::from("/* Generated: whether headers and BTF are those of one kernel. */\n");
        for (_, header) in COMPARED {
            text.push_str(&format!("#include <{header}>\n"));
        }
        for (name, size) in COMPARED.iter().filter_map(|(name, _)| Some((name, self.sizes.get(*name)?))) {
            text.push_str(&format!(
                "_Static_assert(sizeof(struct {name}) == {size}, \"the BTF is not that of the headers' kernel\");\n"
            ));
        }
        text
    }

    /// C that defines `structures`; those that the kernel has not are left out.
    ///
    /// # Errors
    /// When `pahole` cannot be started.
    pub fn definitions(&self, structures: &[&str]) -> Result<String, BtfError> {
        let mut text = String::new();
        for name in structures {
            let mut printed = self.pahole("-C", name)?;
            // of raw BTF, pahole 1.20 (Debian 11) prints no structure by its name, but those whose names begin so
            if printed.is_empty() && self.sizes.contains_key(*name) {
                printed = structure(name, &self.pahole("--prefix_filter", name)?).to_owned();
            }
            text.extend(definition(name, &printed, structures));
        }
        Ok(text)
    }

    /// What `pahole` prints of the structures that its option `filter` with the value `name` chooses.
    fn pahole(&self, filter: &str, name: &str) -> Result<String, BtfError> {
        let mut command = Command::new("pahole");
        let printed = command.arg(filter).arg(name).arg(&self.file).output().map_err(BtfError::Pahole)?;
        Ok(String::from_utf8_lossy(&printed.stdout).into_owned())
    }
}

fn section(file: &[u8]) -> Option<&[u8]> {
    object::File::parse(file).ok()?.section_by_name(".BTF")?.data().ok()
}

/// The tracepoints, enumerators and sizes of structures of `btf`; the kernel declares a type `btf_trace_NAME` for each tracepoint.
fn names(btf: &[u8]) -> Option<Btf> {
    const STRUCTURE: u32 = 4;
    const ENUMERATION: u32 = 6;
    const TYPEDEF: u32 = 8;
    const PREFIX: &[u8] = b"btf_trace_";
    let word = |at: usize| btf.get(at..at + 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let number = |at: usize| word(at).map(|word| word as usize);
    let base = number(4)?;
    let (mut at, strings) = (base + number(8)?, base + number(16)?);
    let text = |name: usize| btf.get(strings + name..)?.split(|&byte| byte == 0).next();
    let end = at + number(12)?;
    let mut names = Btf {
        file: PathBuf::new(),
        tracepoints: BTreeSet::new(),
        enumerators: BTreeMap::new(),
        sizes: BTreeMap::new(),
    };
    while at < end {
        let (name, info) = (number(at)?, word(at + 4)?);
        let (kind, members) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        if kind == TYPEDEF {
            let name = text(name)?.strip_prefix(PREFIX);
            names.tracepoints.extend(name.map(|name| String::from_utf8_lossy(name).into_owned()));
        }
        if kind == STRUCTURE && name != 0 {
            names.sizes.insert(String::from_utf8_lossy(text(name)?).into_owned(), word(at + 8)?);
        }
        if kind == ENUMERATION {
            for member in 0..members {
                let (name, value) = (number(at + 12 + 8 * member)?, word(at + 16 + 8 * member)?);
                names.enumerators.insert(String::from_utf8_lossy(text(name)?).into_owned(), value.cast_signed());
            }
        }
        at += 12
            + match kind {
                // int, variable, declaration tag
                1 | 14 | 17 => 4,
                // array
                3 => 12,
                // structure, union, 64-bit enumeration, data section
                4 | 5 | 15 | 19 => 12 * members,
                // enumeration, function prototype
                6 | 13 => 8 * members,
                0..=19 => 0,
                _ => return None,
            };
    }
    Some(names)
}

/// A member as `pahole` prints it.
struct Member<'a> {
    declaration: &'a str,
    /// Offset in its structure, bits.
    offset: usize,
    /// Size, bits.
    size: usize,
}

/// The structure called `name` among those that `pahole` printed; nothing where it is not there.
fn structure<'a>(name: &str, printed: &'a str) -> &'a str {
    let (begin, end) = (format!("struct {name} {{\n"), "\n};\n");
    let found = printed.match_indices(&begin).find(|(at, _)| *at == 0 || printed[..*at].ends_with('\n'));
    let rest = found.map_or("", |(at, _)| &printed[at..]);
    rest.find(end).map_or("", |at| &rest[..at + end.len()])
}

/// `printed`, the structure called `name`, with padding for members of structures that are neither public nor among
/// `known`.
fn definition(name: &str, printed: &str, known: &[&str]) -> Option<String> {
    let total = printed.lines().find_map(|line| line.trim().strip_prefix("/* size: "));
    let total: usize = total?.split(',').next()?.parse().ok()?;
    let mut text = format!("struct {name} {{\n");
    let mut at = 0;
    let mut depth = 0;
    let mut in_enumeration = false;
    for line in printed.lines() {
        let code = line.trim_start();
        // a union, structure or enumeration within: its end says what it is called and where it lies
        let mut line = line.to_owned();
        if depth > 0 || (line.starts_with('\t') && code.ends_with('{')) {
            in_enumeration |= depth == 0 && code.starts_with("enum");
            depth += usize::from(code.ends_with('{'));
            depth -= usize::from(code.starts_with('}'));
            if depth > 0 || !in_enumeration {
                continue;
            }
            in_enumeration = false;
            line = line.replacen('}', "unsigned int", 1);
        }
        let Some(member) = member(&line).filter(|member| is_plain(member, known)) else { continue };
        pad(&mut text, at, member.offset);
        text.push_str(&format!("\t{};\n", without_enumeration(member.declaration)));
        at = member.offset + member.size;
    }
    pad(&mut text, at, total * 8);
    text.push_str(&format!("}} __packed;\n_Static_assert(sizeof(struct {name}) == {total}, \"as in BTF\");\n"));
    Some(text)
}

/// An enumeration may be private too; as a member it is an integer.
fn without_enumeration(declaration: &str) -> String {
    match declaration.strip_prefix("enum ").and_then(|rest| rest.split_once(' ')) {
        Some((_, name)) if !declaration.contains('*') => format!("unsigned int {}", name.trim_start()),
        _ => declaration.to_owned(),
    }
}

/// Padding from bit `from` to bit `to`.
fn pad(text: &mut String, from: usize, to: usize) {
    let whole = from.next_multiple_of(8);
    if from < to && from < whole {
        text.push_str(&format!("\tunsigned int :{};\n", whole.min(to) - from));
    }
    if whole / 8 < to / 8 {
        text.push_str(&format!("\tchar padding_{}[{}];\n", whole / 8, to / 8 - whole / 8));
    }
    if whole < to && !to.is_multiple_of(8) {
        text.push_str(&format!("\tunsigned int :{};\n", to % 8));
    }
}

/// The member on a line such as `\tstruct list_head * next; /* 0 8 */` or `\tint flag:1; /* 8: 3 4 */`.
fn member(line: &str) -> Option<Member<'_>> {
    let (declaration, place) = line.strip_prefix('\t')?.split_once(';')?;
    let mut numbers = place.trim().strip_prefix("/*")?.split_whitespace();
    let (first, second) = (numbers.next()?, numbers.next()?);
    let bits = first.strip_suffix(':').map(|byte| (byte, second));
    let (offset, size) = match bits {
        Some((byte, bit)) => {
            let width = declaration.rsplit_once(':')?.1;
            (byte.parse::<usize>().ok()? * 8 + bit.parse::<usize>().ok()?, width.trim().parse().ok()?)
        }
        None => (first.parse::<usize>().ok()? * 8, second.parse::<usize>().ok()? * 8),
    };
    Some(Member { declaration: declaration.trim(), offset, size })
}

/// Whether the member's declaration compiles by itself: no flexible array, no structure that is unknown.
fn is_plain(member: &Member<'_>, known: &[&str]) -> bool {
    let words: Vec<&str> = member.declaration.split_whitespace().collect();
    let by_value = !member.declaration.contains('*');
    let structure = words.iter().position(|word| ["struct", "union"].contains(word));
    let unknown =
        structure.and_then(|at| words.get(at + 1)).is_some_and(|name| !PUBLIC.contains(name) && !known.contains(name));
    let attributed = member.declaration.contains("__attribute__");
    member.size > 0 && !attributed && !(by_value && unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_image::tests::image_of;
    use object::{Architecture, BinaryFormat, Endianness, SectionKind, write};
    use std::error::Error;

    const PRINTED: &str = "\
struct example {
	struct list_head           list;                 /*     0    16 */
	enum secret_state          secret;               /*    16     4 */
	struct private             more_secret;          /*    20     4 */

	/* XXX 4 bytes hole, try to pack */

	union {
		int                a;                    /*    28     4 */
		struct {
			int        b;                    /*    28     4 */
		};                                       /*    28     4 */
	};                                               /*    28     4 */
	const char  *              name;                 /*    32     8 */
	unsigned int               flag:2;               /*    40: 3  4 */
	void                       (*call)(int);         /*    48     8 */
	enum {
		ONE = 1,
	} state;                                         /*    56     4 */
	struct example *           more[];               /*    60     0 */

	/* size: 64, cachelines: 1, members: 7 */
};
";

    #[test]
    fn structure_is_found_among_those_whose_names_begin_alike() {
        let of = |name: &str| format!("struct {name} {{\n\tint x; /* 0 4 */\n\n\t/* size: 4, cachelines: 1 */\n}};\n");
        let printed = [of("pool_queue"), of("pool"), of("pool_stat")].join("\n");

        assert_eq!(structure("pool", &printed), of("pool"));
        assert_eq!(structure("poo", &printed), "");
    }

    #[test]
    fn members_keep_their_offsets_and_private_ones_are_padding() {
        let text = definition("example", PRINTED, &["example"]).unwrap();

        let expected = "struct example {\n\tstruct list_head           list;\n\tunsigned int secret;\n\tchar padding_20[12];\n\
                        \tconst char  *              name;\n\tunsigned int :3;\n\
                        \tunsigned int               flag:2;\n\tunsigned int :3;\n\tchar padding_41[7];\n\
                        \tvoid                       (*call)(int);\n\tunsigned int state;\n\tchar padding_60[4];\n\
                        } __packed;\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("sizeof(struct example) == 64"));
    }

    #[test]
    fn known_structures_are_members() {
        let text = definition("example", PRINTED, &["private"]).unwrap();

        assert!(text.contains("\tstruct private             more_secret;\n\tchar padding_24[8];"), "{text}");
    }

    /// BTF of a tracepoint, an enumerator and a structure.
    fn small_btf() -> Vec<u8> {
        let types = [1_u32, 8 << 24, 0, 11, 8 << 24, 0, 0, 6 << 24 | 1, 4, 1, u32::MAX, 11, 4 << 24 | 1, 96, 0, 1, 0];
        let strings = b"\0x_trace_a\0btf_trace_sched_switch\0";
        let mut btf = vec![0x9f, 0xeb, 1, 0];
        let length = u32::try_from(types.len() * 4).unwrap();
        for word in [24, 0, length, length, u32::try_from(strings.len()).unwrap()] {
            btf.extend(word.to_le_bytes());
        }
        btf.extend(types.into_iter().flat_map(u32::to_le_bytes));
        btf.extend(strings);
        btf
    }

    #[test]
    fn tracepoints_enumerators_and_sizes_are_found_by_name() {
        let btf = small_btf();

        let names = names(&btf).unwrap();
        assert_eq!(names.tracepoints().iter().collect::<Vec<_>>(), ["sched_switch"]);
        assert_eq!((names.enumerator("x_trace_a"), names.enumerator("none")), (Some(-1), None));
        assert_eq!(names.sizes.get("btf_trace_sched_switch"), Some(&96));
        assert!(super::names(&btf[..20]).is_none());
    }

    #[test]
    fn comparison_asserts_the_sizes_that_the_btf_has() {
        let sizes = BTreeMap::from([("task_struct".to_owned(), 9792), ("other".to_owned(), 8)]);
        let btf = Btf { file: PathBuf::new(), tracepoints: BTreeSet::new(), enumerators: BTreeMap::new(), sizes };

        let text = btf.comparison();

        assert!(text.contains("_Static_assert(sizeof(struct task_struct) == 9792,"), "{text}");
        assert_eq!(text.matches("_Static_assert").count(), 1);
    }

    #[test]
    fn btf_of_a_kernels_image_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (image, copy) = (folder.path().join("vmlinuz"), folder.path().join("btf"));
        let mut kernel = write::Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let section = kernel.add_section(Vec::new(), b".BTF".to_vec(), SectionKind::Other);
        kernel.append_section_data(section, &small_btf(), 1);
        fs::write(&image, image_of(&kernel.write().unwrap())).unwrap();

        let btf = Btf::open(&image, &copy).unwrap();

        assert_eq!(btf.tracepoints().iter().collect::<Vec<_>>(), ["sched_switch"]);
        assert_eq!(fs::read(&copy).unwrap(), small_btf());
    }

    #[test]
    fn file_without_btf_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vmlinux");
        fs::write(&file, "text").unwrap();

        let error = Btf::open(&file, &folder.path().join("btf")).unwrap_err();

        assert!(error.to_string().contains("holds no BTF"));
    }

    #[test]
    fn kernel_without_btf_is_not_advised_to_be_a_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let [plain, packed, unknown] = ["vmlinux", "vmlinuz", "unknown"].map(|name| folder.path().join(name));
        let kernel = write::Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little).write().unwrap();
        let mut of_unknown = image_of(&kernel);
        of_unknown[1024..1028].copy_from_slice(b"what");
        fs::write(&plain, &kernel).unwrap();
        fs::write(&packed, image_of(&kernel)).unwrap();
        fs::write(&unknown, of_unknown).unwrap();

        let errors = [&plain, &packed, &unknown].map(|file| Btf::open(file, &folder.path().join("btf")).unwrap_err());

        assert!(errors[..2].iter().all(|error| error.to_string().contains("CONFIG_DEBUG_INFO_BTF")), "{errors:?}");
        let cause = errors[2].source().unwrap().to_string();
        assert!(cause.contains("compressed by nothing that is known"), "{cause}");
    }
}
