//! `mcpproxy policy explain`: which rules decide a call, and what each of them sees.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cli::args::PolicyExplain;
use crate::cli::backend::Backend;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::Output;
use crate::cli::paragraph::Paragraph;
use crate::cli::suggest::{Vocabulary, suggesting};
use crate::cli::table::{Column, Fit, cell};
use crate::cli::terminal_safe::line;
use crate::cli::value_parsers::Arguments;

#[derive(Serialize)]
struct Asked<'a> {
    principal: &'a str,
    groups: &'a [String],
    tool: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'a str>,
    args: &'a RawValue,
}

pub(super) async fn run(
    flags: &PolicyExplain,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let arguments = Arguments::read(&flags.args).map_err(CommandError::usage)?;
    let asked = Asked {
        principal: &flags.principal,
        groups: &flags.groups,
        tool: &flags.tool,
        action: flags.action.as_deref(),
        args: arguments.raw(),
    };
    let body = serde_json::to_string(&asked).map_err(CommandError::failed)?;
    let told = backend.post("/api/v1/policy/explain", body).await;
    let told = suggesting(told, backend, Vocabulary::Tools, &flags.tool).await?;
    output.print(told.json()?, |told| draw(told, output))
}

fn draw(told: &Value, output: &Output) -> String {
    let mut outcome = line(&text(told, "/decision")).into_owned();
    let by: Vec<_> = list(told, "/decided_by").iter().filter_map(Value::as_str).collect();
    if !by.is_empty() {
        let _ = write!(outcome, " by {}", line(&by.join(", ")));
    }
    let why = text(told, "/text");
    if !why.is_empty() {
        let _ = write!(outcome, ": {why}");
    }
    let mut drawn = Paragraph::new(output.view.width).behind(2).text(&outcome) + "\n";
    let rules = list(told, "/rules");
    if rules.is_empty() {
        let _ = writeln!(drawn, "no rule is about such a call");
        return drawn;
    }
    let rows = rules.iter().map(|rule| {
        let saw = list(rule, "/saw").iter().map(|saw| {
            let value = text(saw, "/value");
            let value = if value.is_empty() { "(not there)" } else { &*value };
            format!("{} = {value}", text(saw, "/path"))
        });
        let outcome = match text(rule, "/error") {
            error if error.is_empty() => text(rule, "/outcome").into_owned(),
            error => format!("{}: {error}", text(rule, "/outcome")),
        };
        vec![
            cell(&text(rule, "/rule")).into(),
            text(rule, "/effect").into_owned().into(),
            cell(&outcome).into(),
            cell(&saw.collect::<Vec<_>>().join(", ")).into(),
            cell(&format!("{}:{}", text(rule, "/file"), text(rule, "/line"))).into(),
        ]
    });
    let columns = Column::all([
        ("RULE", Fit::Name),
        ("EFFECT", Fit::Rank(2)),
        ("OUTCOME", Fit::Name),
        ("SAW", Fit::Free),
        ("AT", Fit::Rank(3)),
    ]);
    drawn + &output.table(&columns, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_leaves_the_outcome_in_view() {
        for name in crate::cli::output::tests::names() {
            let told = serde_json::json!({"decision": "deny", "decided_by": [name], "text": name,
                "rules": [{"rule": name, "effect": "forbid", "outcome": "applies", "file": name,
                    "line": 7, "saw": [{"path": "context.arguments", "value": name}]}]});
            let keeps = ["deny by ", "applies", "OUTCOME"];
            crate::cli::output::tests::fits(|output| draw(&told, output), &keeps);
        }
    }
}
