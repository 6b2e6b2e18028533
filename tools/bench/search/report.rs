//! The tables: one for the short catalogs and one for all tools. Each has a row for all questions, then rows by kind
//! and by language.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::golden::{Golden, GoldenTool, Part};
use crate::measure::Sums;

/// Searches each catalog for the questions of `part`; `index` creates the search over the tools of a catalog. Returns
/// the tables.
pub(crate) fn report<S: Fn(&str) -> Vec<String>>(
    golden: &Golden,
    part: Part,
    each: bool,
    index: impl Fn(&[&GoldenTool]) -> S,
) -> String {
    let mut text = String::new();
    let catalogs = golden.short.iter().map(|selection| {
        let tools = golden.tools.iter().filter(|tool| selection.servers.contains(&tool.server));
        (&*selection.name, tools.collect::<Vec<_>>())
    });
    let catalogs: Vec<_> = catalogs.collect();
    let sizes: Vec<_> =
        catalogs.iter().map(|(name, tools)| format!("{name} {}", tools.len())).collect();
    let _ = writeln!(text, "Short catalogs ({}), {part:?}\n", sizes.join(", "));
    asked(&mut text, golden, part, each, &catalogs, &index);
    let all: Vec<_> = golden.tools.iter().collect();
    let _ = writeln!(text, "\nAll {} tools, {part:?}\n", all.len());
    asked(&mut text, golden, part, each, &[("all", all)], &index);
    text
}

fn asked<S: Fn(&str) -> Vec<String>>(
    text: &mut String,
    golden: &Golden,
    part: Part,
    each: bool,
    catalogs: &[(&str, Vec<&GoldenTool>)],
    index: &impl Fn(&[&GoldenTool]) -> S,
) {
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    let mut missed = String::new();
    for (name, tools) in catalogs {
        let search = index(tools);
        let known: BTreeMap<&str, bool> =
            tools.iter().map(|tool| (&*tool.name, tool.destructive)).collect();
        for question in golden.questions.iter().filter(|question| question.part == part) {
            let right = question.right.iter().map(|(name, grade)| (&**name, *grade));
            let right: BTreeMap<&str, u32> =
                right.filter(|(name, _)| known.contains_key(name)).collect();
            let meant = right.values().any(|grade| *grade == 2);
            if !question.right.is_empty() && !meant {
                // The question asks for servers that are not in this catalog.
                continue;
            }
            let found = search(&question.text);
            let destructive = |name: &str| known.get(name).copied().unwrap_or_default();
            let (kind, language) = (&question.kind, &question.language);
            for group in ["all".into(), format!("kind {kind}"), format!("language {language}")] {
                sums.entry(group).or_default().count(question, &right, &found, destructive);
            }
            let mut own = Sums::default();
            own.count(question, &right, &found, destructive);
            let first: Vec<_> = found.iter().take(5).map(|name| &**name).collect();
            if each && own.destroys_first() {
                let _ = writeln!(
                    missed,
                    "- {name}: {}: a destructive tool is first for a reading question: found {}",
                    question.text,
                    first.join(" ")
                );
            }
            if each && own.missed() {
                let right: Vec<_> = right.keys().copied().collect();
                let place = found.iter().position(|name| right.contains(&&**name));
                let _ = writeln!(
                    missed,
                    "- {name}: {}: {} (at {place:?}), found {}",
                    question.text,
                    right.join(" "),
                    first.join(" ")
                );
            }
        }
    }
    let _ = writeln!(text, "{}", Sums::head());
    for (name, sums) in &sums {
        let _ = writeln!(text, "{}", sums.row(name));
    }
    let _ = write!(text, "{missed}");
}
