//! Where somebody listens: an address and port, or the file of a Unix socket.
//!
//! Owns the form `unix:/path` and its bounds. Nothing is opened here.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::io::tls::Fingerprint;

/// What the name of a Unix socket begins with.
pub const UNIX: &str = "unix:";
/// Most bytes of a socket's path: what `sockaddr_un` holds on every system that this runs on, with its end.
pub const MAX_UNIX_PATH_BYTES: usize = 103;

/// Where somebody listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and port.
    Tcp(SocketAddr),
    /// The file of a Unix socket; a whole path.
    Unix(Arc<Path>),
}

/// A listener as a client has reached it: both ends know the same of it (`api::proof`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Where the client came to.
    pub address: Address,
    /// The certificate that it was shown, over TLS.
    pub certificate: Option<Fingerprint>,
}

impl Reached {
    /// One without TLS.
    #[must_use]
    pub fn plainly(address: Address) -> Self {
        Self { address, certificate: None }
    }
}

/// Why a text names no socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUnixPath {
    /// It does not begin at the root, so that it would depend on where the program was started.
    #[error("the socket must be named by a whole path, like \"unix:/run/mcpproxy.sock\"")]
    NotWhole,
    /// The system takes no such path.
    #[error("the socket's path is longer than {MAX_UNIX_PATH_BYTES} bytes: choose a shorter one")]
    TooLong,
    /// It would end the path early.
    #[error("the socket's path holds a NUL character")]
    Nul,
}

impl Address {
    /// The socket at `path`, which is all that follows [`UNIX`].
    ///
    /// # Errors
    /// [`BadUnixPath`].
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

    /// Reads what `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix(UNIX) {
            Some(path) => Self::unix(Path::new(path)).ok(),
            None => text.parse().ok().map(Self::Tcp),
        }
    }

    /// True if nobody can come there from another machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// The address and port, where it is one.
    #[must_use]
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
    fn an_address_is_read_as_it_is_written() {
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
    fn a_path_that_the_system_would_cut_is_refused() {
        let path = |bytes: usize| format!("/{}", "a".repeat(bytes - 1));
        assert!(Address::unix(Path::new(&path(MAX_UNIX_PATH_BYTES))).is_ok());
        let longer = path(MAX_UNIX_PATH_BYTES + 1);
        assert_eq!(Address::unix(Path::new(&longer)), Err(BadUnixPath::TooLong));
        assert_eq!(Address::unix(Path::new("a")), Err(BadUnixPath::NotWhole));
        assert_eq!(Address::unix(Path::new("/a\0b")), Err(BadUnixPath::Nul));
    }
}
