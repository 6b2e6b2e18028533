//! One type name per concept: each type name is unique in the workspace, or an exception states the reason.

use std::collections::BTreeMap;
use std::path::Path;

use super::{code, first_word, walk};

/// Names of types that occur in more than one module, with the reason. Other names must be unique.
const TWICE: &[(&str, &str)] = &[
    (
        "one per part, written with its module: `activity::Config`, `intent::Settings`",
        "Config Settings",
    ),
    (
        "one per framing, transport or protocol side, written with its module",
        "Decoder Endpoint Exchange Item Line Session Unreadable",
    ),
    ("a command of the program as entered, and a command quoted in a text", "Command"),
    ("the same thing at two stages: written and read, or kept and shown", "Body Target"),
    ("the permissions of a token, and the requests to which a rule can apply", "Scope"),
    ("short names of one file each, used there and by its parent", "Start"),
];

/// Types that are visible outside of their module.
fn types(text: &str) -> impl Iterator<Item = &str> {
    code(text).filter_map(|(_, line)| {
        let line = line.trim_start().strip_prefix("pub")?;
        let line = line
            .strip_prefix('(')
            .map_or(Some(line), |rest| rest.split_once(')').map(|it| it.1))?;
        let mut words = line.split_whitespace();
        let kind = words.next().filter(|_| line.starts_with(' '))?;
        let is_type = ["struct", "enum", "trait", "type", "union"].contains(&kind);
        words.next().filter(|_| is_type).and_then(first_word)
    })
}

/// Names that occur in several files of `homes`, and exceptions that are no longer needed.
fn twice(homes: &BTreeMap<String, Vec<String>>, excepted: &[(&str, &str)]) -> Vec<String> {
    let is_excepted =
        |name: &str| excepted.iter().any(|(_, names)| names.split(' ').any(|it| it == name));
    let several = homes.iter().filter(|(name, homes)| homes.len() > 1 && !is_excepted(name));
    let names = excepted.iter().flat_map(|(_, names)| names.split(' '));
    let stale = names.filter(|name| homes.get(*name).is_none_or(|homes| homes.len() < 2));
    several
        .map(|(name, homes)| format!("{name} is in {}: rename it by its context", homes.join(", ")))
        .chain(stale.map(|name| format!("{name} occurs once: it needs no exception in TWICE")))
        .collect()
}

#[test]
fn type_names_are_unique_or_have_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut homes = BTreeMap::<String, Vec<String>>::new();
    walk(root, &root.join("src"), &mut |path, text| {
        if path.ends_with(".rs") {
            for name in types(text) {
                homes.entry(name.to_owned()).or_default().push(path.to_owned());
            }
        }
    });
    assert!(homes.len() > 100, "only {} types were found", homes.len());
    let found = twice(&homes, TWICE);
    assert!(found.is_empty(), "{} problems:\n{}", found.len(), found.join("\n"));
}

#[test]
fn types_defined_in_two_places_are_reported() {
    let text = "pub struct A;\npub(super) enum B {\n    pub(in crate::x) type C<T> = T;\nstruct D;\n\
                pub fn e() {}\npub use f::G;\n// pub struct H;\n";
    assert_eq!(types(text).collect::<Vec<_>>(), ["A", "B", "C"]);
    let homes = [("A", 2), ("B", 2), ("C", 1)]
        .map(|(name, count)| (name.to_owned(), vec!["src/x.rs".to_owned(); count]));
    let found = twice(&homes.into(), &[("a reason", "B C")]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("A is in") && found[1].starts_with("C occurs once"));
}
