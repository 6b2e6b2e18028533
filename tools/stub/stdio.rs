//! The stub over stdio: one message per line. Answers are written in the order in which they are made. Slow answers are
//! written by a separate thread, so that others can overtake them.

use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{self, Command, Stdio};
use std::sync::atomic::Ordering;
use std::{env, thread};

use crate::behavior::{Behavior, DEAF};
use crate::tools::{LIST_CHANGED, OFFERS_CHANGED};
use crate::{Message, Pace, Reply, Stub};

const FLOOD_LINES: usize = 8 * 1024;
const STORM_LINES: usize = 20;
const STORM_PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
const GARBAGE: &[u8] = b"<<< this is not JSON {]\n";
const FOREIGN: &[u8] = br#"{"jsonrpc":"2.0","id":987654321,"result":{"content":[{"type":"text","text":"nobody asked for this"}]}}"#;
const ODD_PACE: Pace =
    Pace { wait: std::time::Duration::ZERO, chunk: 7, pause: std::time::Duration::ZERO };

/// Serves stdin until it ends.
pub(crate) fn run(stub: &Stub) -> io::Result<()> {
    let server = format!("/{}", process::id());
    thread::scope(|scope| {
        if stub.options.restless {
            scope.spawn(|| storm(stub.options.offers));
        }
        let mut lines = io::stdin().lock();
        let mut line = Vec::new();
        loop {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                // Threads may still be writing answers, but their client has left.
                process::exit(0);
            }
            let Ok(message) = serde_json::from_slice::<Message<'_>>(&line) else { continue };
            let Some(reply) = stub.reply(&server, &message, &line) else { continue };
            if reply.pace.is_leisurely() || reply.asks.is_some() {
                scope.spawn(move || write(stub, reply));
            } else {
                write(stub, reply)?;
            }
        }
    })
}

/// Reports several thousand times per second that the tools, and with `offers` also the other lists, have changed.
fn storm(offers: bool) -> io::Result<()> {
    let others = if offers { &OFFERS_CHANGED[..] } else { &[] };
    loop {
        let mut out = io::stdout().lock();
        for _ in 0..STORM_LINES {
            for list in [LIST_CHANGED].iter().chain(others) {
                line(&mut out, list.as_bytes(), Pace::default())?;
            }
        }
        drop(out);
        thread::sleep(STORM_PAUSE);
    }
}

fn write(stub: &Stub, mut reply: Reply) -> io::Result<()> {
    thread::sleep(reply.pace.wait);
    let mut out = io::stdout().lock();
    for message in &reply.before {
        line(&mut out, message, Pace::default())?;
    }
    if let Some(number) = reply.asks {
        drop(out);
        reply.answer = stub.questions.fill(number, &reply.answer);
        out = io::stdout().lock();
    }
    match reply.behavior {
        Behavior::Never => {
            stub.counts.abandoned.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        Behavior::Crash | Behavior::Drop => process::exit(101),
        Behavior::Cut => {
            let half = reply.answer.split_at(reply.answer.len() / 2).0;
            out.write_all(half)?;
            out.flush()?;
            process::exit(101);
        }
        Behavior::CloseStdin => {
            // `exec` continues the same process without stdin; it returns only if it fails.
            return Err(Command::new(env::current_exe()?).arg(DEAF).stdin(Stdio::null()).exec());
        }
        Behavior::FloodStderr => flood()?,
        Behavior::Garbage => out.write_all(GARBAGE)?,
        Behavior::ForeignId => line(&mut out, FOREIGN, Pace::default())?,
        Behavior::OddFraming => {
            out.write_all(b"\n\r\n")?;
            let mut odd = on_one_line(&reply.answer);
            odd.extend_from_slice(b"\r\n\n");
            ODD_PACE.write(&mut out, &odd)?;
            return out.flush();
        }
        Behavior::Normal
        | Behavior::DropOnce
        | Behavior::Slow
        | Behavior::Status500
        | Behavior::Html
        | Behavior::Gzip
        | Behavior::BadChunk
        | Behavior::LongBody
        | Behavior::ShortBody => {}
    }
    line(&mut out, &reply.answer, reply.pace)?;
    for message in &reply.after {
        line(&mut out, message, Pace::default())?;
    }
    Ok(())
}

/// Writes 8 MiB of log lines, as a server with verbose logging does.
pub(crate) fn flood() -> io::Result<()> {
    let mut err = io::stderr().lock();
    let text = [b'!'; 1023];
    for _ in 0..FLOOD_LINES {
        err.write_all(&text)?;
        err.write_all(b"\n")?;
    }
    Ok(())
}

fn line(out: &mut impl Write, message: &[u8], pace: Pace) -> io::Result<()> {
    let mut message = on_one_line(message);
    message.push(b'\n');
    pace.write(out, &message)?;
    out.flush()
}

/// Line breaks between tokens become spaces: a message is one line.
fn on_one_line(message: &[u8]) -> Vec<u8> {
    message.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }).collect()
}
