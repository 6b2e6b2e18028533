//! `mcpproxy policy check`: every problem of rules with its place.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::inputs::{chosen, seen_tools};
use crate::cli::args::Global;
use crate::cli::counted::counted;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::load_config;
use crate::cli::output::Output;
use crate::cli::paragraph::Paragraph;
use crate::config::rule_files;
use crate::os::bounded_file::{NamedPipes, PIPE_WAIT};
use crate::policy::rules::{RuleProblem, RuleSet};

pub(super) fn run(files: &[PathBuf], global: &Global, output: &Output) -> Result<(), CommandError> {
    let config = load_config::load(global, None)?.config;
    let (_catalog, known) = seen_tools(&config);
    let rules = chosen(files, &config);
    let texts = rule_files::texts(&rules, NamedPipes::Awaited(PIPE_WAIT));
    let set = texts.and_then(|texts| RuleSet::load(&texts, rules.options, Some(&known)));
    let (count, problems) = match &set {
        Ok(set) => (set.len(), &[][..]),
        Err(problems) => (0, problems.as_slice()),
    };
    let report = json!({
        "files": rules.files.len(),
        "rules": count,
        "problems": problems.iter().map(shown).collect::<Vec<_>>(),
    });
    output.print(&report.to_string(), |report| draw(report, output))?;
    match problems.len() {
        0 => Ok(()),
        count => {
            let problems = counted(count, "problem");
            Err(CommandError::failed(format!("{problems}: the rules are not taken")))
        }
    }
}

fn shown(problem: &RuleProblem) -> Value {
    json!({
        "file": &*problem.file, "line": problem.line, "column": problem.column,
        "problem": problem.text, "text": problem.to_string(),
    })
}

fn draw(report: &Value, output: &Output) -> String {
    let mut drawn = String::new();
    let problems = list(report, "/problems");
    for problem in problems {
        // A problem of the rules quotes them, over several lines.
        let told = Paragraph::new(output.view.width).behind(2).text(&text(problem, "/text"));
        let _ = writeln!(drawn, "{told}");
    }
    if problems.is_empty() {
        let rules = counted(text(report, "/rules"), "rule");
        let _ = writeln!(drawn, "ok: {rules} in {}", counted(text(report, "/files"), "file"));
    }
    drawn
}
