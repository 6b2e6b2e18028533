//! `mcpproxy activity …`: what went through and what was decided, for people.

mod export;
mod export_lines;
mod filters;
mod fleet;
mod list;
mod progress;
mod proof;
mod reason;
mod record_id;
mod retry;
mod row;
mod show;
mod summary;
mod verify;
mod watch;

use crate::cli::args::{ActivityCommand, Global};
use crate::cli::backend::{self, Needs, target};
use crate::cli::error::CommandError;
use crate::cli::output::Output;

pub(super) use progress::records_bar_of;
pub(super) use row::{RowStyle, folded};
pub(super) use verify::unsound;

/// Runs one of the commands.
pub(super) fn run(
    command: &ActivityCommand,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let ask = Needs::Activity;
    match command {
        ActivityCommand::List(flags) => {
            backend::with(global, ask, async |backend| list::run(flags, backend, output).await)
        }
        ActivityCommand::Show { id, time } => {
            backend::with(global, ask, async |backend| show::run(id, *time, backend, output).await)
        }
        ActivityCommand::Summary { period } => backend::with(global, ask, async |backend| {
            let query = [("period", Some(period.as_str()))];
            let summary = backend.get(&target(&["activity", "summary"], &query)).await?;
            output.print(summary.json()?, |it| summary::draw(it, output.view.width))
        }),
        ActivityCommand::Export(flags) => {
            backend::with(global, ask, async |backend| export::run(flags, backend, output).await)
        }
        ActivityCommand::Watch { no_icons, time, node } => {
            backend::with(global, Needs::Running, async |backend| {
                watch::run(backend, output, (*no_icons, *time), node.as_deref()).await
            })
        }
        ActivityCommand::Verify(flags) => match (&flags.proof, &flags.store) {
            (Some(file), _) => proof::check(file, flags, output),
            (None, Some(store)) => fleet::verify(store, flags, output),
            (None, None) if flags.keys.is_some() => {
                Err(CommandError::usage("--keys is for --store or a proof"))
            }
            (None, None) => verify::run(global, output),
        },
        ActivityCommand::Prove(flags) => proof::write(flags, global, output),
    }
}
