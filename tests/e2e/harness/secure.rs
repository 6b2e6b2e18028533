//! TLS connections controlled by a test: the handshake in steps, and raw frames of HTTP/2 (RFC 9113).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};

use super::{CertificateAuthority, PATIENCE, Pair};

pub(crate) type Secure = StreamOwned<ClientConnection, TcpStream>;

/// Opens a connection without beginning its handshake. If `protocols` is empty, the client offers no protocol.
pub(crate) fn begin(
    port: u16,
    ca: &CertificateAuthority,
    client: Option<&Pair>,
    protocols: &[&[u8]],
) -> Secure {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let (chain, key) = read(pair);
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let name = "localhost".try_into().unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(session, stream)
}

/// A TLS connection after its handshake.
pub(crate) fn secure(
    port: u16,
    ca: &CertificateAuthority,
    client: Option<&Pair>,
    protocols: &[&[u8]],
) -> Secure {
    let mut secure = begin(port, ca, client, protocols);
    while secure.conn.is_handshaking() {
        secure.conn.complete_io(&mut secure.sock).unwrap();
    }
    secure
}

/// TLS settings of a server with this certificate.
pub(crate) fn server_config(pair: &Pair) -> Arc<ServerConfig> {
    let (chain, key) = read(pair);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap())
}

/// Certificate and key of a pair in the types of rustls.
pub(crate) fn read(pair: &Pair) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let cert = CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap();
    (vec![cert], PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap())
}

/// The kinds of frames that tests send and wait for.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Bytes of an HTTP/2 frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A literal header field (RFC 7541 §6.2.2), without use of the table and without compression.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    [vec![0], text(name), text(value)].concat()
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Integer of RFC 7541 §5.1 with a prefix of 7 bits.
    match text.len() {
        short @ ..127 => bytes.push(short as u8),
        long => {
            bytes.push(127);
            let mut rest = long - 127;
            while rest >= 128 {
                bytes.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            bytes.push(rest as u8);
        }
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Pseudo-header fields of a request.
pub(crate) fn request(method: &str, path: &str) -> Vec<u8> {
    let fields = [(":method", method), (":scheme", "https"), (":path", path)];
    fields.iter().flat_map(|(name, value)| field(name, value)).collect()
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Error code of an RST_STREAM or GOAWAY frame.
    pub(crate) fn code(&self) -> u32 {
        let code = self.payload.last_chunk::<4>().unwrap();
        match self.kind {
            kind::GOAWAY => u32::from_be_bytes(self.payload[4..8].try_into().unwrap()),
            _ => u32::from_be_bytes(*code),
        }
    }

    /// Whether this is the head of a response with status 200 (index 8 in RFC 7541, appendix A).
    pub(crate) fn is_ok(&self) -> bool {
        self.kind == kind::HEADERS && self.payload.first() == Some(&0x88)
    }
}

/// A connection of HTTP/2.
pub(crate) struct Http2(pub(crate) Secure);

impl Http2 {
    /// Opens a connection with `settings` of the client.
    pub(crate) fn open(port: u16, ca: &CertificateAuthority, settings: &[(u16, u32)]) -> Self {
        Self::by(None, port, ca, settings)
    }

    /// Opens a connection of a client with a certificate.
    pub(crate) fn by(
        client: Option<&Pair>,
        port: u16,
        ca: &CertificateAuthority,
        settings: &[(u16, u32)],
    ) -> Self {
        let mut stream = secure(port, ca, client, &[b"h2"]);
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        stream.write_all(&[begin, frame(kind::SETTINGS, 0, 0, &payload)].concat()).unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// The next frame; `None` once the connection is over.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        let read = self.0.read_exact(&mut head);
        if let Err(error) = &read {
            assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "nothing came");
            return None;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Reads until a frame of `kind`, on `stream` if that is not 0.
    pub(crate) fn wait_for(&mut self, kind: u8, stream: u32) -> Frame {
        loop {
            let frame = self.next().expect("the connection is open");
            if frame.kind == kind && (stream == 0 || frame.stream == stream) {
                return frame;
            }
        }
    }

    /// Error code with which the peer closed the connection.
    pub(crate) fn ended(mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.next() {
            if frame.kind == kind::GOAWAY {
                code = Some(frame.code());
            }
        }
        code
    }
}
