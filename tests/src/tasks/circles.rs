//! Circles among the modules of a crate: siblings that import each other, by whatever way. Parents may use their children,
//! and these their parents; a parent's re-export stands for what it re-exports. Tests do not count.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Re-exports of re-exports that are followed.
const DEPTH: usize = 8;

/// Names of modules from the crate's root on, or a path below them.
type ModulePath = Vec<String>;

/// What a module's file says of others.
#[derive(Debug, Default)]
struct Module {
    /// Paths that product code uses, each with the modules inside the file that it stands in.
    used: Vec<(ModulePath, ModulePath)>,
    /// Names that the file's own `use` statements bring, and their paths.
    imported: BTreeMap<String, ModulePath>,
    /// Modules that only tests have.
    of_tests: BTreeSet<String>,
}

/// The modules of a crate.
#[derive(Debug, Default)]
pub(super) struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

impl Crate {
    /// Adds the file at `path`, below the folder `src`, which says `text`. What is not Rust is passed over: the compiler
    /// says so.
    pub(super) fn add(&mut self, path: &Path, text: &str) {
        let Ok(tokens) = text.parse::<TokenStream>() else { return };
        let mut module = Module::default();
        module.read(tokens, &mut Vec::new(), false);
        self.modules.insert(module_path(path), module);
    }

    /// The circles, one a line: the modules, and what each takes from the others.
    pub(super) fn circles(&self) -> Vec<String> {
        let mut levels: BTreeMap<&[String], Siblings<'_>> = BTreeMap::new();
        for (from, module) in self.modules.iter().filter(|(path, _)| !self.is_of_tests(path)) {
            let all = module.used.iter().filter_map(|(inline, path)| self.absolute(from, inline, path, 0));
            let targets: BTreeSet<&ModulePath> =
                all.filter_map(|path| self.home(path, 0)).filter(|path| !self.is_of_tests(path)).collect();
            for to in targets {
                let common = from.iter().zip(to).take_while(|(one, other)| one == other).count();
                if let (Some(one), Some(other)) = (from.get(common), to.get(common)) {
                    levels.entry(&from[..common]).or_default().add(
                        one,
                        other,
                        format!("{} of {}", name(to), name(from)),
                    );
                }
            }
        }
        levels.values().flat_map(Siblings::circles).collect()
    }

    fn is_of_tests(&self, path: &[String]) -> bool {
        (0..path.len()).any(|length| {
            self.modules.get(&path[..length]).is_some_and(|module| module.of_tests.contains(&path[length]))
        })
    }

    /// The path from the crate's root on of what `path` means in the modules `inline` of the file of `from`; `None` for
    /// what is another crate's.
    fn absolute(&self, from: &[String], inline: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let mut place = [from, inline].concat();
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "super" | "self" => {
                let ups = path.iter().take_while(|part| *part == "super" || *part == "self").count();
                for _ in path[..ups].iter().filter(|part| *part == "super") {
                    place.pop()?;
                }
                place.extend_from_slice(&path[ups..]);
                Some(place)
            }
            _ => {
                place.push(first.clone());
                if self.modules.contains_key(&place) {
                    place.extend_from_slice(rest);
                    return Some(place);
                }
                let imported = self.modules.get(from)?.imported.get(first)?;
                if depth > DEPTH || imported.first() == Some(first) {
                    return None;
                }
                let mut imported = self.absolute(from, &[], imported, depth + 1)?;
                imported.extend_from_slice(rest);
                Some(imported)
            }
        }
    }

    /// The module that has what is at `path`, from the crate's root on.
    fn home(&self, path: ModulePath, depth: usize) -> Option<&ModulePath> {
        let (home, module) = (0..=path.len()).rev().find_map(|length| self.modules.get_key_value(&path[..length]))?;
        let Some((first, rest)) = path[home.len()..].split_first() else { return Some(home) };
        let Some(imported) = module.imported.get(first).filter(|_| depth < DEPTH) else { return Some(home) };
        let mut imported = self.absolute(home, &[], imported, 0)?;
        imported.extend_from_slice(rest);
        if imported == path { Some(home) } else { self.home(imported, depth + 1) }
    }
}

impl Module {
    fn read(&mut self, tokens: TokenStream, inline: &mut ModulePath, is_test: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        // Whether an attribute says that what follows is a test's.
        let mut is_next_test = is_test;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    if let Some(TokenTree::Group(attribute)) = tokens.get(at) {
                        is_next_test |= is_for_tests(attribute);
                        at += 1;
                    }
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => is_next_test = is_test,
                TokenTree::Group(group) => {
                    self.read(group.stream(), inline, is_next_test);
                    if group.delimiter() == Delimiter::Brace {
                        is_next_test = is_test;
                    }
                }
                TokenTree::Ident(ident) if ident == "use" => {
                    self.import(&tokens, &mut at, &[], inline, is_next_test);
                    is_next_test = is_test;
                }
                TokenTree::Ident(ident) if ident == "mod" => match (tokens.get(at), tokens.get(at + 1)) {
                    (Some(TokenTree::Ident(name)), Some(TokenTree::Group(content))) => {
                        inline.push(name.to_string());
                        self.read(content.stream(), inline, is_next_test);
                        inline.pop();
                        (at, is_next_test) = (at + 2, is_test);
                    }
                    (Some(TokenTree::Ident(name)), _) if is_next_test => {
                        self.of_tests.insert(name.to_string());
                    }
                    _ => {}
                },
                TokenTree::Ident(first) => {
                    let mut path = vec![first.to_string()];
                    while let (true, Some(TokenTree::Ident(part))) = (is_separator(&tokens, at), tokens.get(at + 2)) {
                        path.push(part.to_string());
                        at += 3;
                    }
                    if path.len() > 1 && !is_next_test {
                        self.used.push((inline.clone(), path));
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// Takes in what a `use` statement imports, from its token `at` on, behind `before`.
    fn import(&mut self, tokens: &[TokenTree], at: &mut usize, before: &[String], inline: &[String], is_test: bool) {
        let mut path = before.to_vec();
        while let Some(token) = tokens.get(*at) {
            *at += 1;
            match token {
                TokenTree::Ident(ident) if ident == "as" => {
                    let name = tokens.get(*at).map(ToString::to_string).unwrap_or_default();
                    self.take_in(&name, std::mem::take(&mut path), inline, is_test);
                    *at += 1;
                }
                TokenTree::Ident(part) => path.push(part.to_string()),
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    let mut place = 0;
                    while place < inner.len() {
                        self.import(&inner, &mut place, &path, inline, is_test);
                    }
                    path.clear();
                }
                TokenTree::Punct(punct) if [',', ';'].contains(&punct.as_char()) => break,
                // All of a module.
                TokenTree::Punct(punct) if punct.as_char() == '*' => {
                    self.take_in("*", std::mem::take(&mut path), inline, is_test);
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        if path.len() > before.len() {
            // `self` stands for the module before it.
            if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            let name = path.last().cloned().unwrap_or_default();
            self.take_in(&name, path, inline, is_test);
        }
    }

    fn take_in(&mut self, name: &str, path: ModulePath, inline: &[String], is_test: bool) {
        if path.is_empty() {
            return;
        }
        if inline.is_empty() {
            self.imported.entry(name.to_owned()).or_insert_with(|| path.clone());
        }
        if !is_test {
            self.used.push((inline.to_vec(), path));
        }
    }
}

/// Modules of one parent, and which takes what from which.
#[derive(Debug, Default)]
struct Siblings<'m> {
    taken: BTreeMap<&'m String, BTreeMap<&'m String, String>>,
}

impl<'m> Siblings<'m> {
    /// `one` takes something from `other`, `what` for instance.
    fn add(&mut self, one: &'m String, other: &'m String, what: String) {
        self.taken.entry(one).or_default().entry(other).or_insert(what);
    }

    /// What `from` takes something from, at once or by others.
    fn below(&self, from: &'m String) -> BTreeSet<&'m String> {
        let (mut below, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            open.extend(
                self.taken.get(next).into_iter().flat_map(BTreeMap::keys).filter(|other| below.insert(**other)),
            );
        }
        below
    }

    fn circles(&self) -> Vec<String> {
        let below: BTreeMap<_, _> = self.taken.keys().map(|&module| (module, self.below(module))).collect();
        let is_above = |one: &String, other: &String| below.get(one).is_some_and(|below| below.contains(other));
        let mut reported = BTreeSet::new();
        let mut circles = Vec::new();
        for (&module, others) in &below {
            if !others.contains(module) || reported.contains(module) {
                continue;
            }
            let circle: BTreeSet<_> = others.iter().copied().filter(|other| is_above(other, module)).collect();
            let taken = circle.iter().flat_map(|one| self.taken.get(*one).into_iter().flatten());
            let taken: Vec<&str> =
                taken.filter(|(other, _)| circle.contains(*other)).map(|(_, what)| what.as_str()).collect();
            let names: Vec<&str> = circle.iter().map(|name| name.as_str()).collect();
            circles.push(format!("{} import each other: {}", names.join(", "), taken.join("; ")));
            reported.extend(circle);
        }
        circles
    }
}

/// The module whose file is at `path`, below the folder `src`.
fn module_path(path: &Path) -> ModulePath {
    let mut parts: ModulePath =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod" || parts.len() == 1 && ["lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

fn name(path: &[String]) -> String {
    if path.is_empty() { "the crate's root".into() } else { path.join("::") }
}

/// Whether `::` stands at `at`.
fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    let is_colon = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
    is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1))
}

/// Whether what follows the attribute is there for tests alone.
fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text.starts_with("cfg(") && text.contains("test") && !text.contains("not(test")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let mut made = Crate::default();
        files.iter().for_each(|(path, text)| made.add(Path::new(path), text));
        made.circles()
    }

    #[test]
    fn siblings_that_import_each_other_by_a_third_are_a_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::{One, Two as Other};"),
            ("b/mod.rs", "mod inner;"),
            ("b/inner.rs", "fn f() -> u8 { super::super::c::NUMBER }"),
            ("c.rs", "use super::a;\nuse super::d::X;"),
            ("d.rs", ""),
        ];

        assert_eq!(circles(&files), ["a, b, c import each other: b of a; c of b::inner; a of c"]);
    }

    #[test]
    fn re_export_of_the_parent_is_of_the_sibling_that_has_it() {
        let files = [
            ("lib.rs", "mod p;"),
            ("p.rs", "mod a; mod b; pub use self::a::{One, OTHER};"),
            ("p/a.rs", "use crate::p::b::B;"),
            ("p/b.rs", "macro!(super::One, 1);"),
        ];

        assert_eq!(circles(&files), ["a, b import each other: p::b of p::a; p::a of p::b"]);
    }

    #[test]
    fn parents_children_tests_and_other_crates_make_none() {
        let files = [
            ("lib.rs", "mod a; mod b; use a::One; #[cfg(test)] mod t;"),
            ("a.rs", "mod inner; use crate::b::B; use inner::Inner; use std::fmt;"),
            ("a/inner.rs", "use super::One; use super::super::Root;"),
            ("b.rs", "use b::x; #[cfg(test)] mod tests { use crate::a::One; } #[cfg(test)] use crate::a::One;"),
            ("t.rs", "use crate::a::One;"),
        ];

        assert_eq!(circles(&files), <[&str; 0]>::default());
    }
}
