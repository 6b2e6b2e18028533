//! `mcpproxy activity watch`: a line for each record as it is stored, until Ctrl-C.
//!
//! A stream that ends is taken up again after the last record that came, so that none is left out.

use futures_util::TryStreamExt;

use super::retry::Retries;
use super::row::RowStyle;
use crate::cli::args::Format;
use crate::cli::backend::{Backend, Chunks, target};
use crate::cli::error::CommandError;
use crate::cli::exit_code::Exit;
use crate::cli::logging;
use crate::cli::output::{self, Output};
use crate::cli::table::TableLayout;
use crate::cli::terminal_safe::line;
use crate::cli::times::TimeStyle;
use crate::server;
use crate::wire::sse::{Decoder, Item};

/// Where the events are.
const EVENTS: &str = "/events";

/// The widths of the columns of [`RowStyle::columns`]; what is longer pushes the rest on. An id has another
/// width for people than for programs.
const WIDTHS: [usize; 9] = [7, 14, 18, 14, 22, 11, 8, 8, 160];
const ID_WIDTH: usize = 26;

/// How records are shown.
struct Lines<'a> {
    output: &'a Output,
    style: RowStyle,
    layout: TableLayout,
}

/// Why no more comes of a stream.
enum End {
    /// Whoever reads our output has gone.
    Unread,
    /// It has ended, or broke off.
    Over,
}

/// Shows records until the user, the reader of stdout or the proxy ends it.
pub(super) async fn run(
    backend: &Backend,
    output: &Output,
    (no_icons, time): (bool, Option<TimeStyle>),
    node: Option<&str>,
) -> Result<(), CommandError> {
    // Every record is of this moment: how long ago is no news.
    let time = time.or_else(|| output.terminal.then_some(TimeStyle::Local));
    let style = RowStyle::of(output, no_icons, time);
    let mut widths = WIDTHS;
    if let ([id, ..], None) = (&mut widths, output.view.width) {
        *id = ID_WIDTH;
    }
    let layout = TableLayout::new(&style.columns(), &widths, &[true; WIDTHS.len()], output.view);
    let lines = Lines { output, style, layout };
    let events = events(node);
    let watching = async {
        let mut chunks = backend.stream(&events, None).await?;
        if output.format == Format::Table && !output::write_on(lines.layout.header().as_bytes())? {
            return Ok(());
        }
        let (mut tries, mut last) = (Retries::default(), String::new());
        loop {
            match follow(chunks, &lines, &mut last, &mut tries).await? {
                End::Unread => return Ok(()),
                End::Over => {}
            }
            chunks = resume(backend, &events, &last, &mut tries).await?;
        }
    };
    tokio::select! {
        ended = server::ended_by_signal() => ended.map_err(CommandError::failed),
        watched = watching => watched,
    }
}

/// Where the events of all nodes are, or of one.
fn events(node: Option<&str>) -> String {
    target(&[], &[("node", node)]).replacen("/api/v1", EVENTS, 1)
}

/// Takes the stream up again after the record `last`.
async fn resume(
    backend: &Backend,
    events: &str,
    last: &str,
    tries: &mut Retries,
) -> Result<Chunks, CommandError> {
    let mut why = CommandError::failed("the stream of events ends again and again");
    loop {
        tries.next(why).await?;
        let after = Some(last).filter(|last| !last.is_empty());
        match backend.stream(events, after).await {
            Ok(chunks) => return Ok(chunks),
            Err(failure) if failure.exit == Exit::Unreachable => {
                let text = "the proxy has ended: nothing more to watch";
                return Err(CommandError::new(Exit::Unreachable, text));
            }
            Err(failure) => why = failure,
        }
    }
}

async fn follow(
    mut chunks: Chunks,
    lines: &Lines<'_>,
    last: &mut String,
    tries: &mut Retries,
) -> Result<End, CommandError> {
    let (mut decoder, mut data) = (Decoder::new(), Vec::new());
    let mut greeted = false;
    // A stream that breaks off is taken up again as one that ends.
    while let Ok(Some(chunk)) = chunks.try_next().await {
        if std::mem::replace(&mut greeted, true) {
            tries.came();
        }
        decoder.push(chunk);
        while let Some(item) = decoder.next_item().map_err(CommandError::failed)? {
            match item {
                Item::Data(bytes) => data.extend_from_slice(&bytes),
                Item::End => {
                    let data = std::mem::take(&mut data);
                    match decoder.event() {
                        b"activity" => {
                            let shown = show(&data, lines)?;
                            if !output::write_on(shown.as_bytes())? {
                                return Ok(End::Unread);
                            }
                        }
                        // What it has to say comes from the proxy's own words.
                        other => logging::say(format_args!(
                            "{}: {}",
                            line(&String::from_utf8_lossy(other)),
                            line(&String::from_utf8_lossy(&data))
                        )),
                    }
                }
            }
        }
        if !decoder.last_id().is_empty() {
            *last = String::from_utf8_lossy(decoder.last_id()).into_owned();
        }
    }
    Ok(End::Over)
}

fn show(data: &[u8], lines: &Lines<'_>) -> Result<String, CommandError> {
    let json = std::str::from_utf8(data).map_err(CommandError::failed)?;
    Ok(match lines.output.format {
        Format::Json => json.to_owned(),
        Format::Yaml => {
            let yaml =
                serde_yaml_ng::to_string(&output::parse(json)?).map_err(CommandError::failed)?;
            format!("---\n{yaml}")
        }
        Format::Table => lines.layout.line(&lines.style.row(&output::parse(json)?, &[])),
    })
}
