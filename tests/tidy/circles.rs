//! No dependency cycles between files. Reads references between files from the syntax tree, and reports groups of files
//! that use each other.
//!
//! A re-export is followed to its original file, so a facade (`pub use`) does not count as a reference. Code built for
//! tests only is omitted.

#![expect(clippy::indexing_slicing, reason = "places are those of lists made here")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::Visit;

use super::walk;

/// Permitted cycles: all files of the cycle, and the reason.
const CIRCLES: &[(&[&str], &str)] = &[];

/// Crates of the workspace, by their folders below `src`.
const CRATES: &[&str] = &[
    "activity",
    "admin",
    "catalog",
    "cli",
    "config",
    "downstream",
    "fleet",
    "gateway",
    "json",
    "policy",
    "protocol",
    "runtime",
    "schema",
    "server",
    "upstream",
];

/// Prefix of the names of these crates.
const OURS: &str = "mcpproxy_";

/// Maximum number of re-exports that are followed.
const MAX_HOPS: usize = 8;

/// Path of an item from the root of the workspace: the name of the crate's folder, then the names within the crate.
type Names = Vec<String>;

/// References of a file to other files.
#[derive(Default)]
struct File {
    path: String,
    /// Module of the file.
    module: Names,
    /// Root of its crate.
    root: Names,
    /// Names bound by `use`, with their paths.
    bindings: BTreeMap<String, Names>,
    /// Paths used by the file, as written.
    used: Vec<Names>,
    /// Modules declared here for tests only.
    test_modules: Vec<String>,
    /// Current nesting of inline modules.
    depth: usize,
}

impl File {
    #[expect(clippy::panic, reason = "a source that is no Rust has no graph")]
    fn new(path: &str, text: &str) -> Self {
        let inner = path.trim_start_matches("src/").trim_end_matches(".rs");
        let module: Names =
            inner.split('/').filter(|name| *name != "lib").map(str::to_owned).collect();
        let mut root = module.get(..1).unwrap_or_default().to_vec();
        root.retain(|name| CRATES.contains(&name.as_str()));
        let mut file = Self { path: path.to_owned(), module, root, ..Self::default() };
        file.visit_file(&syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}")));
        file
    }

    /// `names` as a path from the root of the workspace; `None` for a path into another crate.
    fn absolute(&self, names: &[String], children: &BTreeMap<Names, usize>) -> Option<Names> {
        let (first, rest) = names.split_first()?;
        let mut base = match first.as_str() {
            "crate" => self.root.clone(),
            name if name.starts_with(OURS) => vec![name.trim_start_matches(OURS).to_owned()],
            "self" => self.module.clone(),
            "super" => self.module.split_last()?.1.to_vec(),
            name => match self.bindings.get(name) {
                // A name bound to a path that begins with itself would cause infinite recursion.
                Some(bound) if bound.first() != Some(first) => self.absolute(bound, children)?,
                _ => {
                    let child = [&self.module[..], std::slice::from_ref(first)].concat();
                    children.contains_key(&child).then_some(child)?
                }
            },
        };
        for name in rest {
            if name == "super" {
                base.pop()?;
            } else {
                base.push(name.clone());
            }
        }
        Some(base)
    }

    fn bind(&mut self, tree: &syn::UseTree, prefix: &mut Names, shown: bool) {
        let (name, last) = match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.bind(&path.tree, prefix, shown);
                prefix.pop();
                return;
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.bind(tree, prefix, shown);
                }
                return;
            }
            syn::UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            syn::UseTree::Rename(rename) => (rename.rename.to_string(), rename.ident.to_string()),
            syn::UseTree::Glob(_) => (String::from("*"), String::new()),
        };
        let mut full = prefix.clone();
        if last == "self" {
            let name = full.last().cloned().unwrap_or_default();
            self.bindings.insert(name, full.clone());
        } else {
            full.extend((!last.is_empty()).then_some(last));
            self.bindings.insert(name, full.clone());
        }
        if !shown {
            self.used.push(full);
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<syn::Path>()
                    .is_ok_and(|condition| condition.is_ident("test")))
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(it) => &it.attrs,
        syn::Item::Impl(it) => &it.attrs,
        syn::Item::Mod(it) => &it.attrs,
        syn::Item::Use(it) => &it.attrs,
        syn::Item::Struct(it) => &it.attrs,
        syn::Item::Enum(it) => &it.attrs,
        syn::Item::Const(it) => &it.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for File {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_for_tests(attributes(item)) {
            if let syn::Item::Mod(module) = item {
                self.test_modules.push(module.ident.to_string());
            }
            return;
        }
        syn::visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            syn::visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.depth += 1;
        syn::visit::visit_item_mod(self, module);
        self.depth -= 1;
    }

    /// Ignores `pub(super)` and the like, which limit the visibility of an item and are not references.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let shown = !matches!(item.vis, syn::Visibility::Inherited);
        self.bind(&item.tree, &mut Names::new(), shown);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && self.depth == 0 {
            self.used.push(path.segments.iter().map(|part| part.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, macro_: &'ast syn::Macro) {
        // The tokens of a macro are not parsed: words joined by `::` count as paths.
        let text = macro_.tokens.to_string().replace(" :: ", "::");
        let part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for word in text.split(|c| !part(c)).filter(|word| word.contains("::")) {
            self.used.push(word.split("::").map(str::to_owned).collect());
        }
        syn::visit::visit_macro(self, macro_);
    }
}

/// References from each file to the files it uses, as indices of `files`.
fn arrows(files: &[File]) -> Vec<BTreeSet<usize>> {
    let modules: BTreeMap<Names, usize> =
        files.iter().enumerate().map(|(at, file)| (file.module.clone(), at)).collect();
    files
        .iter()
        .enumerate()
        .map(|(from, file)| {
            let absolute = file.used.iter().filter_map(|used| file.absolute(used, &modules));
            absolute
                .filter_map(|names| home(&names, files, &modules, MAX_HOPS))
                .filter(|to| *to != from)
                .collect()
        })
        .collect()
}

/// File that defines the item `names`.
fn home(
    names: &[String],
    files: &[File],
    modules: &BTreeMap<Names, usize>,
    hops: usize,
) -> Option<usize> {
    let depth = (0..=names.len()).rev().find(|depth| modules.contains_key(&names[..*depth]))?;
    let at = *modules.get(&names[..depth])?;
    let rest = &names[depth..];
    let Some((first, more)) = rest.split_first().filter(|_| hops > 0) else { return Some(at) };
    let Some(bound) = files[at].bindings.get(first) else { return Some(at) };
    let Some(mut names) = files[at].absolute(bound, modules) else { return Some(at) };
    names.extend_from_slice(more);
    home(&names, files, modules, hops - 1)
}

/// Groups of files in which each file can be reached from every other one.
fn circles(arrows: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..arrows.len())
        .map(|from| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(at) = next.pop() {
                next.extend(arrows[at].iter().filter(|to| seen.insert(**to)));
            }
            seen
        })
        .collect();
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for at in 0..arrows.len() {
        if reached[at].contains(&at) && !done.contains(&at) {
            let group: Vec<usize> =
                reached[at].iter().copied().filter(|to| reached[*to].contains(&at)).collect();
            done.extend(group.iter().copied());
            found.push(group);
        }
    }
    found
}

/// Cycles without an exception, with their references, and exceptions that are no longer needed.
fn problems(files: &[File], excepted: &[(&[&str], &str)]) -> Vec<String> {
    let arrows = arrows(files);
    let name = |at: &usize| files[*at].path.trim_start_matches("src/");
    let mut unneeded: Vec<&[&str]> = excepted.iter().map(|(circle, _)| *circle).collect();
    let mut found = Vec::new();
    for group in circles(&arrows) {
        let names: Vec<&str> = group.iter().map(name).collect();
        if let Some(at) = unneeded.iter().position(|circle| *circle == names) {
            unneeded.swap_remove(at);
            continue;
        }
        let within = |at: &usize| -> Vec<&str> {
            arrows[*at].iter().filter(|to| group.contains(to)).map(name).collect()
        };
        let lines =
            group.iter().map(|at| format!("\n    {} uses {}", name(at), within(at).join(", ")));
        found.push(format!("a circle of {} files:{}", group.len(), lines.collect::<String>()));
    }
    found.extend(unneeded.iter().map(|circle| format!("{circle:?} is no longer a circle")));
    found
}

#[test]
fn files_do_not_use_each_other_in_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    walk(root, &root.join("src"), &mut |path, text| {
        if path.ends_with(".rs") && path != "src/main.rs" {
            files.push(File::new(path, text));
        }
    });
    let for_tests: BTreeSet<Names> = files
        .iter()
        .flat_map(|file| {
            file.test_modules
                .iter()
                .map(|name| [&file.module[..], std::slice::from_ref(name)].concat())
        })
        .collect();
    files.retain(|file| !for_tests.iter().any(|module| file.module.starts_with(module)));
    assert!(files.len() > 100, "only {} files were read", files.len());
    let found = problems(&files, CIRCLES);
    assert!(found.is_empty(), "{} problems:\n{}", found.len(), found.join("\n"));
}

#[test]
fn circles_are_reported() {
    let files = |texts: &[(&str, &str)]| -> Vec<File> {
        texts.iter().map(|(path, text)| File::new(&format!("src/{path}.rs"), text)).collect()
    };
    for (texts, count) in [
        (&[("a", "use crate::b::B;"), ("b", "fn f() { crate::a::g() }")][..], 1),
        (&[("a", "use crate::b::B;"), ("b", "#[cfg(test)] mod tests { use crate::a::A; }")], 0),
        (&[("a", "mod b; pub use b::B;"), ("a/b", "use super::c::C;"), ("a/c", "")], 0),
        (&[("a", "mod b; fn f() { b::f() }"), ("a/b", "use super::A;")], 1),
        (&[("a", "mod b; fn f() { b::f() }"), ("a/b", "pub(super) fn f() {}")], 0),
        // The file of a facade is not the file that it re-exports.
        (
            &[
                ("a", "pub mod b; pub use b::B; fn g(x: c::C) {} mod c;"),
                ("a/b", ""),
                ("a/c", "use super::B;"),
            ],
            0,
        ),
        (
            &[
                ("a", "fn f() { format!(\"{}\", crate::b::X) }"),
                ("b", "use crate::{a, c};"),
                ("c", ""),
            ],
            1,
        ),
        (&[("a", "use crate::b::B;"), ("b", "use crate::c::C;"), ("c", "use crate::a::A;")], 1),
        // Within a crate, paths begin at its own root.
        (&[("json/a", "use crate::b::B;"), ("json/b", "use mcpproxy_json::a::A;")], 1),
        (&[("json/a", "use crate::b::B;"), ("b", "use crate::a::A;"), ("json/b", "")], 0),
    ] {
        assert_eq!(problems(&files(texts), &[]).len(), count, "{texts:?}");
    }
    let pair = files(&[("a", "use crate::b::B;"), ("b", "use crate::a::A;")]);
    assert!(problems(&pair, &[(&["a.rs", "b.rs"], "a reason")]).is_empty());
    let stale = problems(&files(&[("a", "")]), &[(&["a.rs", "b.rs"], "a reason")]);
    assert_eq!(stale.len(), 1, "{stale:?}");
}
