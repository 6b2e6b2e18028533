//! `mcpproxy guide`: lists the pages of the guide, or prints one. The pages are embedded in the program.

use crate::error::CommandError;
use crate::format::{list, text};
use crate::guide::{GuidePage, PAGES};
use crate::output::Output;
use crate::table::{Column, Fit, cell};
use serde_json::{Value, json};

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
            let answer = json!({"page": page.name, "text": page.text});
            output.print(&answer.to_string(), |_| page.text.to_owned())
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
