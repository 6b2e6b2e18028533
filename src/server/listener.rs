//! What is listened on: an address, or the file of a Unix socket with its rights and its end.
//!
//! Whoever comes over a Unix socket counts as one on this machine: [`Source::Loopback`], and nobody until it proves who
//! it is. That the file is for its owner alone is what keeps others out.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::Path;
use std::sync::Arc;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::downstream::source::Source;
use crate::io::address::Address;
use crate::os::private;

/// Rights of a socket's file.
const SOCKET_MODE: u32 = 0o600;

/// What is listened on.
#[derive(Debug)]
pub enum Listener {
    /// An address.
    Tcp(StdListener),
    /// A file.
    Unix(UnixDoor),
}

/// A Unix socket that is listened on; its file is removed with it.
#[derive(Debug)]
pub struct UnixDoor {
    listener: StdUnixListener,
    file: SocketFile,
}

/// The file of a socket of ours. Removed when dropped, unless another is in its place by then.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: Arc<Path>,
    /// Device and inode.
    identity: Option<(u64, u64)>,
}

impl Listener {
    /// Takes the address. The file of a socket that nobody listens on any more makes way.
    ///
    /// # Errors
    /// The system's; [`ErrorKind::AddrInUse`] where another listens.
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => StdListener::bind(address).map(Self::Tcp),
            Address::Unix(path) => UnixDoor::open(path).map(Self::Unix),
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(door) => Ok(Address::Unix(Arc::clone(&door.file.path))),
        }
    }

    /// The same for the runtime that this is called in, and the file to keep meanwhile.
    pub(super) fn open(self) -> io::Result<(OpenListener, Option<SocketFile>)> {
        match self {
            Self::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Ok((OpenListener::Tcp(TcpListener::from_std(listener)?), None))
            }
            Self::Unix(UnixDoor { listener, file }) => {
                listener.set_nonblocking(true)?;
                Ok((OpenListener::Unix(UnixListener::from_std(listener)?), Some(file)))
            }
        }
    }
}

impl From<StdListener> for Listener {
    fn from(listener: StdListener) -> Self {
        Self::Tcp(listener)
    }
}

impl UnixDoor {
    fn open(path: &Arc<Path>) -> io::Result<Self> {
        make_way(path)?;
        let listener = private::apart(|| StdUnixListener::bind(path))?;
        let file = SocketFile { path: Arc::clone(path), identity: identity(path) };
        fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
        Ok(Self { listener, file })
    }
}

/// Removes the socket that a process left behind which is gone.
fn make_way(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    // It must not wait for a process that does not accept.
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error),
        Ok(()) | Err(_) => Err(ErrorKind::AddrInUse.into()),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // What stays behind makes way at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A listener of a runtime.
#[derive(Debug)]
pub(super) enum OpenListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection as it came.
#[derive(Debug)]
pub(super) enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection on its way to another runtime.
#[derive(Debug)]
pub(super) enum ClientSocket {
    Tcp(StdStream),
    Unix(StdUnixStream),
}

impl OpenListener {
    pub(super) async fn accept(&self) -> io::Result<(Accepted, Source)> {
        match self {
            Self::Tcp(listener) => {
                let (socket, peer) = listener.accept().await?;
                Ok((Accepted::Tcp(socket), Source::of(peer.ip())))
            }
            Self::Unix(listener) => {
                let (socket, _) = listener.accept().await?;
                Ok((Accepted::Unix(socket), Source::Loopback))
            }
        }
    }
}

impl Accepted {
    pub(super) fn hand_over(self) -> io::Result<ClientSocket> {
        match self {
            Self::Tcp(socket) => {
                socket.set_nodelay(true)?;
                socket.into_std().map(ClientSocket::Tcp)
            }
            Self::Unix(socket) => socket.into_std().map(ClientSocket::Unix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(folder: &tempfile::TempDir) -> (Address, std::path::PathBuf) {
        let path = folder.path().join("a.sock");
        (Address::unix(&path).unwrap(), path)
    }

    #[test]
    fn a_socket_is_for_its_owner_and_goes_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let (address, path) = address(&folder);
        let listener = Listener::bind(&address).unwrap();
        assert_eq!(listener.address().unwrap(), address);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_process_left_makes_way_and_what_lives_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let (address, path) = address(&folder);
        drop(StdUnixListener::bind(&path).unwrap());
        assert!(path.exists(), "it was left behind");
        let living = Listener::bind(&address).unwrap();
        assert_eq!(Listener::bind(&address).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(path.exists() && std::os::unix::net::UnixStream::connect(&path).is_ok());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        drop(living);
        assert!(path.exists(), "another file stays");
        let refused = Listener::bind(&address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
