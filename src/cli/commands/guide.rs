//! `mcpproxy guide`: lists the pages of the guide, or prints one: as text at a terminal, else as Markdown.

use crate::error::CommandError;
use crate::format::{list, text};
use crate::guide::{GuidePage, PAGES};
use crate::markdown;
use crate::output::Output;
use crate::table::{Column, Fit, cell};
use crate::terminal_safe::line;
use serde_json::{Value, json};

/// Runs the command.
pub(super) fn run(
    page: Option<&str>,
    section: Option<&str>,
    output: &Output,
) -> Result<(), CommandError> {
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
            let shown = match section {
                None => page.text.to_owned(),
                Some(words) => page.sections(words),
            };
            if shown.is_empty() {
                let words = section.unwrap_or_default();
                let meant = page.similar_section(words);
                let meant = meant.map(|it| format!("did you mean '{it}'? ")).unwrap_or_default();
                let headings = page.headings().join("', '");
                return Err(CommandError::usage(format!(
                    "no heading of this page contains '{}': {meant}its sections are '{headings}'",
                    line(words)
                )));
            }
            let answer = json!({"page": page.name, "text": shown});
            output.print(&answer.to_string(), |_| match output.terminal {
                true => {
                    markdown::render(&shown, output.view, |target| link_hint(page.name, target))
                }
                false => shown.clone(),
            })
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
    output.table(&columns, rows.collect()) + "Print one with: mcpproxy guide PAGE [SECTION]\n"
}

/// Text after a link on this page: the command that prints the linked page or section, or the address.
fn link_hint(on: &str, target: &str) -> Option<String> {
    let (file, section) = target.split_once('#').unwrap_or((target, ""));
    let file = file.strip_prefix("src/guide/").unwrap_or(file);
    let name = file.trim_end_matches(".md").replace('_', "-");
    match found(if name.is_empty() { on } else { &name }) {
        Some(page) => Some(format!("mcpproxy guide {} {section}", page.name).trim_end().to_owned()),
        None => (!file.is_empty()).then(|| target.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Colors;
    use crate::table::TableView;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn link_is_followed_by_the_command_that_prints_its_page() {
        let text = "the page [A](fleet_setup.md#steps), [b](#x), [c](https://h)";
        let drawn =
            markdown::render(text, TableView { width: None, colors: Colors::Plain }, |target| {
                link_hint("policy", target)
            });
        assert_eq!(
            drawn,
            "the page A [mcpproxy guide fleet-setup steps], b [mcpproxy guide policy x], c\n[https://h]\n"
        );
    }

    #[test]
    fn pages_are_readable_at_80_and_100_columns() {
        for (page, width) in PAGES.iter().flat_map(|page| [(page, 80), (page, 100)]) {
            let view = TableView { width: Some(width), colors: Colors::Plain };
            let drawn = markdown::render(page.text, view, |target| link_hint(page.name, target));
            let code = page.text.split("```").skip(1).step_by(2).flat_map(str::lines);
            let code: Vec<_> = code.map(str::trim).collect();
            for line in drawn.lines().filter(|line| !code.contains(&line.trim())) {
                assert!(line.width() <= width, "{}: {line}", page.name);
                let markup = ["|---", "](", "**", "<t", "</", "```"];
                assert!(!markup.iter().any(|it| line.contains(it)), "{}: {line}", page.name);
            }
            for line in code.iter().filter(|line| line.contains(' ')) {
                assert!(
                    drawn.contains(line) || page.text.contains(&format!("```{line}")),
                    "{line}"
                );
            }
        }
    }
}
