//! Where the browser comes back to: one page on 127.0.0.1, for as long as a login takes.
//!
//! Only who knows the login's `state` is listened to; everyone else is shown the door and the
//! login goes on, so that another page in the same browser can neither end it nor get into it.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use url::Url;

/// Most bytes of a request's head.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// A browser has this long to send it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections at a time: browsers open some that they do not use.
const MAX_CONNECTIONS: usize = 16;
const PATH: &str = "/callback";

/// How the browser came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    /// With a code for a token.
    Granted {
        code: String,
        /// Who says so (RFC 9207).
        issuer: Option<String>,
    },
    /// Without.
    Denied {
        /// The error and its description, as they came.
        why: String,
        /// Who says so.
        issuer: Option<String>,
    },
}

/// A listener for one login.
#[derive(Debug)]
pub(super) struct Callback {
    listener: TcpListener,
    /// Where the browser is to come back to.
    pub(super) redirect: String,
}

impl Callback {
    pub(super) async fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let redirect = format!("http://{}{PATH}", listener.local_addr()?);
        Ok(Self { listener, redirect })
    }

    /// Waits for the one who knows `state`.
    pub(super) async fn wait(&self, state: &str) -> io::Result<Returned> {
        let mut connections: JoinSet<Option<Returned>> = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                    let (stream, _) = accepted?;
                    let state = state.to_owned();
                    connections.spawn(async move {
                        let serving = serve(stream, &state);
                        tokio::time::timeout(HEAD_TIMEOUT, serving).await.ok().flatten()
                    });
                }
                Some(ended) = connections.join_next() => {
                    if let Ok(Some(returned)) = ended {
                        return Ok(returned);
                    }
                }
            }
        }
    }
}

/// Answers one request.
async fn serve(mut stream: TcpStream, state: &str) -> Option<Returned> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD_BYTES || stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let target = std::str::from_utf8(&head).ok()?.lines().next().and_then(|line| {
        line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()).map(str::to_owned)
    });
    let returned = target.and_then(|target| read(&target, state));
    let (status, words) = match &returned {
        Some(Returned::Granted { .. }) => ("200 OK", "Thank you. This page can be closed."),
        Some(Returned::Denied { .. }) => {
            ("200 OK", "Nothing was granted. This page can be closed.")
        }
        None => ("404 Not Found", "No login is waiting for this."),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n{words}",
        words.len()
    );
    // What was said counts, whether or not the browser hears the answer.
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
    returned
}

/// What a request's target says, if it is the one that is waited for.
fn read(target: &str, state: &str) -> Option<Returned> {
    let url = Url::parse("http://127.0.0.1").ok()?.join(target).ok()?;
    let one = |name: &str| {
        let mut values = url.query_pairs().filter(|(key, _)| key == name);
        let first = values.next().map(|(_, value)| value.into_owned());
        first.filter(|_| values.next().is_none())
    };
    let ours = url.path() == PATH && one("state").as_deref() == Some(state);
    if !ours {
        return None;
    }
    match (one("code"), one("error")) {
        (Some(code), None) => Some(Returned::Granted { code, issuer: one("iss") }),
        (_, Some(error)) => {
            let more = one("error_description").map(|more| format!(": {more}")).unwrap_or_default();
            Some(Returned::Denied { why: format!("{error}{more}"), issuer: one("iss") })
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_state_is_listened_to() {
        let granted = |issuer: Option<&str>| Returned::Granted {
            code: "c d".into(),
            issuer: issuer.map(str::to_owned),
        };
        for (target, expected) in [
            ("/callback?code=c%20d&state=s1", Some(granted(None))),
            ("/callback?state=s1&iss=https%3A%2F%2Fas&code=c+d", Some(granted(Some("https://as")))),
            ("/callback?code=c&state=s2", None),
            ("/callback?code=c&state=s1&state=s2", None),
            ("/callback?code=c", None),
            ("/callback?state=s1", None),
            ("/other?code=c&state=s1", None),
            (
                "/callback?error=access_denied&error_description=no&state=s1&iss=https://as",
                Some(Returned::Denied {
                    why: "access_denied: no".into(),
                    issuer: Some("https://as".into()),
                }),
            ),
            ("/callback?error=access_denied&state=s2", None),
        ] {
            assert_eq!(read(target, "s1"), expected, "{target}");
        }
    }

    #[tokio::test]
    async fn a_stranger_does_not_end_the_login() {
        let callback = Callback::bind().await.unwrap();
        let address = callback.listener.local_addr().unwrap();
        let ask = async |target: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let browser = async {
            let _unused = TcpStream::connect(address).await.unwrap();
            assert!(ask("/callback?code=evil&state=guess").await.starts_with("HTTP/1.1 404"));
            assert!(ask("/callback?code=good&state=s1").await.starts_with("HTTP/1.1 200"));
        };
        let (returned, ()) = tokio::join!(callback.wait("s1"), browser);
        assert_eq!(returned.unwrap(), Returned::Granted { code: "good".into(), issuer: None });
    }
}
