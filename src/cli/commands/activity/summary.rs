//! `mcpproxy activity summary`, for people.

use std::fmt::Write as _;

use serde_json::Value;

use super::list::lacking;
use super::row::duration;
use crate::cli::json_pointer::{list, text};
use crate::cli::paragraph::Paragraph;
use crate::cli::terminal_safe::line;
use crate::cli::times::{TimeStyle, Times};

/// Columns before what is counted.
const LABEL: usize = 13;

/// One line for each thing that was counted.
pub(super) fn draw(summary: &Value, width: Option<usize>) -> String {
    let mut shown = String::new();
    let times = Times::new(Some(TimeStyle::Utc), false);
    let beside = Paragraph::new(width).behind(LABEL);
    let mut row = |label: &str, text: &str| {
        let _ = writeln!(shown, "{}", beside.labelled(label, text));
    };
    let [start, end] = ["/start_time", "/end_time"].map(|at| times.show_text(&text(summary, at)));
    let (total, period) = (text(summary, "/total_count"), text(summary, "/period"));
    row("calls", &format!("{total} in {period} ({start} to {end} UTC)"));
    for status in ["success", "error", "rejected", "blocked", "unknown"] {
        row(status, &text(summary, &format!("/{status}_count")));
    }
    row("warnings", &text(summary, "/warning_count"));
    let intents = ["read", "write", "destructive"]
        .map(|intent| format!("{intent} {}", text(summary, &format!("/by_intent/{intent}"))));
    row("intent", &intents.join(", "));
    let latency = ["p50", "p95", "p99"].map(|name| {
        let ms = summary.pointer(&format!("/latency_ms/{name}")).and_then(Value::as_f64);
        // Of no call there is none.
        let took = ms.filter(|ms| *ms > 0.0).map_or_else(|| "-".to_owned(), duration);
        format!("{name} {took}")
    });
    row("latency", &latency.join(", "));
    for (label, at) in [("top servers", "/top_servers"), ("top tools", "/top_tools")] {
        let named = |it: &Value| format!("{} {}", line(&text(it, "/name")), text(it, "/count"));
        let top: Vec<String> = list(summary, at).iter().map(named).collect();
        if !top.is_empty() {
            row(label, &top.join(", "));
        }
    }
    shown.push_str(&lacking(summary));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn act_7_a_summary_shows_all_counts() {
        let shown = draw(
            &serde_json::json!({
                "period": "1h", "total_count": 21, "success_count": 11, "error_count": 1,
                "blocked_count": 2, "warning_count": 3, "rejected_count": 7, "unknown_count": 0,
                "by_intent": {"read": 12, "write": 8, "destructive": 1},
                "top_servers": [{"name": "git\u{1b}hub", "count": 21}],
                "top_tools": [], "latency_ms": {"p50": 0.5, "p95": 12.0, "p99": 1500.0},
                "start_time": "2026-01-02T03:00:00.000Z", "end_time": "2026-01-02T04:00:00.000Z",
            }),
            None,
        );
        assert_eq!(
            shown,
            "calls        21 in 1h (01-02 03:00:00 to 01-02 04:00:00 UTC)\n\
             success      11\nerror        1\nrejected     7\nblocked      2\nunknown      0\nwarnings     3\n\
             intent       read 12, write 8, destructive 1\n\
             latency      p50 0.5ms, p95 12ms, p99 1.5s\n\
             top servers  git\\u{1b}hub 21\n"
        );
    }

    #[test]
    fn a_name_forges_no_line_and_no_line_is_wider_than_the_terminal() {
        let named = |name: String| serde_json::json!({"name": name, "count": 2});
        let tools: Vec<_> =
            (0..5).map(|at| named(format!("x{at}\nerror        {}", "0".repeat(40)))).collect();
        let summary = serde_json::json!({"top_servers": [], "top_tools": tools});
        for width in [None, Some(40), Some(80)] {
            let shown = draw(&summary, width);
            assert_eq!(shown.lines().filter(|it| it.starts_with("error")).count(), 1, "{shown}");
            assert!(shown.contains("x0\\u{a}error"), "{shown}");
            let fits = |line: &str| width.is_none_or(|width| line.len() <= width);
            assert!(shown.lines().all(fits), "{width:?}: {shown}");
        }
    }
}
