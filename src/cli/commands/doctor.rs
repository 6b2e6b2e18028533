//! `mcpproxy doctor`: what is wrong, and the command that mends it.
//!
//! It looks, and changes nothing: `--fix` mends rights alone. Servers of a proxy that runs are asked
//! about; with none running each is started, listed and ended again.

mod certificates;
mod checks;
mod finding;
mod log;
mod port;

use std::fmt::Write as _;
use std::time::SystemTime;

use serde_json::{Value, json};

use self::finding::{Diagnosis, DiagnosisKind};
use crate::cli::args::Global;
use crate::cli::backend::Backend;
use crate::cli::colours::of_state;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::load_config;
use crate::cli::logging;
use crate::cli::output::Output;
use crate::cli::paragraph::Paragraph;
use crate::cli::running_proxy;
use crate::cli::table::TableView;
use crate::cli::terminal_safe::line;
use crate::config::Config;
use crate::server;

/// Columns of how something is, and of what was looked at.
const OUTCOME: usize = 8;
const CHECK: usize = 8;

/// Looks at everything; exit code 1 if something is wrong.
pub(super) fn run(fix: bool, global: &Global, output: &Output) -> Result<(), CommandError> {
    let _log = logging::start_quiet(global);
    let flags = load_config::flags(global, None);
    let mut found = Vec::new();
    let checked = Config::check(global.config.as_deref(), &load_config::variable, &flags);
    checks::config(&checked, &mut found);
    // What is missing on this machine keeps nobody from looking at the rest.
    let loaded = match checked {
        Ok(loaded) => Some(loaded),
        Err(_) => Config::load(global.config.as_deref(), &load_config::variable, &flags).ok(),
    };
    if let Some(loaded) = loaded {
        let of_tls = certificates::look(&loaded.config, SystemTime::now());
        // What keeps a certificate from being used is told once, with what mends it.
        found.retain(|it| !of_tls.iter().any(|of_tls| it.text.ends_with(&of_tls.text)));
        found.extend(of_tls);
        checks::rights(&loaded, fix, &mut found);
        found.push(checks::clock(&loaded, SystemTime::now()));
        found.push(checks::disk(&loaded));
        let runtime = server::local_runtime().map_err(CommandError::failed)?;
        let running = runtime.block_on(running_proxy::find(&loaded.config));
        let running = match running {
            Some(client) if runtime.block_on(client.is_mcpproxy()) => Some(Backend::Remote(client)),
            Some(_) | None => None,
        };
        let mute = running_proxy::announced_process(&loaded.config);
        found.push(port::look(&loaded.config.listen, running.is_some(), mute));
        found.extend(running.as_ref().map(|running| checks::running(running, &runtime)));
        found.push(log::look(&loaded, running.as_ref(), &runtime));
        checks::search(&loaded, running.as_ref(), &runtime, &mut found);
        checks::servers(loaded, running.as_ref(), &runtime, &mut found)?;
    }
    let wrong = found.iter().filter(|it| it.outcome == DiagnosisKind::Wrong).count();
    let findings: Vec<Value> = found.iter().map(Diagnosis::json).collect();
    let answer = json!({"ok": wrong == 0, "wrong": wrong, "findings": findings});
    output.print(&answer.to_string(), |answer| draw(answer, output.view))?;
    match wrong {
        0 => Ok(()),
        1 => Err(CommandError::failed("1 thing is wrong")),
        many => Err(CommandError::failed(format!("{many} things are wrong"))),
    }
}

fn draw(answer: &Value, TableView { width, colours }: TableView) -> String {
    let mut shown = String::new();
    let [told_at, mend_at] = [OUTCOME + 1 + CHECK + 1, OUTCOME + 1 + CHECK + 3];
    let [told_at, mend_at] = [told_at, mend_at].map(|at| Paragraph::new(width).behind(at));
    for finding in list(answer, "/findings") {
        let [outcome, check, told, mend] =
            ["/outcome", "/check", "/text", "/mend"].map(|at| text(finding, at));
        let outcome = colours.paint(&format!("{outcome:<OUTCOME$}"), of_state(&outcome));
        let told = told_at.text(&line(&told));
        let _ = writeln!(shown, "{outcome} {check:<CHECK$} {told}");
        if !mend.is_empty() {
            let mend = mend_at.text(&line(&mend));
            let _ = writeln!(shown, "{:told$} → {mend}", "", told = OUTCOME + CHECK + 1);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::colours::Colours;
    use crate::cli::output::tests::fits;

    #[test]
    fn findings_fit_the_terminal_and_begin_no_line_of_their_own() {
        let path = format!("/{}/mcp_config.json", "a-folder/".repeat(20));
        let answer = json!({"findings": [
            {"outcome": "wrong", "check": "config", "text": format!("{path}: no\nok  config"),
                "mend": format!("$EDITOR {path}")},
            {"outcome": "ok", "check": "log", "text": "words of a finding ".repeat(10), "mend": ""},
        ]});
        let keeps = ["wrong    config   /a-folder", " → $EDITOR", "ok       log      words"];
        fits(|output| draw(&answer, output.view), &keeps);
        let whole = draw(&answer, TableView { width: None, colours: Colours::Plain });
        assert_eq!(whole.lines().count(), 3, "{whole}");
    }
}
