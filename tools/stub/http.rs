//! The stub over streamable HTTP: one thread per connection, a minimal HTTP/1.1 for clients that send Content-Length,
//! and the ways to send an answer with faulty framing.
//!
//! POST answers a message, GET opens a stream for `list_changed`, DELETE ends a session.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::behavior::Behavior;
use crate::{Framing, Message, Pace, Reply, Stub, stdio};

const MAX_BODY: usize = 256 << 20;
const JSON: &str = "application/json";
const SSE: &str = "text/event-stream";
const FOREIGN: &[u8] = br#"{"jsonrpc":"2.0","id":987654321,"result":{"content":[{"type":"text","text":"nobody asked for this"}]}}"#;
const SURPLUS: &[u8] = b"this is beyond Content-Length...";
const ODD_PACE: Pace = Pace { wait: Duration::ZERO, chunk: 7, pause: Duration::ZERO };

/// Clients with an open GET stream.
type Listeners = Arc<Mutex<Vec<TcpStream>>>;

/// Whether the connection can carry another request.
#[derive(PartialEq, Eq)]
enum After {
    KeepAlive,
    Close,
}

/// The parts of a request's head that the stub uses.
#[derive(Default)]
struct Head {
    method: String,
    path: String,
    session: Option<String>,
    length: usize,
}

/// Prints the port and serves until the process is ended.
pub(crate) fn run(stub: Stub) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, stub.options.port))?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    let stub = Arc::new(stub);
    let listeners = Listeners::default();
    for stream in listener.incoming() {
        let (stub, listeners) = (Arc::clone(&stub), Arc::clone(&listeners));
        // Errors of a connection are ignored here: its client notices them.
        thread::spawn(move || stream.and_then(|stream| serve(&stub, &listeners, stream)));
    }
    Ok(())
}

fn serve(stub: &Stub, listeners: &Listeners, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut body = Vec::new();
    while let Some(head) = read_head(&mut reader)? {
        body.clear();
        body.resize(head.length.min(MAX_BODY), 0);
        reader.read_exact(&mut body)?;
        let after = match head.method.as_str() {
            "POST" => post(stub, listeners, &head, &body, &mut stream)?,
            "GET" => {
                stream.write_all(head_of(SSE, "Transfer-Encoding: chunked\r\n").as_bytes())?;
                if let Ok(mut open) = listeners.lock() {
                    open.push(stream.try_clone()?);
                }
                // Kept open until the client disconnects.
                io::copy(&mut reader, &mut io::sink())?;
                After::Close
            }
            "DELETE" => {
                if let (Some(id), Ok(mut sessions)) = (&head.session, stub.sessions.lock()) {
                    sessions.remove(id);
                }
                status(&mut stream, "200 OK", "")?
            }
            _ => status(&mut stream, "405 Method Not Allowed", "")?,
        };
        if after == After::Close {
            break;
        }
    }
    Ok(())
}

fn read_head(reader: &mut impl BufRead) -> io::Result<Option<Head>> {
    let mut head = Head::default();
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    head.method = words.next().unwrap_or_default();
    head.path = words.next().unwrap_or_default();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { return Ok(Some(head)) };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            head.length = value.parse().unwrap_or(0);
        } else if name.eq_ignore_ascii_case("mcp-session-id") {
            head.session = Some(value.to_owned());
        }
    }
}

fn post(
    stub: &Stub,
    listeners: &Listeners,
    head: &Head,
    body: &[u8],
    stream: &mut TcpStream,
) -> io::Result<After> {
    let Ok(message) = serde_json::from_slice::<Message<'_>>(body) else {
        return status(stream, "400 Bad Request", "not a JSON-RPC message");
    };
    let mut extra = String::new();
    if stub.options.sessions && !(stub.options.both && message.is_modern()) {
        if message.method.as_deref() == Some("initialize") {
            let id = new_session();
            extra = format!("Mcp-Session-Id: {id}\r\n");
            if let Ok(mut sessions) = stub.sessions.lock() {
                sessions.insert(id);
            }
        } else {
            match (&head.session, stub.sessions.lock()) {
                (None, _) => return status(stream, "400 Bad Request", "Mcp-Session-Id is missing"),
                (Some(id), Ok(sessions)) if !sessions.contains(id) => {
                    return status(stream, "404 Not Found", "no such session");
                }
                _ => {}
            }
        }
    }
    let Some(reply) = stub.reply(&head.path, &message, body) else {
        return status(stream, "202 Accepted", "");
    };
    thread::sleep(reply.pace.wait);
    let after = answer(stub, &reply, &extra, stream)?;
    if !reply.after.is_empty() {
        announce(listeners, &reply.after);
    }
    Ok(after)
}

fn new_session() -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_nanos());
    format!("stub-{}-{nanos:x}-{}", process::id(), MADE.fetch_add(1, Ordering::Relaxed))
}

fn answer(stub: &Stub, reply: &Reply, extra: &str, stream: &mut TcpStream) -> io::Result<After> {
    let body = reply.answer.as_slice();
    let length = |body: &[u8]| format!("{extra}Content-Length: {}\r\n", body.len());
    match reply.behavior {
        Behavior::Crash => process::exit(101),
        Behavior::Drop => return Ok(After::Close),
        Behavior::DropOnce if stub.dropped.fetch_add(1, Ordering::Relaxed) == 0 => {
            return Ok(After::Close);
        }
        Behavior::Never => {
            io::copy(stream, &mut io::sink())?;
            stub.counts.abandoned.fetch_add(1, Ordering::Relaxed);
            return Ok(After::Close);
        }
        Behavior::Status500 => {
            return status(stream, "500 Internal Server Error", "the stub is set to fail");
        }
        Behavior::Html => {
            let page = b"<!doctype html><title>Login</title><p>Please sign in.";
            return whole(stream, &head_of("text/html", &length(page)), page, Pace::default());
        }
        Behavior::Garbage => {
            let junk = b"<<< this is not JSON {]";
            return whole(stream, &head_of(JSON, &length(junk)), junk, Pace::default());
        }
        Behavior::Gzip => {
            let packed = gzip_stored(body);
            let headers = format!("{}Content-Encoding: gzip\r\n", length(&packed));
            return whole(stream, &head_of(JSON, &headers), &packed, reply.pace);
        }
        Behavior::BadChunk => {
            let head = head_of(JSON, &format!("{extra}Transfer-Encoding: chunked\r\n"));
            stream.write_all(&[head.as_bytes(), b"zz\r\n", body, b"\r\n0\r\n\r\n"].concat())?;
            return Ok(After::Close);
        }
        Behavior::LongBody => {
            let surplus = [body, SURPLUS].concat();
            whole(stream, &head_of(JSON, &length(body)), &surplus, reply.pace)?;
            return Ok(After::Close);
        }
        Behavior::ShortBody => {
            let short = body.split_at(body.len().saturating_sub(SURPLUS.len())).0;
            whole(stream, &head_of(JSON, &length(body)), short, reply.pace)?;
            return Ok(After::Close);
        }
        Behavior::Cut if stub.options.framing == Framing::Json => {
            let half = body.split_at(body.len() / 2).0;
            whole(stream, &head_of(JSON, &length(body)), half, reply.pace)?;
            return Ok(After::Close);
        }
        Behavior::ForeignId if stub.options.framing == Framing::Json => {
            return whole(stream, &head_of(JSON, &length(FOREIGN)), FOREIGN, reply.pace);
        }
        Behavior::FloodStderr => stdio::flood()?,
        Behavior::Normal
        | Behavior::Cut
        | Behavior::DropOnce
        | Behavior::ForeignId
        | Behavior::Slow
        | Behavior::CloseStdin
        | Behavior::OddFraming => {}
    }
    let odd = reply.behavior == Behavior::OddFraming;
    if stub.options.framing == Framing::Json && reply.before.is_empty() && !odd {
        return whole(stream, &head_of(JSON, &length(body)), body, reply.pace);
    }
    let mut events: Vec<&[u8]> = reply.before.iter().map(Vec::as_slice).collect();
    if reply.behavior == Behavior::ForeignId {
        events.push(FOREIGN);
    }
    stream.write_all(head_of(SSE, &format!("{extra}Transfer-Encoding: chunked\r\n")).as_bytes())?;
    for message in events {
        stream.write_all(&chunk(&event(message)))?;
    }
    let answered = reply.asks.map(|number| stub.questions.fill(number, body));
    let body = answered.as_deref().unwrap_or(body);
    let mut last = if odd { odd_event(body) } else { event(body) };
    if reply.behavior == Behavior::Cut {
        last.truncate(last.len() / 2);
    }
    let pace = if odd { ODD_PACE } else { reply.pace };
    let piece = if pace.chunk == 0 { last.len() } else { pace.chunk };
    for piece in last.chunks(piece) {
        stream.write_all(&chunk(piece))?;
        thread::sleep(pace.pause);
    }
    if reply.behavior == Behavior::Cut {
        return Ok(After::Close);
    }
    stream.write_all(b"0\r\n\r\n")?;
    Ok(After::KeepAlive)
}

fn head_of(content_type: &str, headers: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n{headers}\r\n")
}

fn whole(stream: &mut TcpStream, head: &str, body: &[u8], pace: Pace) -> io::Result<After> {
    if pace.chunk == 0 {
        stream.write_all(&[head.as_bytes(), body].concat())?;
    } else {
        stream.write_all(head.as_bytes())?;
        pace.write(stream, body)?;
    }
    Ok(After::KeepAlive)
}

fn status(stream: &mut TcpStream, status: &str, text: &str) -> io::Result<After> {
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{text}"
    );
    stream.write_all(head.as_bytes())?;
    Ok(After::KeepAlive)
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// One event; a line break inside the message starts another `data:` line.
fn event(message: &[u8]) -> Vec<u8> {
    let mut event = b"event: message\n".to_vec();
    for line in message.split(|byte| *byte == b'\n') {
        event.extend_from_slice(b"data: ");
        event.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
        event.push(b'\n');
    }
    event.push(b'\n');
    event
}

/// The same event in an unusual form that the SSE grammar allows: a comment before, an empty event, CRLF, no space
/// after the colon, `data:` lines broken between tokens.
fn odd_event(message: &[u8]) -> Vec<u8> {
    let mut odd = b": a comment\r\n\r\nid: 7\r\nretry: 100\r\nunknown: field\r\n".to_vec();
    let first_comma = message.iter().position(|byte| *byte == b',').map_or(0, |at| at + 1);
    let (head, tail) = message.split_at(first_comma);
    for line in [head, tail] {
        for part in line.split(|byte| *byte == b'\n') {
            odd.extend_from_slice(b"data:");
            odd.extend_from_slice(part.strip_suffix(b"\r").unwrap_or(part));
            odd.extend_from_slice(b"\r\n: another\r\n");
        }
    }
    odd.extend_from_slice(b"\r\n");
    odd
}

fn announce(listeners: &Listeners, messages: &[Vec<u8>]) {
    if let Ok(mut open) = listeners.lock() {
        // A listener that has disconnected is removed.
        open.retain_mut(|stream| {
            messages.iter().all(|message| stream.write_all(&chunk(&event(message))).is_ok())
        });
    }
}

/// A gzip member of stored blocks: valid gzip, although the data is not compressed.
fn gzip_stored(body: &[u8]) -> Vec<u8> {
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let blocks = body.chunks(0xffff);
    let last = blocks.len().saturating_sub(1);
    for (number, block) in blocks.enumerate() {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        packed.push(u8::from(number == last));
        packed.extend_from_slice(&length.to_le_bytes());
        packed.extend_from_slice(&(!length).to_le_bytes());
        packed.extend_from_slice(block);
    }
    packed.extend_from_slice(&crc32(body).to_le_bytes());
    packed.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    packed
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 }
        })
    })
}
