//! A proxy process under test: its address and plain HTTP requests to it.

use std::io::{BufRead, BufReader, Error, Read, Write};
use std::net::TcpStream;
use std::process::ChildStdout;
use std::time::Duration;

use serde_json::Value;

/// API key of the proxies under test.
pub(crate) const KEY: &str = "a-key-of-the-tests-of-more-than-32-characters";
/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Reads the address that `serve` prints; `None` if it ends without serving.
pub(crate) fn address(stdout: ChildStdout) -> Option<String> {
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let address = line.strip_prefix("MCP at http://")?.trim_end().strip_suffix("/mcp")?;
    Some(address.to_owned())
}

/// Sends a request, whose `head` has the request line and further headers. Returns the status and the JSON body.
pub(crate) fn request(address: &str, head: &str, body: &str) -> Result<(u16, Value), Error> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let length = body.len();
    write!(
        stream,
        "{head}Host: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let bad = || Error::other(format!("no HTTP response: {response}"));
    let (head, body) = response.split_once("\r\n\r\n").ok_or_else(bad)?;
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).ok_or_else(bad)?;
    Ok((status, serde_json::from_str(body)?))
}

/// Sends a GET request with the API key.
pub(crate) fn get(address: &str, path: &str) -> Result<(u16, Value), Error> {
    request(address, &format!("GET {path} HTTP/1.1\r\nX-API-Key: {KEY}\r\n"), "")
}
