//! `mcpproxy guide`: lists the pages of the handbook, or prints one. The pages are embedded in the program.

use crate::error::CommandError;
use crate::format::{list, text};
use crate::guide::{GuidePage, PAGES};
use crate::output::Output;
use crate::table::{Column, Fit, cell};
use serde_json::{Value, json};

/// Beginning of a link to another page, as written for rustdoc.
const LINK: &str = "](crate::guide::";

/// Runs the command.
pub(super) fn run(page: Option<&str>, output: &Output) -> Result<(), CommandError> {
    match page {
        None => {
            let pages: Vec<_> =
                PAGES.iter().map(|page| json!({"page": page.name, "about": page.about})).collect();
            output.print(&json!({"pages": pages}).to_string(), |pages| draw(pages, output))
        }
        Some(name) => {
            let page = found(name).ok_or_else(|| {
                CommandError::usage(format!("there is no page '{name}': see mcpproxy guide"))
            })?;
            let printed = with_commands(page.text);
            let answer = json!({"page": page.name, "text": printed});
            output.print(&answer.to_string(), |_| printed)
        }
    }
}

/// Returns the page with this name.
fn found(name: &str) -> Option<&'static GuidePage> {
    PAGES.iter().find(|page| page.name == name)
}

fn draw(pages: &Value, output: &Output) -> String {
    let rows = list(pages, "/pages")
        .iter()
        .map(|page| ["/page", "/about"].map(|at| cell(&text(page, at)).into()).to_vec());
    let columns = Column::all([("PAGE", Fit::Whole), ("CONTENT", Fit::Free)]);
    output.table(&columns, rows.collect()) + "Print one with: mcpproxy guide PAGE\n"
}

/// Replaces links to other pages with the commands that print these pages.
fn with_commands(page: &str) -> String {
    let mut parts = page.split(LINK);
    let mut printed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_once(')').unwrap_or((part, ""));
        let module = target.split('#').next().unwrap_or_default();
        printed += &format!("](mcpproxy guide {}){rest}", module.replace('_', "-"));
    }
    printed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_pages_are_printed_as_commands() {
        let page = "[a](crate::guide::fleet_setup), [b](crate::guide::security#x). [c](https://h), [d](#e)";
        let expected = "[a](mcpproxy guide fleet-setup), [b](mcpproxy guide security). [c](https://h), [d](#e)";
        assert_eq!(with_commands(page), expected);
        for page in PAGES {
            let printed = with_commands(page.text);
            assert!(!printed.contains("](crate::"), "{}", page.name);
            let linked = printed.split("](mcpproxy guide ").skip(1);
            for name in linked.filter_map(|rest| rest.split(')').next()) {
                assert!(found(name).is_some(), "{}: {name}", page.name);
            }
        }
    }
}
