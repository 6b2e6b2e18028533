//! `mcpproxy activity watch`: a line for each record as it is stored, until Ctrl-C.

use futures_util::TryStreamExt;

use super::{COLUMNS, Intents, row};
use crate::cli::args::Format;
use crate::cli::backend::{Backend, Chunks};
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::{self, Output};
use crate::server;
use crate::wire::sse::{Decoder, Item};

/// Where the events are.
const EVENTS: &str = "/events";

/// The widths of [`COLUMNS`]; what is longer pushes the rest on.
const WIDTHS: [usize; 8] = [26, 14, 18, 14, 22, 11, 8, 8];

/// Shows records until the user, the reader of stdout or the proxy ends it.
pub(super) async fn run(
    backend: &Backend,
    output: &Output,
    intents: Intents,
) -> Result<(), Failure> {
    let watching = async {
        let chunks = backend.stream(EVENTS).await?;
        if output.format == Format::Table && !output::write_on(line(&COLUMNS).as_bytes())? {
            return Ok(());
        }
        follow(chunks, output, intents).await
    };
    tokio::select! {
        ended = server::ended_by_signal() => ended.map_err(Failure::failed),
        watched = watching => watched,
    }
}

async fn follow(mut chunks: Chunks, output: &Output, intents: Intents) -> Result<(), Failure> {
    let (mut decoder, mut data) = (Decoder::new(), Vec::new());
    while let Some(chunk) = chunks.try_next().await? {
        decoder.push(chunk);
        while let Some(item) = decoder.next_item().map_err(Failure::failed)? {
            match item {
                Item::Data(bytes) => data.extend_from_slice(&bytes),
                Item::End => {
                    let shown = show(&std::mem::take(&mut data), output, intents)?;
                    if !output::write_on(shown.as_bytes())? {
                        return Ok(());
                    }
                }
            }
        }
    }
    Err(Failure::new(Exit::Unreachable, "the proxy has ended: nothing more to watch"))
}

fn show(data: &[u8], output: &Output, intents: Intents) -> Result<String, Failure> {
    let json = std::str::from_utf8(data).map_err(Failure::failed)?;
    Ok(match output.format {
        Format::Json => json.to_owned(),
        Format::Yaml => {
            let yaml = serde_yaml_ng::to_string(&output::parse(json)?).map_err(Failure::failed)?;
            format!("---\n{yaml}")
        }
        Format::Table => line(&row(&output::parse(json)?, intents)),
    })
}

fn line<T: AsRef<str>>(cells: &[T]) -> String {
    let cells = cells.iter().map(AsRef::as_ref).zip(WIDTHS);
    let cells: Vec<String> = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
    cells.join("  ").trim_end().to_owned()
}
