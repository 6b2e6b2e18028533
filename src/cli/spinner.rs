//! What a person sees while a command waits: a line on stderr that moves, at a terminal alone.

use std::io::IsTerminal as _;
use std::pin::pin;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::terminal_safe::line;

/// What is done sooner is done without it.
const AFTER: Duration = Duration::from_millis(250);
/// How often it moves.
const STEP: Duration = Duration::from_millis(100);

/// Waits for `work`, and says meanwhile what `words` says.
pub(super) async fn during<T>(words: impl Fn() -> String, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = tokio::time::sleep(AFTER) => {}
    }
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    loop {
        bar.set_message(line(&words()).into_owned());
        bar.tick();
        tokio::select! {
            biased;
            done = &mut work => {
                bar.finish_and_clear();
                return done;
            }
            () = tokio::time::sleep(STEP) => {}
        }
    }
}
