//! A listener's address: an IP address and port, or the path of a Unix socket.
//!
//! Owns the form `unix:/path` and its limits. Does not open anything.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::io::tls::Fingerprint;

/// The prefix of a Unix socket.
pub const UNIX: &str = "unix:";
/// Maximum length of a socket path in bytes: with its terminator, it fits into `sockaddr_un` of every supported system.
pub(crate) const MAX_UNIX_PATH_BYTES: usize = 103;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// The absolute path of a Unix socket.
    Unix(Arc<Path>),
}

/// Listener address and certificate as seen by a client: both ends see the same value (`api::proof`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The address that the client connected to.
    pub address: Address,
    /// The certificate presented to the client; `None` without TLS.
    pub certificate: Option<Fingerprint>,
}

impl Reached {
    pub fn plainly(address: Address) -> Self {
        Self { address, certificate: None }
    }
}

/// Reason why a path cannot name a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUnixPath {
    /// A relative path, which would depend on the working directory.
    #[error("the socket path must be absolute, like \"unix:/run/mcpproxy.sock\"")]
    NotWhole,
    /// The path is longer than the operating system accepts.
    #[error("the socket's path is longer than {MAX_UNIX_PATH_BYTES} bytes: choose a shorter one")]
    TooLong,
    /// A NUL would end the path early.
    #[error("the socket's path holds a NUL character")]
    Nul,
}

impl Address {
    /// The socket at `path`, the part after [`UNIX`].
    pub fn unix(path: &Path) -> Result<Self, BadUnixPath> {
        let bytes = path.as_os_str().as_bytes();
        if !path.is_absolute() || path.file_name().is_none() || bytes.ends_with(b"/") {
            return Err(BadUnixPath::NotWhole);
        }
        if bytes.len() > MAX_UNIX_PATH_BYTES {
            return Err(BadUnixPath::TooLong);
        }
        if bytes.contains(&0) {
            return Err(BadUnixPath::Nul);
        }
        Ok(Self::Unix(path.into()))
    }

    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix(UNIX) {
            Some(path) => Self::unix(Path::new(path)).ok(),
            None => text.parse().ok().map(Self::Tcp),
        }
    }

    /// Whether the address cannot be reached from another machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// The IP address and port; `None` for a Unix socket.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_address_round_trips() {
        for text in ["127.0.0.1:8080", "[::1]:1", "unix:/run/a.sock", "unix:/a:b"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "unix:", "unix:a.sock", "unix:/", "unix:/a/", "8080", "unix://"] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
        assert!(Address::parse("unix:/a").unwrap().is_local());
        assert!(!Address::parse("0.0.0.0:1").unwrap().is_local());
    }

    #[test]
    fn unix_path_too_long_for_the_system_is_rejected() {
        let path = |bytes: usize| format!("/{}", "a".repeat(bytes - 1));
        assert!(Address::unix(Path::new(&path(MAX_UNIX_PATH_BYTES))).is_ok());
        let longer = path(MAX_UNIX_PATH_BYTES + 1);
        assert_eq!(Address::unix(Path::new(&longer)), Err(BadUnixPath::TooLong));
        assert_eq!(Address::unix(Path::new("a")), Err(BadUnixPath::NotWhole));
        assert_eq!(Address::unix(Path::new("/a\0b")), Err(BadUnixPath::Nul));
    }
}
